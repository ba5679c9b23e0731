"""T5: an encoder and a decoder that reads it by cross-attention, with relative positions.

Source: Raffel et al. 2020, section 2.1 and table 14; buckets of relative positions as in its published code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class T5Config:
    """Size and arithmetic of a T5; encoder and decoder have `num_layers` each.

    Attributes:
        hidden: width of the residual streams.
        inner, head_size: width between the two products of the MLP, and of a head (not tied to `hidden`).
        source, target: lengths of the encoder's and decoder's sequences.
        buckets, furthest: relative positions are told apart up to half the buckets, then ever more coarsely.
        dtype: of parameters and compute. Normalisation, softmax and loss are float32.
    """

    hidden: int
    inner: int
    num_layers: int
    num_heads: int
    head_size: int = 64
    vocab: int = 32128
    source: int = 512
    target: int = 114
    buckets: int = 32
    furthest: int = 128
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 4 or self.buckets >= 2 * self.furthest:
            raise AlpaVizError(f"T5Config: buckets must be a multiple of 4, not {self.buckets}, and < 2 * furthest.")


def init_t5(config: T5Config, key: jax.Array) -> Params:
    """Fresh parameters: normal weights of deviation 1 / sqrt(inputs), queries smaller by the root of the head size."""
    width, heads, size, dtype = config.hidden, config.num_heads, config.head_size, config.dtype
    keys = iter(jax.random.split(key, 20 * config.num_layers + 4))

    def weight(*shape: int, fan_in: float) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype) * jnp.asarray(fan_in**-0.5, dtype)

    def make_attention() -> Params:
        return {
            "scale": jnp.ones(width, dtype),
            "query": weight(width, heads, size, fan_in=width * size),
            "key": weight(width, heads, size, fan_in=width),
            "value": weight(width, heads, size, fan_in=width),
            "out": weight(heads, size, width, fan_in=heads * size),
        }

    def make_mlp() -> Params:
        return {
            "scale": jnp.ones(width, dtype),
            "up": weight(width, config.inner, fan_in=width),
            "down": weight(config.inner, width, fan_in=config.inner),
        }

    params: Params = {"embed": weight(config.vocab, width, fan_in=1.0)}
    for side in ("encoder", "decoder"):
        params[f"{side}_bias"] = weight(config.buckets, heads, fan_in=width)
        params[f"{side}_scale"] = jnp.ones(width, dtype)
        for i in range(config.num_layers):
            cross = {"cross": make_attention()} if side == "decoder" else {}
            params[f"{side}_{i}"] = {"self": make_attention(), **cross, "mlp": make_mlp()}
    return params


def abstract_t5(config: T5Config) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_t5(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_t5_batch(config: T5Config, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `source` (batch, source), decoder `inputs` and the `targets` that follow them (batch, target); int32."""
    keys = jax.random.split(key)
    source = jax.random.randint(keys[0], (batch_size, config.source), 0, config.vocab, jnp.int32)
    ids = jax.random.randint(keys[1], (batch_size, config.target + 1), 0, config.vocab, jnp.int32)
    return {"source": source, "inputs": ids[:, :-1], "targets": ids[:, 1:]}


def t5_loss(params: Params, batch: dict[str, jax.Array], config: T5Config) -> jax.Array:
    """Mean cross-entropy, in nats, of every target; a float32 scalar. The head is the embedding, scaled down."""
    memory = _run_side("encoder", params, params["embed"][batch["source"]], None, config)
    x = _run_side("decoder", params, params["embed"][batch["inputs"]], memory, config)
    with jax.named_scope("head"):
        logits = (jnp.einsum("bsh,vh->bsv", x, params["embed"]) * config.hidden**-0.5).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)


def _run_side(side: str, params: Params, x: jax.Array, memory: jax.Array | None, config: T5Config) -> jax.Array:
    """The encoder, or the decoder where there is a `memory` to read."""
    buckets = find_buckets(x.shape[1], config, is_causal=memory is not None)
    bias = jnp.moveaxis(params[f"{side}_bias"][buckets], -1, 0).astype(jnp.float32)  # (heads, queries, keys)
    if memory is not None:
        bias = jnp.where(np.tri(x.shape[1], dtype=bool), bias, -1e30)
    for i in range(config.num_layers):
        p = params[f"{side}_{i}"]
        with jax.named_scope(f"{side}_{i}/self"):
            h = _normalise(x, p["self"]["scale"])
            x = x + _attend(h, h, p["self"], bias)
        if memory is not None:
            with jax.named_scope(f"{side}_{i}/cross"):
                x = x + _attend(_normalise(x, p["cross"]["scale"]), memory, p["cross"], None)
        with jax.named_scope(f"{side}_{i}/mlp"):
            x = x + jax.nn.relu(_normalise(x, p["mlp"]["scale"]) @ p["mlp"]["up"]) @ p["mlp"]["down"]
    return _normalise(x, params[f"{side}_scale"])


def find_buckets(length: int, config: T5Config, *, is_causal: bool) -> np.ndarray:
    """The bucket of each relative position, (queries, keys); those after a query have buckets unless `is_causal`."""
    behind = np.arange(length)[:, None] - np.arange(length)[None, :]
    count = config.buckets if is_causal else config.buckets // 2
    offset = 0 if is_causal else np.where(behind < 0, count, 0)
    distance = np.maximum(behind, 0) if is_causal else np.abs(behind)
    exact = count // 2
    growth = np.log(np.maximum(distance, 1) / exact) / math.log(config.furthest / exact)
    coarse = np.minimum(exact + (growth * (count - exact)).astype(int), count - 1)
    return np.asarray(offset + np.where(distance < exact, distance, coarse))


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def _attend(x: jax.Array, memory: jax.Array, p: Params, bias: jax.Array | None) -> jax.Array:
    """What queries of `x` read in `memory`; b batch, q and k positions, n heads, d size of a head."""
    query, key = jnp.einsum("bqh,hnd->bnqd", x, p["query"]), jnp.einsum("bkh,hnd->bnkd", memory, p["key"])
    scores = jnp.einsum("bnqd,bnkd->bnqk", query, key).astype(jnp.float32)
    weights = jax.nn.softmax(scores if bias is None else scores + bias, axis=-1).astype(x.dtype)
    value = jnp.einsum("bkh,hnd->bnkd", memory, p["value"])
    return jnp.einsum("bnqd,ndh->bqh", jnp.einsum("bnqk,bnkd->bnqd", weights, value), p["out"])
