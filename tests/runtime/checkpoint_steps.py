"""A small step whose state has every kind of leaf, and how the checkpoint and fault tests plan and compare it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import alpaviz
from alpaviz.planner import Planner

KEY = jax.random.key(3)
WIDTH, LAYERS = 16, 4
BATCH = np.linspace(-1, 1, 8 * WIDTH, dtype=np.float32).reshape(8, WIDTH)


def initialize(key: Any) -> Any:
    """A head, a stack of layers that `scan` runs over, bfloat16, a key, a count and an array without elements."""
    first, rest = jax.random.split(key)
    return {
        "head": jax.random.normal(first, (WIDTH, 8)) / 4,
        "stack": jax.random.normal(rest, (LAYERS, WIDTH, WIDTH)) / 4,
        "scale": jnp.ones(8, jnp.bfloat16),
        "empty": jnp.zeros((0, 3)),
        "key": key,
        "count": jnp.zeros((), jnp.int32),
    }


def step(state: Any, x: Any) -> Any:
    """Gradient descent with noise from the state's key."""
    key, use = jax.random.split(state["key"])

    def loss_fn(weights: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights["stack"])
        x = x * jax.random.bernoulli(use, 0.9, (WIDTH,))
        return ((x @ weights["head"] - state["scale"]) ** 2).mean()

    weights = {"head": state["head"], "stack": state["stack"]}
    loss, grads = alpaviz.value_and_grad(loss_fn)(weights, x)
    updated = jax.tree.map(lambda p, g: p - 0.1 * g, weights, grads)
    return {**state, **updated, "key": key, "count": state["count"] + 1}, loss


def plan(cluster: str, stages: int, mesh: str | None = None, *, split: str | None = None, **options: Any) -> Planner:
    """A planner with a plan; `split` pins how the head and the layers of a one-stage plan are kept."""
    planner = Planner(step, jax.eval_shape(initialize, KEY), BATCH, cluster=cluster, num_microbatches=2, **options)
    planner.pin_num_stages(stages)
    if mesh is not None:
        planner.pin_logical_mesh(mesh)
    if split is not None:
        for leaf in ("state['head']", *(f"state['stack'][{i}]" for i in range(LAYERS))):
            planner.pin_spec(leaf, split)
    planner.solve(on_progress=lambda _: None)
    return planner


def to_words(leaf: Any) -> np.ndarray:
    """A leaf as numbers; of a PRNG key, its words."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def assert_same_bits(got: Any, expected: Any) -> None:
    """The same structure, dtypes and numbers."""

    def check(a: Any, b: Any) -> None:
        a, b = to_words(a), to_words(b)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)

    jax.tree.map(check, got, expected)
