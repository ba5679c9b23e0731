"""Tracing: roles, layers, accumulation and errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

import alpaviz
from alpaviz.errors import InvalidStepError
from alpaviz.program import SHARED_LAYER, Role, trace_program
from tests.program.small_models import adam_step, init_gpt_state, sgd_step_without_marker

BATCH = jax.ShapeDtypeStruct((8, 17), np.int32)


def test_the_flat_program_computes_what_the_step_computes() -> None:
    state = init_gpt_state(num_blocks=2)
    batch = jax.random.randint(jax.random.key(1), (4, 17), 0, 64)
    program = trace_program(adam_step, state, batch)
    flat = jax.extend.core.jaxpr_as_fun(program.jaxpr)(*jax.tree.leaves((state, batch)))
    got = jax.tree.unflatten(program.out_tree, flat)
    expected = jax.jit(adam_step)(state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), got, expected)


def test_roles_follow_the_order_of_a_step() -> None:
    program = trace_program(adam_step, init_gpt_state(2), BATCH)
    roles = [op.role for op in program.ops]
    assert roles.index(Role.BACKWARD) > roles.index(Role.FORWARD)
    assert Role.UPDATE not in roles[: len(roles) - roles[::-1].index(Role.BACKWARD)]


def test_backward_ops_are_in_the_layer_of_their_forward_op() -> None:
    program = trace_program(adam_step, init_gpt_state(4), BATCH)
    layer_of_scope = {op.scope: op.layer for op in program.ops if op.role is Role.FORWARD and op.scope}
    for op in program.ops:
        if op.role is Role.BACKWARD and op.scope in layer_of_scope and op.primitive == "dot_general":
            assert op.layer == layer_of_scope[op.scope], op.name


def test_each_block_of_a_small_gpt_is_a_layer() -> None:
    program = trace_program(adam_step, init_gpt_state(4), BATCH)
    owners: dict[int, set[str]] = {}
    for op in program.ops:
        if op.role is Role.FORWARD and op.primitive == "dot_general" and op.scope:
            owners.setdefault(op.layer, set()).add(op.scope.split("/")[0])
    assert {frozenset(blocks) for blocks in owners.values()} == {frozenset({f"block_{i}"}) for i in range(4)}


def test_optimizer_state_is_in_the_layer_of_its_parameter() -> None:
    program = trace_program(adam_step, init_gpt_state(4), BATCH)
    layer = {program.values[v].name: n for v, n in zip(program.inputs, program.input_layers, strict=True)}
    for name, owner in layer.items():
        if name.startswith("state['params']"):
            assert layer[name.replace("params", "mu")] == owner
            assert layer[name.replace("params", "nu")] == owner
    assert layer["state['count']"] == SHARED_LAYER


def test_the_parts_of_a_tied_gradient_are_summed_in_the_update() -> None:
    program = trace_program(adam_step, init_gpt_state(4), BATCH, num_microbatches=4)
    table = (64, 32)
    parts = [a.value for a in program.accumulations if sorted(program.values[a.value].shape) == sorted(table)]
    assert len(parts) == 2
    assert any(op.primitive == "add_any" and op.role is Role.UPDATE for op in program.ops)


def test_gradients_are_averaged_and_the_loss_is_too() -> None:
    program = trace_program(adam_step, init_gpt_state(2), BATCH, num_microbatches=4)
    loss = program.outputs[-1]
    assert {a.value: a.mode for a in program.accumulations}[loss] == "mean"
    assert {a.mode for a in program.accumulations} == {"mean"}


def test_a_step_without_the_marker_has_one_microbatch_and_says_so() -> None:
    program = trace_program(sgd_step_without_marker, init_gpt_state(2), BATCH, num_microbatches=4)
    assert program.num_microbatches == 1
    assert "alpaviz.value_and_grad" in program.warnings[0]


def test_explicit_boundaries_make_the_layers() -> None:
    def loss(w: Any, x: Any) -> Any:
        for i in range(3):
            x = jnp.tanh(x @ w[i])
            if i < 2:
                x = alpaviz.layer_boundary(x)
        return jnp.mean(x**2)

    def step(state: Any, x: Any) -> Any:
        value, grads = alpaviz.value_and_grad(loss)(state, x)
        return jax.tree.map(lambda p, g: p - g, state, grads), value

    weights = [jax.ShapeDtypeStruct((8, 8), np.float32)] * 3
    program = trace_program(step, weights, jax.ShapeDtypeStruct((4, 8), np.float32))
    assert program.num_layers == 3
    assert program.input_layers[:3] == (0, 1, 2)
    with pytest.raises(InvalidStepError, match="contradicts the step's 2 layer_boundary marks"):
        trace_program(step, weights, jax.ShapeDtypeStruct((4, 8), np.float32), num_layers=2)


def test_value_and_grad_is_a_drop_in() -> None:
    def loss(a: Any, b: Any, *, scale: float) -> Any:
        return jnp.sum(jnp.sin(a["x"]) * b) * scale, {"n": b.shape[0], "m": jnp.max(b)}

    a, b = {"x": jnp.arange(4.0)}, jnp.arange(4.0) + 1
    for argnums in (0, 1, (0, 1), -1):
        ours = alpaviz.value_and_grad(loss, argnums, has_aux=True)(a, b, scale=2.0)
        jaxs = jax.value_and_grad(loss, argnums, has_aux=True)(a, b, scale=2.0)
        jax.tree.map(np.testing.assert_allclose, ours, jaxs)
        ours = alpaviz.grad(loss, argnums, has_aux=True)(a, b, scale=2.0)
        jaxs = jax.grad(loss, argnums, has_aux=True)(a, b, scale=2.0)
        jax.tree.map(np.testing.assert_allclose, ours, jaxs)


def test_recomputed_regions_stay_recomputed() -> None:
    def loss(w: Any, x: Any) -> Any:
        block = jax.checkpoint(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w))
        return jnp.mean(block(block(x, w), w) ** 2)

    def step(w: Any, x: Any) -> Any:
        value, g = alpaviz.value_and_grad(loss)(w, x)
        return w - g, value

    program = trace_program(step, jax.ShapeDtypeStruct((8, 8), np.float32), jax.ShapeDtypeStruct((4, 8), np.float32))
    products = [op.role for op in program.ops if op.primitive == "dot_general"]
    assert products.count(Role.FORWARD) == 4
    # 4 again, and two products for each but the one for the gradient of the batch, which nobody asks for.
    assert products.count(Role.BACKWARD) == 4 + 2 * 4 - 1
    assert any(op.primitive == "optimization_barrier" for op in program.ops)


def test_equal_programs_have_equal_fingerprints_and_others_do_not() -> None:
    one = trace_program(adam_step, init_gpt_state(2), BATCH)
    again = trace_program(adam_step, init_gpt_state(2), BATCH)
    other = trace_program(adam_step, init_gpt_state(2), BATCH, num_microbatches=2)
    assert one.fingerprint == again.fingerprint != other.fingerprint


def test_a_step_that_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidStepError, match=r"must be a function of .state, .batch., not dict"):
        trace_program({"not": "a step"}, {}, BATCH)  # type: ignore[arg-type]


def test_a_batch_that_does_not_divide_names_the_leaf() -> None:
    with pytest.raises(InvalidStepError, match=r"batch has 8 rows in dimension 0, which 3 microbatches do not divide"):
        trace_program(adam_step, init_gpt_state(2), BATCH, num_microbatches=3)


def test_an_exception_in_the_step_comes_with_the_users_line() -> None:
    def step(state: Any, x: Any) -> Any:
        return state @ jnp.ones((3, 3)), x.sum()

    with pytest.raises(InvalidStepError, match=r"test_trace.py:\d+: the training step cannot be traced: TypeError"):
        trace_program(step, jax.ShapeDtypeStruct((4, 4), np.float32), jax.ShapeDtypeStruct((4,), np.float32))


def test_a_side_effect_in_the_step_is_refused_with_its_line() -> None:
    def step(state: Any, x: Any) -> Any:
        jax.debug.print("{}", x)
        return state, x.sum()

    with pytest.raises(InvalidStepError, match=r"test_trace.py:\d+: the training step has a side effect"):
        trace_program(step, jax.ShapeDtypeStruct((4,), np.float32), jax.ShapeDtypeStruct((4,), np.float32))


def test_work_on_the_batch_outside_the_marker_is_named() -> None:
    def step(state: Any, x: Any) -> Any:
        value, g = alpaviz.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(state)
        return state - g, {"loss": value, "norm": jnp.sum(x**2)}

    program = trace_program(
        step, jax.ShapeDtypeStruct((4,), np.float32), jax.ShapeDtypeStruct((8, 4), np.float32), num_microbatches=2
    )
    assert program.num_microbatches == 1
    assert "computes from the batch outside of value_and_grad" in program.warnings[0]


def test_nothing_is_allocated_for_a_large_model() -> None:
    state = jax.eval_shape(lambda: init_gpt_state(num_blocks=2, width=4096, vocab=50_000))
    before = len(jax.live_arrays())
    trace_program(adam_step, state, jax.ShapeDtypeStruct((8, 17), np.int32))
    assert len(jax.live_arrays()) == before
