"""GPT as a causal language model: pre-LN blocks with biases, learned positions, tied embedding.

Blocks are written out or scanned; a planner sees every layer either way. Heads are a dimension of their own: scores are
(batch, heads, queries, keys), so batch and heads can each be split.

Source: Radford et al. 2019 (GPT-2); Brown et al. 2020 (GPT-3), table 2.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]

_MASKED = -3e4
"""A score that softmax turns into 0, within float16's range."""


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Size and arithmetic of a GPT.

    Attributes:
        hidden: width of the residual stream; a multiple of `num_heads`.
        vocab, seq: tokens in the vocabulary and in a sequence.
        dtype: of parameters and compute: `"float32"`, `"float16"` or `"bfloat16"`. Normalisation and loss are float32.
        remat: recompute each block in the backward pass instead of keeping its activations.
        scan: blocks are one `lax.scan` over parameters that are stacked along a first dimension: traced much sooner.

    float16 is trained without loss scaling, as in Alpa's benchmark: right for planning, not for training to the end.
    """

    hidden: int
    num_layers: int
    num_heads: int
    vocab: int = 51200
    seq: int = 1024
    dtype: str = "float16"
    remat: bool = False
    scan: bool = False

    def __post_init__(self) -> None:
        if self.hidden % self.num_heads:
            raise AlpaVizError(f"GPTConfig: hidden {self.hidden} is not a multiple of num_heads {self.num_heads}.")


def init_gpt(config: GPTConfig, key: jax.Array) -> Params:
    """Fresh parameters: normal weights of deviation 0.02, residual outputs smaller by the root of twice the layers."""
    width, heads, dtype = config.hidden, config.num_heads, config.dtype
    keys = iter(jax.random.split(key, 4 * config.num_layers + 2))
    small = 0.02 / (2 * config.num_layers) ** 0.5

    def weight(*shape: int, deviation: float = 0.02) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype) * jnp.asarray(deviation, dtype)

    def norm() -> Params:
        return {"scale": jnp.ones(width, dtype), "bias": jnp.zeros(width, dtype)}

    params: Params = {"wte": weight(config.vocab, width), "wpe": weight(config.seq, width), "ln": norm()}
    blocks = [
        {
            "ln_1": norm(),
            "ln_2": norm(),
            "qkv": weight(width, 3, heads, width // heads),
            "qkv_bias": jnp.zeros((3, heads, width // heads), dtype),
            "out": weight(heads, width // heads, width, deviation=small),
            "out_bias": jnp.zeros(width, dtype),
            "up": weight(width, 4 * width),
            "up_bias": jnp.zeros(4 * width, dtype),
            "down": weight(4 * width, width, deviation=small),
            "down_bias": jnp.zeros(width, dtype),
        }
        for _ in range(config.num_layers)
    ]
    if config.scan:
        params["blocks"] = jax.tree.map(lambda *layers: jnp.stack(layers), *blocks)
    else:
        params.update({f"block_{i}": block for i, block in enumerate(blocks)})
    return params


def abstract_gpt(config: GPTConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_gpt(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_gpt_batch(config: GPTConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `tokens` and the `targets` that follow them, each (batch, sequence) of int32."""
    ids = jax.random.randint(key, (batch_size, config.seq + 1), 0, config.vocab, jnp.int32)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}


def gpt_loss(params: Params, batch: dict[str, jax.Array], config: GPTConfig) -> jax.Array:
    """Mean cross-entropy, in nats, of the target of every position; a float32 scalar."""
    with jax.named_scope("embed"):
        x = params["wte"][batch["tokens"]] + params["wpe"]  # (batch, sequence, hidden)
    block = jax.checkpoint(_apply_block) if config.remat else _apply_block
    if config.scan:
        with jax.named_scope("blocks"):
            x, _ = jax.lax.scan(lambda h, layer: (block(h, layer), None), x, params["blocks"])
    else:
        for i in range(config.num_layers):
            with jax.named_scope(f"block_{i}"):
                x = block(x, params[f"block_{i}"])
    with jax.named_scope("head"):
        x = _normalise(x, params["ln"])
        logits = jnp.einsum("bsh,vh->bsv", x, params["wte"]).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)


def _normalise(x: jax.Array, p: Params) -> jax.Array:
    with jax.named_scope("ln"):
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        unit = (centred * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)
        result: jax.Array = unit * p["scale"] + p["bias"]
        return result


def _apply_block(x: jax.Array, p: Params) -> jax.Array:
    h = _normalise(x, p["ln_1"])
    with jax.named_scope("attn"):
        x = x + _attend(h, p)
    h = _normalise(x, p["ln_2"])
    with jax.named_scope("mlp"):
        h = jax.nn.gelu(jnp.einsum("bsh,hf->bsf", h, p["up"]) + p["up_bias"])
        result: jax.Array = x + jnp.einsum("bsf,fh->bsh", h, p["down"]) + p["down_bias"]
        return result


def _attend(h: jax.Array, p: Params) -> jax.Array:
    """Causal self-attention; b batch, q and k positions, n heads, d size of a head."""
    qkv = jnp.einsum("bsh,hcnd->cbnsd", h, p["qkv"]) + p["qkv_bias"][:, None, :, None, :]
    query, key, value = qkv[0], qkv[1], qkv[2]
    scores = jnp.einsum("bnqd,bnkd->bnqk", query, key) * query.shape[-1] ** -0.5
    length = scores.shape[-1]
    is_past = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(is_past, scores, _MASKED), axis=-1)
    mixed = jnp.einsum("bnqk,bnkd->bnqd", weights, value)
    result: jax.Array = jnp.einsum("bnqd,ndh->bqh", mixed, p["out"]) + p["out_bias"]
    return result
