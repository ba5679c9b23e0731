"""Min-marginals held against brute force and against forced solves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from alpaviz.intra.problem import Edge, MemoryRow, ShardingProblem
from alpaviz.intra.solvers import minimise_marginals, solve_problem
from alpaviz.intra.solvers.dominance import find_unbeaten
from alpaviz.intra.solvers.forcing import Forcing
from alpaviz.intra.solvers.network import build_network
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


def test_a_neighbour_may_need_a_candidate_that_is_beaten_once_the_forced_one_is_out() -> None:
    """Round one of elimination drops candidate 1 of the first; only then is candidate 1 of the second beaten."""
    edge = Edge(0, 1, np.array([[0.0, 5.0], [8.0, 0.0]]))
    unary = (np.array([0.0, 10.0]), np.zeros(2), np.zeros(2))
    usage = (np.array([0.0, 1.0]), np.zeros(2), np.array([0.0, 5.0]))
    problem = ShardingProblem(unary, (edge,), memory=(MemoryRow("memory", (0, 1, 2), usage, 5.5),))
    (values,) = minimise_marginals(problem, solve_problem(problem, solver="exact"), [0])
    assert values.tolist() == [0.0, 10.0]


@settings(max_examples=60, deadline=None)
@given(sharding_problems(max_variables=4))
def test_forced_optima_by_messages_alone_are_proven_or_stated_as_open(problem: ShardingProblem) -> None:
    network = build_network(replace(problem, memory=()))
    if network is None:
        return
    forcing = Forcing(network, find_unbeaten(network, with_memory=False))
    for v in range(network.num_variables):
        held = forcing.hold(v)
        for k in range(int(network.sizes[v])):
            found = held.find(k)
            named = network.name_choice(found.choice)
            best = find_best_cost(replace(problem, memory=()), {v: int(network.kept[network.offsets[v] + k])})
            if found.bound < network.ceiling:
                assert found.bound <= best * (1 + 1e-9) + 1e-9
                assert found.cost >= best * (1 - 1e-9) - 1e-9
                assert network.price(found.choice) == pytest.approx(found.cost)
            else:
                assert not np.isfinite(best)
            assert named[v] == network.kept[network.offsets[v] + k]
