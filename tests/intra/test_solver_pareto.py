"""Time against memory, held against brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.errors import SolverError
from alpaviz.intra.problem import MemoryProfile, MemoryRow, ShardingProblem, SolveStatus
from alpaviz.intra.solvers import find_best_choices, find_pareto_front
from alpaviz.intra.solvers.large.rows import spell_out
from tests.sharding_problems import every_choice, is_legal, make_training_step, sharding_problems

limited_problems = sharding_problems(max_variables=4).filter(lambda problem: bool(problem.memory))


def find_true_front(problem: ShardingProblem, row: int) -> list[tuple[float, float]]:
    """(bytes, seconds) of the choices that none beats in both, fewest bytes first; other rows are limits."""
    others = [r for r in range(len(problem.memory)) if r != row]
    points = []
    for choice in every_choice(problem):
        memory, cost = problem.measure_memory(choice), problem.price(choice)
        if np.isfinite(cost) and all(memory[r] <= problem.memory[r].limit * (1 + 1e-12) for r in others):
            points.append((memory[row], cost))
    front: list[tuple[float, float]] = []
    for usage, cost in sorted(points):
        if not front or cost < front[-1][1] * (1 - 1e-9) - 1e-15:
            front.append((usage, cost))
    return front


def list_lifetimes(problem: ShardingProblem, limit: float) -> MemoryProfile:
    """Each variable alive with the next one, its candidates taking 0, 1, 2, ... bytes."""
    starts = np.arange(problem.num_variables, dtype=np.int64)
    usage = tuple(np.arange(len(cost), dtype=np.float64) for cost in problem.unary)
    return MemoryProfile(starts, starts + 2, usage, limit)


def is_dominated(point: tuple[float, float], front: list[tuple[float, float]]) -> bool:
    usage, cost = point
    return any(u <= usage * (1 + 1e-9) and c < cost * (1 - 1e-6) - 1e-12 for u, c in front)


@settings(max_examples=60, deadline=None)
@given(limited_problems)
def test_no_point_that_is_proven_is_beaten(problem: ShardingProblem) -> None:
    front = find_true_front(problem, 0)
    found = find_pareto_front(problem, 0, count=20)
    assert all(
        not is_dominated((point.usage, point.objective), front)
        for point in found.points
        if point.status is SolveStatus.OPTIMAL
    )


@settings(max_examples=60, deadline=None)
@given(limited_problems)
def test_the_ends_are_the_least_bytes_and_the_least_time(problem: ShardingProblem) -> None:
    front = find_true_front(problem, 0)
    found = find_pareto_front(problem, 0, count=20)
    assert bool(found.points) == bool(front)
    if front:
        assert found.points[0].usage == pytest.approx(front[0][0], rel=1e-9, abs=1e-9)
        assert found.points[-1].objective == pytest.approx(front[-1][1], rel=1e-6, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(limited_problems)
def test_no_choice_is_below_the_bound(problem: ShardingProblem) -> None:
    found = find_pareto_front(problem, 0, count=20)
    for usage, cost in find_true_front(problem, 0):
        assert found.bound(usage * (1 + 1e-12)) <= cost + 1e-7 * abs(cost) + 1e-12


@settings(max_examples=60, deadline=None)
@given(limited_problems)
def test_along_the_front_bytes_rise_and_time_falls(problem: ShardingProblem) -> None:
    points = find_pareto_front(problem, 0, count=20).points
    assert all(a.usage < b.usage and a.objective > b.objective for a, b in itertools.pairwise(points))


def test_a_training_step_has_a_front_of_at_least_eight_points() -> None:
    problem = make_training_step(2)
    assert len(find_pareto_front(problem, 0, count=8).points) == 8


def test_a_front_where_nothing_costs_memory_is_one_point() -> None:
    row = MemoryRow("device memory", (0,), (np.array([4.0, 4.0]),), 1.0)
    problem = ShardingProblem((np.array([2.0, 1.0]),), (), (row,))
    (point,) = find_pareto_front(problem, 0).points
    assert (point.choice, point.objective, point.usage) == ((1,), 1.0, 4.0)


def test_a_search_that_is_stopped_says_that_it_is_incomplete() -> None:
    found = find_pareto_front(make_training_step(2), 0, count=12, should_stop=lambda: True)
    assert not found.is_complete


def test_a_row_that_is_not_there_is_named() -> None:
    with pytest.raises(SolverError, match="memory row 3 does not exist"):
        find_pareto_front(make_training_step(1), 3)


def test_a_front_of_one_point_is_refused() -> None:
    with pytest.raises(SolverError, match="at least 2 points"):
        find_pareto_front(make_training_step(1), 0, count=1)


@settings(max_examples=60, deadline=None)
@given(limited_problems, st.integers(0, 20))
def test_a_memory_profile_is_a_limit_of_the_front_as_rows_are(problem: ShardingProblem, limit: int) -> None:
    timed = replace(problem, profile=list_lifetimes(problem, float(limit)))
    front = find_true_front(spell_out(timed), 0)
    found = find_pareto_front(timed, 0, count=20)
    assert bool(found.points) == bool(front)
    assert all(
        not is_dominated((point.usage, point.objective), front)
        for point in found.points
        if point.status is SolveStatus.OPTIMAL
    )


@settings(max_examples=60, deadline=None)
@given(sharding_problems(max_variables=4), st.integers(0, 20))
def test_the_cheapest_choices_keep_a_memory_profile(problem: ShardingProblem, limit: int) -> None:
    timed = replace(problem, profile=list_lifetimes(problem, float(limit)))
    rows = spell_out(timed)
    legal = sorted(rows.price(choice) for choice in every_choice(rows) if is_legal(rows, choice))
    found = [solution.objective for solution in find_best_choices(timed, 5)]
    assert found == pytest.approx(legal[:5], rel=1e-8, abs=1e-12)


def test_a_profile_that_is_too_large_for_rows_is_refused_rather_than_passed_over() -> None:
    count = 2_001
    whole = np.zeros(count, dtype=np.int64)
    row = MemoryRow("device memory", (0,), (np.array([4.0]),), 9.0)
    profile = MemoryProfile(whole, whole + 1, (np.array([4.0]),) * count, 3.0)
    problem = ShardingProblem((np.array([1.0]),) * count, (), (row,), profile=profile)
    with pytest.raises(SolverError, match="memory profile of these 2001 variables"):
        find_pareto_front(problem, 0)
    with pytest.raises(SolverError, match="memory profile of these 2001 variables"):
        find_best_choices(problem, 2)
