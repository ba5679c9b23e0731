"""The GPT against the paper's figures, numpy and itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpaviz.errors import AlpaVizError
from alpaviz.models import MODELS, GPTConfig, abstract_gpt, count_parameters, gpt_loss, init_gpt, make_gpt_batch

SMALL = GPTConfig(hidden=16, num_layers=2, num_heads=2, vocab=32, seq=8, dtype="float32")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt-350m", 0.3547), ("gpt-760m", 0.7586), ("gpt-1.3b", 1.3134), ("gpt-2.6b", 2.6486), ("gpt-6.7b", 6.6537),
        ("gpt-15b", 15.3644), ("gpt-39b", 39.0785),
    ],
)  # fmt: skip
def test_sizes_are_those_the_paper_measured(name: str, billions: float) -> None:
    config = MODELS[name]
    assert isinstance(config, GPTConfig)
    # The artifact's counts leave the position embedding out.
    counted = count_parameters(abstract_gpt(config)) - config.seq * config.hidden
    assert counted == pytest.approx(billions * 1e9, rel=2e-4)


def test_abstract_parameters_are_the_shapes_of_the_real_ones() -> None:
    real = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), init_gpt(SMALL, jax.random.key(0)))
    abstract = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract_gpt(SMALL))
    assert real == abstract


def _normalise(x: Any, p: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _compute_loss_token_by_token(params: Any, batch: Any, config: GPTConfig) -> float:
    """The loss by loops over examples, heads and positions, each of which sees only those before it, in float64."""
    size, losses = config.hidden // config.num_heads, []
    for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
        x = params["wte"][tokens] + params["wpe"]
        for i in range(config.num_layers):
            p = params[f"block_{i}"]
            h, mixed = _normalise(x, p["ln_1"]), np.zeros_like(x)
            for n in range(config.num_heads):
                q, k, v = (h @ p["qkv"][:, c, n] + p["qkv_bias"][c, n] for c in range(3))
                for t in range(config.seq):
                    mixed[t] += (_softmax(q[t] @ k[: t + 1].T / np.sqrt(size)) @ v[: t + 1]) @ p["out"][n]
            x = x + mixed + p["out_bias"]
            up = _normalise(x, p["ln_2"]) @ p["up"] + p["up_bias"]
            gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
            x = x + gelu @ p["down"] + p["down_bias"]
        chance = _softmax(_normalise(x, params["ln"]) @ params["wte"].T)
        losses.extend(-np.log(chance[np.arange(config.seq), targets]))
    return float(np.mean(losses))


def test_loss_equals_one_computed_token_by_token() -> None:
    params = jax.tree.map(lambda leaf: leaf * 10, init_gpt(SMALL, jax.random.key(1)))
    batch = make_gpt_batch(SMALL, 3, jax.random.key(2))
    plain = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    expected = _compute_loss_token_by_token(plain, jax.tree.map(np.asarray, batch), SMALL)
    assert float(gpt_loss(params, batch, SMALL)) == pytest.approx(expected, rel=1e-5)


def test_recomputing_blocks_changes_no_gradient() -> None:
    params, batch = init_gpt(SMALL, jax.random.key(0)), make_gpt_batch(SMALL, 2, jax.random.key(1))
    kept = jax.grad(gpt_loss)(params, batch, SMALL)
    recomputed = jax.grad(gpt_loss)(params, batch, dataclasses.replace(SMALL, remat=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), kept, recomputed)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_loss_is_near_the_float32_one(dtype: str) -> None:
    batch = make_gpt_batch(SMALL, 2, jax.random.key(1))
    params = init_gpt(SMALL, jax.random.key(0))
    low = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    loss = gpt_loss(low, batch, dataclasses.replace(SMALL, dtype=dtype))
    assert loss.dtype == jnp.float32
    assert float(loss) == pytest.approx(float(gpt_loss(params, batch, SMALL)), rel=2e-2)


def test_every_block_has_its_scope() -> None:
    batch = make_gpt_batch(SMALL, 1, jax.random.key(0))
    jaxpr = jax.make_jaxpr(lambda p, b: gpt_loss(p, b, SMALL))(abstract_gpt(SMALL), batch)
    scopes = {str(eqn.source_info.name_stack) for eqn in jaxpr.jaxpr.eqns}
    assert {"embed", "block_0/attn", "block_0/mlp", "block_1/ln", "block_1/attn", "head/ln"} <= scopes


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(AlpaVizError, match="hidden 10 is not a multiple of num_heads 4"):
        GPTConfig(hidden=10, num_layers=1, num_heads=4)
