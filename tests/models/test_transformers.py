"""BERT, ViT, Llama, T5 and scanned models against counts of released weights, numpy and a single device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from alpaviz.errors import AlpaVizError
from alpaviz.models import (
    MODELS,
    AdamOptions,
    BERTConfig,
    LlamaConfig,
    T5Config,
    ViTConfig,
    bert_loss,
    count_parameters,
    get_model,
    init_bert,
    init_llama,
    init_t5,
    init_vit,
    llama_loss,
    make_bert_batch,
    make_llama_batch,
    make_t5_batch,
    make_training_step,
    make_vit_batch,
    t5_loss,
    vit_loss,
)
from alpaviz.planner import Planner
from alpaviz.program import trace_program

LLAMA = LlamaConfig(hidden=16, inner=24, num_layers=2, num_heads=4, num_groups=2, vocab=32, seq=6, dtype="float32")
T5 = T5Config(
    hidden=16, inner=24, num_layers=2, num_heads=2, head_size=4, vocab=32, source=9, target=7, buckets=8, furthest=6,
    dtype="float32",
)  # fmt: skip
BERT = BERTConfig(hidden=16, num_layers=2, num_heads=2, vocab=32, seq=8, masked_share=0.4)
VIT = ViTConfig(hidden=16, num_layers=2, num_heads=2, patch=2, image=6, num_classes=5)

RELEASED = {
    "vit-b16": 86_567_656, "vit-l16": 304_326_632,  # torchvision's vit_b_16 and vit_l_16
    "llama-1b": 1_100_048_384, "llama-7b": 6_738_415_616, "llama-8b": 8_030_261_248, "llama-70b": 68_976_648_192,
    "t5-small": 60_506_624, "t5-base": 222_903_552, "t5-large": 737_668_096, "t5-3b": 2_851_598_336,
}  # fmt: skip
"""Scalars in the released weights of torchvision, TinyLlama, Llama 2, Llama 3 and T5 1.0."""


@pytest.mark.parametrize(("name", "count"), RELEASED.items())
def test_sizes_are_those_of_the_released_weights(name: str, count: int) -> None:
    assert count_parameters(get_model(name).state["params"]) == count


@pytest.mark.parametrize(("name", "count"), [("bert-base", 110_106_428), ("bert-large", 336_226_108)])
def test_a_bert_lacks_only_the_pooler_and_the_pair_task_of_the_released_one(name: str, count: int) -> None:
    config: Any = MODELS[name]
    left_out = config.hidden * (config.hidden + 1) + 2 * (config.hidden + 1)
    assert count_parameters(get_model(name).state["params"]) + left_out == count


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _normalise(x: Any, p: Any, epsilon: float) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * p["scale"] + p["bias"]


def _scale_to_unit(x: Any, scale: Any, epsilon: float) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def _compute_llama_losses(params: Any, batch: Any) -> list[float]:
    """One position at a time; positions turn pairs of a head as complex numbers."""
    losses, size, pairs = [], 4, np.arange(2)
    turns = np.exp(1j * np.arange(LLAMA.seq)[:, None] * LLAMA.theta ** (-2 * pairs / size))
    for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
        x = params["embed"][tokens]
        for i in range(LLAMA.num_layers):
            p = params[f"block_{i}"]
            h, mixed = _scale_to_unit(x, p["scale_1"], 1e-5), np.zeros_like(x)
            for n in range(LLAMA.num_heads):
                g, own = n // 2, n % 2
                q, k, v = h @ p["query"][:, g, own], h @ p["key"][:, g], h @ p["value"][:, g]
                q, k = (turns * (z[:, :2] + 1j * z[:, 2:]) for z in (q, k))
                for t in range(LLAMA.seq):
                    scores = (q[t] * k[: t + 1].conj()).sum(-1).real / math.sqrt(size)
                    mixed[t] += _softmax(scores) @ v[: t + 1] @ p["out"][g, own]
            x = x + mixed
            h = _scale_to_unit(x, p["scale_2"], 1e-5)
            gate = h @ p["gate"]
            x = x + (gate / (1 + np.exp(-gate)) * (h @ p["up"])) @ p["down"]
        chance = _softmax(_scale_to_unit(x, params["scale"], 1e-5) @ params["head"])
        losses.extend(-np.log(chance[np.arange(LLAMA.seq), targets]))
    return losses


def _find_bucket(query: int, key: int, *, is_causal: bool) -> int:
    """With 8 buckets up to distance 6, by hand: 4 or 2 exact ones, the others by thresholds of the distance."""
    distance = abs(query - key)
    if is_causal:  # thresholds 4 * 1.5 ** (n / 4): 4, 4.4, 4.9, 5.4
        return distance if distance < 4 else {4: 4, 5: 6}.get(distance, 7)
    near = distance if distance < 2 else 2 if distance < 2 * math.sqrt(3) else 3
    return near + (4 if key > query else 0)


def _run_t5_side(side: str, params: Any, x: Any, memory: Any) -> Any:
    is_causal = memory is not None

    def attend(h: Any, source: Any, p: Any, *, is_self: bool) -> Any:
        mixed = np.zeros_like(x)
        for n in range(T5.num_heads):
            q, k, v = h @ p["query"][:, n], source @ p["key"][:, n], source @ p["value"][:, n]
            for t in range(len(h)):
                last = t + 1 if is_causal and is_self else len(source)
                scores = k[:last] @ q[t]
                if is_self:
                    buckets = [_find_bucket(t, s, is_causal=is_causal) for s in range(last)]
                    scores = scores + params[f"{side}_bias"][buckets, n]
                mixed[t] += _softmax(scores) @ v[:last] @ p["out"][n]
        return mixed

    for i in range(T5.num_layers):
        p = params[f"{side}_{i}"]
        h = _scale_to_unit(x, p["self"]["scale"], 1e-6)
        x = x + attend(h, h, p["self"], is_self=True)
        if is_causal:
            x = x + attend(_scale_to_unit(x, p["cross"]["scale"], 1e-6), memory, p["cross"], is_self=False)
        up = _scale_to_unit(x, p["mlp"]["scale"], 1e-6) @ p["mlp"]["up"]
        x = x + np.maximum(up, 0) @ p["mlp"]["down"]
    return _scale_to_unit(x, params[f"{side}_scale"], 1e-6)


def _compute_t5_losses(params: Any, batch: Any) -> list[float]:
    losses = []
    for source, inputs, targets in zip(batch["source"], batch["inputs"], batch["targets"], strict=True):
        memory = _run_t5_side("encoder", params, params["embed"][source], None)
        x = _run_t5_side("decoder", params, params["embed"][inputs], memory)
        chance = _softmax(x @ params["embed"].T / math.sqrt(T5.hidden))
        losses.extend(-np.log(chance[np.arange(T5.target), targets]))
    return losses


def _attend_to_all(h: Any, p: Any, num_heads: int) -> Any:
    mixed = np.zeros_like(h) + p["out_bias"]
    for n in range(num_heads):
        q, k, v = (h @ p["qkv"][:, c, n] + p["qkv_bias"][c, n] for c in range(3))
        mixed += _softmax(q @ k.T / math.sqrt(q.shape[-1])) @ v @ p["out"][n]
    return mixed


def _apply_exact_gelu(x: Any) -> Any:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _compute_bert_losses(params: Any, batch: Any) -> list[float]:
    """Of masked tokens only, over the number expected of them."""
    losses = []
    for tokens, segments, targets in zip(batch["tokens"], batch["segments"], batch["targets"], strict=True):
        x = params["tokens"][tokens] + params["positions"] + params["segments"][segments]
        x = _normalise(x, params["ln"], 1e-12)
        for i in range(BERT.num_layers):
            p = params[f"layer_{i}"]
            x = _normalise(x + _attend_to_all(x, p, BERT.num_heads), p["ln_1"], 1e-12)
            h = _apply_exact_gelu(x @ p["up"] + p["up_bias"])
            x = _normalise(x + h @ p["down"] + p["down_bias"], p["ln_2"], 1e-12)
        head = params["head"]
        h = _normalise(_apply_exact_gelu(x @ head["dense"] + head["dense_bias"]), head["ln"], 1e-12)
        chance = _softmax(h @ params["tokens"].T + head["bias"])
        losses.extend(-math.log(chance[t, targets[t]]) * (targets[t] >= 0) / BERT.masked_share for t in range(BERT.seq))
    return losses


def _compute_vit_losses(params: Any, batch: Any) -> list[float]:
    losses, side = [], VIT.image // VIT.patch
    for image, label in zip(batch["images"], batch["labels"], strict=True):
        rows = [params["class"][0]]
        for i in range(side):
            for j in range(side):
                cut = image[i * VIT.patch : (i + 1) * VIT.patch, j * VIT.patch : (j + 1) * VIT.patch]
                rows.append(cut.reshape(-1) @ params["patches"].reshape(-1, VIT.hidden) + params["patches_bias"])
        x = np.stack(rows) + params["positions"]
        for i in range(VIT.num_layers):
            p = params[f"block_{i}"]
            x = x + _attend_to_all(_normalise(x, p["ln_1"], 1e-6), p, VIT.num_heads)
            up = _normalise(x, p["ln_2"], 1e-6) @ p["up"] + p["up_bias"]
            gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
            x = x + gelu @ p["down"] + p["down_bias"]
        chance = _softmax(_normalise(x[0], params["ln"], 1e-6) @ params["head"] + params["head_bias"])
        losses.append(-math.log(chance[label]))
    return losses


@pytest.mark.parametrize(
    ("config", "init", "make_batch", "loss", "compute"),
    [
        (LLAMA, init_llama, make_llama_batch, llama_loss, _compute_llama_losses),
        (T5, init_t5, make_t5_batch, t5_loss, _compute_t5_losses),
        (BERT, init_bert, make_bert_batch, bert_loss, _compute_bert_losses),
        (VIT, init_vit, make_vit_batch, vit_loss, _compute_vit_losses),
    ],
    ids=["llama", "t5", "bert", "vit"],
)
def test_loss_equals_one_computed_position_by_position(
    config: Any, init: Callable[..., Any], make_batch: Callable[..., Any], loss: Callable[..., Any], compute: Any
) -> None:
    leaves, tree = jax.tree.flatten(init(config, jax.random.key(1)))
    keys = jax.random.split(jax.random.key(3), len(leaves))
    # No scale is left at 1 and no bias at 0, and scores are far from even.
    moved = [leaf * 3 + 0.3 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    params, batch = jax.tree.unflatten(tree, moved), make_batch(config, 3, jax.random.key(2))
    plain = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    expected = np.mean(compute(plain, jax.tree.map(np.asarray, batch)))
    assert float(loss(params, batch, config)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])
def test_every_op_of_a_scanned_model_that_computes_can_be_split(name: str) -> None:
    program = trace_program(*get_model(name, 4, scan=True), num_microbatches=2)
    assert program.warnings == ()
    assert {op.primitive for op in program.ops if op.rule.is_opaque and op.flops > 0} == set()
    assert sum(op.flops for op in program.ops) > 0


@pytest.mark.parametrize("stages", [1, 2])
def test_a_launched_scanned_gpt_gives_the_single_device_result(stages: int) -> None:
    adam = AdamOptions(learning_rate=1.0, epsilon=1.0)  # steps are about as large as gradients, so are their errors
    config = dataclasses.replace(MODELS["gpt-tiny"], scan=True)
    step, state, batch = make_training_step(config, 8, abstract=False, adam=adam)
    planner = Planner(step, state, batch, cluster="virtual:4", num_microbatches=2)
    planner.pin_num_stages(stages)
    planner.solve(on_progress=lambda _: None)
    with planner.launch() as executable:
        ours = executable.fetch(executable(state, batch))
    theirs = jax.jit(step)(state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * np.abs(b).max()), ours, theirs)


def test_more_buckets_than_distances_are_refused() -> None:
    with pytest.raises(AlpaVizError, match="not 32, and < 2 \\* furthest"):
        T5Config(8, 8, 2, 2, buckets=32, furthest=16)
