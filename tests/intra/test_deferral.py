"""Which gradients wait for the end of a step, and what that costs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import alpaviz
from alpaviz.intra.structure import find_structure
from alpaviz.models import get_model
from alpaviz.program import trace_program
from alpaviz.program.program import Program, Role
from alpaviz.program.rule import parse_rule
from alpaviz.program.strategy import enumerate_strategies, list_deferrals


def trace(name: str, num_microbatches: int) -> Program:
    step, state, batch = get_model(name, 16)
    return trace_program(step, state, batch, num_microbatches=num_microbatches)


def list_waiting(program: Program) -> set[int]:
    """Accumulated values whose reduction waits."""
    structure = find_structure(program)
    ends = structure.deferrals.sums | structure.deferrals.followers
    return {v for i in ends for v in program.ops[i].outputs if v is not None and v in structure.accumulated}


def list_gradients(program: Program) -> set[int]:
    return {v for v in find_structure(program).accumulated if program.values[v].shape}


def test_every_gradient_of_a_gpt_waits() -> None:
    program = trace("gpt-tiny", 4)
    assert list_waiting(program) == list_gradients(program)


def test_the_kernels_of_convolutions_wait() -> None:
    program = trace("wide-resnet-tiny", 2)
    sums = find_structure(program).deferrals.sums
    assert "conv_general_dilated" in {program.ops[i].primitive for i in sums}


def test_nothing_waits_in_a_step_of_one_microbatch() -> None:
    assert not find_structure(trace("gpt-tiny", 1)).deferrals.sums


def test_only_sums_of_the_pass_wait() -> None:
    program = trace("gpt-tiny", 4)
    deferrals = find_structure(program).deferrals
    assert all(program.ops[i].role is not Role.UPDATE for i in deferrals.sums | deferrals.followers)


def test_a_gradient_that_the_pass_reads_again_does_not_wait() -> None:
    def loss(w: Any, x: Any) -> Any:
        return (jax.numpy.tanh(x @ w) ** 2).mean()

    def step(state: Any, x: Any) -> Any:
        value, gradient = alpaviz.value_and_grad(lambda w: loss(w, x) + loss(w, 2 * x))(state)
        return state - gradient, value

    program = trace_program(
        step, np.ones((8, 8), np.float32), np.ones((16, 8), np.float32), num_microbatches=2, num_layers=1
    )
    assert not list_waiting(program), "two products are added before they are accumulated"


def trace_table(start: float) -> Program:
    """A step whose gradient is scattered onto an array full of `start`."""

    @jax.custom_vjp
    def look_up(table: Any, ids: Any) -> Any:
        return table[ids]

    def pull_back(ids: Any, cotangent: Any) -> Any:
        return jax.lax.full((8, 8), np.float32(start)).at[ids].add(cotangent), None

    look_up.defvjp(lambda table, ids: (table[ids], ids), pull_back)

    def step(state: Any, ids: Any) -> Any:
        value, gradient = alpaviz.value_and_grad(lambda w: (look_up(w, ids) ** 2).mean())(state)
        return state - gradient, value

    return trace_program(step, np.ones((8, 8), np.float32), np.zeros((16,), np.int32), num_microbatches=2)


def test_a_scatter_waits_only_onto_zeros() -> None:
    assert [len(list_waiting(trace_table(start))) for start in (0.0, 1.0)] == [1, 0]


RULE = parse_rule("m k, k n -> m n", [(64, 64), (64, 64)], [(64, 64)])
SIZES = st.dictionaries(st.sampled_from("xyz"), st.sampled_from([2, 4]), min_size=1)


@given(SIZES)
def test_an_all_reduce_always_waits_and_a_scatter_may(sizes: dict[str, int]) -> None:
    strategies = enumerate_strategies(RULE, sizes)
    found = list_deferrals(strategies)
    assert len({s.label for s in found}) == len(found), "labels tell strategies apart"
    scattered = [s for s in strategies if s.scatter]
    assert len(found) == len(strategies) + len(scattered)
    for strategy in found:
        assert strategy.is_deferred or strategy.scatter or not strategy.reduce_axes
