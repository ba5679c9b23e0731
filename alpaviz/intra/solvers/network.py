"""A sharding problem in the solvers' own layout: all candidates in one flat array, no infinities.

Every pass that drops candidates returns a new network; `kept` is the way back to the problem's candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from alpaviz.errors import SolverError
from alpaviz.intra.pair_costs import PairCosts
from alpaviz.intra.problem import Edge, FloatArray, ShardingProblem

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MOST_USAGES = 200_000_000
"""Memory usages are held densely, as the planner has a row or two; this much is 1.6 GB."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Pairwise costs and memory use of the candidates that are left.

    Attributes:
        unary: (candidates of all variables,), variable after variable.
        offsets: (variables + 1,), where each variable's candidates start in `unary`.
        edges: as the problem's, over the candidates that are left.
        usage: (memory rows, candidates of all variables), bytes.
        limits: (memory rows,), bytes; rows that no choice can exceed are left out.
        kept: (candidates of all variables,), each candidate's index in the problem.
        ceiling: no legal choice costs more; forbidden entries are finite, but take any choice above it.
        sizes: (variables,), number of candidates.
    """

    unary: FloatArray
    offsets: IntArray
    edges: tuple[Edge, ...]
    usage: FloatArray
    limits: FloatArray
    kept: IntArray
    ceiling: float
    sizes: IntArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", np.diff(self.offsets))

    @property
    def num_variables(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_pairs(self) -> int:
        """Entries of all edges' whole matrices."""
        return sum(e.costs.size for e in self.edges)

    def price(self, choice: IntArray) -> float:
        """Cost of `choice` (one index per variable, among the candidates left)."""
        total = float(self.unary[self.offsets[:-1] + choice].sum())
        return total + sum(e.costs.at(int(choice[e.u]), int(choice[e.v])) for e in self.edges)

    def measure_memory(self, choice: IntArray) -> FloatArray:
        return np.asarray(self.usage[:, self.offsets[:-1] + choice].sum(axis=1), dtype=np.float64)

    def name_choice(self, choice: IntArray) -> tuple[int, ...]:
        """`choice` in the problem's candidate indices."""
        return tuple(int(k) for k in self.kept[self.offsets[:-1] + choice])

    def find_choice(self, named: tuple[int, ...]) -> IntArray | None:
        """The problem's `named` choice in this network's indices; None where a candidate of it was dropped."""
        choice = np.zeros(self.num_variables, dtype=np.int64)
        for v, wanted in enumerate(named):
            at = np.flatnonzero(self.kept[self.offsets[v] : self.offsets[v + 1]] == wanted)
            if len(at) == 0:
                return None
            choice[v] = at[0]
        return choice


def build_network(problem: ShardingProblem) -> Network | None:
    """The problem without forbidden candidates; None where a variable has no legal candidate left.

    Raises:
        SolverError: shapes do not fit together, a cost is NaN or minus infinity, or an edge joins a variable to itself.
    """
    check_problem(problem)
    masks = find_legal(problem)
    if any(not mask.any() for mask in masks):
        return None
    unary = [np.asarray(cost, dtype=np.float64)[mask] for cost, mask in zip(problem.unary, masks, strict=True)]
    edges = _merge_edges(problem, masks)
    low = sum(float(cost.min()) for cost in unary) + sum(_least(e.costs.table) for e in edges)
    high = sum(float(cost.max()) for cost in unary) + sum(_most(e.costs.table) for e in edges)
    # Any stand-in for inf adds at least this to a choice, so that it lands above `high`, the ceiling.
    penalty = 1.5 * (high - low) + max(1e-3 * abs(high), 1e-12)
    edges = [Edge(e.u, e.v, _make_finite(e.costs, penalty)) for e in edges]
    usage, limits = _lay_out_memory(problem, masks)
    return Network(
        unary=np.concatenate(unary) if unary else np.zeros(0),
        offsets=np.concatenate([[0], np.cumsum([len(cost) for cost in unary])]).astype(np.int64),
        edges=tuple(edges),
        usage=usage,
        limits=limits,
        kept=np.concatenate([np.flatnonzero(m) for m in masks]).astype(np.int64) if masks else np.zeros(0, np.int64),
        ceiling=high + 0.1 * penalty,
    )


def keep_candidates(network: Network, keep: BoolArray) -> Network | None:
    """`network` with only the candidates where `keep` holds; None where a variable loses all."""
    if keep.all():
        return network
    starts, ends = network.offsets[:-1], network.offsets[1:]
    counts = np.add.reduceat(keep.astype(np.int64), starts)
    if (counts == 0).any():
        return None
    rows = [np.flatnonzero(keep[a:b]) for a, b in zip(starts, ends, strict=True)]
    whole = counts == network.sizes
    edges = tuple(
        e
        if whole[e.u] and whole[e.v]
        else Edge(e.u, e.v, e.costs.take(None if whole[e.u] else rows[e.u], None if whole[e.v] else rows[e.v]).tight())
        for e in network.edges
    )
    return Network(
        unary=network.unary[keep],
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        edges=edges,
        usage=network.usage[:, keep],
        limits=network.limits,
        kept=network.kept[keep],
        ceiling=network.ceiling,
    )


