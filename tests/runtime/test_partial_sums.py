"""Gradients that are summed over devices once a step: what is sent, and what comes out."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from alpaviz import baselines
from alpaviz.models import MODELS, AdamOptions, make_training_step
from alpaviz.planner import Planner
from alpaviz.runtime.collectives_in_hlo import count_collective_bytes
from alpaviz.runtime.launch import launch
from alpaviz.verify.loops import count_runs
from alpaviz.verify.predicted import predict_bytes
from tests.models.microbatches import average_over_halves
from tests.program.small_models import adam_step, init_gpt_state

IDS = np.asarray(jax.random.randint(jax.random.key(1), (32, 17), 0, 64))


def make_planner(num_stages: int, num_microbatches: int = 4) -> Planner:
    planner = Planner(adam_step, init_gpt_state(2), IDS, cluster="virtual:4", num_microbatches=num_microbatches)
    planner.pin_num_stages(num_stages)
    return planner


def count_compiled(planner: Planner, plan: Any) -> dict[Any, float]:
    with launch(plan, planner.program) as executable:
        text = executable.compiled_text(0, "step")
    stage = plan.stages[0]
    return count_collective_bytes(text, stage.mesh_shape, stage.mesh_axes, repeats=count_runs(text))


def test_data_parallelism_sends_its_gradients_once_however_many_microbatches_there_are() -> None:
    sent = []
    for num_microbatches in (2, 4):
        planner = make_planner(1, num_microbatches)
        found = count_compiled(planner, baselines.plan("data-parallel", planner))
        sent.append(sum(size for (kind, _), size in found.items() if kind == "all-reduce"))
    params = init_gpt_state(2)["params"]
    gradients = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) + params["wte"].nbytes  # the table is read twice
    assert sent == pytest.approx([gradients, gradients], rel=0.02)


# XLA moves the gathers of ZeRO-3 in front of the loop over microbatches, which the plan does not know of.
@pytest.mark.parametrize("name", ["data-parallel", "zero-1", "zero-2"])
def test_what_a_plan_says_is_sent_is_what_is_compiled(name: str) -> None:
    planner = make_planner(1)
    plan = baselines.plan(name, planner)
    predicted, compiled = predict_bytes(plan, 0), count_compiled(planner, plan)
    total = sum(compiled.values())
    assert predicted.keys() == compiled.keys()
    for key, size in compiled.items():
        assert abs(predicted[key] - size) <= 0.05 * total, key


@pytest.mark.parametrize("name", ["data-parallel", "zero-1", "zero-2", "zero-3"])
def test_a_plan_with_partial_sums_gives_the_single_device_result(name: str) -> None:
    planner, state = make_planner(1), init_gpt_state(2)
    plan = baselines.plan(name, planner)
    assert any(op.partial_axes for op in plan.ops)
    with launch(plan, planner.program) as executable:
        got = executable.fetch(executable(state, IDS))
    expected = jax.jit(adam_step)(state, IDS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, expected)


def test_a_tied_parameter_is_summed_before_another_stage_reads_its_gradient() -> None:
    planner, state = make_planner(2), init_gpt_state(2)
    planner.pin_logical_mesh("2")
    plan = planner.solve(on_progress=lambda _: None)
    made = {v for op in plan.ops if op.partial_axes and op.stage == 1 for v in op.outputs}
    read = {v for op in plan.ops if op.role == "update" and op.stage == 0 for v in op.inputs}
    assert made & read, "the head's gradient of the table belongs to the first stage"
    with launch(plan, planner.program) as executable:
        got = executable.fetch(executable(state, IDS))
    expected = jax.jit(adam_step)(state, IDS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, expected)


@pytest.mark.parametrize("model", ["wide-resnet-tiny", "moe-tiny"])
def test_other_models_give_the_mean_of_their_microbatches(model: str) -> None:
    step, state, batch = make_training_step(MODELS[model], 16, abstract=False, adam=AdamOptions(epsilon=1e-3))
    planner = Planner(step, state, batch, cluster="virtual:4", num_microbatches=2)
    plan = baselines.plan("data-parallel", planner)
    assert any(op.partial_axes for op in plan.ops)
    with launch(plan, planner.program) as executable:
        new, metrics = executable.fetch(executable(state, batch))
    expected = average_over_halves(step, state, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * np.abs(b).max()),
        (new["mu"], metrics), expected,
    )  # fmt: skip
