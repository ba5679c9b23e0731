"""Training steps of the built-in models: Adam against Optax, names, shapes, and that a planner can read them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpaviz.errors import AlpaVizError
from alpaviz.models import (
    MODELS,
    AdamOptions,
    GPTConfig,
    MLPConfig,
    apply_adam,
    get_model,
    get_model_config,
    init_adam,
    make_training_step,
)
from alpaviz.program import FactorKind, Role, trace_program


def test_three_steps_of_adam_equal_those_of_optax() -> None:
    options = AdamOptions(learning_rate=0.01, beta1=0.8, beta2=0.9, epsilon=1e-6)
    optimizer = optax.adam(0.01, b1=0.8, b2=0.9, eps=1e-6)
    params = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3)}
    state, theirs, memory = init_adam(params), params, optimizer.init(params)
    for step in range(3):
        gradients = jax.tree.map(lambda p, scale=step + 1.0: jnp.cos(p) * scale, params)
        state = apply_adam(state, gradients, options)
        updates, memory = optimizer.update(gradients, memory)
        theirs = optax.apply_updates(theirs, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), state["params"], theirs)


def test_sixteen_bit_parameters_move_with_their_float32_masters() -> None:
    state = init_adam({"w": jnp.ones(4, jnp.bfloat16)})
    for _ in range(4):  # each step is below half of bfloat16's spacing at 1
        state = apply_adam(state, {"w": jnp.ones(4, jnp.bfloat16)}, AdamOptions(learning_rate=1e-3))
    assert state["master"]["w"].dtype == jnp.float32
    np.testing.assert_allclose(state["master"]["w"], 1 - 4e-3, rtol=1e-5)
    assert state["params"]["w"].dtype == jnp.bfloat16
    assert float(state["params"]["w"][0]) == float(jnp.bfloat16(1 - 4e-3))


def test_float32_parameters_have_no_masters() -> None:
    assert set(init_adam({"w": jnp.ones(2)})) == {"params", "mu", "nu", "count"}


@pytest.mark.parametrize("config", [MODELS["gpt-tiny"], MODELS["mlp-2"], MLPConfig(num_layers=1, hidden=8)])
def test_loss_falls_and_the_state_keeps_its_shapes(config: GPTConfig | MLPConfig) -> None:
    step, state, batch = make_training_step(config, 8, abstract=False)
    shapes = jax.tree.map(jnp.shape, state)
    run, losses = jax.jit(step), []
    for _ in range(5):
        state, metrics = run(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses == sorted(losses, reverse=True)
    assert jax.tree.map(jnp.shape, state) == shapes


def test_abstract_step_describes_the_real_one() -> None:
    abstract = make_training_step(MODELS["gpt-tiny"], 4)
    real = make_training_step(MODELS["gpt-tiny"], 4, abstract=False)
    described = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (abstract.state, abstract.batch))
    assert described == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (real.state, real.batch))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves((abstract.state, abstract.batch)))


@pytest.mark.parametrize("remat", [False, True])
def test_the_planner_reads_a_model_without_warnings(remat: bool) -> None:
    program = trace_program(*get_model("gpt-tiny", 8, dtype="float16", remat=remat), num_microbatches=2)
    assert program.warnings == ()
    assert program.has_gradient_marker
    assert {op.role for op in program.ops} == set(Role)


def test_scores_can_be_split_by_batch_and_by_heads() -> None:
    program = trace_program(*get_model("gpt-tiny", 8), num_microbatches=2)
    scores = next(
        op for op in program.ops
        if op.scope == "block_0/attn" and op.primitive == "dot_general" and op.role is Role.FORWARD
        and program.values[op.outputs[0] or 0].shape == (4, 4, 32, 32)  # (batch, heads, queries, keys)
    )  # fmt: skip
    batch, heads = (scores.rule.results[0][d][0] for d in (0, 1))
    assert scores.rule.factors[batch].kind is FactorKind.PARALLEL
    assert scores.rule.factors[heads].kind is FactorKind.PARALLEL


def test_an_unknown_model_error_lists_the_known_ones() -> None:
    with pytest.raises(AlpaVizError, match=r"No model is called 'gpt-5t'. Models: .*gpt-1\.3b"):
        get_model("gpt-5t")


def test_an_unknown_field_error_lists_the_fields() -> None:
    with pytest.raises(AlpaVizError, match=r"has no field 'width' to change\. Fields: hidden, num_layers"):
        get_model_config("gpt-1.3b", width=3)


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(AlpaVizError, match="batch_size must be at least 1, not 0"):
        get_model("mlp-2", 0)


def test_an_mlp_of_nine_layers_is_refused() -> None:
    with pytest.raises(AlpaVizError, match="num_layers must be 1 to 8, not 9"):
        MLPConfig(num_layers=9)
