"""What dead-end elimination leaves holds an optimum of what it was given."""

import numpy as np
from hypothesis import given

from alpaviz.intra.problem import ShardingProblem
from alpaviz.intra.solvers.dominance import drop_dominated
from alpaviz.intra.solvers.network import Network, build_network
from tests.sharding_problems import sharding_problems


def find_least_cost(network: Network, limits: np.ndarray) -> float:
    """By looking at every choice within `limits`."""
    costs = [
        network.price(np.array(choice))
        for choice in np.ndindex(*network.sizes)
        if (network.measure_memory(np.array(choice)) <= limits * (1 + 1e-12)).all()
    ]
    return min(costs, default=np.inf)


@given(sharding_problems())
def test_the_cheapest_choice_without_limits_costs_the_same(problem: ShardingProblem) -> None:
    network = build_network(problem)
    if network is None:
        return
    unlimited = np.full(len(network.limits), np.inf)
    left = drop_dominated(network, with_memory=False)
    np.testing.assert_allclose(find_least_cost(left, unlimited), find_least_cost(network, unlimited), rtol=1e-12)


@given(sharding_problems())
def test_the_cheapest_choice_within_limits_costs_the_same(problem: ShardingProblem) -> None:
    network = build_network(problem)
    if network is None:
        return
    left = drop_dominated(network, with_memory=True)
    np.testing.assert_allclose(
        find_least_cost(left, network.limits), find_least_cost(network, network.limits), rtol=1e-12
    )


@given(sharding_problems())
def test_every_variable_keeps_a_candidate_of_the_problem(problem: ShardingProblem) -> None:
    network = build_network(problem)
    if network is None:
        return
    left = drop_dominated(network, with_memory=False)
    assert (left.sizes >= 1).all()
    assert network.find_choice(left.name_choice(np.zeros(left.num_variables, dtype=np.int64))) is not None
