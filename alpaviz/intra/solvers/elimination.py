"""Exact optimum by bucket elimination: variables leave one by one, each into a table over its neighbours.

Worth it only where tables stay small, so `plan_elimination` says beforehand what they would hold.

Source: Dechter, Bucket elimination: a unifying framework for reasoning, 1999.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.network import IntArray, Network
from alpaviz.intra.solvers.watch import Watch


@dataclass(frozen=True, slots=True)
class Elimination:
    """Order of elimination; `scopes[i]` is the i-th variable followed by those its table is over.

    `entries` is what all tables hold together, `largest` what the largest does.
    """

    scopes: tuple[tuple[int, ...], ...]
    entries: float
    largest: float


@dataclass(frozen=True, slots=True, eq=False)
class _Factor:
    scope: tuple[int, ...]
    table: FloatArray  # one axis per variable of `scope`


def plan_elimination(network: Network, most_entries: float = float("inf")) -> Elimination | None:
    """Greedy order, smallest joint table first; None as soon as `most_entries` would be passed.

    Variables without a choice come last, alone.
    """
    weight = np.log2(network.sizes.astype(np.float64)).tolist()
    is_open = (network.sizes > 1).tolist()
    near: list[set[int]] = [set() for _ in weight]
    for e in network.edges:
        if is_open[e.u] and is_open[e.v]:
            near[e.u].add(e.v)
            near[e.v].add(e.u)
    score = [weight[v] + sum(weight[w] for w in near[v]) for v in range(len(weight))]
    queue = [(s, v) for v, s in enumerate(score) if is_open[v]]
    heapq.heapify(queue)
    gone = [False] * len(weight)
    scopes: list[tuple[int, ...]] = []
    entries, largest = 0.0, 0.0
    while queue:
        s, v = heapq.heappop(queue)
        if gone[v] or s != score[v]:
            continue
        entries += 2.0**s
        largest = max(largest, 2.0**s)
        if entries > most_entries:
            return None
        gone[v] = True
        around = near[v]
        scopes.append((v, *sorted(around)))
        for w in around:
            near[w] |= around
            near[w] -= {v, w}
        for w in around:
            score[w] = weight[w] + sum(weight[x] for x in near[w])
            heapq.heappush(queue, (score[w], w))
    alone: list[tuple[int, ...]] = [(v,) for v, opened in enumerate(is_open) if not opened]
    entries, scopes = entries + len(alone), scopes + alone
    largest = max(largest, 1.0 if alone else 0.0)
    if entries > most_entries:
        return None
    return Elimination(tuple(scopes), entries, largest)


def eliminate(
    network: Network, plan: Elimination, unary: FloatArray | None = None, watch: Watch | None = None
) -> tuple[float, IntArray] | None:
    """Optimum and a choice that has it; None where `watch` stopped the work.

    `unary` stands in for the network's own where given.
    """
    plan = _leave_out_single(network, plan)
    buckets = _fill_buckets(network, plan, unary)
    place = {scope[0]: i for i, scope in enumerate(plan.scopes)}
    best = 0.0
    for i, scope in enumerate(plan.scopes):
        if watch is not None and watch.is_over():
            return None
        message = _add_up(buckets[i], scope, network).min(axis=0)
        if len(scope) == 1:
            best += float(message)
        else:
            buckets[min(place[v] for v in scope[1:])].append(_Factor(scope[1:], message))
    choice = np.zeros(network.num_variables, dtype=np.int64)
    for scope, bucket in zip(reversed(plan.scopes), reversed(buckets), strict=True):
        # Adding up one column again is cheaper than keeping every table until here.
        column = np.zeros(int(network.sizes[scope[0]]))
        for factor in bucket:
            column += factor.table[tuple(slice(None) if v == scope[0] else int(choice[v]) for v in factor.scope)]
        choice[scope[0]] = int(column.argmin())
    return best, choice


@dataclass(frozen=True, slots=True, eq=False)
class BucketTree:
    """Exact completions: what the rest costs, for each table of an elimination.

    Attributes:
        parents: per bucket the bucket that its message goes to; -1 where its table is over one variable only.
        least: per bucket the message, over `scopes[i][1:]`: the cheapest way to fill in the bucket's subtree.
        totals: per bucket, over `scopes[i]`: the optimum among choices that take these candidates.
        optimum: of the whole network.
    """

    plan: Elimination
    parents: tuple[int, ...]
    least: tuple[FloatArray, ...]
    totals: tuple[FloatArray, ...]
    optimum: float


def complete_buckets(network: Network, plan: Elimination, unary: FloatArray | None = None) -> BucketTree:
    """One pass up the tree of buckets and one down; holds every table, so `plan` should be small."""
    plan = _leave_out_single(network, plan)
    buckets = _fill_buckets(network, plan, unary)
    place = {scope[0]: i for i, scope in enumerate(plan.scopes)}
    parents = [min((place[v] for v in scope[1:]), default=-1) for scope in plan.scopes]
    least: list[FloatArray] = []
    totals: list[FloatArray] = []
    for i, scope in enumerate(plan.scopes):
        totals.append(_add_up(buckets[i], scope, network))
        least.append(totals[i].min(axis=0))
        if parents[i] >= 0:
            buckets[parents[i]].append(_Factor(scope[1:], least[i]))
    optimum = sum(float(table) for table, parent in zip(least, parents, strict=True) if parent < 0)
    for i in range(len(plan.scopes) - 1, -1, -1):
        if parents[i] >= 0:
            rest = _look_through(plan.scopes[i], plan.scopes[parents[i]], totals[parents[i]]) - least[i]
            totals[i] = totals[i] + rest
        else:
            totals[i] = totals[i] + (optimum - float(least[i]))
    return BucketTree(plan, tuple(parents), tuple(least), tuple(totals), optimum)


def find_min_marginals(network: Network, tree: BucketTree) -> FloatArray:
    """(candidates of all variables,), the optimum among choices that take the candidate."""
    marginals = np.zeros(len(network.unary))
    for scope, total in zip(tree.plan.scopes, tree.totals, strict=True):
        start = network.offsets[scope[0]]
        marginals[start : start + total.shape[0]] = total.min(axis=tuple(range(1, len(scope))))
    return marginals


def _look_through(scope: tuple[int, ...], above: tuple[int, ...], total: FloatArray) -> FloatArray:
    """The parent's `total` (over `above`) as a table over `scope[1:]`, the variables shared with it."""
    lost = tuple(axis for axis, v in enumerate(above) if v not in scope[1:])
    kept = [v for v in above if v in scope[1:]]
    return np.transpose(total.min(axis=lost), [kept.index(v) for v in scope[1:]])


