"""Explanations: what they say is the plan's, number for number, and ops and stages in them can be found."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given

from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan, PlannedCollective
from alpaviz.plan_diff import format_bytes, format_seconds
from alpaviz.plan_explanation import FragmentKind, Sentence, explain_plan, list_costly_decisions
from alpaviz.plan_text import total_collectives
from alpaviz.stage_variants import Regret
from tests.sample_plans import make_small_plan, plans
from tests.widget.synthetic_plan import make_plan

GPT = make_plan(num_layers=6)
NUMBERS = (FragmentKind.SECONDS, FragmentKind.BYTES, FragmentKind.SHARE, FragmentKind.COUNT)
OP = "block_3/mlp/dot_general.0"


def find(plan: Plan, words: str, stage: int | None = None) -> Sentence:
    """The one sentence about `stage` with these words."""
    (sentence,) = [s for s in explain_plan(plan) if words in s.text and s.stage == stage]
    return sentence


def list_values(sentence: Sentence, kind: FragmentKind) -> list[float]:
    return [f.value for f in sentence.fragments if f.kind is kind and f.value is not None]


def spell(kind: FragmentKind, value: float) -> str:
    """How a number of a kind begins."""
    match kind:
        case FragmentKind.SECONDS:
            return format_seconds(value)
        case FragmentKind.BYTES:
            return format_bytes(value)
        case FragmentKind.SHARE:
            return f"{value:.1%}"
        case _:
            return f"{int(value)}"


@given(plans())
def test_no_number_is_in_the_words_between(plan: Plan) -> None:
    words = [f.text for s in explain_plan(plan) for f in s.fragments if f.kind is FragmentKind.TEXT]
    assert not [text for text in words if re.search(r"\d", text)]


@given(plans())
def test_numbers_are_spelled_from_their_values(plan: Plan) -> None:
    for fragment in (f for s in explain_plan(plan) for f in s.fragments if f.kind in NUMBERS):
        assert fragment.value is not None
        assert fragment.text.split(" ")[0] == spell(fragment.kind, fragment.value).split(" ")[0]


@given(plans())
def test_ops_and_stages_are_those_of_the_plan(plan: Plan) -> None:
    fragments = [f for s in explain_plan(plan) for f in s.fragments]
    assert {f.text for f in fragments if f.kind is FragmentKind.OP} <= {op.name for op in plan.ops}
    assert {f.value for f in fragments if f.kind is FragmentKind.STAGE} <= {float(s.index) for s in plan.stages}


def test_the_step_and_its_parts_are_those_of_the_estimate() -> None:
    estimate, sentence = GPT.estimate, find(GPT, "A step takes")
    parts = [estimate.compute_s, *(s for _, s in estimate.collectives_s), estimate.resharding_s, estimate.bubble_s]
    assert list_values(sentence, FragmentKind.SECONDS) == [estimate.step_s]
    assert list_values(sentence, FragmentKind.SHARE) == [part / estimate.step_s for part in parts]


def test_the_pipeline_limits_a_step_that_mostly_waits() -> None:
    sentence = find(GPT, "what limits the step most is the pipeline")
    estimate = GPT.estimate
    assert list_values(sentence, FragmentKind.SECONDS) == [estimate.bubble_s, estimate.transfer_s]
    assert list_values(sentence, FragmentKind.SHARE) == [estimate.bubble_s / estimate.step_s]
    assert list_values(sentence, FragmentKind.COUNT) == [GPT.num_microbatches, GPT.num_stages]


def make_busy_links(axes: tuple[str, ...]) -> Plan:
    """A plan whose first op of stage 1, which works longest, spends a second of each microbatch on one collective."""
    slow = PlannedCollective("all-to-all", axes, 4e9, 1.0)
    first = next(op for op in GPT.ops if op.stage == 1)
    ops = tuple(replace(op, collectives=(slow,)) if op is first else op for op in GPT.ops)
    estimate = replace(GPT.estimate, step_s=20.0)
    return replace(GPT, ops=ops, estimate=estimate)


def test_a_collective_limits_a_step_that_mostly_communicates() -> None:
    sentence = find(make_busy_links(("y",)), "what limits the step most is the all-to-all")
    assert list_values(sentence, FragmentKind.SECONDS) == [16.0]
    assert list_values(sentence, FragmentKind.SHARE) == [16.0 / 20.0]
    assert list_values(sentence, FragmentKind.BYTES) == [GPT.cluster.hosts[0].link.bandwidth]


def test_a_collective_over_an_axis_of_several_hosts_goes_over_the_network() -> None:
    plan = make_plan(num_layers=6, num_hosts=4)
    slow = PlannedCollective("all-to-all", ("x",), 4e9, 1.0)
    first = next(op for op in plan.ops if op.stage == 1)
    plan = replace(plan, ops=tuple(replace(op, collectives=(slow,)) if op is first else op for op in plan.ops))
    sentence = find(plan, "what limits the step most is the all-to-all")
    assert ", between hosts at " in sentence.text
    assert list_values(sentence, FragmentKind.BYTES) == [plan.cluster.network.bandwidth]


def test_memory_is_that_of_the_fullest_stage() -> None:
    memory, sentence = GPT.stages[0].memory, find(GPT, "The fullest devices")
    assert list_values(sentence, FragmentKind.STAGE) == [0]
    assert list_values(sentence, FragmentKind.BYTES) == [
        memory.total_bytes, memory.capacity_bytes, memory.activations_bytes,
    ]  # fmt: skip
    assert list_values(sentence, FragmentKind.SHARE) == [memory.total_bytes / memory.capacity_bytes]


@pytest.mark.parametrize(("activations_bytes", "words"), [(4e8, "leaves room"), (15.5e9, "limits what can be chosen")])
def test_memory_limits_where_it_is_nearly_full(activations_bytes: float, words: str) -> None:
    plan = make_small_plan(activations_bytes=activations_bytes, cluster="p3.16xlarge:1")
    assert find(plan, "The fullest devices").text.endswith(f"memory {words}.")


def test_a_proof_says_cost_and_bound() -> None:
    sentence = find(GPT, "proved that")
    assert list_values(sentence, FragmentKind.SECONDS) == [GPT.solver.objective, GPT.solver.bound]


def test_cuts_say_how_long_the_slowest_and_the_fastest_stage_take() -> None:
    sentence = find(GPT, "The layers are cut")
    times = [stage.forward_s + stage.backward_s for stage in GPT.stages]
    assert list_values(sentence, FragmentKind.SECONDS) == [max(times), min(times)]
    assert list_values(sentence, FragmentKind.STAGE) == [times.index(max(times)), times.index(min(times))]


def test_what_crosses_a_cut_is_what_a_microbatch_sends() -> None:
    sentence = find(GPT, "the cut is before layer")
    sent = [t for t in GPT.transfers if not t.once]
    assert list_values(sentence, FragmentKind.BYTES) == [sum(t.num_bytes for t in sent)]
    assert list_values(sentence, FragmentKind.SECONDS) == [sum(t.time_s for t in sent)]
    assert any(f.text == "3 (block_3)" for f in sentence.fragments)


def test_one_stage_has_no_cuts() -> None:
    plan = make_small_plan(num_stages=1)
    assert "nothing is sent between stages" in find(plan, "are one stage").text


@pytest.mark.parametrize("index", [0, 1])
def test_a_stage_says_its_parts(index: int) -> None:
    stage = GPT.stages[index]
    parts = [stage.compute_s, *(s for _, s in stage.collectives_s), stage.resharding_s]
    sentence = find(GPT, "of work in a step", index)
    assert list_values(sentence, FragmentKind.SECONDS) == [pytest.approx(sum(parts)), *parts]
    assert list_values(sentence, FragmentKind.COUNT) == [stage.num_devices]


def test_costly_ops_are_summed_over_equal_layers() -> None:
    sentence = next(s for s in explain_plan(GPT) if " ops like " in s.text and "(forward" in s.text)
    name = next(f.text for f in sentence.fragments if f.kind is FragmentKind.OP)
    alike = [
        op
        for op in GPT.ops
        if re.sub(r"\d+/", "*/", op.name) == re.sub(r"\d+/", "*/", name) and op.stage == sentence.stage
    ]
    seconds = sum(op.compute_s + sum(c.time_s for c in op.collectives) for op in alike) * GPT.num_microbatches
    assert list_values(sentence, FragmentKind.COUNT) == [len(alike)]
    assert list_values(sentence, FragmentKind.SECONDS)[0] == pytest.approx(seconds)
    assert list_values(sentence, FragmentKind.SHARE) == [pytest.approx(seconds / GPT.estimate.step_s)]


def test_collectives_say_their_total_and_the_ops_that_cause_most_of_it() -> None:
    sentence = find(GPT, "The all-reduce over y", 1)
    (total,) = [t for t in total_collectives(GPT) if (t.stage, t.kind, t.axes) == (1, "all-reduce", ("y",))]
    seconds = list_values(sentence, FragmentKind.SECONDS)
    name = next(f.text for f in sentence.fragments if f.kind is FragmentKind.OP)
    first = next(op for op in GPT.ops if op.name == name)
    alike = [op for op in GPT.ops if re.sub(r"\d+/", "*/", op.name) == re.sub(r"\d+/", "*/", name) and op.stage == 1]
    each = [c for op in alike for c in op.collectives if (c.kind, c.axes) == ("all-reduce", ("y",))]
    assert seconds == [pytest.approx(total.time_s), pytest.approx(GPT.num_microbatches * sum(c.time_s for c in each))]
    assert list_values(sentence, FragmentKind.COUNT) == [total.count, len(alike)]
    assert list_values(sentence, FragmentKind.BYTES)[-1] == pytest.approx(each[0].num_bytes)
    assert "k" in [f.text for f in sentence.fragments if f.kind is FragmentKind.CODE], first.rule


def test_pins_are_named() -> None:
    plan = make_small_plan(pins=(Pin(PinKind.NUM_STAGES, None, 2),))
    assert find(plan, "had to be kept").text == "1 pin had to be kept: there are 2 stages."


REGRETS = {
    OP: (
        Regret("b:x n:y", 0.12, 0.0, 0.0, True, True, 0.0, 10e9),
        Regret("never", math.inf, math.inf, math.inf, False, True),
        Regret("whole", 0.3, 0.9, 1.5, False, True, 0.0, 12e9),
        Regret("b:xy", 0.13, 0.077, 0.08, False, True, 0.0, 9e9),
    )
}


def test_a_regret_says_what_the_next_best_strategy_costs() -> None:
    (sentence,) = [s for s in GPT.explain(REGRETS) if s.text.startswith("If ")]
    assert list_values(sentence, FragmentKind.SECONDS) == [0.077]
    assert list_values(sentence, FragmentKind.SHARE) == [0.077 / GPT.estimate.step_s]
    assert list_values(sentence, FragmentKind.BYTES) == [1e9]
    assert sentence.text == (
        f"If {OP} ran as b:xy instead of b:x n:y, with the rest of its stage free to follow, a step would take 77 ms "
        "or 3.3% longer, and a device would hold 1 GB less; no other strategy costs less."
    )


def test_where_nothing_else_fits_that_is_said() -> None:
    (sentence,) = [s for s in GPT.explain({OP: REGRETS[OP][:2]}) if OP in s.text and "fits" in s.text]
    assert sentence.text == f"Nothing else fits for {OP}."


def test_decisions_worth_asking_about_are_the_costly_ones_of_each_stage() -> None:
    by_name = {op.name: op for op in GPT.ops}
    decisions = [by_name[name] for name in list_costly_decisions(GPT, 2)]
    assert all(op.is_decision for op in decisions)
    assert [op.stage for op in decisions] == [0, 0, 1, 1]


def test_what_is_made_again_is_named_with_the_time_that_it_adds() -> None:
    first, *rest = GPT.ops
    again = replace(first, name=f"recompute/{first.name}", compute_s=0.25, collectives=(), reshardings=())
    plan = replace(GPT, ops=(again, *rest), program=replace(GPT.program, recomputed_layers=(0, 1, 2)))

    sentence = find(plan, "are made again")

    assert "layers 0 to 2" in sentence.text
    assert list_values(sentence, FragmentKind.SECONDS) == [0.25 * GPT.num_microbatches]


def test_nothing_is_said_of_recomputation_where_there_is_none() -> None:
    assert not [s for s in explain_plan(GPT) if "made again" in s.text]
