"""Collectives by the alpha-beta model on the links that their mesh axes run over.

All groups of devices over the axes communicate at once; `LogicalMesh.groups` says what one of them gets of the links
that it crosses and of the network cards that it shares. Inside a host, where collectives were measured
(`DeviceType.measured`), what was measured counts. Over several axes a collective is done axis by axis, or by all
of them as one group; of all ways (`alpaviz.cost.algorithms`) the quickest counts, as a library would choose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from alpaviz.cluster.mesh import AxisGroup, LogicalMesh
from alpaviz.cost.algorithms import Line, hierarchical, pairwise_exchange, permute, ring, tree
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
    return min((latency + num_bytes * seconds for latency, seconds in list_lines(kind, mesh, axes)), default=0.0)


@lru_cache(maxsize=4096)
def list_lines(kind: CollectiveKind, mesh: LogicalMesh, axes: tuple[MeshAxis, ...]) -> tuple[Line, ...]:
    """(seconds, seconds/byte) of each way to do a collective, the cheapest of which is taken; none if it is free."""
    sizes = mesh.axis_sizes
    axes = tuple(axis for axis in axes if sizes[axis] > 1)
    if not axes:
        return ()
    group, measured = mesh.group(axes), mesh.device_type.measured
    if measured is not None and group.across is None:
        line = measured.find_line(kind, group.size, mesh.num_devices)
        if line is not None:
            return (line,)
    lines = _list_flat(kind, group)
    if len(axes) > 1 and kind != "collective-permute":
        lines.append(_price_by_axis(kind, [mesh.group((axis,)) for axis in axes]))
    return tuple(lines)


def _list_flat(kind: CollectiveKind, group: AxisGroup) -> list[Line]:
    """The ways to do a collective in one group."""
    match kind:
        case "all-to-all":
            return [pairwise_exchange(group)]
        case "collective-permute":
            return [permute(group)]
        case "all-reduce" if group.across is not None:
            lines = [ring(kind, group)]
            if group.has_tree:
                lines.append(tree(group))
            if group.per_host > 1 and group.is_even:
                lines.append(hierarchical(group))
            return lines
        case _:
            return [ring(kind, group)]


def _price_by_axis(kind: CollectiveKind, groups: list[AxisGroup]) -> Line:
    """One axis after another, the fastest link carrying the most."""
    seconds, per_byte, left = 0.0, 0.0, 1.0
    for group in sorted(groups, key=lambda g: -g.link.bandwidth):
        fixed, slope = pairwise_exchange(group) if kind == "all-to-all" else ring(kind, group)
        seconds += fixed
        per_byte += slope * left
        if kind != "all-to-all":
            left /= group.size
    return seconds, per_byte
