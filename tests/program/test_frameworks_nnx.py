"""Training steps of Flax NNX are planned and launched like plain ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import alpaviz
from alpaviz.planner import Planner
from tests.program.planned_steps import assert_launched_like_jax, make_rows

nnx = pytest.importorskip("flax.nnx")


class Block(nnx.Module):  # type: ignore[misc,name-defined]
    """Normalisation, two dense layers, a residual connection."""

    def __init__(self, width: int, rngs: Any) -> None:
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 2 * width, rngs=rngs)
        self.down = nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class Model(nnx.Module):  # type: ignore[misc,name-defined]
    """Blocks in a list."""

    def __init__(self, width: int, num_blocks: int, rngs: Any) -> None:
        self.blocks = nnx.List([Block(width, rngs) for _ in range(num_blocks)])
        self.head = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def measure(model: Any, x: Any, y: Any) -> Any:
    """Mean squared error."""
    return jnp.mean((model(x) - y) ** 2)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_model_split_into_graph_and_state_gives_the_single_device_result(stages: int) -> None:
    graph, params = nnx.split(Model(16, 4, nnx.Rngs(0)))
    optimizer = optax.adam(1e-2, eps=1e-3)

    def step(state: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return measure(nnx.merge(graph, params), x, y)

        loss, grads = alpaviz.value_and_grad(loss_fn)(state["params"])
        updates, inner = optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": inner}, {"loss": loss}

    state = {"params": params, "optimizer": optimizer.init(params)}
    planner = assert_launched_like_jax(step, state, *make_rows(), stages=stages)
    assert planner.program.num_layers >= 2


@pytest.mark.parametrize("stages", [1, 2])
def test_a_model_that_is_the_state_itself_gives_the_single_device_result(stages: int) -> None:
    def step(model: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(measure)(model, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, model, grads), loss

    assert_launched_like_jax(step, Model(16, 4, nnx.Rngs(0)), *make_rows(), stages=stages)


class NoisyModel(nnx.Module):  # type: ignore[misc,name-defined]
    """With dropout, whose random stream is part of the state, and BatchNorm."""

    def __init__(self, width: int, rngs: Any) -> None:
        self.layers = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(4)])
        self.norm = nnx.BatchNorm(width, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, broadcast_dims=(0,), rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for i, layer in enumerate(self.layers):
            x = jnp.tanh(layer(x))
            if i == 1:
                x = self.dropout(self.norm(x))
        return x


@pytest.mark.parametrize("stages", [1, 2])
def test_random_streams_and_statistics_in_the_state_are_carried_on(stages: int) -> None:
    graph, params, rest = nnx.split(NoisyModel(16, nnx.Rngs(0)), nnx.Param, ...)

    def loss_fn(params: Any, rest: Any, x: Any, y: Any) -> Any:
        model = nnx.merge(graph, params, rest)
        loss = measure(model, x, y)
        return loss, nnx.split(model, nnx.Param, ...)[2]

    def step(state: Any, x: Any, y: Any) -> Any:
        (loss, rest), grads = alpaviz.value_and_grad(loss_fn, has_aux=True)(state["params"], state["rest"], x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        return {"params": params, "rest": rest}, loss

    def one_by_one(state: Any, x: Any, y: Any) -> Any:
        """Each microbatch begins with the step's state: statistics are averaged, counters those of the last."""
        found = [step(state, x[i : i + 4], y[i : i + 4]) for i in (0, 4)]
        return jax.tree.map(
            lambda a, b: (a + b) / 2 if jnp.issubdtype(a.dtype, jnp.floating) else b, found[0], found[1]
        )

    state = {"params": params, "rest": rest}
    assert_launched_like_jax(step, state, *make_rows(), stages=stages, reference=one_by_one)


def test_layers_in_a_list_are_named_by_their_place() -> None:
    graph, params = nnx.split(Model(16, 4, nnx.Rngs(0)))

    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(lambda p: measure(nnx.merge(graph, p), x, y))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    program = Planner(step, params, *make_rows(), cluster="virtual:4").program
    names = [program.values[v].name for v in program.inputs]
    assert any("blocks" in name and "kernel" in name for name in names)
    assert np.all([name.startswith(("state", "batch")) for name in names])
