"""Training steps with Optax's optimizers give the single-device result on plans of one stage and of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import alpaviz
from tests.program.planned_steps import assert_launched_like_jax, init_network, make_rows, network_loss

SCHEDULE = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 2, 10)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd with momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2, eps=1e-3),
    "adamw with a schedule": lambda: optax.adamw(SCHEDULE, eps=1e-3),
    "adamw that decays only matrices": lambda: optax.adamw(
        1e-2, eps=1e-3, weight_decay=0.1, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params)
    ),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "lion": lambda: optax.lion(1e-3),
    "clipping by the global norm": lambda: optax.chain(optax.clip_by_global_norm(0.05), optax.adam(1e-2, eps=1e-3)),
    "clipping by value": lambda: optax.chain(optax.clip(1e-3), optax.sgd(0.1)),
    "rmsprop": lambda: optax.rmsprop(1e-2, eps=1e-3),
    "adagrad": lambda: optax.adagrad(0.1),
    "lamb": lambda: optax.lamb(1e-2, eps=1e-3),
}


def make_step(optimizer: Any) -> tuple[Any, Any]:
    """A step of `optimizer` on the small network; (step, state)."""

    def step(state: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(network_loss)(state["params"], x, y)
        updates, inner = optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": inner}, {"loss": loss}

    params = init_network()
    return step, {"params": params, "optimizer": optimizer.init(params)}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_gives_the_single_device_result(name: str, stages: int) -> None:
    step, state = make_step(OPTIMIZERS[name]())
    assert_launched_like_jax(step, state, *make_rows(), stages=stages)


@pytest.mark.parametrize("stages", [1, 2])
def test_steps_gathered_by_multisteps_give_the_single_device_result(stages: int) -> None:
    step, state = make_step(optax.MultiSteps(optax.adam(1e-2, eps=1e-3), every_k_schedule=2))
    assert_launched_like_jax(step, state, *make_rows(), stages=stages, num_steps=4)


@pytest.mark.parametrize("stages", [1, 2])
def test_skipping_updates_that_are_not_finite_gives_the_single_device_result(stages: int) -> None:
    step, state = make_step(optax.apply_if_finite(optax.adam(1e-2, eps=1e-3), 3))
    x, y = make_rows()
    assert_launched_like_jax(step, state, x, y, stages=stages)
    x = x.copy()
    x[0, 0] = float("nan")
    assert_launched_like_jax(step, state, x, y, stages=stages)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_moving_average_of_the_parameters_gives_the_single_device_result(stages: int) -> None:
    optimizer = optax.adam(1e-2, eps=1e-3)
    average = optax.ema(0.9, debias=False)

    def step(state: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(network_loss)(state["params"], x, y)
        updates, inner = optimizer.update(grads, state["optimizer"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        _, averaged = average.update(params, state["average"])
        slow = optax.incremental_update(params, state["slow"], 0.1)
        return {"params": params, "optimizer": inner, "average": averaged, "slow": slow}, loss

    params = init_network()
    state = {"params": params, "optimizer": optimizer.init(params), "average": average.init(params), "slow": params}
    assert_launched_like_jax(step, state, *make_rows(), stages=stages)


@pytest.mark.parametrize("stages", [1, 2])
def test_two_optimizers_for_two_parts_give_the_single_device_result(stages: int) -> None:
    labels = {f"layer_{i}": "fast" if i < 2 else "frozen" if i == 2 else "slow" for i in range(4)}
    optimizers = {"fast": optax.adam(1e-2, eps=1e-3), "slow": optax.sgd(0.1), "frozen": optax.set_to_zero()}
    step, state = make_step(optax.multi_transform(optimizers, labels))
    assert_launched_like_jax(step, state, *make_rows(), stages=stages)


def make_scaled_step(dtype: Any, skip: str) -> tuple[Any, Any]:
    """Mixed precision with a dynamic loss scale: a step whose gradients overflow halves it and changes nothing."""
    optimizer = optax.adam(1e-2, eps=1e-3)

    def loss_fn(params: Any, scale: Any, x: Any, y: Any) -> Any:
        low = jax.tree.map(lambda p: p.astype(dtype), params)
        loss = network_loss(low, x.astype(dtype), y.astype(dtype)).astype(jnp.float32)
        return loss * scale, loss

    def step(state: Any, x: Any, y: Any) -> Any:
        grad_fn = alpaviz.value_and_grad(loss_fn, has_aux=True)
        (_, loss), grads = grad_fn(state["params"], state["scale"], x, y)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32) / state["scale"], grads)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))

        def update(params: Any, inner: Any) -> Any:
            updates, inner = optimizer.update(grads, inner, params)
            return optax.apply_updates(params, updates), inner

        old = (state["params"], state["optimizer"])
        if skip == "cond":
            params, inner = jax.lax.cond(finite, update, lambda params, inner: (params, inner), *old)
        else:
            params, inner = jax.tree.map(lambda a, b: jnp.where(finite, a, b), update(*old), old)
        scale = jnp.where(finite, state["scale"] * 1.5, state["scale"] / 2)
        return {"params": params, "optimizer": inner, "scale": scale}, {"loss": loss, "finite": finite}

    params = init_network()
    return step, {"params": params, "optimizer": optimizer.init(params), "scale": jnp.float32(2.0**16)}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("skip", ["where", "cond"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_dynamic_loss_scale_gives_the_single_device_result(dtype: Any, skip: str, stages: int) -> None:
    step, state = make_scaled_step(dtype, skip)
    if dtype == jnp.float16:
        state["scale"] = jnp.float32(2.0**27)  # so that the first step overflows
    low = 2e-2 if dtype == jnp.bfloat16 else 5e-3
    planner = assert_launched_like_jax(step, state, *make_rows(), stages=stages, num_steps=3, rtol=low, atol=2e-3)
    assert planner.program.state_outputs
