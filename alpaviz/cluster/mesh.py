"""Blocks of devices and the logical meshes that they are seen as."""

from __future__ import annotations

from dataclasses import dataclass, field

from alpaviz.cluster.description import DeviceType, Link
from alpaviz.cluster.topology import Flow
from alpaviz.types import DeviceId, MeshAxis

MESH_AXES: tuple[MeshAxis, ...] = ("x", "y", "z")
"""Names of the axes of a logical mesh, in order; a mesh of two axes has `x` (major) and `y`."""


@dataclass(frozen=True, slots=True, order=True)
class SubmeshShape:
    """A physical block: `num_hosts` hosts with `devices_per_host` devices of each (paper section 5.1).

    `kind` names their kind where the cluster's hosts differ (`Cluster.kinds`).
    """

    num_hosts: int
    devices_per_host: int
    kind: str = ""

    @property
    def num_devices(self) -> int:
        return self.num_hosts * self.devices_per_host

    def __str__(self) -> str:
        blocks = f"{self.num_hosts}x{self.devices_per_host}"
        return f"{blocks} {self.kind}" if self.kind else blocks


@dataclass(frozen=True, slots=True)
class Submesh:
    """A placed block. `devices` are in row-major order: hosts first, then devices of a host."""

    shape: SubmeshShape
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class AxisGroup:
    """What ONE group of devices that differ only in their place on `axes` gets while all such groups communicate.

    Attributes:
        size: devices of the group.
        num_hosts: the most hosts that a group lies on.
        per_host: the most devices of a group on one host.
        inside: what its devices on one host get there.
        across: its share of a host's network cards, and the network's latency; None where no group leaves its host.
        port: bytes/s of one device's link, through which all that it sends goes.
        has_tree: whether a library that knows tree algorithms runs here (not on the torus of TPUs).
        is_even: every group has the same number of devices on each of its hosts.
    """

    axes: tuple[MeshAxis, ...]
    size: int
    num_hosts: int
    per_host: int
    inside: Flow
    across: Link | None
    port: float
    has_tree: bool
    is_even: bool

    @property
    def link(self) -> Link:
        """What a ring through the whole group gets."""
        if self.across is None:
            return Link(self.inside.ring, self.inside.latency)
        inside = self.inside.ring if self.per_host > 1 else self.port
        return Link(min(self.across.bandwidth, inside), self.across.latency)


@dataclass(frozen=True, slots=True)
class LogicalMesh:
    """The devices of a submesh seen as an n-dimensional array with named axes, row-major over `Submesh.devices`.

    Attributes:
        submesh: shape of the block it lies on.
        shape: devices along each axis.
        links: for each axis the bandwidth and latency that ONE group of devices along this axis gets when all groups
            communicate at once (groups that share a host's network card share its bandwidth).
        device_type: what the devices are.
        groups: for each set of axes of more than one device, what one group over them gets.
    """

    submesh: SubmeshShape
    shape: tuple[int, ...]
    links: tuple[Link, ...]
    device_type: DeviceType
    # Not hashed, as meshes are keys of many caches: meshes with other groups nearly always have other links.
    groups: tuple[AxisGroup, ...] = field(default=(), hash=False, repr=False)

    @property
    def axis_names(self) -> tuple[MeshAxis, ...]:
        return MESH_AXES[: len(self.shape)]

    @property
    def axis_sizes(self) -> dict[MeshAxis, int]:
        return dict(zip(self.axis_names, self.shape, strict=True))

    @property
    def num_devices(self) -> int:
        size = 1
        for n in self.shape:
            size *= n
        return size

    def link(self, axis: MeshAxis) -> Link:
        """The link that collectives over `axis` run on."""
        return self.links[self.axis_names.index(axis)]

    def group(self, axes: tuple[MeshAxis, ...]) -> AxisGroup:
        """What a group over `axes`, in any order and each of more than one device, gets."""
        wanted = frozenset(axes)
        return next(group for group in self.groups if frozenset(group.axes) == wanted)

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))
