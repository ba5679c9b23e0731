"""Training steps of Haiku are planned and launched like plain ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import alpaviz
from alpaviz.planner import Planner
from tests.program.planned_steps import assert_launched_like_jax, make_rows

hk = pytest.importorskip("haiku")


class Block(hk.Module):  # type: ignore[misc,name-defined]
    """Normalisation, two dense layers, a residual connection."""

    def __call__(self, x: Any) -> Any:
        hidden = hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)
        return x + hk.Linear(16, name="down")(jax.nn.gelu(hk.Linear(32, name="up")(hidden)))


def apply_blocks(x: Any) -> Any:
    """Four blocks."""
    for i in range(4):
        x = Block(f"block_{i}")(x)
    return x


@pytest.mark.parametrize("stages", [1, 2])
def test_a_transformed_function_gives_the_single_device_result(stages: int) -> None:
    model = hk.without_apply_rng(hk.transform(apply_blocks))
    optimizer = optax.adamw(1e-2, eps=1e-3)

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((model.apply(params, x) - y) ** 2)

    def step(state: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(state["params"], x, y)
        updates, inner = optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": inner}, loss

    x, y = make_rows()
    params = model.init(jax.random.key(0), x)
    state = {"params": params, "optimizer": optimizer.init(params)}
    planner = assert_launched_like_jax(step, state, x, y, stages=stages)
    assert any("block_2" in op.scope for op in planner.program.ops if op.primitive == "dot_general")


@pytest.mark.parametrize("stages", [1, 2])
def test_a_function_with_state_and_a_key_gives_the_single_device_result(stages: int) -> None:
    def apply(x: Any) -> Any:
        for i in range(4):
            x = jnp.tanh(hk.Linear(16)(x))
            if i == 1:
                x = hk.BatchNorm(True, True, 0.9)(x, is_training=True)
                x = hk.dropout(hk.next_rng_key(), 0.2, x)
        return x

    model = hk.transform_with_state(apply)

    def loss_fn(params: Any, statistics: Any, key: Any, x: Any, y: Any) -> Any:
        out, statistics = model.apply(params, statistics, key, x)
        return jnp.mean((out - y) ** 2), statistics

    def step(state: Any, x: Any, y: Any) -> Any:
        key, use = jax.random.split(state["key"])
        grad_fn = alpaviz.value_and_grad(loss_fn, has_aux=True)
        (loss, statistics), grads = grad_fn(state["params"], state["statistics"], use, x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        return {"params": params, "statistics": statistics, "key": key}, {"loss": loss}

    def one_by_one(state: Any, x: Any, y: Any) -> Any:
        found = [step({**state}, x[i : i + 4], y[i : i + 4]) for i in (0, 4)]
        return jax.tree.map(lambda a, b: (a + b) / 2 if jnp.issubdtype(a.dtype, jnp.floating) else b, *found)

    x, y = make_rows()
    params, statistics = model.init(jax.random.key(0), x)
    state = {"params": params, "statistics": statistics, "key": jax.random.key(3)}
    assert_launched_like_jax(step, state, x, y, stages=stages, reference=one_by_one)


def test_parameters_are_named_by_module() -> None:
    model = hk.without_apply_rng(hk.transform(apply_blocks))

    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(lambda p: jnp.mean((model.apply(p, x) - y) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    x, y = make_rows()
    program = Planner(step, model.init(jax.random.key(0), x), x, y, cluster="virtual:4").program
    names = [program.values[v].name for v in program.inputs]
    assert "state['block_1/up']['w']" in names
