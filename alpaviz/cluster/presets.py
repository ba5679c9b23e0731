"""Clusters by name, and a short way to describe one's own.

Figures are dense peaks and one-way bandwidths; each device and host names its public source.
"""

from __future__ import annotations

from dataclasses import dataclass

from alpaviz.cluster.description import Cluster, DeviceType, Host, Link
from alpaviz.errors import InvalidClusterError

DEVICES: dict[str, DeviceType] = {
    # NVIDIA V100 data sheet: 125 TFLOP/s fp16 tensor, 15.7 fp32, 900 GB/s. It has no bf16: those run at the fp32 rate.
    "V100-16GB": DeviceType("V100-16GB", 16e9, 900e9, (("float32", 15.7e12), ("float16", 125e12))),
    "V100-32GB": DeviceType("V100-32GB", 32e9, 900e9, (("float32", 15.7e12), ("float16", 125e12))),
    # NVIDIA A100 data sheet; float32 matrix products use TF32.
    "A100-40GB": DeviceType(
        "A100-40GB", 40e9, 1555e9, (("float32", 156e12), ("float16", 312e12), ("bfloat16", 312e12), ("int8", 624e12))
    ),
    "A100-80GB": DeviceType(
        "A100-80GB", 80e9, 2039e9, (("float32", 156e12), ("float16", 312e12), ("bfloat16", 312e12), ("int8", 624e12))
    ),
    # NVIDIA H100 and H200 data sheets, SXM.
    "H100-80GB": DeviceType(
        "H100-80GB", 80e9, 3350e9, (("float32", 494.5e12), ("float16", 989e12), ("bfloat16", 989e12), ("int8", 1979e12))
    ),
    "H200-141GB": DeviceType(
        "H200-141GB",
        141e9,
        4800e9,
        (("float32", 494.5e12), ("float16", 989e12), ("bfloat16", 989e12), ("int8", 1979e12)),
    ),
    # NVIDIA B200 data sheet (HGX and DGX), dense.
    "B200-180GB": DeviceType(
        "B200-180GB",
        180e9,
        8000e9,
        (("float32", 1125e12), ("float16", 2250e12), ("bfloat16", 2250e12), ("int8", 4500e12)),
    ),
    # NVIDIA L4 and L40S data sheets, without sparsity; no NVLink. float32 matrix products use TF32.
    "L4-24GB": DeviceType(
        "L4-24GB", 24e9, 300e9, (("float32", 60e12), ("float16", 121e12), ("bfloat16", 121e12), ("int8", 242e12))
    ),
    "L40S-48GB": DeviceType(
        "L40S-48GB", 48e9, 864e9, (("float32", 183e12), ("float16", 362e12), ("bfloat16", 362e12), ("int8", 733e12))
    ),
    # NVIDIA Ada white paper: fp16 with fp32 accumulation, half of the advertised rate; no NVLink, no peer-to-peer.
    "RTX-4090": DeviceType(
        "RTX-4090", 24e9, 1008e9, (("float32", 82.6e12), ("float16", 165e12), ("bfloat16", 165e12), ("int8", 660e12))
    ),
    # AMD MI300X data sheet, dense.
    "MI300X-192GB": DeviceType(
        "MI300X-192GB",
        192e9,
        5300e9,
        (("float32", 163.4e12), ("float16", 1307e12), ("bfloat16", 1307e12), ("int8", 2614e12)),
    ),
    # One core of a current server, order of magnitude only: for trying plans on virtual devices.
    "CPU": DeviceType("CPU", 4e9, 10e9, (("float32", 50e9), ("float64", 25e9))),
}
"""Device types by name."""


@dataclass(frozen=True, slots=True)
class HostPreset:
    """A kind of host: its devices, what joins them, what joins hosts, and where the figures are from."""

    device: str
    num_devices: int
    link: Link
    network: Link
    source: str


