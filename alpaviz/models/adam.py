"""Adam in plain JAX, with float32 moments and, for 16-bit parameters, float32 master weights.

Source: Kingma and Ba, ICLR 2015, algorithm 1; master weights: Micikevicius et al., ICLR 2018, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True)
class AdamOptions:
    """Hyperparameters, named as in the paper; `epsilon` is added outside the root."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8


def init_adam(params: Any) -> dict[str, Any]:
    """The training state: `params`, first and second moments (`mu`, `nu`, float32), `count`, and `master` if needed.

    `master` holds float32 copies and is there only where a parameter has 16 bits.
    """
    state = {"params": params, "mu": _make_zeros(params), "nu": _make_zeros(params), "count": jnp.zeros((), jnp.int32)}
    if any(leaf.dtype.itemsize < 4 for leaf in jax.tree.leaves(params)):
        state["master"] = jax.tree.map(lambda p: p.astype(jnp.float32), params)
    return state


def _make_zeros(params: Any) -> Any:
    return jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)


def apply_adam(state: dict[str, Any], gradients: Any, options: AdamOptions | None = None) -> dict[str, Any]:
    """The state after one step along `gradients`, which may have 16 bits; the arithmetic is float32."""
    o = options or AdamOptions()
    gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
    count = state["count"] + 1
    steps = count.astype(jnp.float32)
    rate = o.learning_rate / (1 - o.beta1**steps)
    root_scale = jax.lax.rsqrt(1 - o.beta2**steps)
    mu = jax.tree.map(lambda m, g: o.beta1 * m + (1 - o.beta1) * g, state["mu"], gradients)
    nu = jax.tree.map(lambda n, g: o.beta2 * n + (1 - o.beta2) * (g * g), state["nu"], gradients)
    weights = jax.tree.map(
        lambda w, m, n: w - rate * m / (jnp.sqrt(n) * root_scale + o.epsilon),
        state.get("master", state["params"]), mu, nu,
    )  # fmt: skip
    new_state = {"params": weights, "mu": mu, "nu": nu, "count": count}
    if "master" in state:
        new_state["params"] = jax.tree.map(lambda w, p: w.astype(p.dtype), weights, state["params"])
        new_state["master"] = weights
    return new_state
