"""Memory over time as memory rows, for the solvers of small problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from alpaviz.errors import SolverError
from alpaviz.intra.problem import MemoryProfile, MemoryRow, ShardingProblem
from alpaviz.intra.solvers.large.reduce import find_peaks

_MOST_VARIABLES = 2_000
_MOST_USAGES = 20_000_000


def is_large(problem: ShardingProblem) -> bool:
    """Whether rows for the memory profile would be too many for the solvers that hold them densely."""
    if problem.profile is None:
        return False
    times = len(find_peaks(problem.profile.starts, problem.profile.ends))
    candidates = sum(len(cost) for cost in problem.unary)
    return problem.num_variables > _MOST_VARIABLES or times * candidates > _MOST_USAGES


def spell_out(problem: ShardingProblem) -> ShardingProblem:
    """The same problem, its memory profile as one row per time at which a larger set of variables is alive."""
    if problem.profile is None:
        return problem
    return replace(problem, memory=(*problem.memory, *_list_rows(problem.profile)), profile=None)


def spell_out_small(problem: ShardingProblem) -> ShardingProblem:
    """`spell_out` for methods that have nothing else; the rows of `problem` keep their numbers.

    Raises:
        SolverError: the memory profile is too large for rows.
    """
    if is_large(problem):
        raise SolverError(
            f"the memory profile of these {problem.num_variables} variables is too large for memory rows, which "
            f"lists of plans and fronts need; solve it with solve_problem"
        )
    return spell_out(problem)


def _list_rows(profile: MemoryProfile) -> tuple[MemoryRow, ...]:
    counts = np.array([usage.any() for usage in profile.usage], dtype=np.bool_) & (profile.ends > profile.starts)
    counted = np.flatnonzero(counts)
    starts, ends = profile.starts[counted], profile.ends[counted]
    rows: list[MemoryRow] = []
    for time in find_peaks(starts, ends).tolist():
        members = tuple(int(v) for v in counted[(starts <= time) & (time < ends)])
        rows.append(MemoryRow(f"time {time}", members, tuple(profile.usage[v] for v in members), profile.limit))
    return tuple(rows)
