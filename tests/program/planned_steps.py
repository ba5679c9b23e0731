"""What the tests of training steps share: a small network, and a comparison with JAX on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpaviz.planner import Planner

WIDTH = 16
ROWS = 8


def init_network(num_layers: int = 4, width: int = WIDTH, seed: int = 0) -> dict[str, Any]:
    """Weights and biases of a network of dense layers."""
    keys = jax.random.split(jax.random.key(seed), num_layers)
    return {
        f"layer_{i}": {"w": jax.random.normal(key, (width, width)) * width**-0.5, "b": jnp.zeros(width)}
        for i, key in enumerate(keys)
    }


def apply_network(params: Any, x: Any) -> Any:
    """tanh(x w + b), layer after layer."""
    for p in params.values():
        x = jnp.tanh(x @ p["w"] + p["b"])
    return x


def network_loss(params: Any, x: Any, y: Any) -> Any:
    """Mean squared error."""
    return jnp.mean((apply_network(params, x) - y) ** 2)


def make_rows(rows: int = ROWS, width: int = WIDTH) -> tuple[Any, Any]:
    """A batch of inputs and targets."""
    x = np.asarray(jax.random.normal(jax.random.key(11), (rows, width)))
    return x, np.asarray(jnp.sin(x @ np.asarray(jax.random.normal(jax.random.key(12), (width, width)))))


def assert_launched_like_jax(
    step: Callable[..., Any],
    state: Any,
    *batch: Any,
    stages: int,
    reference: Callable[..., Any] | None = None,
    jit: Callable[..., Any] = jax.jit,
    num_steps: int = 2,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    cluster: str = "virtual:4",
    microbatches: int = 2,
    **options: Any,
) -> Planner:
    """Plan `step` with so many stages, run it, and compare state and metrics with `reference` (by default `step`).

    The step gives (new state, metrics). The plan has no warning, and the number of stages and microbatches asked for.
    """
    planner = Planner(step, state, *batch, cluster=cluster, num_microbatches=microbatches, **options)
    planner.pin_num_stages(stages)
    plan = planner.solve(on_progress=lambda _: None)
    assert plan.num_stages == stages
    assert planner.program.num_microbatches == microbatches
    assert not planner.program.warnings
    run = jit(reference or step)
    with planner.launch(backend="local") as executable:
        ours = theirs = state
        for _ in range(num_steps):
            ours, metrics = executable(ours, *batch)
            theirs, expected = run(theirs, *batch)
            assert_close((executable.fetch(ours), executable.fetch(metrics)), (theirs, expected), rtol, atol)
    return planner


def assert_close(got: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Equal structures, dtypes and shapes; nearly equal numbers."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        name = jax.tree_util.keystr(path)
        if callable(b) or isinstance(b, (str, np.dtype)):
            assert a == b, name
            continue
        if jnp.issubdtype(getattr(b, "dtype", None), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{name}: {a.shape} {a.dtype}, not {b.shape} {b.dtype}"
        if b.dtype.kind in "biu":
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol, err_msg=name)
