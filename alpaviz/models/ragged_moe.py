"""A mixture of experts without capacity: tokens are sorted by expert and each expert gets just its rows.

Each token goes to its best `num_chosen` experts, none is dropped. Rows of one expert lie side by side, and
`jax.lax.ragged_dot` multiplies each run of rows with its expert's weights.

Source: Gale et al. 2023 (MegaBlocks), section 3; Jiang et al. 2024 (Mixtral) for gates after the choice and SwiGLU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RaggedMoEConfig:
    """Size and arithmetic of a ragged mixture of experts; every layer has experts.

    Attributes:
        hidden: width of the residual stream; a multiple of `num_heads`.
        expert: inner width of an expert.
        num_chosen: experts of each token.
        vocab, seq: tokens in the vocabulary and in a sequence.
        balance_weight: of the balance loss, averaged over the layers.
        dtype: of parameters and compute; gates, normalisation and loss are float32.
    """

    hidden: int
    expert: int
    num_layers: int
    num_experts: int
    num_heads: int
    num_chosen: int = 2
    vocab: int = 32000
    seq: int = 1024
    balance_weight: float = 0.01
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.hidden % self.num_heads:
            raise AlpaVizError(f"RaggedMoEConfig: hidden {self.hidden} is no multiple of num_heads {self.num_heads}.")
        if not 1 <= self.num_chosen <= self.num_experts:
            raise AlpaVizError(f"RaggedMoEConfig: num_chosen {self.num_chosen} is not among 1 to {self.num_experts}.")


def init_ragged_moe(config: RaggedMoEConfig, key: jax.Array) -> Params:
    """Fresh parameters: normal weights of deviation 0.02, residual outputs smaller by the root of twice the layers."""
    width, size, dtype = config.hidden, config.hidden // config.num_heads, config.dtype
    keys = iter(jax.random.split(key, 6 * config.num_layers + 3))
    small = 0.02 / (2 * config.num_layers) ** 0.5

    def weight(*shape: int, deviation: float = 0.02) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype) * jnp.asarray(deviation, dtype)

    params: Params = {
        "embed": weight(config.vocab, width),
        "positions": weight(config.seq, width),
        "scale": jnp.ones(width, dtype),
        "head": weight(width, config.vocab),
    }
    for i in range(config.num_layers):
        params[f"block_{i}"] = {
            "scale_1": jnp.ones(width, dtype),
            "qkv": weight(width, 3, config.num_heads, size),
            "out": weight(config.num_heads, size, width, deviation=small),
            "scale_2": jnp.ones(width, dtype),
            "gate": weight(width, config.num_experts),
            "up": weight(config.num_experts, width, config.expert),
            "multiply": weight(config.num_experts, width, config.expert),
            "down": weight(config.num_experts, config.expert, width, deviation=small),
        }
    return params


def abstract_ragged_moe(config: RaggedMoEConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_ragged_moe(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_ragged_moe_batch(config: RaggedMoEConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `tokens` and the `targets` that follow them, each (batch, sequence) of int32."""
    ids = jax.random.randint(key, (batch_size, config.seq + 1), 0, config.vocab, jnp.int32)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}


def ragged_moe_loss(params: Params, batch: dict[str, jax.Array], config: RaggedMoEConfig) -> jax.Array:
    """Mean cross-entropy of every target, in nats, and the weighted balance loss; a float32 scalar."""
    with jax.named_scope("embed"):
        x = params["embed"][batch["tokens"]] + params["positions"]  # (batch, sequence, hidden)
    balance = jnp.zeros(())
    for i in range(config.num_layers):
        p = params[f"block_{i}"]
        with jax.named_scope(f"block_{i}/attention"):
            x = x + _attend(_normalise(x, p["scale_1"]), p)
        with jax.named_scope(f"block_{i}/experts"):
            h, unevenness = _apply_experts(_normalise(x, p["scale_2"]), p, config)
            x, balance = x + h, balance + unevenness
    with jax.named_scope("head"):
        logits = (_normalise(x, params["scale"]) @ params["head"]).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
        entropy = jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)
        return entropy + balance * (config.balance_weight / config.num_layers)


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def _attend(h: jax.Array, p: Params) -> jax.Array:
    """Causal self-attention; b batch, q and k positions, n heads, d size of a head."""
    qkv = jnp.einsum("bsh,hcnd->cbnsd", h, p["qkv"])
    scores = jnp.einsum("bnqd,bnkd->bnqk", qkv[0], qkv[1]).astype(jnp.float32) * qkv.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(h.dtype)
    return jnp.einsum("bnqd,ndh->bqh", jnp.einsum("bnqk,bnkd->bnqd", weights, qkv[2]), p["out"])


def _apply_experts(h: jax.Array, p: Params, config: RaggedMoEConfig) -> tuple[jax.Array, jax.Array]:
    """What the chosen experts make of each token, and how uneven their load is (1 for an even one)."""
    tokens = h.reshape(-1, config.hidden)
    chances = jax.nn.softmax((tokens @ p["gate"]).astype(jnp.float32), axis=-1)
    weights, chosen = jax.lax.top_k(chances, config.num_chosen)
    weights = (weights / weights.sum(-1, keepdims=True)).astype(h.dtype)
    order = jnp.argsort(chosen.ravel())  # rows (token, choice) by expert
    load = jnp.bincount(chosen.ravel(), length=config.num_experts).astype(jnp.int32)
    rows = tokens[order // config.num_chosen]
    inner = jax.nn.silu(jax.lax.ragged_dot(rows, p["up"], load)) * jax.lax.ragged_dot(rows, p["multiply"], load)
    made = jax.lax.ragged_dot(inner, p["down"], load) * weights.ravel()[order][:, None]
    total = jnp.zeros_like(tokens).at[order // config.num_chosen].add(made)
    unevenness = config.num_experts * jnp.sum(load / order.size * chances.mean(axis=0))
    return total.reshape(h.shape), unevenness
