"""Every solver held against brute force on small problems."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from alpaviz.intra.problem import ShardingProblem, SolveStatus
from alpaviz.intra.solvers import solve_problem
from tests.sharding_problems import find_best_cost, is_legal, sharding_problems


def check_against_brute_force(problem: ShardingProblem, solver: str, relative: float) -> None:
    best = find_best_cost(problem)
    solution = solve_problem(problem, solver=solver)
    if not np.isfinite(best):
        assert solution.status is SolveStatus.INFEASIBLE
        assert solution.choice == ()
        return
    assert solution.status is SolveStatus.OPTIMAL
    assert is_legal(problem, solution.choice)
    assert solution.objective == pytest.approx(best, rel=relative, abs=1e-12)
    assert solution.bound <= best * (1 + relative) + 1e-12
    assert solution.objective == problem.price(solution.choice)


@settings(max_examples=250, deadline=None)
@given(sharding_problems())
def test_exact_finds_the_cost_that_brute_force_finds(problem: ShardingProblem) -> None:
    check_against_brute_force(problem, "exact", 1e-8)


@settings(max_examples=100, deadline=None)
@given(sharding_problems(max_variables=7, max_candidates=3, max_rows=1, may_forbid=False))
def test_exact_finds_the_optimum_of_larger_problems_under_one_memory_limit(problem: ShardingProblem) -> None:
    check_against_brute_force(problem, "exact", 1e-8)


@settings(max_examples=50, deadline=None)
@given(sharding_problems())
def test_auto_finds_the_cost_that_brute_force_finds(problem: ShardingProblem) -> None:
    check_against_brute_force(problem, "auto", 1e-8)


@pytest.mark.parametrize("solver", ["ilp", "paper"])
@settings(max_examples=8, deadline=None)
@given(problem=sharding_problems())
def test_integer_programmes_find_the_cost_that_brute_force_finds(solver: str, problem: ShardingProblem) -> None:
    check_against_brute_force(problem, solver, 1e-6)
