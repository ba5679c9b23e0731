"""A multi-layer perceptron for regression: the smallest model whose plan can be followed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MLPConfig:
    """Size of an MLP: `num_layers` square layers (1 to 8) of `hidden` units, with ReLU between them.

    `dtype` is that of parameters and compute.
    """

    num_layers: int = 4
    hidden: int = 256
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not 1 <= self.num_layers <= 8:
            raise AlpaVizError(f"MLPConfig: num_layers must be 1 to 8, not {self.num_layers}: it is a teaching model.")


def init_mlp(config: MLPConfig, key: jax.Array) -> Params:
    """Fresh parameters, scaled to keep the variance through ReLU (He et al. 2015)."""
    shape = (config.hidden, config.hidden)
    deviation = jnp.asarray((2 / config.hidden) ** 0.5, config.dtype)
    return {
        f"block_{i}": {
            "weight": jax.random.normal(k, shape, config.dtype) * deviation,
            "bias": jnp.zeros(config.hidden, config.dtype),
        }
        for i, k in enumerate(jax.random.split(key, config.num_layers))
    }


def make_mlp_batch(config: MLPConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `inputs` and their sines as `targets`, each (batch, hidden)."""
    inputs = jax.random.normal(key, (batch_size, config.hidden), config.dtype)
    return {"inputs": inputs, "targets": jnp.sin(inputs)}


def mlp_loss(params: Params, batch: dict[str, jax.Array], config: MLPConfig) -> jax.Array:
    """Mean squared error; a float32 scalar."""
    x = batch["inputs"]
    for i in range(config.num_layers):
        p = params[f"block_{i}"]
        with jax.named_scope(f"block_{i}"):
            x = x @ p["weight"] + p["bias"]
            x = x if i == config.num_layers - 1 else jax.nn.relu(x)
    with jax.named_scope("loss"):
        error = (x - batch["targets"]).astype(jnp.float32)
        return jnp.mean(error * error)
