"""BERT, ViT, Llama, T5 and the ragged mixture of experts: their sizes, their losses, and that they can be planned."""

from __future__ import annotations

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
    RaggedMoEConfig,
    T5Config,
    ViTConfig,
    apply_adam,
    count_parameters,
    get_model,
    make_training_step,
)
from alpaviz.models.t5 import find_buckets
from alpaviz.planner import Planner
from alpaviz.program import trace_program
from tests.models.microbatches import average_over_halves

PUBLISHED_MILLIONS = {
    "bert-base": 110, "bert-large": 340, "vit-b16": 86, "vit-l16": 307, "vit-h14": 632, "llama-1b": 1100,
    "llama-7b": 6738, "llama-8b": 8030, "llama-70b": 68977,
    "t5-small": 60.5, "t5-base": 222.9, "t5-large": 737.7, "t5-3b": 2851.6,
}  # fmt: skip
"""Devlin et al. 2019, section 3; Dosovitskiy et al. 2021, table 1; TinyLlama, Llama 2 and 3. Some are rounded there."""
TINY = ["bert-tiny", "llama-tiny", "ragged-moe-tiny", "t5-tiny", "vit-tiny"]


@pytest.mark.parametrize(("name", "millions"), PUBLISHED_MILLIONS.items())
def test_sizes_are_the_published_ones(name: str, millions: float) -> None:
    assert count_parameters(get_model(name).state["params"]) == pytest.approx(millions * 1e6, rel=0.015)


@pytest.mark.parametrize("name", TINY)
def test_loss_begins_near_chance_and_falls(name: str) -> None:
    step, state, batch = get_model(name, 16, abstract=False)
    config: Any = MODELS[name]
    chance = np.log(getattr(config, "vocab", 0) or config.num_classes)
    run, losses = jax.jit(step), []
    for _ in range(8):
        state, metrics = run(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[0] == pytest.approx(chance, rel=0.25)
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize("name", TINY)
def test_every_op_that_computes_can_be_split(name: str) -> None:
    program = trace_program(*get_model(name, 4), num_microbatches=2)
    assert program.warnings == ()
    assert {op.primitive for op in program.ops if op.rule.is_opaque and op.flops > 0} == set()


@pytest.mark.parametrize(("name", "stages"), [(TINY[0], 1), *((name, 2) for name in TINY)])
def test_a_launched_plan_gives_the_single_device_result(name: str, stages: int) -> None:
    adam = AdamOptions(learning_rate=1.0, epsilon=1.0)  # steps are about as large as gradients, so are their errors
    step, state, batch = make_training_step(MODELS[name], 8, abstract=False, adam=adam)
    planner = Planner(step, state, batch, cluster="virtual:4", num_microbatches=2)
    planner.pin_num_stages(stages)
    planner.solve(on_progress=lambda _: None)
    with planner.launch() as executable:
        ours = executable.fetch(executable(state, batch))
    moments, metrics = average_over_halves(step, state, batch)
    gradients = jax.tree.map(lambda moment: moment / (1 - adam.beta1), moments)
    theirs = apply_adam(state, gradients, adam), metrics
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * np.abs(b).max()), ours, theirs)


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])
def test_a_scanned_model_computes_what_the_written_out_one_does(name: str) -> None:
    _, written, batch = get_model(name, 4, abstract=False)
    step, scanned, _ = get_model(name, 4, abstract=False, scan=True)
    count = MODELS[name].num_layers

    def stack(params: Any) -> Any:
        blocks = [params[f"block_{i}"] for i in range(count)]
        rest = {key: value for key, value in params.items() if not key.startswith("block_")}
        return rest | {"blocks": jax.tree.map(lambda *layers: np.stack(layers), *blocks)}

    jax.tree.map(np.testing.assert_array_equal, stack(written["params"]), scanned["params"])
    ours, metrics = jax.jit(step)(scanned, batch)
    theirs, expected = jax.jit(get_model(name, 4).step)(written, batch)
    np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7), ours["mu"], stack(theirs["mu"]))


def test_relative_positions_share_buckets_the_further_they_are() -> None:
    config = MODELS["t5-base"]
    causal, both = find_buckets(600, config, is_causal=True), find_buckets(600, config, is_causal=False)
    assert causal[20, 4] == 16
    assert causal[500, 10] == 31
    assert np.all(causal[np.triu_indices(600)] == 0)
    assert both[10, 3] == 7
    assert both[3, 10] == 16 + 7
    assert both.max() == 31
    assert np.all(np.diff(causal[-1]) <= 0)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AlpaVizError, match="hidden 10 is not a multiple of num_heads 4"):
        BERTConfig(10, 2, 4)
    with pytest.raises(AlpaVizError, match="masked_share must be between 0 and 1"):
        BERTConfig(8, 2, 4, masked_share=1.0)
    with pytest.raises(AlpaVizError, match="num_chosen 5 is not among 1 to 4"):
        RaggedMoEConfig(8, 8, 2, 4, num_heads=4, num_chosen=5)
    with pytest.raises(AlpaVizError, match="num_heads 4 is no multiple of 3 groups"):
        LlamaConfig(16, 16, 2, 4, 3)
    with pytest.raises(AlpaVizError, match="buckets must be a multiple of 4, not 6"):
        T5Config(8, 8, 2, 2, buckets=6)
    with pytest.raises(AlpaVizError, match="image 20 is not a multiple of patch 16"):
        ViTConfig(8, 2, 4, image=20)
