"""Comparing plans: sentences and rows say what changed, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.plan_diff import DiffRow, compare_plans, format_bytes, format_seconds


@pytest.fixture(scope="module")
def decided(gpt_plan: Plan) -> str:
    """Name of a matrix product that the solver decided about."""
    return next(op.name for op in gpt_plan.ops if op.is_decision and op.primitive == "dot_general")


def test_a_plan_against_itself_changed_nothing(gpt_plan: Plan) -> None:
    diff = compare_plans(gpt_plan, gpt_plan)
    step = format_seconds(gpt_plan.estimate.step_s)
    assert diff.summary == (f"The step takes as long as before, {step}.", "No decision changed.")
    assert diff.rows == ()
    assert diff.step_before_s == diff.step_after_s == gpt_plan.estimate.step_s


def test_a_pin_that_came_and_one_that_went_are_rows(gpt_plan: Plan) -> None:
    after = replace(gpt_plan, pins=(Pin(PinKind.LAYER_STAGE, 1, 0),))
    assert compare_plans(gpt_plan, after).rows == (
        DiffRow("pin", "there are 2 stages", "pinned", ""),
        DiffRow("pin", "layer 1 is in stage 0", "", "pinned"),
    )


@pytest.mark.parametrize(("factor", "sentence"), [
    (1.5, "The step is 50.0% longer: 1.5 s instead of 1 s."),
    (0.75, "The step is 25.0% shorter: 750 ms instead of 1 s."),
])  # fmt: skip
def test_a_slower_or_faster_step_is_the_first_sentence(gpt_plan: Plan, factor: float, sentence: str) -> None:
    before = replace(gpt_plan, estimate=replace(gpt_plan.estimate, step_s=1.0))
    after = replace(gpt_plan, estimate=replace(gpt_plan.estimate, step_s=factor))
    diff = compare_plans(before, after)
    assert diff.summary[0] == sentence
    assert [row.subject for row in diff.rows] == ["step"]


def test_parts_of_the_time_are_listed_largest_change_first(gpt_plan: Plan) -> None:
    old = replace(
        gpt_plan.estimate, step_s=10.0, compute_s=8.0, collectives_s=(("all-reduce", 2.0),), resharding_s=0.0,
        bubble_s=0.0,
    )  # fmt: skip
    new = replace(old, step_s=9.0, compute_s=8.5, collectives_s=(("all-gather", 0.5),))
    rows = compare_plans(replace(gpt_plan, estimate=old), replace(gpt_plan, estimate=new)).rows
    assert rows == (
        DiffRow("time", "all-reduce", "2 s", "0 s"), DiffRow("time", "step", "10 s", "9 s"),
        DiffRow("time", "compute", "8 s", "8.5 s"), DiffRow("time", "all-gather", "0 s", "500 ms"),
    )  # fmt: skip


def test_a_decision_that_changed_is_a_row_and_a_sentence(gpt_plan: Plan, decided: str) -> None:
    def whole(plan: Plan) -> Plan:
        ops = tuple(
            replace(op, strategy="whole", output_specs=(((),) * len(op.output_specs[0]),)) if op.name == decided else op
            for op in plan.ops
        )
        return replace(plan, ops=ops)

    old = next(op for op in gpt_plan.ops if op.name == decided)
    diff = compare_plans(gpt_plan, whole(gpt_plan))
    assert diff.rows == (DiffRow("op", decided, old.strategy, "whole"),)
    assert diff.summary[-1].startswith("1 op went from [")
    assert compare_plans(whole(gpt_plan), whole(gpt_plan)).rows == ()


def test_a_state_that_is_stored_otherwise_is_a_row(gpt_plan: Plan) -> None:
    name = "state['params']['wpe']"
    old = next(v for v in gpt_plan.values if v.name == name)
    after = replace(gpt_plan, values=tuple(replace(v, spec=(("x",), ())) if v is old else v for v in gpt_plan.values))
    rows = compare_plans(replace(gpt_plan, values=tuple(
        replace(v, spec=((), ())) if v is old else v for v in gpt_plan.values
    )), after).rows  # fmt: skip
    assert rows == (DiffRow("value", name, "[-, -]", "[x, -]"),)


def test_memory_is_compared_by_stage(gpt_plan: Plan) -> None:
    memory = replace(gpt_plan.stages[1].memory, activations_bytes=3e9)
    after = replace(gpt_plan, stages=(gpt_plan.stages[0], replace(gpt_plan.stages[1], memory=memory)))
    diff = compare_plans(gpt_plan, after)
    assert [(row.kind, row.subject, row.after) for row in diff.rows] == [("memory", "stage 1, each device", "3 GB")]
    assert diff.summary[1].startswith("The fullest device holds 3 GB instead of ")


def test_plans_of_different_programs_compare(gpt_plan: Plan, mlp_plan: Plan) -> None:
    diff = compare_plans(gpt_plan, mlp_plan)
    assert any("1 stage" in sentence and "instead of 2" in sentence for sentence in diff.summary)
    assert [row.after for row in diff.rows if row.subject == "stage 1"] == [""]


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0, "0 s"), (25.13, "25.1 s"), (1.0, "1 s"), (0.0032, "3.2 ms"), (4.8e-5, "48 µs"),
])  # fmt: skip
def test_seconds_are_written_in_a_fitting_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("size", "text"), [
    (0, "0 B"), (999, "999 B"), (4e6, "4 MB"), (12.34e9, "12.3 GB"), (2e12, "2 TB"), (1000, "1 kB"),
])  # fmt: skip
def test_bytes_are_written_in_a_fitting_unit(size: float, text: str) -> None:
    assert format_bytes(size) == text
