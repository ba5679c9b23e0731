"""Graphs that are easy to get wrong: dense, long, star-shaped, without any choice, without any cost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from alpaviz.intra.problem import Edge, FloatArray, MemoryRow, ShardingProblem, SolveStatus
from alpaviz.intra.solvers import solve_problem
from alpaviz.intra.solvers.elimination import Elimination, complete_buckets, eliminate, find_min_marginals
from alpaviz.intra.solvers.network import build_network
from tests.sharding_problems import find_best_cost, limit_memory, make_training_step


def draw_costs(seed: int, *shape: int) -> FloatArray:
    """Costs over six orders of magnitude, as seconds are."""
    return np.asarray(10.0 ** np.random.default_rng(seed).uniform(-7, -1, shape))


def join(count: int, candidates: int, pairs: list[tuple[int, int]]) -> ShardingProblem:
    unary = tuple(draw_costs(v, candidates) for v in range(count))
    return ShardingProblem(
        unary, tuple(Edge(u, v, draw_costs(1000 + 7 * u + v, candidates, candidates)) for u, v in pairs)
    )


def test_clique_of_eight_is_solved_as_brute_force_solves_it() -> None:
    problem = join(8, 3, list(itertools.combinations(range(8), 2)))
    assert solve_problem(problem, solver="exact").objective == pytest.approx(find_best_cost(problem), rel=1e-9)


def test_long_chain_with_skips_is_proven_optimal() -> None:
    problem = join(200, 8, [(i, i + hop) for hop in (1, 60) for i in range(200 - hop)])
    solution = solve_problem(problem, solver="exact")
    assert solution.status is SolveStatus.OPTIMAL
    assert solution.gap <= 1e-9


def test_star_of_two_hundred_leaves_costs_its_best_centre() -> None:
    problem = join(201, 12, [(0, leaf) for leaf in range(1, 201)])
    around = sum((e.cost + problem.unary[e.v]).min(axis=1) for e in problem.edges)
    assert solve_problem(problem, solver="exact").objective == pytest.approx(float((problem.unary[0] + around).min()))


def test_variables_of_one_candidate_leave_nothing_to_choose() -> None:
    problem = join(30, 1, [(i, i + 1) for i in range(29)])
    solution = solve_problem(problem)
    assert solution.choice == (0,) * 30
    assert solution.objective == problem.price((0,) * 30)


def test_costs_of_zero_give_zero_and_are_proven() -> None:
    problem = ShardingProblem((np.zeros(5),) * 40, tuple(Edge(i, i + 1, np.zeros((5, 5))) for i in range(39)))
    solution = solve_problem(problem)
    assert (solution.status, solution.objective, solution.bound) == (SolveStatus.OPTIMAL, 0.0, 0.0)


def test_negative_costs_are_taken() -> None:
    edges = (Edge(0, 1, np.array([[0.0, -3.0], [1.0, 0.0]])),)
    assert solve_problem(ShardingProblem((np.array([-1.0, -2.0]), np.zeros(2)), edges)).objective == -4.0


def test_problem_without_variables_costs_nothing() -> None:
    assert solve_problem(ShardingProblem(())).objective == 0.0


def test_forbidden_pairs_can_leave_no_choice() -> None:
    differ = np.where(np.eye(2) == 1.0, np.inf, 0.0)
    odd_cycle = tuple(Edge(u, v, differ) for u, v in ((0, 1), (1, 2), (0, 2)))
    solution = solve_problem(ShardingProblem((np.zeros(2),) * 3, odd_cycle))
    assert (solution.status, solution.choice, solution.bytes_short) == (SolveStatus.INFEASIBLE, (), 0.0)


def test_training_step_is_proven_optimal() -> None:
    solution = solve_problem(make_training_step(2), solver="exact")
    assert solution.status is SolveStatus.OPTIMAL
    assert solution.gap <= 1e-9


@pytest.mark.parametrize("share", [0.9, 0.5, 0.05])
def test_training_step_is_proven_optimal_under_a_memory_limit(share: float) -> None:
    free = make_training_step(1)
    problem = limit_memory(free, share, solve_problem(free, solver="exact").choice)
    solution = solve_problem(problem, solver="exact")
    assert solution.status is SolveStatus.OPTIMAL
    assert problem.measure_memory(solution.choice)[0] <= problem.memory[0].limit


CLIQUE = join(8, 3, list(itertools.combinations(range(8), 2)))
SKIPS = join(60, 4, [(i, i + hop) for hop in (1, 20) for i in range(60 - hop)])
STAR = join(201, 6, [(0, leaf) for leaf in range(1, 201)])


@pytest.mark.parametrize(
    ("free", "share"),
    [
        pytest.param(CLIQUE, 0.9, id="clique of eight"),
        pytest.param(CLIQUE, 0.3, id="clique of eight, tight"),
        pytest.param(SKIPS, 0.9, id="long skips"),
        pytest.param(SKIPS, 0.3, id="long skips, tight"),
        pytest.param(STAR, 0.9, id="star of two hundred leaves"),
    ],
)
def test_hard_graphs_keep_a_memory_limit_within_one_percent_of_the_bound(free: ShardingProblem, share: float) -> None:
    problem = limit_by_rank(free, share)
    solution = solve_problem(problem)
    assert problem.measure_memory(solution.choice)[0] <= problem.memory[0].limit
    assert solution.bound <= solution.objective
    assert solution.gap <= 0.01


def limit_by_rank(free: ShardingProblem, share: float) -> ShardingProblem:
    """Cheap candidates take more bytes than dear ones; `share` of what the optimum takes beyond the least is left."""
    usage = tuple(np.argsort(np.argsort(-cost)).astype(np.float64) for cost in free.unary)
    row = MemoryRow("device memory", tuple(range(free.num_variables)), usage, np.inf)
    problem = replace(free, memory=(row,))
    taken = problem.measure_memory(solve_problem(free, solver="exact").choice)[0]
    return replace(free, memory=(replace(row, limit=share * taken),))


def test_a_clique_of_eight_within_a_memory_limit_is_solved_as_brute_force_solves_it() -> None:
    problem = limit_by_rank(join(8, 3, list(itertools.combinations(range(8), 2))), 0.5)
    assert solve_problem(problem).objective == pytest.approx(find_best_cost(problem), rel=1e-9)


def test_costs_of_zero_leave_only_the_memory_limit_to_keep() -> None:
    usage = (np.arange(5.0),) * 40
    row = MemoryRow("device memory", tuple(range(40)), usage, 10.0)
    edges = tuple(Edge(i, i + 1, np.zeros((5, 5))) for i in range(39))
    problem = ShardingProblem((np.zeros(5),) * 40, edges, (row,))
    solution = solve_problem(problem)
    assert (solution.status, solution.objective) == (SolveStatus.OPTIMAL, 0.0)
    assert problem.measure_memory(solution.choice)[0] <= 10.0


def test_same_problem_gives_the_same_choice_each_time() -> None:
    problem = make_training_step(1)
    assert solve_problem(problem).choice == solve_problem(problem).choice


def test_a_variable_with_seventy_settled_neighbours_is_eliminated() -> None:
    """numpy has 64 axes at most, and a table could have one for each neighbour."""
    costs = np.arange(140.0).reshape(70, 2)
    edges = tuple(Edge(0, leaf + 1, costs[leaf][:, None]) for leaf in range(70))
    problem = ShardingProblem((np.zeros(2), *(np.zeros(1) for _ in range(70))), edges)
    network = build_network(problem)
    assert network is not None
    plan = Elimination((tuple(range(71)), *((leaf,) for leaf in range(1, 71))), 2.0, 2.0)
    solved = eliminate(network, plan)
    assert solved is not None
    assert solved[0] == costs[:, 0].sum()
    np.testing.assert_allclose(
        find_min_marginals(network, complete_buckets(network, plan))[:2], costs.sum(axis=0), rtol=1e-12
    )
