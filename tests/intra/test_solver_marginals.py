"""Min-marginals held against brute force and against forced solves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from alpaviz.intra.problem import ShardingProblem
from alpaviz.intra.solvers import minimise_marginals, solve_problem
from tests.sharding_problems import find_best_cost, limit_memory, make_training_step, sharding_problems


@settings(max_examples=60, deadline=None)
@given(sharding_problems(max_variables=4))
def test_marginals_are_the_costs_of_forced_choices(problem: ShardingProblem) -> None:
    marginals = minimise_marginals(problem, solve_problem(problem, solver="exact"))
    for v, values in enumerate(marginals):
        forced = [find_best_cost(problem, {v: k}) for k in range(len(values))]
        assert values == pytest.approx(forced, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_marginals_of_a_training_step_are_those_of_a_forced_resolve(share: float) -> None:
    free = make_training_step(1)
    problem = limit_memory(free, share, solve_problem(free, solver="exact").choice)
    variable = 9
    (values,) = minimise_marginals(problem, solve_problem(problem, solver="exact"), [variable])
    for k in (0, 5, len(values) - 1):
        unary = list(problem.unary)
        unary[variable] = np.where(np.arange(len(values)) == k, unary[variable], np.inf)
        forced = solve_problem(replace(problem, unary=tuple(unary)), solver="exact")
        assert values[k] == pytest.approx(forced.objective, rel=1e-8)
