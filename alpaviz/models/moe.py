"""A mixture-of-experts language model: a GPT in which every second layer has experts in place of its MLP.

Routing is by einsum with one-hot masks over (groups, tokens, experts, capacity), so that each of these can be split.

Source: Lepikhin et al. 2021 (GShard), algorithm 1; but the second expert is always used, and the balance loss is scaled
to be 1 for an even load (Fedus et al. 2022, equation 4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Size and arithmetic of a mixture-of-experts GPT; layers 1, 3, 5 ... have experts.

    Attributes:
        hidden: width of the residual stream, a multiple of `num_heads`; MLPs and experts are 8 times as wide.
        vocab, seq: tokens in the vocabulary and in a sequence.
        group: tokens that are routed together, a multiple or a divisor of `seq`; fewer if it divides no batch.
        capacity_factor: slots for each of a token's two copies; a copy that finds none is dropped.
        balance_weight: of the balance loss, averaged over the layers with experts.
        dtype: of parameters and compute; gates, normalisation and loss are float32.
    """

    hidden: int
    num_layers: int
    num_experts: int
    num_heads: int = 16
    vocab: int = 32000
    seq: int = 1024
    group: int = 2048
    capacity_factor: float = 1.0
    balance_weight: float = 0.01
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.hidden % self.num_heads:
            raise AlpaVizError(f"MoEConfig: hidden {self.hidden} is not a multiple of num_heads {self.num_heads}.")
        if min(self.num_layers, self.num_experts) < 2:
            raise AlpaVizError(f"MoEConfig needs 2 layers and 2 experts, not {self.num_layers} and {self.num_experts}.")
        if self.group % self.seq and self.seq % self.group:
            raise AlpaVizError(f"MoEConfig: group {self.group} is no multiple and no divisor of seq {self.seq}.")


def init_moe(config: MoEConfig, key: jax.Array) -> Params:
    """Fresh parameters: normal weights of deviation 0.02, residual outputs smaller by the root of twice the layers."""
    width, size, dtype = config.hidden, config.hidden // config.num_heads, config.dtype
    keys = iter(jax.random.split(key, 5 * config.num_layers + 2))
    small = 0.02 / (2 * config.num_layers) ** 0.5

    def weight(*shape: int, deviation: float = 0.02) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype) * jnp.asarray(deviation, dtype)

    def norm() -> Params:
        return {"scale": jnp.ones(width, dtype), "bias": jnp.zeros(width, dtype)}

    params: Params = {"wte": weight(config.vocab, width), "wpe": weight(config.seq, width), "ln": norm()}
    for i in range(config.num_layers):
        experts = (config.num_experts,) if i % 2 else ()
        params[f"block_{i}"] = {
            "ln_1": norm(),
            "ln_2": norm(),
            "qkv": weight(width, 3, config.num_heads, size),
            "out": weight(config.num_heads, size, width, deviation=small),
            "up": weight(*experts, width, 8 * width),
            "down": weight(*experts, 8 * width, width, deviation=small),
        } | ({"gate": weight(width, config.num_experts)} if experts else {})
    return params


def abstract_moe(config: MoEConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_moe(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_moe_batch(config: MoEConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `tokens` and the `targets` that follow them, each (batch, sequence) of int32."""
    ids = jax.random.randint(key, (batch_size, config.seq + 1), 0, config.vocab, jnp.int32)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:]}


def moe_loss(params: Params, batch: dict[str, jax.Array], config: MoEConfig) -> jax.Array:
    """Mean cross-entropy of every target, in nats, and the weighted balance loss; a float32 scalar."""
    with jax.named_scope("embed"):
        x = params["wte"][batch["tokens"]] + params["wpe"]  # (batch, sequence, hidden)
    balance: jax.Array | float = 0.0
    for i in range(config.num_layers):
        p = params[f"block_{i}"]
        with jax.named_scope(f"block_{i}/attn"):
            x = x + _attend(_normalise(x, p["ln_1"]), p)
        with jax.named_scope(f"block_{i}/{'moe' if i % 2 else 'mlp'}"):
            h, unevenness = _apply_mlp(_normalise(x, p["ln_2"]), p, config)
            x, balance = x + h, balance + unevenness
    with jax.named_scope("head"):
        logits = jnp.einsum("bsh,vh->bsv", _normalise(x, params["ln"]), params["wte"]).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1)[..., 0]
        entropy = jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)
        return entropy + balance * (config.balance_weight / (config.num_layers // 2))


def _normalise(x: jax.Array, p: Params) -> jax.Array:
    wide = x.astype(jnp.float32)
    unit = (wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + 1e-5)
    return jnp.add(unit.astype(x.dtype) * p["scale"], p["bias"])


def _attend(h: jax.Array, p: Params) -> jax.Array:
    """Causal self-attention; b batch, q and k positions, n heads, d size of a head."""
    query, key, value = jnp.einsum("bsh,hcnd->cbnsd", h, p["qkv"])
    scores = jnp.einsum("bnqd,bnkd->bnqk", query, key) * query.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -3e4)  # finite in float16
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bnqd,ndh->bqh", jnp.einsum("bnqk,bnkd->bnqd", weights, value), p["out"])


def _apply_mlp(h: jax.Array, p: Params, config: MoEConfig) -> tuple[jax.Array, jax.Array | float]:
    """Outputs of the MLP or the experts, and the balance loss. s is a token of group g, c a slot of expert e."""
    if "gate" not in p:
        return jax.nn.gelu(h @ p["up"]) @ p["down"], 0.0
    x = h.reshape(-1, math.gcd(h.shape[0] * h.shape[1], config.group), h.shape[2])
    combine, balance = _route(jnp.einsum("gsh,he->gse", x, p["gate"]), config)
    slots = jnp.einsum("gsec,gsh->egch", (combine > 0).astype(h.dtype), x)
    slots = jnp.einsum("egcf,efh->egch", jax.nn.gelu(jnp.einsum("egch,ehf->egcf", slots, p["up"])), p["down"])
    return jnp.einsum("gsec,egch->gsh", combine.astype(h.dtype), slots).reshape(h.shape), balance


def _route(logits: jax.Array, config: MoEConfig) -> tuple[jax.Array, jax.Array]:
    """Weights (groups, tokens, experts, capacity) of the slots each token has, and the balance loss of the first."""
    chances = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    experts, capacity = config.num_experts, math.ceil(2 * logits.shape[1] * config.capacity_factor / logits.shape[2])
    first = jax.nn.one_hot(jnp.argmax(chances, axis=-1), experts)
    second = jax.nn.one_hot(jnp.argmax(jnp.where(first > 0, -1.0, chances), axis=-1), experts)
    # Tokens take slots in order; those for whom an expert is second come after all for whom it is first.
    ranks = jnp.cumsum(first, axis=1), jnp.cumsum(second, axis=1) + first.sum(axis=1, keepdims=True)
    slots = [jax.nn.one_hot(rank.astype(jnp.int32) - 1, capacity) for rank in ranks]  # all 0 beyond the capacity
    combine = (first * chances)[..., None] * slots[0] + (second * chances)[..., None] * slots[1]
    total = jnp.sum(chances * (first + second), axis=-1)[..., None, None]
    return combine / total, experts**2 * jnp.mean(first.mean(axis=1) * chances.mean(axis=1))
