"""Solves that start from the messages of another problem: the same optimum, and bounds that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.cluster import enumerate_logical_meshes, enumerate_submeshes, parse_cluster
from alpaviz.intra.problem import ShardingProblem, SolveStatus
from alpaviz.intra.solvers import solve_problem
from alpaviz.intra.solvers.messages import MessageMemo, MessagePassing
from alpaviz.intra.solvers.network import build_network
from alpaviz.intra.stage_problem import StageShape, StageShapes
from alpaviz.intra.stage_solver import TOLERANCE, StageSolver
from alpaviz.models import GPTConfig
from alpaviz.models.training import make_training_step
from alpaviz.program import trace_program
from alpaviz.solver_pool import SolverPool
from tests.sharding_problems import find_best_cost, sharding_problems


def never() -> bool:
    return False


def pin(problem: ShardingProblem, variable: int, candidate: int) -> ShardingProblem:
    unary = list(problem.unary)
    unary[variable] = np.where(np.arange(len(unary[variable])) == candidate, unary[variable], np.inf)
    return replace(problem, unary=tuple(unary))


@settings(max_examples=150, deadline=None)
@given(sharding_problems(max_rows=0), st.data())
def test_a_pinned_problem_that_starts_from_messages_of_the_unpinned_has_the_same_optimum(
    problem: ShardingProblem, data: st.DataObject
) -> None:
    memo = MessageMemo()
    solve_problem(problem, solver="exact", memo=memo)
    variable = data.draw(st.integers(0, problem.num_variables - 1))
    pinned = pin(problem, variable, data.draw(st.integers(0, len(problem.unary[variable]) - 1)))
    start = memo.collect([len(costs) for costs in problem.unary])
    solution = solve_problem(pinned, solver="exact", memo=MessageMemo(start))
    best = find_best_cost(pinned)
    assert solution.objective == pytest.approx(best, rel=1e-8, abs=1e-12)
    assert solution.bound <= best * (1 + 1e-8) + 1e-12 if solution.status is SolveStatus.OPTIMAL else True


@settings(max_examples=150, deadline=None)
@given(sharding_problems(max_rows=0, may_forbid=False), st.integers(0, 2**32 - 1))
def test_bounds_from_any_start_stay_below_the_optimum(problem: ShardingProblem, seed: int) -> None:
    network = build_network(problem)
    assert network is not None, "nothing is forbidden"
    random = np.random.default_rng(seed)
    messages = MessagePassing(network)
    messages.load_messages(
        {
            pair: random.normal(size=len(problem.unary[pair[1]])) * 10.0
            for e in network.edges
            for pair in ((e.u, e.v), (e.v, e.u))
        }
    )
    best = find_best_cost(problem)
    messages.run(4)
    assert messages.bound <= best + 1e-9 * (1 + abs(best)) + 1e-8


@pytest.fixture(scope="module")
def stages() -> tuple[StageSolver, StageShapes]:
    """A small GPT of six equal layers on a mesh of 2x2, solved without pins."""
    step, state, data = make_training_step(
        GPTConfig(hidden=64, num_layers=6, num_heads=4, vocab=256, seq=32, dtype="float32"), 8
    )
    program = trace_program(step, state, data)
    cluster = parse_cluster("p3.16xlarge:1")
    meshes = [m for s in enumerate_submeshes(cluster) for m in enumerate_logical_meshes(cluster, s, 3)]
    mesh = next(m for m in meshes if str(m) == "2x2")
    pool = SolverPool()
    solver = pool.find_solver(program, mesh)
    shapes = StageShapes(program, pool.find_structure(program), {})
    solver.find(shapes.find(0, program.num_layers - 1), None, np.inf, never)
    return solver, shapes


def draw_pinned_shape(solver: StageSolver, shapes: StageShapes, data: st.DataObject) -> StageShape:
    """The whole model as one stage in which any candidate of any variable of any layer is pinned."""
    last = len(shapes.keys) - 1
    layer = data.draw(st.integers(0, last))
    variables = solver.problems[shapes.keys[layer][0]].variables
    position = data.draw(st.integers(0, len(variables) - 1))
    candidate = data.draw(st.integers(0, variables[position].num_candidates - 1))
    return shapes.set_apart(layer, ((position, (candidate,)),)).find(0, last)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_stage_solved_after_a_pin_costs_what_the_cold_solve_of_it_costs(
    stages: tuple[StageSolver, StageShapes], data: st.DataObject
) -> None:
    solver, shapes = stages
    shape = draw_pinned_shape(solver, shapes, data)
    warm = solver.find(shape, None, np.inf, never)
    cold = solve_problem(solver.build(shape).problem, tolerance=TOLERANCE)
    assert warm.objective == pytest.approx(cold.objective, rel=2 * TOLERANCE)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_bound_of_a_stage_solved_after_a_pin_proves_its_objective(
    stages: tuple[StageSolver, StageShapes], data: st.DataObject
) -> None:
    solver, shapes = stages
    shape = draw_pinned_shape(solver, shapes, data)
    warm = solver.find(shape, None, np.inf, never)
    assert warm.objective * (1 - TOLERANCE) <= warm.bound <= warm.objective
