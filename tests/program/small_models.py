"""A small GPT written in plain JAX, with Adam: what the tests plan and launch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import alpaviz

HEADS = 4


def init_gpt_state(num_blocks: int, width: int = 32, vocab: int = 64, length: int = 16, seed: int = 0) -> Any:
    """Parameters (`params`), Adam's moments (`mu`, `nu`) and step count."""
    keys = iter(jax.random.split(jax.random.key(seed), 4 * num_blocks + 2))

    def weight(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape) * 0.1

    params: dict[str, Any] = {"wte": weight(vocab, width), "wpe": weight(length, width)}
    params["ln"] = {"scale": jnp.ones(width), "bias": jnp.zeros(width)}
    for i in range(num_blocks):
        params[f"block_{i}"] = {
            "ln1": {"scale": jnp.ones(width), "bias": jnp.zeros(width)},
            "ln2": {"scale": jnp.ones(width), "bias": jnp.zeros(width)},
            "qkv": weight(width, 3, HEADS, width // HEADS),
            "out": weight(HEADS, width // HEADS, width),
            "up": weight(width, 4 * width),
            "up_bias": jnp.zeros(4 * width),
            "down": weight(4 * width, width),
        }
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "mu": zeros, "nu": zeros, "count": jnp.zeros((), jnp.int32)}


def _normalise(x: Any, p: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def _block(x: Any, p: Any) -> Any:
    with jax.named_scope("attn"):
        q, k, v = jnp.einsum("bsh,hcnd->cbnsd", _normalise(x, p["ln1"]), p["qkv"])
        scores = jnp.einsum("bnqd,bnkd->bnqk", q, k) / q.shape[-1] ** 0.5
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
        x = x + jnp.einsum("bqnd,ndh->bqh", jnp.einsum("bnqk,bnkd->bqnd", weights, v), p["out"])
    with jax.named_scope("mlp"):
        hidden = jax.nn.gelu(_normalise(x, p["ln2"]) @ p["up"] + p["up_bias"])
        return x + hidden @ p["down"]


def gpt_loss(params: Any, ids: Any) -> Any:
    """Mean cross-entropy of the next token; input and output embedding are tied."""
    x = params["wte"][ids[:, :-1]] + params["wpe"][: ids.shape[1] - 1]
    for i in range(sum(name.startswith("block_") for name in params)):
        with jax.named_scope(f"block_{i}"):
            x = _block(x, params[f"block_{i}"])
    logits = _normalise(x, params["ln"]) @ params["wte"].T
    target = jnp.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - target)


def adam_step(state: Any, ids: Any) -> Any:
    """One step of Adam on `gpt_loss`."""
    loss, grads = alpaviz.value_and_grad(gpt_loss)(state["params"], ids)
    count = state["count"] + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, state["nu"], grads)
    rate = 1e-2 * jnp.sqrt(1 - 0.99 ** count.astype(jnp.float32)) / (1 - 0.9 ** count.astype(jnp.float32))
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-3), state["params"], mu, nu)
    return {"params": params, "mu": mu, "nu": nu, "count": count}, loss


def sgd_step_without_marker(state: Any, ids: Any) -> Any:
    """Gradient descent with `jax.value_and_grad`, which AlpaViz cannot see through."""
    loss, grads = jax.value_and_grad(gpt_loss)(state["params"], ids)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)
    return {**state, "params": params}, loss
