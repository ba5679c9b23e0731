"""Llama-style causal language model: RMSNorm, rotary positions, grouped-query attention, SwiGLU, untied head.

Source: Touvron et al. 2023a (Llama) and 2023b (Llama 2, grouped queries); Su et al. 2021 (rotary positions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Size and arithmetic of a Llama.

    Attributes:
        hidden: width of the residual stream; a multiple of `num_heads`.
        inner: width between the two products of the MLP.
        num_groups: key and value heads; each serves `num_heads / num_groups` query heads.
        vocab, seq: tokens in the vocabulary and in a sequence.
        theta: base of the rotary wavelengths.
        dtype: of parameters and compute. Normalisation, rotation, softmax and loss are float32.
        remat: recompute each block in the backward pass instead of keeping its activations.
        scan: blocks are one `lax.scan` over parameters that are stacked along a first dimension.
    """

    hidden: int
    inner: int
    num_layers: int
    num_heads: int
    num_groups: int
    vocab: int = 32000
    seq: int = 2048
    theta: float = 10000.0
    dtype: str = "bfloat16"
    remat: bool = False
    scan: bool = False

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.num_heads):
            raise AlpaVizError(f"LlamaConfig: hidden {self.hidden} is no multiple of twice num_heads {self.num_heads}.")
        if self.num_heads % self.num_groups:
            raise AlpaVizError(f"LlamaConfig: num_heads {self.num_heads} is no multiple of {self.num_groups} groups.")


def init_llama(config: LlamaConfig, key: jax.Array) -> Params:
    """Fresh parameters: normal weights of deviation 0.02, residual outputs smaller by the root of twice the layers."""
    width, size, dtype = config.hidden, config.hidden // config.num_heads, config.dtype
    keys = iter(jax.random.split(key, 7 * config.num_layers + 2))
    small = 0.02 / (2 * config.num_layers) ** 0.5

    def weight(*shape: int, deviation: float = 0.02) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype) * jnp.asarray(deviation, dtype)

    def make_block() -> Params:
        return {
            "scale_1": jnp.ones(width, dtype),
            "query": weight(width, config.num_groups, config.num_heads // config.num_groups, size),
            "key": weight(width, config.num_groups, size),
            "value": weight(width, config.num_groups, size),
            "out": weight(config.num_groups, config.num_heads // config.num_groups, size, width, deviation=small),
            "scale_2": jnp.ones(width, dtype),
            "gate": weight(width, config.inner),
            "up": weight(width, config.inner),
            "down": weight(config.inner, width, deviation=small),
        }

    blocks = [make_block() for _ in range(config.num_layers)]
    params: Params = {
        "embed": weight(config.vocab, width),
        "scale": jnp.ones(width, dtype),
        "head": weight(width, config.vocab),
    }
    if config.scan:
        return params | {"blocks": jax.tree.map(lambda *layers: jnp.stack(layers), *blocks)}
    return params | {f"block_{i}": block for i, block in enumerate(blocks)}


def abstract_llama(config: LlamaConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_llama(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_llama_batch(config: LlamaConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `tokens` and the `targets` that follow them, each (batch, sequence) of int32."""
    ids = jax.random.randint(key, (batch_size, config.seq + 1), 0, config.vocab, jnp.int32)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}


def llama_loss(params: Params, batch: dict[str, jax.Array], config: LlamaConfig) -> jax.Array:
    """Mean cross-entropy, in nats, of the target of every position; a float32 scalar."""

    def run_block(x: jax.Array, p: Params) -> jax.Array:
        with jax.named_scope("attention"):
            x = x + _attend(_normalise(x, p["scale_1"]), p, config.theta)
        with jax.named_scope("mlp"):
            h = _normalise(x, p["scale_2"])
            return jnp.add(x, (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"])

    block = jax.checkpoint(run_block) if config.remat else run_block
    with jax.named_scope("embed"):
        x = params["embed"][batch["tokens"]]  # (batch, sequence, hidden)
    if config.scan:
        x, _ = jax.lax.scan(lambda h, p: (block(h, p), None), x, params["blocks"])
    else:
        for i in range(config.num_layers):
            with jax.named_scope(f"block_{i}"):
                x = block(x, params[f"block_{i}"])
    with jax.named_scope("head"):
        logits = (_normalise(x, params["scale"]) @ params["head"]).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def _rotate(x: jax.Array, theta: float) -> jax.Array:
    """Turn pairs (i, i + half) of the last dimension by an angle that grows with the position, dimension 1."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * theta ** (-jnp.arange(half) / half)  # (sequence, half)
    angles = angles.reshape(x.shape[1], *(1,) * (x.ndim - 3), half)
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = first * jnp.cos(angles) - second * jnp.sin(angles), first * jnp.sin(angles) + second * jnp.cos(angles)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _attend(h: jax.Array, p: Params, theta: float) -> jax.Array:
    """Causal self-attention; b batch, q and k positions, g groups, n query heads of a group, d size of a head."""
    query = _rotate(jnp.einsum("bsh,hgnd->bsgnd", h, p["query"]), theta)
    key = _rotate(jnp.einsum("bsh,hgd->bsgd", h, p["key"]), theta)
    scores = jnp.einsum("bqgnd,bkgd->bgnqk", query, key).astype(jnp.float32) * query.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(h.dtype)
    mixed = jnp.einsum("bgnqk,bkgd->bqgnd", weights, jnp.einsum("bsh,hgd->bsgd", h, p["value"]))
    return jnp.einsum("bqgnd,gndh->bqh", mixed, p["out"])
