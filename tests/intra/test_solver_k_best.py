"""The k cheapest choices held against a listing of all of them, by tables and by partition."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.errors import SolverError
from alpaviz.intra.problem import Edge, MemoryRow, ShardingProblem, ShardingSolution, SolveStatus
from alpaviz.intra.solvers import find_best_choices, k_best, solve_problem
from tests.sharding_problems import every_choice, is_legal, limit_memory, make_training_step, sharding_problems

COUNTS = st.integers(1, 12)


both_ways = pytest.mark.parametrize("most_rows", [200_000, 0], ids=["tables", "partition"])
"""The partition is what is left where no table is allowed to have a row."""


def find(most_rows: int, problem: ShardingProblem, count: int, **options: Any) -> tuple[ShardingSolution, ...]:
    with mock.patch.object(k_best, "_MOST_ROWS", most_rows):
        return find_best_choices(problem, count, **options)


def list_costs(problem: ShardingProblem, differ_in: list[int] | None = None) -> list[float]:
    """Costs of all legal choices in order; of those that agree on `differ_in` the cheapest only."""
    cheapest: dict[tuple[int, ...], float] = {}
    for choice in every_choice(problem):
        if is_legal(problem, choice):
            key = choice if differ_in is None else tuple(choice[v] for v in differ_in)
            cheapest[key] = min(problem.price(choice), cheapest.get(key, np.inf))
    return sorted(cheapest.values())


def list_objectives(solutions: tuple[ShardingSolution, ...]) -> list[float]:
    return [s.objective for s in solutions]


@both_ways
@settings(max_examples=150, deadline=None)
@given(problem=sharding_problems(), count=COUNTS)
def test_costs_are_those_of_the_cheapest_choices(most_rows: int, problem: ShardingProblem, count: int) -> None:
    found = find(most_rows, problem, count)
    assert list_objectives(found) == pytest.approx(list_costs(problem)[:count], rel=1e-8, abs=1e-12)


@both_ways
@settings(max_examples=100, deadline=None)
@given(problem=sharding_problems(), count=COUNTS)
def test_choices_are_distinct_and_legal(most_rows: int, problem: ShardingProblem, count: int) -> None:
    choices = [s.choice for s in find(most_rows, problem, count)]
    assert len(set(choices)) == len(choices)
    assert all(is_legal(problem, choice) for choice in choices)


@both_ways
@settings(max_examples=100, deadline=None)
@given(problem=sharding_problems(), count=COUNTS)
def test_small_problems_are_proven(most_rows: int, problem: ShardingProblem, count: int) -> None:
    for solution in find(most_rows, problem, count):
        assert solution.status is SolveStatus.OPTIMAL
        assert solution.bound == solution.objective == problem.price(solution.choice)


@both_ways
@settings(max_examples=150, deadline=None)
@given(problem=sharding_problems(), count=COUNTS, data=st.data())
def test_choices_that_agree_where_it_matters_count_once(
    most_rows: int, problem: ShardingProblem, count: int, data: st.DataObject
) -> None:
    differ_in = data.draw(st.lists(st.integers(0, problem.num_variables - 1), unique=True))
    found = find(most_rows, problem, count, differ_in=differ_in)
    assert len({tuple(s.choice[v] for v in differ_in) for s in found}) == len(found)
    assert list_objectives(found) == pytest.approx(list_costs(problem, differ_in)[:count], rel=1e-8, abs=1e-12)


@both_ways
@settings(max_examples=100, deadline=None)
@given(problem=sharding_problems(max_rows=0), count=COUNTS, seconds=st.sampled_from([0.0, 1e-4, 1e-3]))
def test_bounds_hold_when_time_runs_out(most_rows: int, problem: ShardingProblem, count: int, seconds: float) -> None:
    found = find(most_rows, problem, count, best=solve_problem(problem, solver="exact"), time_limit=seconds)
    for solution, cost in zip(found, list_costs(problem), strict=False):
        assert solution.bound <= cost * (1 + 1e-8)
        assert solution.objective >= cost * (1 - 1e-8)


def test_plans_that_tie_in_one_variable_are_not_told_apart_by_it() -> None:
    tie = ShardingProblem((np.array([1.0, 2.0, 3.0]), np.zeros(5)))
    assert list_objectives(find_best_choices(tie, 3)) == [1.0, 1.0, 1.0]
    assert list_objectives(find_best_choices(tie, 3, differ_in=[0])) == [1.0, 2.0, 3.0]


def test_the_order_of_ties_is_the_same_from_run_to_run() -> None:
    problem = make_training_step(1)
    first, again = (find_best_choices(problem, 20) for _ in range(2))
    assert [s.choice for s in first] == [s.choice for s in again]


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_a_training_step_has_ten_plans_that_differ_in_its_weights(share: float) -> None:
    free = make_training_step(1)
    problem = limit_memory(free, share, solve_problem(free, solver="exact").choice)
    weights = [v for v, name in enumerate(problem.names) if name.split("/")[-1] in ("qkv", "proj", "fc1", "fc2")]
    best = solve_problem(problem, solver="exact")
    found = find_best_choices(problem, 10, best=best, differ_in=weights)
    assert len(found) == 10
    assert found[0].objective == pytest.approx(best.objective, rel=1e-8)
    assert all(s.status is SolveStatus.OPTIMAL for s in found)


def test_tables_and_partition_agree_on_a_graph_without_structure() -> None:
    rng = np.random.default_rng(3)
    edges = tuple(Edge(u, v, rng.random((4, 4))) for u in range(9) for v in range(u + 1, 9))
    problem = ShardingProblem(tuple(rng.random(4) for _ in range(9)), edges)
    by_tables, by_partition = (find(most_rows, problem, 10) for most_rows in (200_000, 0))
    assert [s.choice for s in by_tables] == [s.choice for s in by_partition]


@both_ways
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("differ_in", [None, [0, 3, 5]])
def test_two_memory_rows_that_bind_are_kept(most_rows: int, seed: int, differ_in: list[int] | None) -> None:
    rng = np.random.default_rng(seed)
    edges = tuple(Edge(v, v + 1, rng.random((3, 3))) for v in range(6))
    usage = [tuple(rng.integers(0, 20, 3).astype(float) for _ in range(7)) for _ in range(2)]
    rows = tuple(MemoryRow(f"row{r}", tuple(range(7)), usage[r], 60.0) for r in range(2))
    problem = ShardingProblem(tuple(rng.random(3) for _ in range(7)), edges, rows)
    found = find(most_rows, problem, 15, differ_in=differ_in)
    assert list_objectives(found) == pytest.approx(list_costs(problem, differ_in)[:15], rel=1e-8)


def test_nothing_is_listed_where_nothing_is_legal() -> None:
    row = MemoryRow("device", (0,), (np.array([4.0, 3.0]),), 2.0)
    assert find_best_choices(ShardingProblem((np.zeros(2),), (), (row,)), 3) == ()


def test_a_cancelled_search_lists_what_it_has() -> None:
    problem = make_training_step(1)
    best = solve_problem(problem)
    found = find_best_choices(problem, 10, best=best, should_stop=lambda: True)
    assert found[0].choice
    assert found[0].objective <= best.objective * (1 + 1e-9)
    assert all(s.bound <= s.objective for s in found)


def test_a_variable_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SolverError, match=r"variable 7.*0 to 0"):
        find_best_choices(ShardingProblem((np.zeros(2),)), 2, differ_in=[7])
