"""One layer of attention and a classifier, to teach with: small enough to see every op of its plan at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Size and arithmetic of the network.

    Attributes:
        hidden: width of a token; a multiple of `num_heads`.
        seq: tokens of an example, each a vector of `hidden` numbers.
        num_classes: of the examples.
        dtype: of parameters and compute. Softmax and loss are float32.
    """

    hidden: int
    num_heads: int
    seq: int = 16
    num_classes: int = 8
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.hidden % self.num_heads:
            raise AlpaVizError(f"AttentionConfig: hidden {self.hidden} is no multiple of num_heads {self.num_heads}.")


def init_attention(config: AttentionConfig, key: jax.Array) -> Params:
    """Fresh parameters: normal weights of deviation 1 / sqrt(inputs)."""
    keys = jax.random.split(key, 5)
    width, size = config.hidden, config.hidden // config.num_heads

    def weight(position: int, *shape: int) -> jax.Array:
        return jax.random.normal(keys[position], shape, config.dtype) * jnp.asarray(width**-0.5, config.dtype)

    heads = {name: weight(i, width, config.num_heads, size) for i, name in enumerate(("query", "key", "value"))}
    return heads | {"out": weight(3, config.num_heads, size, width), "head": weight(4, width, config.num_classes)}


def abstract_attention(config: AttentionConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_attention(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_attention_batch(config: AttentionConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `tokens` (batch, sequence, hidden) and the `labels` of the examples (batch,) of int32."""
    token_key, label_key = jax.random.split(key)
    tokens = jax.random.normal(token_key, (batch_size, config.seq, config.hidden), config.dtype)
    return {"tokens": tokens, "labels": jax.random.randint(label_key, (batch_size,), 0, config.num_classes, jnp.int32)}


def attention_loss(params: Params, batch: dict[str, jax.Array], config: AttentionConfig) -> jax.Array:
    """Mean cross-entropy of the labels, in nats; a float32 scalar. q and k are positions, n heads, d their size."""
    x = batch["tokens"]
    with jax.named_scope("attention"):
        query, key, value = (jnp.einsum("bsh,hnd->bnsd", x, params[name]) for name in ("query", "key", "value"))
        scores = jnp.einsum("bnqd,bnkd->bnqk", query, key).astype(jnp.float32) * query.shape[-1] ** -0.5
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        x = x + jnp.einsum("bnqd,ndh->bqh", jnp.einsum("bnqk,bnkd->bnqd", weights, value), params["out"])
    with jax.named_scope("head"):
        logits = (x.mean(1) @ params["head"]).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["labels"][:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)
