"""Matrices that keep equal rows and columns once stand for the whole matrix in everything that is done with them."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from alpaviz.intra.pair_costs import PairCosts
from alpaviz.intra.problem import Edge, ShardingProblem
from alpaviz.intra.solvers import solve_problem
from alpaviz.intra.solvers.search import find_least_pair
from tests.sharding_problems import sharding_problems


@st.composite
def pair_costs(draw: st.DrawFn, height: int | None = None, width: int | None = None) -> PairCosts:
    height = height or draw(st.integers(1, 6))
    width = width or draw(st.integers(1, 6))
    rows = columns = None
    row_classes, column_classes = height, width
    if draw(st.booleans()):
        row_classes = draw(st.integers(1, 4))
        rows = np.array(draw(st.lists(st.integers(0, row_classes - 1), min_size=height, max_size=height)))
    if draw(st.booleans()):
        column_classes = draw(st.integers(1, 4))
        columns = np.array(draw(st.lists(st.integers(0, column_classes - 1), min_size=width, max_size=width)))
    entries = draw(
        st.lists(
            st.integers(0, 9), min_size=row_classes * column_classes, max_size=row_classes * column_classes
        )
    )  # fmt: skip
    return PairCosts(np.array(entries, dtype=float).reshape(row_classes, column_classes), rows, columns)


@given(pair_costs())
def test_every_view_of_a_matrix_agrees_with_the_whole(costs: PairCosts) -> None:
    whole = costs.expand()
    assert costs.shape == whole.shape
    np.testing.assert_array_equal(costs.transposed().expand(), whole.T)
    np.testing.assert_array_equal(costs.tight().expand(), whole)
    np.testing.assert_array_equal(costs.times(3.0).expand(), whole * 3.0)
    for k, l_ in np.ndindex(whole.shape):
        assert costs.at(k, l_) == whole[k, l_]
    np.testing.assert_array_equal(np.stack([costs.row(k) for k in range(len(whole))]), whole)
    np.testing.assert_array_equal(np.stack([costs.column(k) for k in range(whole.shape[1])], axis=1), whole)


@given(st.data())
def test_sums_are_those_of_the_whole_matrices(data: st.DataObject) -> None:
    first = data.draw(pair_costs())
    second = data.draw(pair_costs(*first.shape))
    np.testing.assert_array_equal(first.plus(second).expand(), first.expand() + second.expand())


@given(st.data())
def test_taking_candidates_is_taking_rows_and_columns(data: st.DataObject) -> None:
    costs = data.draw(pair_costs())
    height, width = costs.shape
    rows = np.array(data.draw(st.lists(st.integers(0, height - 1), min_size=1, unique=True)))
    columns = np.array(data.draw(st.lists(st.integers(0, width - 1), min_size=1, unique=True)))
    np.testing.assert_array_equal(costs.take(rows, columns).expand(), costs.expand()[np.ix_(rows, columns)])
    np.testing.assert_array_equal(costs.take(None, columns).expand(), costs.expand()[:, columns])


@given(st.data())
def test_the_least_pair_is_the_least_of_all_pairs(data: st.DataObject) -> None:
    costs = data.draw(pair_costs())
    height, width = costs.shape
    at_first = np.array(data.draw(st.lists(st.integers(0, 9), min_size=height, max_size=height)), dtype=float)
    at_second = np.array(data.draw(st.lists(st.integers(0, 9), min_size=width, max_size=width)), dtype=float)
    joint = costs.expand() + at_first[:, None] + at_second
    least, i, j = find_least_pair(costs, at_first, at_second)
    assert least == joint.min() == joint[i, j]


@given(sharding_problems(), st.integers(2, 40))
def test_a_problem_with_repeated_candidates_has_the_optimum_of_the_problem_without(
    problem: ShardingProblem, times: int
) -> None:
    """Every candidate `times` times over, which classes keep once: enough of them that networks stay classed."""
    again = [np.tile(np.arange(len(cost)), times) for cost in problem.unary]
    edges = tuple(Edge(e.u, e.v, PairCosts(e.cost, again[e.u], again[e.v])) for e in problem.edges)
    memory = tuple(
        replace(row, usage=tuple(usage[again[v]] for v, usage in zip(row.variables, row.usage, strict=True)))
        for row in problem.memory
    )
    unary = tuple(cost[index] for cost, index in zip(problem.unary, again, strict=True))
    repeated = ShardingProblem(unary, edges, memory, problem.names)
    expected, found = solve_problem(problem, solver="exact"), solve_problem(repeated, solver="exact")
    assert found.status is expected.status
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-9)
    if found.choice:
        np.testing.assert_allclose(repeated.price(found.choice), found.objective, rtol=1e-9)
