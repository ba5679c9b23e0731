"""BERT: a bidirectional encoder that predicts masked tokens.

Source: Devlin et al. 2019, section 3; the pair task (next sentence) is left out, as in most that followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BERTConfig:
    """Size and arithmetic of a BERT.

    Attributes:
        hidden: width of the residual stream; a multiple of `num_heads`.
        vocab, seq: tokens in the vocabulary and in a sequence; id `vocab - 1` stands for a masked token.
        masked_share: share of the tokens that are masked and predicted.
        dtype: of parameters and compute. Normalisation and loss are float32.
    """

    hidden: int
    num_layers: int
    num_heads: int
    vocab: int = 30522
    seq: int = 512
    masked_share: float = 0.15
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.hidden % self.num_heads:
            raise AlpaVizError(f"BERTConfig: hidden {self.hidden} is not a multiple of num_heads {self.num_heads}.")
        if not 0 < self.masked_share < 1:
            raise AlpaVizError(f"BERTConfig: masked_share must be between 0 and 1, not {self.masked_share}.")


def init_bert(config: BERTConfig, key: jax.Array) -> Params:
    """Fresh parameters: normal weights of deviation 0.02."""
    width, heads, dtype = config.hidden, config.num_heads, config.dtype
    keys = iter(jax.random.split(key, 4 * config.num_layers + 4))

    def weight(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype) * jnp.asarray(0.02, dtype)

    def zeros(*shape: int) -> jax.Array:
        return jnp.zeros(shape, dtype)

    def norm() -> Params:
        return {"scale": jnp.ones(width, dtype), "bias": zeros(width)}

    params: Params = {
        "tokens": weight(config.vocab, width),
        "positions": weight(config.seq, width),
        "segments": weight(2, width),
        "ln": norm(),
        "head": {"dense": weight(width, width), "dense_bias": zeros(width), "ln": norm(), "bias": zeros(config.vocab)},
    }
    for i in range(config.num_layers):
        params[f"layer_{i}"] = {
            "qkv": weight(width, 3, heads, width // heads),
            "qkv_bias": zeros(3, heads, width // heads),
            "out": weight(heads, width // heads, width),
            "out_bias": zeros(width),
            "ln_1": norm(),
            "up": weight(width, 4 * width),
            "up_bias": zeros(4 * width),
            "down": weight(4 * width, width),
            "down_bias": zeros(width),
            "ln_2": norm(),
        }
    return params


def abstract_bert(config: BERTConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_bert(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_bert_batch(config: BERTConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `tokens` with some masked, their `segments` (0 or 1) and the `targets`, -1 where nothing is asked.

    All are (batch, sequence) of int32.
    """
    ids_key, mask_key = jax.random.split(key)
    shape = batch_size, config.seq
    ids = jax.random.randint(ids_key, shape, 0, config.vocab - 1, jnp.int32)
    is_masked = jax.random.uniform(mask_key, shape) < config.masked_share
    segments = jnp.broadcast_to((jnp.arange(config.seq) >= config.seq // 2).astype(jnp.int32), shape)
    return {
        "tokens": jnp.where(is_masked, config.vocab - 1, ids),
        "segments": segments,
        "targets": jnp.where(is_masked, ids, -1),
    }


def bert_loss(params: Params, batch: dict[str, jax.Array], config: BERTConfig) -> jax.Array:
    """Cross-entropy of the masked tokens in nats, over the number expected of them; a float32 scalar.

    The number that is expected, not the one that was drawn: so the mean over microbatches is the loss of the batch.
    """
    with jax.named_scope("embed"):
        x = params["tokens"][batch["tokens"]] + params["positions"] + params["segments"][batch["segments"]]
        x = _normalise(x, params["ln"])
    for i in range(config.num_layers):
        p = params[f"layer_{i}"]
        with jax.named_scope(f"layer_{i}/attention"):
            x = _normalise(x + _attend(x, p), p["ln_1"])
        with jax.named_scope(f"layer_{i}/mlp"):
            h = jax.nn.gelu(x @ p["up"] + p["up_bias"], approximate=False)
            x = _normalise(x + h @ p["down"] + p["down_bias"], p["ln_2"])
    with jax.named_scope("head"):
        head = params["head"]
        h = _normalise(jax.nn.gelu(x @ head["dense"] + head["dense_bias"], approximate=False), head["ln"])
        logits = (jnp.einsum("bsh,vh->bsv", h, params["tokens"]) + head["bias"]).astype(jnp.float32)
        is_asked = batch["targets"] >= 0
        wanted = jnp.take_along_axis(logits, jnp.maximum(batch["targets"], 0)[..., None], axis=-1)[..., 0]
        entropy = jnp.where(is_asked, jax.nn.logsumexp(logits, axis=-1) - wanted, 0.0)
        return jnp.mean(entropy) / config.masked_share


def _normalise(x: jax.Array, p: Params) -> jax.Array:
    wide = x.astype(jnp.float32)
    unit = (wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + 1e-12)
    return jnp.add(unit.astype(x.dtype) * p["scale"], p["bias"])


def _attend(x: jax.Array, p: Params) -> jax.Array:
    """Self-attention over all positions; b batch, q and k positions, n heads, d size of a head."""
    qkv = jnp.einsum("bsh,hcnd->cbnsd", x, p["qkv"]) + p["qkv_bias"][:, None, :, None, :]
    query, key, value = qkv[0], qkv[1], qkv[2]
    scores = jnp.einsum("bnqd,bnkd->bnqk", query, key) * query.shape[-1] ** -0.5
    mixed = jnp.einsum("bnqk,bnkd->bnqd", jax.nn.softmax(scores, axis=-1), value)
    return jnp.add(jnp.einsum("bnqd,ndh->bqh", mixed, p["out"]), p["out_bias"])