PRESETS: dict[str, HostPreset] = {
    # NVLink 2: 6 links of 25 GB/s a device, about 0.85 of it reached in a ring; 25 Gbit/s a host.
    "p3.16xlarge": HostPreset(
        "V100-16GB", 8, Link(128e9, 6e-6), Link(3.1e9, 25e-6), "AWS P3 instance page; Zheng et al. 2022, section 8"
    ),
    "p3dn.24xlarge": HostPreset("V100-32GB", 8, Link(128e9, 6e-6), Link(12.5e9, 25e-6), "AWS P3 instance page"),
    # NVSwitch: 300 GB/s one way; 230 GB/s measured by nccl-tests (NVIDIA/nccl#527). 4 x 100 Gbit/s a host.
    "p4d.24xlarge": HostPreset("A100-40GB", 8, Link(230e9, 5e-6), Link(50e9, 20e-6), "AWS P4 page; NVIDIA/nccl#527"),
    "dgx-a100": HostPreset("A100-80GB", 8, Link(230e9, 5e-6), Link(200e9, 10e-6), "NVIDIA DGX A100 data sheet"),
    # NVSwitch: 450 GB/s one way; 370 GB/s measured in a ring (NVIDIA/nccl-tests#212). 8 x 400 Gbit/s a host.
    "dgx-h100": HostPreset("H100-80GB", 8, Link(370e9, 4e-6), Link(400e9, 10e-6), "NVIDIA DGX H100 data sheet"),
    "p5.48xlarge": HostPreset("H100-80GB", 8, Link(370e9, 4e-6), Link(400e9, 20e-6), "AWS P5 instance page"),
    "a3-megagpu-8g": HostPreset("H100-80GB", 8, Link(370e9, 4e-6), Link(200e9, 20e-6), "Google Cloud A3 Mega page"),
    "dgx-h200": HostPreset("H200-141GB", 8, Link(370e9, 4e-6), Link(400e9, 10e-6), "NVIDIA DGX H200 data sheet"),
    "p5en.48xlarge": HostPreset("H200-141GB", 8, Link(370e9, 4e-6), Link(400e9, 20e-6), "AWS P5 instance page"),
    # NVLink 5: 900 GB/s one way, no measured ring found: the share that H100 reaches (0.82).
    "p6-b200.48xlarge": HostPreset("B200-180GB", 8, Link(740e9, 4e-6), Link(400e9, 20e-6), "AWS P6 instance page"),
}
"""Hosts by name. Latencies are usual values for small messages, not from a data sheet."""

_VIRTUAL_LINK = Link(4e9, 20e-6)
_VIRTUAL_NETWORK = Link(1e9, 100e-6)


def get_cluster(name: str, num_hosts: int = 1) -> Cluster:
    """`num_hosts` hosts of a preset.

    Raises:
        InvalidClusterError: no preset has this name; the message lists those there are.
    """
    preset = PRESETS.get(name.lower())
    if preset is None:
        raise InvalidClusterError(
            f"No cluster preset is called {name!r}. Presets: {', '.join(PRESETS)}; also 'virtual:8' and 'virtual:2x4' "
            "for CPU devices of this machine. describe_cluster makes one of your own."
        )
    return describe_cluster(
        f"{name.lower()}:{num_hosts}",
        num_hosts,
        preset.num_devices,
        preset.device,
        link=preset.link,
        network=preset.network,
    )


def describe_cluster(
    name: str,
    num_hosts: int,
    devices_per_host: int,
    device: str | DeviceType,
    *,
    link: Link,
    network: Link,
    is_virtual: bool = False,
) -> Cluster:
    """A cluster of equal hosts.

    Args:
        device: a `DeviceType` or the name of one (`DEVICES`).
        link: what one device has to the others in its host: bytes/s one way, and seconds.
        network: what one host has to the others.

    Raises:
        InvalidClusterError: a count or a figure is not positive, or no device type has this name.
    """
    if isinstance(device, str):
        if device not in DEVICES:
            raise InvalidClusterError(f"No device type is called {device!r}. Known: {', '.join(DEVICES)}.")
        device = DEVICES[device]
    if not (isinstance(num_hosts, int) and num_hosts > 0):
        raise InvalidClusterError(f"cluster {name!r}: num_hosts must be a whole number above 0, not {num_hosts!r}.")
    host = Host(device, devices_per_host, link)
    return Cluster(name, (host,) * num_hosts, network, is_virtual)


def parse_cluster(text: str) -> Cluster:
    """A cluster from text: `"p3.16xlarge:2"` (two hosts), `"dgx-a100"` (one), `"virtual:8"`, `"virtual:2x4"`.

    Raises:
        InvalidClusterError: the text names no preset, or the part after the colon is not a number of hosts.
    """
    name, _, count = text.partition(":")
    if name.strip().lower() == "virtual":
        return _make_virtual(count or "8")
    try:
        num_hosts = int(count) if count else 1
    except ValueError:
        raise InvalidClusterError(
            f"cluster {text!r}: {count!r} is not a number of hosts, as in 'p3.16xlarge:2'."
        ) from None
    return get_cluster(name.strip(), num_hosts)


def _make_virtual(count: str) -> Cluster:
    parts = count.lower().split("x")
    try:
        sizes = [int(part) for part in parts]
    except ValueError:
        sizes = []
    if len(sizes) not in (1, 2):
        raise InvalidClusterError(f"cluster 'virtual:{count}': write 'virtual:8' or 'virtual:2x4' (hosts x devices).")
    hosts, devices = (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
    return describe_cluster(
        f"virtual:{count}", hosts, devices, "CPU", link=_VIRTUAL_LINK, network=_VIRTUAL_NETWORK, is_virtual=True
    )
