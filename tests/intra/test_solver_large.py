"""The solver of large problems, held to brute force on small ones with memory over time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.errors import SolverError
from alpaviz.intra.problem import Edge, MemoryProfile, ShardingProblem, SolveStatus
from alpaviz.intra.solvers.large.reduce import reduce_problem
from alpaviz.intra.solvers.large.rows import spell_out
from alpaviz.intra.solvers.large.solve import is_within, solve_large
from alpaviz.intra.solvers.watch import Watch
from tests.sharding_problems import every_choice, find_best_cost, is_legal


@st.composite
def timed_problems(draw: st.DrawFn) -> ShardingProblem:
    """Up to five variables alive over intervals, with forbidden entries and limits that bind or that nothing meets."""
    costs = st.one_of(st.integers(0, 9).map(float), st.just(float("inf")))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    unary = tuple(np.array(draw(st.lists(costs, min_size=k, max_size=k))) for k in sizes)
    edges = []
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    for u, v in draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []:
        count = sizes[u] * sizes[v]
        edges.append(Edge(u, v, np.array(draw(st.lists(costs, min_size=count, max_size=count))).reshape(sizes[u], -1)))
    starts = np.array([draw(st.integers(0, 6)) for _ in sizes], dtype=np.int64)
    ends = starts + np.array([draw(st.integers(0, 6)) for _ in sizes], dtype=np.int64)
    usage = tuple(np.array(draw(st.lists(st.integers(0, 9), min_size=k, max_size=k)), dtype=np.float64) for k in sizes)
    limit = float(draw(st.integers(0, 9 * len(sizes))))
    return ShardingProblem(unary, tuple(edges), profile=MemoryProfile(starts, ends, usage, limit))


def solve(problem: ShardingProblem, warm_start: tuple[int, ...] | None = None):  # type: ignore[no-untyped-def]
    return solve_large(problem, Watch("auto", 0.1), 1e-9, warm_start, has_limit=True)


@settings(deadline=None, max_examples=60)
@given(timed_problems())
def test_answers_agree_with_brute_force(problem: ShardingProblem) -> None:
    best = find_best_cost(spell_out(problem))
    solution = solve(problem)
    assert solution.bound <= best or not np.isfinite(best)
    if solution.choice:
        assert is_legal(spell_out(problem), solution.choice)
        assert solution.objective >= best
        assert solution.objective == problem.price(solution.choice)
    if solution.status is SolveStatus.OPTIMAL:
        assert solution.objective == best


@settings(deadline=None, max_examples=200)
@given(timed_problems())
def test_reduction_keeps_the_least_cost_without_memory(problem: ShardingProblem) -> None:
    free = ShardingProblem(problem.unary, problem.edges)
    core = reduce_problem(free)
    best = find_best_cost(free)
    if core is None:
        assert best == float("inf")
        return
    left = [int(v) for v in np.flatnonzero(core.is_left)]
    found = min(
        free.price(core.unfold(dict(zip(left, picked, strict=True))))
        for picked in itertools.product(*(range(len(core.unary[v])) for v in left))
    )
    assert found == best


@settings(deadline=None, max_examples=200)
@given(timed_problems())
def test_rows_hold_exactly_where_memory_over_time_does(problem: ShardingProblem) -> None:
    rows = spell_out(problem)
    for choice in every_choice(problem):
        used = rows.measure_memory(choice)
        holds = all(size <= row.limit for size, row in zip(used, rows.memory, strict=True))
        assert holds == is_within(problem.profile, choice)


def test_least_memory_over_the_limit_is_infeasible_by_what_is_short() -> None:
    profile = MemoryProfile(np.array([0, 1]), np.array([3, 2]), (np.array([5.0, 9.0]), np.array([4.0])), 7.0)
    solution = solve(ShardingProblem((np.zeros(2), np.zeros(1)), profile=profile))
    assert (solution.status, solution.bytes_short) == (SolveStatus.INFEASIBLE, 2.0)


def test_usage_of_a_wrong_shape_is_refused() -> None:
    profile = MemoryProfile(np.array([0]), np.array([3]), (np.array([5.0]),), 7.0)
    with pytest.raises(SolverError, match="usage should be 2"):
        solve(ShardingProblem((np.zeros(2),), profile=profile))


def test_legal_warm_start_is_never_lost() -> None:
    profile = MemoryProfile(np.array([0, 0]), np.array([2, 2]), (np.array([0.0, 3.0]),) * 2, 3.0)
    edge = Edge(0, 1, np.array([[9.0, 4.0], [5.0, 0.0]]))
    solution = solve(ShardingProblem((np.zeros(2), np.zeros(2)), (edge,), profile=profile), warm_start=(0, 1))
    assert solution.objective <= 4.0


def test_usages_that_are_no_whole_bytes_leave_room_for_rounding() -> None:
    usage = tuple(np.array([0.0, 0.1]) for _ in range(6))
    profile = MemoryProfile(np.zeros(6, dtype=np.int64), np.ones(6, dtype=np.int64), usage, 0.35)
    problem = ShardingProblem(tuple(np.array([1.0, 0.0]) for _ in range(6)), profile=profile)
    # Long enough to compile everything on a busy machine; half a choice more fits, so the gap stays open till then.
    solution = solve_large(problem, Watch("auto", 10.0), 1e-9, None, has_limit=True)
    assert solution.objective == 3.0
