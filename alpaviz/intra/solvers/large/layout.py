"""The core of a large problem in flat arrays, as the compiled kernels take them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.large.reduce import Core, Item
from alpaviz.intra.solvers.network import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Variables in the order of the sweeps, candidates flat, each edge as two arcs.

    Attributes:
        variables: (n,), the core's variables in order.
        offsets: (n + 1,), where candidates start in `unary`.
        unary: (candidates,).
        arc_starts: (n + 1,), where each variable's arcs start; sorted by head.
        heads: (arcs,), variable at the other end.
        reverses: (arcs,), the arc back.
        cost_offsets: (arcs,), where the arc's matrix starts in `costs`: own candidates by those of the head.
        costs: both directions of all matrices.
        message_offsets: (arcs,), where the message over the arc starts: one number per candidate of the head.
        messages_size: length of all messages.
        item_starts: (n + 1,), where each variable's memory items start.
        item_firsts, item_lasts: (items,), half-open interval on the timeline; those of a variable do not overlap.
        usage_offsets: (items,), where the item's usages start in `usages`: one per candidate of its variable.
        usages: bytes.
        limits: (steps of the timeline,), bytes.
        constant: cost outside the core.
    """

    variables: IntArray
    offsets: IntArray
    unary: FloatArray
    arc_starts: IntArray
    heads: IntArray
    reverses: IntArray
    cost_offsets: IntArray
    costs: FloatArray
    message_offsets: IntArray
    messages_size: int
    item_starts: IntArray
    item_firsts: IntArray
    item_lasts: IntArray
    usage_offsets: IntArray
    usages: FloatArray
    limits: FloatArray
    constant: float

    @property
    def size(self) -> int:
        return len(self.variables)


def lay_out(core: Core) -> Layout:
    variables = np.flatnonzero(core.is_left)
    place = {int(v): i for i, v in enumerate(variables)}
    sizes = np.array([len(core.unary[v]) for v in variables], dtype=np.int64)
    arcs = [sorted(place[w] for w in core.adjacent[v]) for v in variables]
    starts = _accumulate([len(row) for row in arcs])
    number = {(i, j): a for a, (i, j) in enumerate((i, j) for i, row in enumerate(arcs) for j in row)}
    costs = [core.adjacent[variables[i]][int(variables[j])] for i, j in number]
    heads = np.array([j for _, j in number], dtype=np.int64)
    items = [_part(core.items[v]) for v in variables]
    flat = [item for row in items for item in row]
    return Layout(
        variables=variables,
        offsets=_accumulate(sizes),
        unary=_join([core.unary[v] for v in variables]),
        arc_starts=starts,
        heads=heads,
        reverses=np.array([number[j, i] for i, j in number], dtype=np.int64),
        cost_offsets=_accumulate([m.size for m in costs])[:-1],
        costs=_join([m.ravel() for m in costs]),
        message_offsets=_accumulate(sizes[heads])[:-1],
        messages_size=int(sizes[heads].sum()),
        item_starts=_accumulate([len(row) for row in items]),
        item_firsts=np.array([item[0] for item in flat], dtype=np.int64),
        item_lasts=np.array([item[1] for item in flat], dtype=np.int64),
        usage_offsets=_accumulate([len(item[2]) for item in flat])[:-1],
        usages=_join([item[2] for item in flat]),
        limits=core.limits,
        constant=core.constant,
    )


def _part(items: list[Item]) -> list[Item]:
    """The same memory use over intervals that do not overlap, so that a candidate is checked in one pass."""
    if len(items) <= 1:
        return items
    changes: dict[int, FloatArray] = {}
    for first, last, usage in items:
        changes[first] = changes[first] + usage if first in changes else usage
        changes[last] = changes[last] - usage if last in changes else -usage
    times = sorted(changes)
    parts: list[Item] = []
    running = np.zeros_like(items[0][2])
    for first, last in itertools.pairwise(times):
        if not changes[first].any():
            if parts and parts[-1][1] == first:
                parts[-1] = (parts[-1][0], last, parts[-1][2])
            continue
        running = running + changes[first]
        # Rounding of usages that are no whole numbers must not leave less than nothing.
        running[running < 0.0] = 0.0
        if running.any():
            parts.append((first, last, running))
    return parts


def _accumulate(counts: IntArray | list[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _join(parts: list[FloatArray]) -> FloatArray:
    return np.concatenate(parts) if parts else np.zeros(0)
