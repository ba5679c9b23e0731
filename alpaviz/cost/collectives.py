"""Collectives by the alpha-beta model on the links that their mesh axes run over.

Ring algorithms: a group of n devices, each with a link of bandwidth B and latency a, all groups at once
(`LogicalMesh.links` holds what one group gets then). Over several axes a collective is done axis by axis, or flat over
all of them at the slowest link, whichever is quicker.

Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, 2005.
"""

from __future__ import annotations

from dataclasses import dataclass

from alpaviz.cluster.description import Link
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


def price_collective(kind: CollectiveKind, num_bytes: float, mesh: LogicalMesh, axes: tuple[MeshAxis, ...]) -> float:
    """Seconds of a collective; 0 over axes of one device. `num_bytes` as in `Collective`."""
    groups = [(mesh.axis_sizes[axis], mesh.link(axis)) for axis in axes if mesh.axis_sizes[axis] > 1]
    if not groups:
        return 0.0
    if len(groups) == 1:
        return _price_ring(kind, num_bytes, *groups[0])
    size = 1
    for n, _ in groups:
        size *= n
    slowest = Link(min(k.bandwidth for _, k in groups), max(k.latency for _, k in groups))
    flat = _price_ring(kind, num_bytes, size, slowest)
    return min(flat, _price_by_axis(kind, num_bytes, groups))


def _price_ring(kind: CollectiveKind, num_bytes: float, size: int, link: Link) -> float:
    share = (size - 1) / size * num_bytes / link.bandwidth
    match kind:
        case "all-reduce":
            return 2 * (size - 1) * link.latency + 2 * share
        case "all-gather" | "reduce-scatter":
            return (size - 1) * link.latency + share
        case "all-to-all":
            return (size - 1) * link.latency + share
        case "collective-permute":
            return link.latency + num_bytes / link.bandwidth


def _price_by_axis(kind: CollectiveKind, num_bytes: float, groups: list[tuple[int, Link]]) -> float:
    """One axis after another, the fastest link carrying the most."""
    by_speed = sorted(groups, key=lambda g: -g[1].bandwidth)
    match kind:
        case "all-reduce":
            return _scatter_by_axis(num_bytes, by_speed) * 2
        case "all-gather" | "reduce-scatter":
            return _scatter_by_axis(num_bytes, by_speed)
        case _:
            return sum(_price_ring(kind, num_bytes, n, link) for n, link in by_speed)


def _scatter_by_axis(num_bytes: float, groups: list[tuple[int, Link]]) -> float:
    total, left = 0.0, num_bytes
    for n, link in groups:
        total += _price_ring("reduce-scatter", left, n, link)
        left /= n
    return total
