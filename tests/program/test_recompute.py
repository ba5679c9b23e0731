"""Recomputed layers: the same results, and only what enters them is kept for the backward pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import alpaviz
from alpaviz.plan import RECOMPUTE
from alpaviz.program import Program, Role, retrace, trace_program
from alpaviz.program.recompute import fit_to_layers, list_recomputable_layers, recompute_layers
from tests.program.small_models import adam_step, init_gpt_state

NUM_LAYERS = 4


@pytest.fixture(scope="module")
def arguments() -> tuple[Any, Any]:
    ids = jnp.arange(8 * 9).reshape(8, 9) % 64
    return init_gpt_state(NUM_LAYERS, length=8), ids


@pytest.fixture(scope="module")
def program(arguments: tuple[Any, Any]) -> Program:
    return trace_program(adam_step, *arguments, num_layers=NUM_LAYERS)


def run(program: Program, arguments: tuple[Any, Any]) -> list[Any]:
    return jax.extend.core.jaxpr_as_fun(program.jaxpr)(*jax.tree.leaves(arguments))


def list_kept(program: Program, layer: int) -> set[int]:
    """Values that forward ops of a layer make and its backward ops read."""
    made = {v for op in program.ops if op.role is Role.FORWARD and op.layer == layer for v in op.outputs}
    return {
        v for op in program.ops if op.role is Role.BACKWARD and op.layer == layer for v in op.inputs if v in made
    } - {None}  # fmt: skip


@settings(max_examples=4, deadline=None)
@given(st.sets(st.integers(0, NUM_LAYERS - 1)))
def test_any_layers_give_the_same_results(program: Program, arguments: tuple[Any, Any], layers: set[int]) -> None:
    again = recompute_layers(program, layers)

    for one, other in zip(run(program, arguments), run(again, arguments), strict=True):
        assert jnp.array_equal(one, other)


def test_a_recomputed_layer_keeps_nothing_of_its_own(program: Program) -> None:
    again = recompute_layers(program, [1])

    assert list_kept(program, 1)
    assert not list_kept(again, 1)


def test_other_layers_keep_what_they_kept(program: Program) -> None:
    again = recompute_layers(program, [1])

    assert list_kept(again, 2) == list_kept(program, 2)


def test_values_keep_their_ids_and_ops_their_names(program: Program) -> None:
    again = recompute_layers(program, [0, 3])

    assert again.values[: len(program.values)] == program.values
    assert [op.name for op in again.ops if not op.is_recomputed] == [op.name for op in program.ops]


def test_names_of_ops_are_unique(program: Program) -> None:
    again = recompute_layers(program, range(NUM_LAYERS))

    assert len({op.name for op in again.ops}) == len(again.ops)
    assert any(op.name.startswith(RECOMPUTE) for op in again.ops)


def test_operands_are_made_before_they_are_read(program: Program) -> None:
    again = recompute_layers(program, range(NUM_LAYERS))

    known = {*again.inputs, *again.constants}
    for number, op in enumerate(again.ops):
        assert op.id == number
        assert {v for v in op.inputs if v is not None} <= known
        known.update(v for v in op.outputs if v is not None)


def test_another_process_traces_the_same_program(program: Program) -> None:
    again = recompute_layers(program, [0, 2])

    assert retrace(again.recipe).fingerprint == again.fingerprint


def test_flops_of_the_model_do_not_count_what_is_done_twice(program: Program) -> None:
    assert recompute_layers(program, range(NUM_LAYERS)).flops == program.flops


def test_a_block_under_jax_checkpoint_has_nothing_to_recompute() -> None:
    def loss(w: Any, x: Any) -> Any:
        for i in range(2):
            x = alpaviz.layer_boundary(jax.checkpoint(lambda x, w: jnp.tanh(x @ w))(x, w[i]))
        return jnp.sum(x**2)

    def step(w: Any, x: Any) -> Any:
        return jax.tree.map(lambda p, g: p - g, w, alpaviz.grad(loss)(w, x))

    w = [jnp.ones((8, 8)), jnp.ones((8, 8))]
    traced = trace_program(step, w, jnp.ones((4, 8)))

    assert 0 not in list_recomputable_layers(traced)


def test_a_program_without_gradients_has_nothing_to_recompute() -> None:
    traced = trace_program(lambda w, x: (w, x @ w), jnp.ones((8, 8)), jnp.ones((4, 8)))

    assert list_recomputable_layers(traced) == ()


def test_layers_that_do_not_exist_are_refused(program: Program) -> None:
    with pytest.raises(ValueError, match="layers 0 to 3, not"):
        recompute_layers(program, [4])


def test_a_recomputed_program_is_not_recomputed_again(program: Program) -> None:
    with pytest.raises(ValueError, match="as it was traced"):
        recompute_layers(recompute_layers(program, [0]), [1])


def test_a_traced_program_is_made_to_fit_a_plan(program: Program) -> None:
    assert fit_to_layers(program, (1, 2)).fingerprint == recompute_layers(program, [1, 2]).fingerprint
    assert fit_to_layers(program, ()) is program
