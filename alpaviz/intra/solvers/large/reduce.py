"""Exact reductions of a problem with thousands of variables: what is left is a core that answers for all of it.

A variable whose candidate follows from a neighbour's is folded into that neighbour: it hands over costs, edges and
memory use, and `Core.unfold` finds its candidate again. In problems traced from models most variables follow, as
elementwise operators take their operand's layout; on google/iopddl 30,000 variables leave 300 to 6,500.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from alpaviz.intra.problem import FloatArray, MemoryProfile, ShardingProblem
from alpaviz.intra.solvers.network import BoolArray, IntArray, find_legal

_MOST_SERIES_PAIRS = 2_500
"""Largest matrix that eliminating a variable between two others may make."""
_ROUNDING = 1e-12

Item = tuple[int, int, FloatArray]
"""Live interval in steps of the timeline, and usage per candidate, the least of them 0."""


@dataclass(slots=True, eq=False)
class Core:
    """What is left of a problem, while and after it is reduced.

    Attributes:
        unary: per variable of the problem; those folded away keep what they had.
        adjacent: per variable, neighbour to cost matrix (own candidates, neighbour's); both directions are kept.
        items: per variable, its memory use on the timeline.
        limits: (steps of the timeline,), bytes left where each item is at its least.
        kept: per variable, the problem's indices of its candidates.
        is_left: per variable, whether it belongs to the core.
        folded: variables in the order in which they went, with the variables they follow and the table from those
            to their own candidate.
        constant: cost of the variables that went alone.
    """

    unary: list[FloatArray]
    adjacent: list[dict[int, FloatArray]]
    items: list[list[Item]]
    limits: FloatArray
    kept: list[IntArray]
    is_left: BoolArray
    folded: list[tuple[int, tuple[int, ...], IntArray]] = field(default_factory=list)
    constant: float = 0.0
    queue: deque[int] = field(default_factory=deque)
    follows: deque[tuple[int, int]] = field(default_factory=deque)

    def unfold(self, choice: dict[int, int]) -> tuple[int, ...]:
        """The problem's candidate of every variable, from the core's choice."""
        full = dict(choice)
        for u, leaders, table in reversed(self.folded):
            full[u] = int(table[tuple(full[v] for v in leaders)])
        return tuple(int(self.kept[v][full[v]]) for v in range(len(self.kept)))


def reduce_problem(problem: ShardingProblem) -> Core | None:
    """The core of `problem`; None where a variable has no legal candidate."""
    masks = find_legal(problem)
    if not all(mask.any() for mask in masks):
        return None
    core = _start(problem, masks)
    for u, neighbours in enumerate(core.adjacent):
        for v in list(neighbours):
            if u < v:
                _look_at(core, u, v)
    core.queue.extend(range(len(core.unary)))
    while core.follows or core.queue:
        if core.follows:
            _follow(core, *core.follows.popleft())
        elif core.queue:
            _eliminate(core, core.queue.popleft())
        if not core.follows and not core.queue and not _drop_illegal(core):
            return None
    return core


def _drop_illegal(core: Core) -> bool:
    """Drop candidates that folding has left without a legal partner; False where a variable loses all."""
    pending = deque(int(v) for v in np.flatnonzero(core.is_left))
    while pending:
        u = pending.popleft()
        legal = np.isfinite(core.unary[u])
        for cost in core.adjacent[u].values():
            legal &= np.isfinite(cost).any(axis=1)
        if legal.all():
            continue
        if not legal.any():
            return False
        _restrict(core, u, np.flatnonzero(legal))
        pending.extend(core.adjacent[u])
    return True


def _restrict(core: Core, u: int, keep: IntArray) -> None:
    """Leave `u` only the candidates `keep`."""
    core.unary[u] = core.unary[u][keep]
    items, core.items[u] = core.items[u], []
    for first, last, usage in items:
        _add_item(core, u, first, last, usage[keep])
    core.folded.append((u, (u,), keep))
    for v in core.adjacent[u]:
        cost = np.ascontiguousarray(core.adjacent[u][v][keep])
        core.adjacent[u][v], core.adjacent[v][u] = cost, cost.T
    for v in list(core.adjacent[u]):
        _look_at(core, u, v)
    core.queue.append(u)


def _start(problem: ShardingProblem, masks: list[BoolArray]) -> Core:
    unary = [cost if mask.all() else cost[mask] for cost, mask in zip(problem.unary, masks, strict=True)]
    adjacent: list[dict[int, FloatArray]] = [{} for _ in unary]
    for e in problem.edges:
        is_whole = masks[e.u].all() and masks[e.v].all()
        cost = e.cost if is_whole else e.cost[np.ix_(masks[e.u], masks[e.v])]
        if e.v in adjacent[e.u]:
            cost = adjacent[e.u][e.v] + cost
        adjacent[e.u][e.v], adjacent[e.v][e.u] = cost, cost.T
    items, limits = _lay_on_timeline(problem.profile, masks)
    kept = [np.flatnonzero(mask) for mask in masks]
    return Core(unary, adjacent, items, limits, kept, np.ones(len(unary), dtype=np.bool_))


def find_peaks(starts: IntArray, ends: IntArray) -> IntArray:
    """Times that suffice: starts of intervals after which an interval ends before the next one starts."""
    is_counted = ends > starts
    times, stops = np.unique(starts[is_counted]), np.unique(ends[is_counted])
    following = np.append(times[1:], np.iinfo(np.int64).max)
    next_stop = stops[np.searchsorted(stops, times, side="right")] if len(times) else stops
    return times[next_stop <= following]


def _lay_on_timeline(profile: MemoryProfile | None, masks: list[BoolArray]) -> tuple[list[list[Item]], FloatArray]:
    if profile is None:
        return [[] for _ in masks], np.zeros(0)
    times = find_peaks(profile.starts, profile.ends)
    first, last = np.searchsorted(times, profile.starts), np.searchsorted(times, profile.ends)
    items: list[list[Item]] = []
    base = np.zeros(len(times) + 1)
    for v, mask in enumerate(masks):
        usage = np.asarray(profile.usage[v], dtype=np.float64)[mask]
        least = usage.min()
        usage = usage - least
        a, b = int(first[v]), int(last[v])
        base[a] += least
        base[b] -= least
        items.append([(a, b, usage)] if b > a and usage.any() else [])
    return items, profile.limit - np.cumsum(base)[:-1]


def _look_at(core: Core, u: int, v: int) -> None:
    """Drop the edge if it is a sum of unary costs; note if one end follows from the other."""
    cost = core.adjacent[u][v]
    is_finite = np.isfinite(cost)
    if is_finite.all() and min(cost.shape) > 1:
        by_u = cost[:, 0] - cost[0, 0]
        if np.abs(cost - (by_u[:, None] + cost[0])).max() > _ROUNDING * np.abs(cost).max():
            return
        core.unary[u] = core.unary[u] + by_u
        core.unary[v] = core.unary[v] + cost[0]
        del core.adjacent[u][v], core.adjacent[v][u]
        core.queue.extend((u, v))
        return
    u_follows, v_follows = is_finite.sum(axis=0).max() <= 1, is_finite.sum(axis=1).max() <= 1
    if u_follows and v_follows:
        # The one with fewer neighbours is cheaper to fold.
        u_follows = len(core.adjacent[u]) <= len(core.adjacent[v])
    if u_follows:
        core.follows.append((u, v))
    elif v_follows:
        core.follows.append((v, u))


def _follow(core: Core, u: int, v: int) -> None:
    if core.is_left[u] and core.is_left[v] and v in core.adjacent[u]:
        _fold(core, u, v, np.isfinite(core.adjacent[u][v]).argmax(axis=0))


def _fold(core: Core, u: int, v: int, table: IntArray) -> None:
    """Make `u` a part of `v`, whose candidate decides that of `u` by `table`."""
    cost = core.adjacent[u].pop(v)
    del core.adjacent[v][u]
    core.unary[v] = core.unary[v] + core.unary[u][table] + cost[table, np.arange(len(table))]
    for w, further in core.adjacent[u].items():
        del core.adjacent[w][u]
        _join(core, v, w, further[table])
        core.queue.append(w)
    core.adjacent[u] = {}
    for first, last, usage in core.items[u]:
        _add_item(core, v, first, last, usage[table])
    core.items[u] = []
    core.is_left[u] = False
    core.folded.append((u, (v,), table))
    core.queue.append(v)


def _join(core: Core, u: int, v: int, cost: FloatArray) -> None:
    if v in core.adjacent[u]:
        cost = core.adjacent[u][v] + cost
    core.adjacent[u][v], core.adjacent[v][u] = cost, cost.T
    _look_at(core, u, v)


def _add_item(core: Core, v: int, first: int, last: int, usage: FloatArray) -> None:
    least = usage.min()
    if least > 0.0:
        core.limits[first:last] -= least
        usage = usage - least
    if usage.any():
        core.items[v].append((first, last, usage))


def _eliminate(core: Core, u: int) -> None:
    """Take `u` out where few neighbours and no trade between cost and memory make that exact."""
    if not core.is_left[u] or len(core.adjacent[u]) > 2:
        return
    if not core.adjacent[u]:
        _settle(core, u)
    elif len(core.adjacent[u]) == 1:
        _hang(core, u)
    elif not core.items[u]:
        _bridge(core, u)


def _settle(core: Core, u: int) -> None:
    best = _pick(core, u, core.unary[u])
    if best is not None:
        core.constant += float(core.unary[u][best])
        core.is_left[u] = False
        core.folded.append((u, (), np.array(best)))


def _pick(core: Core, u: int, cost: FloatArray) -> int | None:
    """A candidate that is both cheapest and least in memory among those that `cost` allows."""
    allowed = np.flatnonzero(np.isfinite(cost))
    best = allowed[cost[allowed] == cost[allowed].min()]
    if not core.items[u]:
        return int(best[0])
    usage = np.array([item[2] for item in core.items[u]])
    is_least = (usage[:, best] <= usage[:, allowed].min(axis=1, keepdims=True)).all(axis=0)
    return int(best[is_least.argmax()]) if is_least.any() else None


def _hang(core: Core, u: int) -> None:
    ((v, cost),) = core.adjacent[u].items()
    total = cost + core.unary[u][:, None]
    table = np.zeros(total.shape[1], dtype=np.int64)
    for j in range(total.shape[1]):
        best = _pick(core, u, total[:, j])
        if best is None:
            return
        table[j] = best
    _fold(core, u, v, table)


def _bridge(core: Core, u: int) -> None:
    (v, to_v), (w, to_w) = core.adjacent[u].items()
    if to_v.shape[1] * to_w.shape[1] > _MOST_SERIES_PAIRS:
        return
    total = (to_v + core.unary[u][:, None])[:, :, None] + to_w[:, None, :]
    table = total.argmin(axis=0)
    del core.adjacent[v][u], core.adjacent[w][u]
    core.adjacent[u] = {}
    core.is_left[u] = False
    core.folded.append((u, (v, w), table))
    core.queue.extend((v, w))
    _join(core, v, w, total.min(axis=0))
