"""Clusters by name, and a short way to describe one's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from alpaviz.cluster.catalogue import CatalogueEntry, HostPreset, load_catalogue
from alpaviz.cluster.description import Cluster, DeviceType, Host, Link
from alpaviz.cluster.fields import suggest
from alpaviz.cluster.topology import Bridges, DirectLinks, Switch, Torus
from alpaviz.errors import InvalidClusterError

T = TypeVar("T")

DEVICES: dict[str, DeviceType] = {name: entry.device for name, entry in load_catalogue().devices.items()}
"""Device types by name."""

PRESETS: dict[str, HostPreset] = load_catalogue().hosts
"""Hosts by name. Latencies are usual values for small messages, not from a data sheet."""

_VIRTUAL_LINK = Link(4e9, 20e-6)
_VIRTUAL_NETWORK = Link(1e9, 100e-6)


def list_catalogue() -> tuple[CatalogueEntry, ...]:
    """Every device and host of the catalogue, each figure with its source."""
    catalogue = load_catalogue()
    devices = [
        CatalogueEntry(name, "device", entry.family, _describe_device(entry.device), entry.sources)
        for name, entry in catalogue.devices.items()
    ]
    hosts = [
        CatalogueEntry(name, "host", preset.family, _describe_host(preset), preset.sources)
        for name, preset in catalogue.hosts.items()
    ]
    return (*devices, *hosts)


def _describe_device(device: DeviceType) -> str:
    rates = ", ".join(f"{dtype} {rate / 1e12:.4g}" for dtype, rate in device.flops)
    memory, bandwidth = device.memory_bytes / 1e9, device.memory_bandwidth / 1e9
    return f"{memory:.4g} GB at {bandwidth:.4g} GB/s; TFLOP/s: {rates}"


def _describe_host(preset: HostPreset) -> str:
    inside, network = preset.link.bandwidth / 1e9, preset.network.bandwidth / 1e9
    kind = {Switch: "a switch", DirectLinks: "direct links", Bridges: "PCIe bridges"}.get(type(preset.topology), "")
    if isinstance(preset.topology, Torus):
        wraps = "with" if any(preset.topology.wraps) else "without"
        kind = f"a torus {'x'.join(map(str, preset.topology.dims))} {wraps} wrap-around"
    return (
        f"{preset.num_devices} x {preset.device}, {inside:.4g} GB/s a device over {kind}; {network:.4g} GB/s a host "
        f"over {preset.num_cards} network card{'s' * (preset.num_cards > 1)}"
    )


def find_device(name: str) -> DeviceType:
    """A device type by name.

    Raises:
        InvalidClusterError: there is none; the message says which names are close.
    """
    return _find(name, DEVICES, "device type")


def find_host(name: str) -> HostPreset:
    """A host by name. Raises as `find_device`."""
    return _find(name, PRESETS, "cluster preset")


def _find(name: str, known: Mapping[str, T], what: str) -> T:
    by_lower = {other.lower(): entry for other, entry in known.items()}
    found = by_lower.get(name.strip().lower())
    if found is None:
        raise InvalidClusterError(f"No {what} is called {name!r}.{suggest(name, known)} Known: {', '.join(known)}.")
    return found


def get_cluster(name: str, num_hosts: int = 1) -> Cluster:
    """`num_hosts` hosts of a preset.

    Raises:
        InvalidClusterError: no preset has this name; the message lists those there are.
    """
    preset = PRESETS.get(name.lower())
    if preset is None:
        _check_slice(name.lower())
        raise InvalidClusterError(
            f"No cluster preset is called {name!r}.{suggest(name, PRESETS)} Presets: {', '.join(PRESETS)}; also "
            "'virtual:8' and 'virtual:2x4' for CPU devices of this machine. describe_cluster or Cluster.from_toml "
            "makes one of your own."
        )
    return describe_cluster(
        f"{name.lower()}:{num_hosts}",
        num_hosts,
        preset.num_devices,
        preset.device,
        link=preset.link,
        network=preset.network,
    )


def _check_slice(name: str) -> None:
    """Say which slices there are, if `name` is that of a slice of a known TPU."""
    kind, _, shape = name.rpartition("-")
    dims = shape.split("x")
    others = [other.removeprefix(f"{kind}-") for other in PRESETS if other.rpartition("-")[0] == kind]
    if not (kind.startswith("tpu-") and others and all(size.isdigit() for size in dims)):
        return
    count, pod = math.prod(map(int, dims)), load_catalogue().pods[kind]
    problem = f", more than the {pod} of a pod of {kind}" if count > pod else f", which is no slice of {kind}"
    raise InvalidClusterError(f"{name!r} has {count} chips{problem}. Slices: {', '.join(others)}.")


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
            raise InvalidClusterError(
                f"No device type is called {device!r}.{suggest(device, DEVICES)} Known: {', '.join(DEVICES)}."
            )
        device = DEVICES[device]
    if not (isinstance(num_hosts, int) and num_hosts > 0):
        raise InvalidClusterError(f"cluster {name!r}: num_hosts must be a whole number above 0, not {num_hosts!r}.")
    host = Host(device, devices_per_host, link)
    return Cluster(name, (host,) * num_hosts, network, is_virtual)


def parse_cluster(text: str) -> Cluster:
    """A cluster from text: `"p3.16xlarge:2"` (two hosts), `"dgx-a100"` (one), `"virtual:8"`, `"virtual:2x4"`.

    Hosts of several kinds are joined by the slower of their networks: `"p3.16xlarge:2 + p4d.24xlarge:1"`.

    Raises:
        InvalidClusterError: the text names no preset, or the part after the colon is not a number of hosts.
    """
    if "+" in text:
        return _join_clusters(text, [parse_cluster(part.strip()) for part in text.split("+")])
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


def _join_clusters(name: str, parts: Sequence[Cluster]) -> Cluster:
    """All hosts of `parts`, in order; between any two what the slowest network gives."""
    if len({part.is_virtual for part in parts}) > 1:
        raise InvalidClusterError(f"cluster {name!r}: virtual hosts and others cannot be joined.")
    network = Link(min(part.network.bandwidth for part in parts), max(part.network.latency for part in parts))
    return Cluster(name, tuple(host for part in parts for host in part.hosts), network, parts[0].is_virtual)


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