def _leave_out_single(network: Network, plan: Elimination) -> Elimination:
    """`plan` with tables over variables that have a choice only: numpy has 64 axes at most, one for each variable."""
    scopes = tuple((scope[0], *(v for v in scope[1:] if network.sizes[v] > 1)) for scope in plan.scopes)
    return Elimination(scopes, plan.entries, plan.largest)


def _fill_buckets(network: Network, plan: Elimination, unary: FloatArray | None) -> list[list[_Factor]]:
    """Each cost in the bucket of whichever of its variables leaves first."""
    place = {scope[0]: i for i, scope in enumerate(plan.scopes)}
    costs = network.unary if unary is None else unary
    buckets = [
        [_Factor((scope[0],), costs[network.offsets[scope[0]] : network.offsets[scope[0] + 1]])]
        for scope in plan.scopes
    ]
    for e in network.edges:
        first, later = (e.u, e.v) if place[e.u] < place[e.v] else (e.v, e.u)
        if network.sizes[later] == 1:
            buckets[place[first]].append(_Factor((first,), e.cost.reshape(-1)))
        else:
            buckets[place[first]].append(_Factor((e.u, e.v), e.cost))
    return buckets


def _add_up(factors: list[_Factor], scope: tuple[int, ...], network: Network) -> FloatArray:
    """Sum of `factors` as one table over `scope`."""
    sizes = network.sizes
    joint = np.zeros(tuple(int(sizes[v]) for v in scope))
    for factor in sorted(factors, key=lambda f: f.table.size):
        axes = sorted(range(len(factor.scope)), key=lambda axis: scope.index(factor.scope[axis]))
        shape = [1] * len(scope)
        for axis in axes:
            shape[scope.index(factor.scope[axis])] = factor.table.shape[axis]
        joint += np.transpose(factor.table, axes).reshape(shape)
    return joint
