"""Training steps of Equinox are planned and launched like plain ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import alpaviz
from alpaviz.errors import LaunchError
from alpaviz.planner import Planner
from tests.program.planned_steps import assert_launched_like_jax, make_rows

eqx = pytest.importorskip("equinox")


def make_model() -> Any:
    """A network whose leaves are arrays and its activation functions."""
    return eqx.nn.MLP(16, 16, 32, 3, activation=jax.nn.gelu, key=jax.random.key(0))


def measure(model: Any, x: Any, y: Any) -> Any:
    """Mean squared error; the model is for one row."""
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


@pytest.mark.parametrize("stages", [1, 2])
def test_the_arrays_of_a_partitioned_model_give_the_single_device_result(stages: int) -> None:
    params, static = eqx.partition(make_model(), eqx.is_inexact_array)
    optimizer = optax.adam(1e-2, eps=1e-3)

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        return measure(eqx.combine(params, static), x, y)

    def step(state: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(state["params"], x, y)
        updates, inner = optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": eqx.apply_updates(state["params"], updates), "optimizer": inner}, {"loss": loss}

    assert_launched_like_jax(step, {"params": params, "optimizer": optimizer.init(params)}, *make_rows(), stages=stages)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_whole_model_with_its_functions_as_state_gives_the_single_device_result(stages: int) -> None:
    model = make_model()
    optimizer = optax.sgd(0.1, momentum=0.9)

    def loss_fn(params: Any, static: Any, x: Any, y: Any) -> Any:
        return measure(eqx.combine(params, static), x, y)

    def step(state: Any, x: Any, y: Any) -> Any:
        params, static = eqx.partition(state["model"], eqx.is_inexact_array)
        loss, grads = alpaviz.value_and_grad(loss_fn)(params, static, x, y)
        updates, inner = optimizer.update(grads, state["optimizer"], params)
        return {"model": eqx.apply_updates(state["model"], updates), "optimizer": inner}, {"loss": loss}

    state = {"model": model, "optimizer": optimizer.init(eqx.filter(model, eqx.is_inexact_array))}
    assert_launched_like_jax(step, state, *make_rows(), stages=stages, jit=eqx.filter_jit)


@pytest.mark.parametrize("stages", [1, 2])
def test_statistics_in_the_state_of_a_model_are_carried_on(stages: int) -> None:
    class Model(eqx.Module):  # type: ignore[misc,name-defined]
        layers: list[Any]
        norm: Any

        def __init__(self) -> None:
            self.layers = [eqx.nn.Linear(16, 16, key=key) for key in jax.random.split(jax.random.key(0), 4)]
            self.norm = eqx.nn.BatchNorm(16, axis_name="rows", mode="batch")

        def __call__(self, x: Any, state: Any) -> Any:
            for i, layer in enumerate(self.layers):
                x = jnp.tanh(layer(x))
                if i == 1:
                    x, state = self.norm(x, state)
            return x, state

    model, statistics = eqx.nn.make_with_state(Model)()
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss_fn(params: Any, statistics: Any, x: Any, y: Any) -> Any:
        over_rows = jax.vmap(eqx.combine(params, static), axis_name="rows", in_axes=(0, None), out_axes=(0, None))
        out, statistics = over_rows(x, statistics)
        return jnp.mean((out - y) ** 2), statistics

    def step(state: Any, x: Any, y: Any) -> Any:
        grad_fn = alpaviz.value_and_grad(loss_fn, has_aux=True)
        (loss, statistics), grads = grad_fn(state["params"], state["statistics"], x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
        return {"params": params, "statistics": statistics}, loss

    def one_by_one(state: Any, x: Any, y: Any) -> Any:
        found = [step(state, x[i : i + 4], y[i : i + 4]) for i in (0, 4)]
        return jax.tree.map(lambda a, b: (a + b) / 2 if jnp.issubdtype(a.dtype, jnp.floating) else b, *found)

    state = {"params": params, "statistics": statistics}
    assert_launched_like_jax(step, state, *make_rows(), stages=stages, reference=one_by_one)


def test_a_step_under_filter_jit_is_planned() -> None:
    params, static = eqx.partition(make_model(), eqx.is_inexact_array)

    @eqx.filter_jit  # type: ignore[untyped-decorator]
    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(lambda p: measure(eqx.combine(p, static), x, y))(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    assert_launched_like_jax(step, params, *make_rows(), stages=2)


def test_another_activation_function_than_was_planned_is_named() -> None:
    def step(model: Any, x: Any, y: Any) -> Any:
        params, static = eqx.partition(model, eqx.is_inexact_array)
        loss, grads = alpaviz.value_and_grad(lambda p: measure(eqx.combine(p, static), x, y))(params)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), loss

    model = make_model()
    planner = Planner(step, model, *make_rows(), cluster="virtual:2")
    planner.solve(on_progress=lambda _: None)
    with (
        planner.launch() as executable,
        pytest.raises(LaunchError, match=r"state\.activation was .*gelu.* and is .*tanh"),
    ):
        executable(eqx.tree_at(lambda m: m.activation, model, jnp.tanh), *make_rows())
