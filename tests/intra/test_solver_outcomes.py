"""What comes back when nothing fits, when time is up, when the caller cancels, and when input is wrong."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import assume, given, settings

from alpaviz.errors import SolverError
from alpaviz.intra.problem import Edge, MemoryRow, ShardingProblem, SolveStatus
from alpaviz.intra.solvers import SolveProgress, least_memory, solve_problem
from tests.sharding_problems import every_choice, make_training_step, sharding_problems

TIGHT = MemoryRow("device", (0, 1), (np.array([4.0, 3.0]), np.array([5.0, 6.0])), 7.0)


def solve_tight(solver: str) -> tuple[SolveStatus, float, tuple[int, ...]]:
    solution = solve_problem(ShardingProblem((np.zeros(2), np.zeros(2)), (), (TIGHT,)), solver=solver)
    return solution.status, solution.bytes_short, solution.choice


@pytest.mark.parametrize("solver", ["auto", "exact", "ilp", "paper"])
def test_infeasible_names_the_bytes_short(solver: str) -> None:
    assert solve_tight(solver) == (SolveStatus.INFEASIBLE, 1.0, ())


def test_rows_that_fit_alone_but_not_together_are_infeasible() -> None:
    either = MemoryRow("a", (0,), (np.array([0.0, 10.0]),), 5.0)
    other = MemoryRow("b", (0,), (np.array([10.0, 0.0]),), 5.0)
    solution = solve_problem(ShardingProblem((np.zeros(2),), (), (either, other)))
    assert solution.status is SolveStatus.INFEASIBLE
    assert 0.0 <= solution.bytes_short <= 5.0


@settings(max_examples=60, deadline=None)
@given(sharding_problems(max_rows=1))
def test_least_memory_is_that_of_the_smallest_choice(problem: ShardingProblem) -> None:
    assume(problem.memory)
    legal = [c for c in every_choice(problem) if np.isfinite(problem.price(c))]
    least, choice = least_memory(problem, 0)
    assert least == pytest.approx(min((problem.measure_memory(c)[0] for c in legal), default=float("inf")))
    assert not choice or problem.measure_memory(choice)[0] == pytest.approx(least)


def test_cancelled_before_it_starts_gives_no_worse_than_a_first_choice() -> None:
    solution = solve_problem(make_training_step(1), should_stop=lambda: True)
    assert solution.status in (SolveStatus.CANCELLED, SolveStatus.FEASIBLE)


@pytest.mark.parametrize("solver", ["exact", "ilp"])
def test_cancel_is_honoured_soon(solver: str) -> None:
    problem = make_training_step(3)
    start = time.perf_counter()
    solution = solve_problem(problem, solver=solver, should_stop=lambda: time.perf_counter() - start > 0.05)
    assert time.perf_counter() - start < 2.0
    assert solution.status in (SolveStatus.CANCELLED, SolveStatus.FEASIBLE, SolveStatus.OPTIMAL)
    assert solution.bound <= solution.objective


def test_time_limit_leaves_a_choice_with_its_gap() -> None:
    rng = np.random.default_rng(0)
    count = 40
    edges = tuple(Edge(u, v, rng.random((20, 20))) for u in range(count) for v in range(u + 1, count))
    problem = ShardingProblem(tuple(rng.random(20) for _ in range(count)), edges)
    solution = solve_problem(problem, solver="exact", time_limit=0.5)
    assert solution.status is SolveStatus.FEASIBLE
    assert 0.0 < solution.gap < 1.0
    assert solution.seconds < 3.0


def test_a_time_limit_that_is_over_at_once_leaves_a_choice() -> None:
    solution = solve_problem(make_training_step(2), solver="exact", time_limit=1e-9)
    assert solution.status is SolveStatus.FEASIBLE
    assert solution.choice


def test_progress_is_reported_at_a_bearable_rate() -> None:
    heard: list[SolveProgress] = []
    solution = solve_problem(make_training_step(2), on_progress=heard.append)
    assert 1 <= len(heard) <= 1 + 10 * solution.seconds
    assert all(p.bound <= p.objective for p in heard)


def test_warm_start_is_never_beaten_by_the_answer() -> None:
    problem = make_training_step(1)
    best = solve_problem(problem)
    again = solve_problem(problem, warm_start=best.choice)
    assert again.objective <= best.objective * (1 + 1e-9)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ShardingProblem((np.array([np.nan]),), (), (), ("layer0/fc1",)), "'layer0/fc1'.*NaN"),
        (ShardingProblem((np.zeros(2),), (Edge(0, 0, np.zeros((2, 2))),)), "joins a variable to itself"),
        (ShardingProblem((np.zeros(2), np.zeros(3)), (Edge(0, 1, np.zeros((2, 2))),)), r"\(2, 2\).*\(2, 3\)"),
        (ShardingProblem((np.zeros(2),), (), (MemoryRow("m", (0,), (np.array([-1.0, 0.0]),), 1.0),)), "row 'm'"),
    ],
)
def test_malformed_problem_is_refused_by_name(problem: ShardingProblem, message: str) -> None:
    with pytest.raises(SolverError, match=message):
        solve_problem(problem)


def test_unknown_solver_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SolverError, match=r"'simplex' is not known.*exact"):
        solve_problem(ShardingProblem((np.zeros(1),)), solver="simplex")


def test_tiny_costs_below_a_memory_limit_are_proven_optimal() -> None:
    usage = np.array([0.0, 0.0, 2.0])
    problem = ShardingProblem(
        (np.array([1e-7, np.inf, 0.0]),), (), (MemoryRow("device memory", (0,), (usage,), 1.0),), ("v",)
    )
    solution = solve_problem(problem)
    assert solution.status is SolveStatus.OPTIMAL
    assert solution.choice == (0,)
