"""Collectives by the alpha-beta model on the links that their mesh axes run over.

Ring algorithms: a group of n devices, all groups at once (`LogicalMesh.links` holds the bandwidth B and the latency a
that one group gets then). Over several axes a collective is done axis by axis, or flat over all of them, whichever is
quicker. A ring leaves each host once, but in an all-to-all and in a permute every device may send off its host: a
host's network card then carries what all its devices send.

Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, 2005.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.types import CollectiveKind, MeshAxis


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective over `axes`.

    `num_bytes` on each device: the gathered result of an all-gather, the input of a reduce-scatter, the tensor of an
    all-reduce, the local tensor of an all-to-all or a collective-permute.
    """

    kind: CollectiveKind
    axes: tuple[MeshAxis, ...]
    num_bytes: float


@dataclass(frozen=True, slots=True)
class _Group:
    """Devices that communicate: `size` in all, at most `per_host` on one host, with the link of one such group."""

    size: int
    per_host: int
    bandwidth: float
    latency: float

    @property
    def leaves_host(self) -> bool:
        return self.per_host < self.size


def price_collective(kind: CollectiveKind, num_bytes: float, mesh: LogicalMesh, axes: tuple[MeshAxis, ...]) -> float:
    """Seconds of a collective; 0 over axes of one device. `num_bytes` as in `Collective`.

    With S bytes: all-gather and reduce-scatter (n-1) a + (n-1)/n S/B, all-reduce twice that, all-to-all the same as an
    all-gather while it stays in a host, permute a + S/B.
    """
    return min((latency + num_bytes * seconds for latency, seconds in list_lines(kind, mesh, axes)), default=0.0)


@lru_cache(maxsize=4096)
def list_lines(kind: CollectiveKind, mesh: LogicalMesh, axes: tuple[MeshAxis, ...]) -> tuple[tuple[float, float], ...]:
    """(seconds, seconds/byte) of each way to do a collective, the cheapest of which is taken; none if it is free."""
    sizes = mesh.axis_sizes
    axes = tuple(axis for axis in axes if sizes[axis] > 1)
    if not axes:
        return ()
    flat = _price_ring(kind, _find_group(mesh, axes))
    if len(axes) == 1 or kind == "collective-permute":
        return (flat,)
    groups = [_find_group(mesh, (axis,)) for axis in axes]
    return flat, _price_by_axis(kind, groups)


def _find_group(mesh: LogicalMesh, axes: tuple[MeshAxis, ...]) -> _Group:
    """The devices that differ only in their place on `axes`."""
    alone = {axis: _count_members(mesh, (axis,)) for axis in axes}
    size, per_host = _count_members(mesh, axes)
    latency = max(mesh.link(axis).latency for axis in axes)
    # An axis whose groups hold k devices of a host has groups of 1/k of the host's devices share the card. Groups over
    # more axes hold more devices of a host, so there are fewer of them.
    bandwidth = min(
        mesh.link(axis).bandwidth * (per_host / there if there < whole else 1.0)
        for axis, (whole, there) in alone.items()
    )
    return _Group(size, per_host, bandwidth, latency)


def _count_members(mesh: LogicalMesh, axes: tuple[MeshAxis, ...]) -> tuple[int, int]:
    """(devices of a group over `axes`, the most of them on one host)."""
    ranges = [range(n if name in axes else 1) for name, n in zip(mesh.axis_names, mesh.shape, strict=True)]
    strides = [1]
    for n in reversed(mesh.shape[1:]):
        strides.insert(0, strides[0] * n)
    hosts = [
        sum(i * stride for i, stride in zip(place, strides, strict=True)) // mesh.submesh.devices_per_host
        for place in itertools.product(*ranges)
    ]
    return len(hosts), max(hosts.count(host) for host in set(hosts))


def _price_ring(kind: CollectiveKind, group: _Group) -> tuple[float, float]:
    """(seconds, seconds/byte)."""
    n, latency = group.size, group.latency
    share = (n - 1) / n / group.bandwidth
    match kind:
        case "all-reduce":
            return 2 * (n - 1) * latency, 2 * share
        case "all-gather" | "reduce-scatter":
            return (n - 1) * latency, share
        case "all-to-all":
            leaving = group.per_host * (n - group.per_host) / n / group.bandwidth if group.leaves_host else 0.0
            return (n - 1) * latency, max(share, leaving)
        case "collective-permute":
            return latency, (group.per_host if group.leaves_host else 1) / group.bandwidth


def _price_by_axis(kind: CollectiveKind, groups: list[_Group]) -> tuple[float, float]:
    """(seconds, seconds/byte) of one axis after another, the fastest link carrying the most."""
    seconds, per_byte, left = 0.0, 0.0, 1.0
    for group in sorted(groups, key=lambda g: -g.bandwidth):
        fixed, slope = _price_ring(kind, group)
        seconds += fixed
        per_byte += slope * left
        if kind != "all-to-all":
            left /= group.size
    return seconds, per_byte
