"""What holds for every plan: files, checks and comparisons, on plans drawn at random."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.errors import PlanFormatError
from alpaviz.plan import Plan
from alpaviz.plan_check import validate_plan
from alpaviz.plan_diff import PlanDiff, compare_plans
from alpaviz.plan_file import plan_from_json, plan_to_json
from tests.sample_plans import COLUMNS, ROWS, make_small_plan, plans


@given(plans())
def test_every_plan_is_read_back_exactly(plan: Plan) -> None:
    assert plan_from_json(plan_to_json(plan)) == plan


@given(plans())
def test_sample_plans_are_whole(plan: Plan) -> None:
    assert validate_plan(plan, cluster=plan.cluster) == ()


@given(plans(), st.data())
@settings(max_examples=50)
def test_a_file_cut_short_is_never_read_as_a_plan(plan: Plan, data: st.DataObject) -> None:
    written = plan_to_json(plan)
    cut = data.draw(st.integers(0, len(written) - 1))
    with pytest.raises(PlanFormatError, match="is not JSON"):
        plan_from_json(written[:cut])


@given(plans())
def test_nothing_changed_between_a_plan_and_itself(plan: Plan) -> None:
    diff = compare_plans(plan, plan)
    assert diff.rows == ()
    assert diff.summary[1:] == ("No decision changed.",)


@given(plans(), plans())
def test_a_comparison_survives_json(before: Plan, after: Plan) -> None:
    diff = compare_plans(before, after)
    assert msgspec.json.decode(msgspec.json.encode(diff), type=PlanDiff) == diff


@given(plans(), plans())
def test_going_back_swaps_before_and_after(before: Plan, after: Plan) -> None:
    there, back = compare_plans(before, after), compare_plans(after, before)
    assert (there.step_before_s, there.step_after_s) == (back.step_after_s, back.step_before_s)
    swapped = {(row.kind, row.subject, row.after, row.before) for row in back.rows}
    assert {(row.kind, row.subject, row.before, row.after) for row in there.rows} == swapped


def test_a_change_of_layout_is_counted_by_group() -> None:
    diff = compare_plans(make_small_plan(weight_spec=COLUMNS), make_small_plan(weight_spec=ROWS))
    # Four gradients and four updated weights.
    assert "8 ops went from [-, x] to [x, -]." in diff.summary
    assert [row.subject for row in diff.rows if row.kind == "value"] == [
        f"state['block_{i}']['weight']" for i in range(4)
    ]


def test_more_memory_is_said_for_the_fullest_device() -> None:
    diff = compare_plans(make_small_plan(), make_small_plan(activations_bytes=1.4e9))
    assert "The fullest device holds 1.85 GB instead of 850 MB." in diff.summary


def test_a_longer_step_is_said_in_per_cent() -> None:
    diff = compare_plans(make_small_plan(), make_small_plan(num_stages=4))
    assert diff.summary[0] == "The step is 33.3% longer: 24 ms instead of 18 ms."
    assert "There are 4 stages instead of 2." in diff.summary


def test_a_step_that_took_no_time_can_be_compared() -> None:
    plan = make_small_plan()
    empty = replace(plan, estimate=replace(plan.estimate, step_s=0.0))
    assert compare_plans(empty, plan).summary[0] == "The step takes 18 ms instead of 0 s."


def test_other_settings_are_rows_of_their_own() -> None:
    diff = compare_plans(make_small_plan(num_microbatches=4), make_small_plan(num_microbatches=2, cluster="virtual:4"))
    rows = {row.subject: (row.before, row.after) for row in diff.rows if row.kind == "setting"}
    assert rows == {"microbatches": ("4", "2"), "cluster": ("virtual:8", "virtual:4")}


def _change_op(plan: Plan, number: int, **fields: Any) -> Plan:
    return replace(plan, ops=tuple(replace(op, **fields) if op.id == number else op for op in plan.ops))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": (4, 99)}, r"an operand of op 'block_0/dot_general\.0': there is no value 99"),
        ({"inputs": (4,)}, "an operand of op .*: there are 1, but specs for 2"),
        ({"output_specs": ()}, "a result of op .*: there are 1, but specs for 0"),
        (
            {"input_specs": ((("y",), ()), ((), ()))},
            "an operand of op .* is no spec of 2 dimensions on a mesh with axes",
        ),
    ],
)
def test_an_op_that_contradicts_the_values_is_found(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanFormatError, match=message):
        validate_plan(_change_op(make_small_plan(), 0, **fields))


def test_a_transfer_to_a_stage_that_is_not_there_is_found() -> None:
    plan = make_small_plan()
    lost = replace(plan, transfers=(replace(plan.transfers[0], target_stage=5),))
    with pytest.raises(PlanFormatError, match="the transfer of value 6 is in stage 5, of 2"):
        validate_plan(lost)


def test_values_out_of_order_are_found() -> None:
    plan = make_small_plan()
    with pytest.raises(PlanFormatError, match=r"has id 1, but stands at place 0"):
        validate_plan(replace(plan, values=(plan.values[1], plan.values[0], *plan.values[2:])))
