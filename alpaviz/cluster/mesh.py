"""Blocks of devices and the logical meshes that they are seen as."""

from __future__ import annotations

from dataclasses import dataclass

from alpaviz.cluster.description import DeviceType, Link
from alpaviz.types import DeviceId, MeshAxis

MESH_AXES: tuple[MeshAxis, ...] = ("x", "y", "z")
"""Names of the axes of a logical mesh, in order; a mesh of two axes has `x` (major) and `y`."""


@dataclass(frozen=True, slots=True, order=True)
class SubmeshShape:
    """A physical block: `num_hosts` hosts with `devices_per_host` devices of each (paper section 5.1)."""

    num_hosts: int
    devices_per_host: int

    @property
    def num_devices(self) -> int:
        return self.num_hosts * self.devices_per_host

    def __str__(self) -> str:
        return f"{self.num_hosts}x{self.devices_per_host}"


@dataclass(frozen=True, slots=True)
class Submesh:
    """A placed block. `devices` are in row-major order: hosts first, then devices of a host."""

    shape: SubmeshShape
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True)
class LogicalMesh:
    """The devices of a submesh seen as an n-dimensional array with named axes, row-major over `Submesh.devices`.

    Attributes:
        submesh: shape of the block it lies on.
        shape: devices along each axis.
        links: for each axis the bandwidth and latency that ONE group of devices along this axis gets when all groups
            communicate at once (groups that share a host's network card share its bandwidth).
        device_type: what the devices are.
    """

    submesh: SubmeshShape
    shape: tuple[int, ...]
    links: tuple[Link, ...]
    device_type: DeviceType

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

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))