def check_problem(problem: ShardingProblem) -> None:
    """Raise SolverError where costs or memory rows are malformed."""
    sizes = [len(cost) for cost in problem.unary]
    for v, cost in enumerate(problem.unary):
        if np.isnan(cost).any() or np.isneginf(cost).any():
            raise SolverError(
                f"variable {_name(problem, v)}: a cost is NaN or -inf; use finite costs, or inf to forbid"
            )
    for e in problem.edges:
        where = f"edge {_name(problem, e.u)} - {_name(problem, e.v)}"
        if e.u == e.v:
            raise SolverError(f"{where}: joins a variable to itself; add the diagonal to its unary cost")
        if e.costs.shape != (sizes[e.u], sizes[e.v]):
            raise SolverError(f"{where}: cost has shape {e.costs.shape}, should be {(sizes[e.u], sizes[e.v])}")
        # One pass over the table: the least entry is NaN where any is.
        if not e.costs.table.min(initial=np.inf) > -np.inf:
            raise SolverError(f"{where}: a cost is NaN or -inf; use finite costs, or inf to forbid")
    for row in problem.memory:
        for v, usage in zip(row.variables, row.usage, strict=True):
            if usage.shape != (sizes[v],) or not (np.isfinite(usage).all() and (usage >= 0.0).all()):
                raise SolverError(
                    f"memory row {row.name!r}, variable {_name(problem, v)}: usage should be {sizes[v]} finite numbers "
                    f"of at least 0"
                )


def _name(problem: ShardingProblem, v: int) -> str:
    return repr(problem.names[v]) if v < len(problem.names) else str(v)


def find_legal(problem: ShardingProblem) -> list[BoolArray]:
    """Candidates that are not forbidden themselves and have a legal partner over every edge."""
    masks: list[BoolArray] = [np.isfinite(cost) for cost in problem.unary]
    barred = [(e.u, e.v, np.isfinite(e.cost)) for e in problem.edges if e.costs.table.max(initial=-np.inf) == np.inf]
    changed = True
    while changed:
        changed = False
        for u, v, legal in barred:
            at_u = masks[u] & legal[:, masks[v]].any(axis=1)
            at_v = masks[v] & legal[at_u, :].any(axis=0)
            changed |= bool((at_u != masks[u]).any() or (at_v != masks[v]).any())
            masks[u], masks[v] = at_u, at_v
    return masks


def _merge_edges(problem: ShardingProblem, masks: list[BoolArray]) -> list[Edge]:
    """Edges over the legal candidates, u < v, one per pair of variables, none that costs nothing."""
    merged: dict[tuple[int, int], PairCosts] = {}
    rows = [None if mask.all() else np.flatnonzero(mask) for mask in masks]
    for e in problem.edges:
        costs = e.costs if rows[e.u] is None and rows[e.v] is None else e.costs.take(rows[e.u], rows[e.v])
        key, costs = ((e.u, e.v), costs) if e.u < e.v else ((e.v, e.u), costs.transposed())
        merged[key] = merged[key].plus(costs) if key in merged else costs
    tight = ((key, costs.tight()) for key, costs in sorted(merged.items(), key=lambda item: item[0]))
    return [Edge(u, v, costs) for (u, v), costs in tight if costs.table.any()]


def _make_finite(costs: PairCosts, penalty: float) -> PairCosts:
    table = np.asarray(costs.table, dtype=np.float64)
    if table.max(initial=-np.inf) < np.inf:
        return costs
    return costs.replaced(np.where(np.isfinite(table), table, _most(table) + penalty))


def _least(cost: FloatArray) -> float:
    return float(cost.min(initial=np.inf))


def _most(cost: FloatArray) -> float:
    most = float(cost.max(initial=-np.inf))
    return most if most < np.inf else float(cost[np.isfinite(cost)].max(initial=-np.inf))


def _lay_out_memory(problem: ShardingProblem, masks: list[BoolArray]) -> tuple[FloatArray, FloatArray]:
    offsets = np.concatenate([[0], np.cumsum([int(mask.sum()) for mask in masks])]).astype(np.int64)
    if len(problem.memory) * int(offsets[-1]) > _MOST_USAGES:
        raise SolverError(
            f"{len(problem.memory)} memory rows over {int(offsets[-1])} candidates are more than the {_MOST_USAGES} "
            f"usages that the solvers hold; merge rows, or solve the problem in parts"
        )
    usage = np.zeros((len(problem.memory), int(offsets[-1])))
    for r, row in enumerate(problem.memory):
        for v, size in zip(row.variables, row.usage, strict=True):
            usage[r, offsets[v] : offsets[v + 1]] += size[masks[v]]
    limits = np.array([row.limit for row in problem.memory], dtype=np.float64)
    can_bind = np.maximum.reduceat(usage, offsets[:-1], axis=1).sum(axis=1) > limits if len(masks) else limits < 0.0
    return usage[can_bind], limits[can_bind]
