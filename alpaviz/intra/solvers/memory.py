"""The least memory that any choice needs: what to say when nothing fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from alpaviz.intra.problem import Edge, ShardingProblem
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.network import build_network
from alpaviz.intra.solvers.pairwise import close_gap
from alpaviz.intra.solvers.watch import Watch


def least_memory(problem: ShardingProblem, row: int, watch: Watch | None = None) -> tuple[float, tuple[int, ...]]:
    """Fewest bytes that memory row `row` can take, and a choice that takes them; other rows are not looked at.

    (inf, ()) where no choice is legal for reasons other than memory.
    """
    memory = problem.memory[row]
    return _weigh_rows(problem, {row: 1.0}, watch) if len(memory.variables) else (0.0, ())


def list_barriers(problem: ShardingProblem) -> tuple[Edge, ...]:
    """The edges that forbid pairs, which cost inf there, and everything else nothing."""
    return tuple(
        Edge(e.u, e.v, e.costs.replaced(np.where(np.isfinite(e.costs.table), 0.0, np.inf)))
        for e in problem.edges
        if np.isinf(e.costs.table).any()
    )


def measure_shortage(problem: ShardingProblem, watch: Watch | None = None) -> float:
    """Bytes by which the worst memory row is over its limit in the best case; 0 where rows are not the reason.

    Rows may be impossible together though each alone is not. Then a weighted sum of the rows is over that of the
    limits, and so at least one row is over by that much: the largest such proof found is given.
    """
    single = [least_memory(problem, r, watch)[0] - row.limit for r, row in enumerate(problem.memory)]
    worst = max(single, default=0.0)
    if worst > 0.0 or len(single) < 2 or not np.isfinite(worst):
        return max(0.0, worst) if np.isfinite(worst) else 0.0
    return max(0.0, _find_joint_shortage(problem, watch))


def _find_joint_shortage(problem: ShardingProblem, watch: Watch | None) -> float:
    """Best lower limit on the worst row's excess over weights of the rows, by subgradient steps on the simplex."""
    rows = len(problem.memory)
    weights, best = np.full(rows, 1.0 / rows), -np.inf
    limits = np.array([row.limit for row in problem.memory])
    for step in range(1, 30):
        bytes_used, choice = _weigh_rows(problem, dict(enumerate(weights.tolist())), watch)
        best = max(best, bytes_used - float(weights @ limits))
        if not choice or (watch is not None and watch.is_over()):
            break
        over = np.array(problem.measure_memory(choice)) - limits
        if over.max() <= max(best, 0.0):
            break
        # Multiplicative steps keep weights positive and summing to one.
        weights = weights * np.exp((over - over.mean()) / max(float(np.abs(over).max()), 1e-300) / np.sqrt(step))
        weights /= weights.sum()
    return best


def _weigh_rows(
    problem: ShardingProblem, weights: dict[int, float], watch: Watch | None
) -> tuple[float, tuple[int, ...]]:
    """Least weighted sum of the rows' usages, and a choice that has it."""
    unary = [np.where(np.isfinite(cost), 0.0, np.inf) for cost in problem.unary]
    for r, weight in weights.items():
        for v, usage in zip(problem.memory[r].variables, problem.memory[r].usage, strict=True):
            unary[v] = unary[v] + weight * usage
    network = build_network(replace(problem, unary=tuple(unary), edges=list_barriers(problem), memory=()))
    if network is None:
        return float("inf"), ()
    incumbent = Incumbent(network.ceiling, 1e-12)
    close_gap(network, incumbent, watch or Watch("memory"))
    return incumbent.objective, incumbent.choice
