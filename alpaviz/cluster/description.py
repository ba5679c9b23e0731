"""What a cluster is made of: device types, hosts, links."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from alpaviz.cluster.measured import MeasuredCosts
from alpaviz.errors import InvalidClusterError

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn", "int64", "int32", "int16", "int8", "int4", "int2",
    "uint64", "uint32", "uint16", "uint8", "uint4", "uint2", "complex64", "complex128", "bool",
)  # fmt: skip
"""Names of dtypes, as numpy and ml_dtypes write them, that a device may have a rate for."""


def _require_positive(owner: str, field: str, value: float, unit: str) -> None:
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise InvalidClusterError(f"{owner}: {field} must be a positive number of {unit}, not {value!r}.")


@dataclass(frozen=True, slots=True)
class DeviceType:
    """One kind of accelerator.

    Attributes:
        name: for instance `"V100-16GB"`.
        memory_bytes: bytes of device memory.
        memory_bandwidth: bytes/s.
        flops: (dtype name, peak FLOP/s) pairs, dense; a dtype that is missing runs at the `float32` rate.
        measured: what these devices were measured to reach; None where costs come from the figures above.
    """

    name: str
    memory_bytes: float
    memory_bandwidth: float
    flops: tuple[tuple[str, float], ...]
    # Not hashed, as meshes are keys of many caches.
    measured: MeasuredCosts | None = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        owner = f"device type {self.name!r}"
        _require_positive(owner, "memory_bytes", self.memory_bytes, "bytes")
        _require_positive(owner, "memory_bandwidth", self.memory_bandwidth, "bytes/s")
        if "float32" not in dict(self.flops):
            raise InvalidClusterError(f"{owner}: flops must hold a rate for 'float32' in FLOP/s.")
        for dtype, rate in self.flops:
            if dtype not in DTYPES:
                raise InvalidClusterError(
                    f"{owner}: flops names the unknown dtype {dtype!r}. Known: {', '.join(DTYPES)}."
                )
            _require_positive(owner, f"flops[{dtype!r}]", rate, "FLOP/s")

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s at `dtype`."""
        rates = dict(self.flops)
        return rates.get(dtype, rates["float32"])


@dataclass(frozen=True, slots=True)
class Link:
    """A connection: `bandwidth` in bytes/s, one direction; `latency` in seconds a message."""

    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        _require_positive("link", "bandwidth", self.bandwidth, "bytes/s")
        if not (isinstance(self.latency, (int, float)) and math.isfinite(self.latency) and self.latency >= 0):
            raise InvalidClusterError(f"link: latency must be a number of seconds of at least 0, not {self.latency!r}.")


class Measured(Protocol):
    """What `Cluster.calibrated` needs to know; `alpaviz.calibration.Calibration` is such."""

    @property
    def device(self) -> str:
        """Name of the device type."""

    @property
    def device_kind(self) -> str:
        """As JAX calls the devices."""

    @property
    def costs(self) -> MeasuredCosts:
        """What the cost model computes with."""

    @property
    def link(self) -> Link | None:
        """Between devices of a host; None if there is one device."""


@dataclass(frozen=True, slots=True)
class Host:
    """One machine: `num_devices` devices of one type; `link` is what one device has to the others in this host."""

    device_type: DeviceType
    num_devices: int
    link: Link

    def __post_init__(self) -> None:
        if not (isinstance(self.num_devices, int) and self.num_devices > 0):
            raise InvalidClusterError(f"host: num_devices must be a whole number above 0, not {self.num_devices!r}.")


@dataclass(frozen=True, slots=True)
class Cluster:
    """All hosts and the network between them.

    Attributes:
        name: for people, for instance `"p3.16xlarge:2"`.
        hosts: of one kind or several (device type, number of devices, link). A stage lies on hosts of one kind.
        network: what one *host* has to the others; its devices share it.
        is_virtual: the devices are CPU devices of this machine made for trying plans.
    """

    name: str
    hosts: tuple[Host, ...]
    network: Link
    is_virtual: bool = False

    @staticmethod
    def from_toml(path: str | Path) -> Cluster:
        """The cluster that a TOML file describes (the fields: `alpaviz.cluster.toml_cluster`).

        Raises:
            InvalidClusterError: the file cannot be read, or a field is missing, misspelt or wrong; the message names
                the file, the field and its unit.
        """
        from alpaviz.cluster.toml_cluster import read_cluster

        return read_cluster(path)

    def calibrated(self, calibration: Measured) -> Cluster:
        """This cluster with measured costs: ops, collectives inside a host, and the link between its devices.

        The network between hosts stays as it is described.

        Raises:
            InvalidClusterError: the calibration is of other devices.
        """
        if len(self.kinds) > 1:
            raise InvalidClusterError(f"cluster {self.name!r}: hosts differ; measured costs are for hosts of one kind.")
        host, known = self.hosts[0], calibration.device
        if known != host.device_type.name:
            raise InvalidClusterError(
                f"cluster {self.name!r} has devices of type {host.device_type.name!r}, the calibration is of "
                f"{known!r} ({calibration.device_kind}). Measure on the devices that you plan for."
            )
        kind = replace(
            host.device_type, measured=calibration.costs, memory_bandwidth=calibration.costs.memory_bandwidth
        )
        link = calibration.link or host.link
        return replace(self, hosts=(replace(host, device_type=kind, link=link),) * len(self.hosts))

    def __post_init__(self) -> None:
        if not self.hosts:
            raise InvalidClusterError(f"cluster {self.name!r}: hosts is empty; give at least one host.")

    @property
    def kinds(self) -> dict[str, Host]:
        """Each different host by a name for it, in order of first appearance; a single kind is called `""`.

        Others are called as their device type, with a number from the second of the same type on.
        """
        different = list(dict.fromkeys(self.hosts))
        if len(different) == 1:
            return {"": different[0]}
        names: dict[str, Host] = {}
        for host in different:
            same = sum(known.device_type.name == host.device_type.name for known in names.values())
            names[host.device_type.name + (f"-{same + 1}" if same else "")] = host
        return names

    def take_kind(self, kind: str) -> Cluster:
        """The hosts of one kind only, with the same name and network.

        Raises:
            InvalidClusterError: there is no such kind.
        """
        kinds = self.kinds
        if kind not in kinds:
            raise InvalidClusterError(
                f"cluster {self.name!r} has no hosts of kind {kind!r}. Kinds: {', '.join(map(repr, kinds))}."
            )
        if len(kinds) == 1:
            return self
        return replace(self, hosts=tuple(host for host in self.hosts if host == kinds[kind]))

    @property
    def num_hosts(self) -> int:
        return len(self.hosts)

    @property
    def devices_per_host(self) -> int:
        """The most devices of any host."""
        return max(host.num_devices for host in self.hosts)

    @property
    def num_devices(self) -> int:
        return sum(host.num_devices for host in self.hosts)

    @property
    def device_type(self) -> DeviceType:
        """That of the first host."""
        return self.hosts[0].device_type
