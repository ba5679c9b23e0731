"""Plans as text: every section is there and adds up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from alpaviz.plan import OpPlan, Plan, PlannedCollective, PlannedResharding
from alpaviz.plan_diff import compare_plans
from alpaviz.plan_text import CollectiveTotal, describe_diff, describe_plan, measure_gap, total_collectives

Change = tuple[str, tuple[PlannedCollective, ...], tuple[PlannedResharding, ...]]


def make_plan_of_ops(plan: Plan, *changes: Change) -> Plan:
    """`plan` with one op for each (role, collectives, reshardings), in stage 0."""
    op: OpPlan = plan.ops[0]
    ops = [replace(op, role=role, stage=0, collectives=own, reshardings=others) for role, own, others in changes]
    return replace(plan, ops=tuple(ops))


def test_the_text_names_program_cluster_and_schedule(gpt_plan: Plan) -> None:
    lines = describe_plan(gpt_plan).splitlines()
    assert lines[0] == "Plan of gpt-tiny on virtual:4"
    assert gpt_plan.program.fingerprint in lines[1]
    assert lines[2] == "  cluster   1 host of 4 x CPU"
    assert lines[3] == "  pipeline  2 stages, 4 microbatches, schedule 1f1b"


def test_one_of_each_is_singular(mlp_plan: Plan) -> None:
    assert "  pipeline  1 stage, 1 microbatch, schedule 1f1b\n" in describe_plan(mlp_plan)


def test_shares_of_the_step_add_up_to_all_of_it(gpt_plan: Plan) -> None:
    (section,) = (s for s in describe_plan(gpt_plan).split("\n\n") if s.startswith("Step "))
    shares = [float(line.split()[-1].rstrip("%")) for line in section.splitlines()[2:]]
    assert sum(shares) == pytest.approx(100, abs=0.5)


def test_every_stage_has_a_row_with_its_devices_and_mesh(gpt_plan: Plan) -> None:
    text = describe_plan(gpt_plan)
    for stage, devices in zip(gpt_plan.stages, ("0-1", "2-3"), strict=True):
        row = next(line for line in text.splitlines() if line.startswith(f"  {stage.index}  ") and "1x2" in line)
        assert f"{stage.first_layer}-{stage.last_layer}" in row
        assert f"host 0: {devices}" in row
        assert "x=2" in row
        assert "of 4 GB (0%)" in row


def test_arrays_of_equal_layers_share_a_row_that_counts_them(gpt_plan: Plan) -> None:
    rows = [line for line in describe_plan(gpt_plan).splitlines() if "['block_*']['qkv']" in line]
    assert sum(int(row.split()[0]) for row in rows) == 6, "two blocks, a parameter and two moments each"
    assert all(int(row.split()[0]) > 1 and "float32[64, 3, 4, 16]" in row for row in rows)


def test_rows_of_state_count_every_array_once(gpt_plan: Plan) -> None:
    (section,) = (s for s in describe_plan(gpt_plan).split("\n\n") if s.startswith("State,"))
    counted = sum(int(line.split()[0]) for line in section.splitlines()[2:])
    assert counted == sum(value.kind == "state" for value in gpt_plan.values)


def test_collectives_run_once_a_microbatch_and_updates_once_a_step(gpt_plan: Plan) -> None:
    reduce = PlannedCollective("all-reduce", ("x",), 100.0, 0.5)
    gather = PlannedCollective("all-gather", ("x",), 8.0, 0.1)
    resharding = PlannedResharding(0, (), (), (), (gather,))
    plan = make_plan_of_ops(
        gpt_plan, ("forward", (reduce,), ()), ("backward", (reduce,), (resharding,)), ("update", (reduce, gather), ())
    )
    assert total_collectives(plan) == (
        CollectiveTotal(0, "all-reduce", ("x",), 9, 900.0, 4.5),
        CollectiveTotal(0, "all-gather", ("x",), 5, 40.0, pytest.approx(0.5)),
    )


def test_times_of_collectives_are_those_of_the_stages(gpt_plan: Plan) -> None:
    found: dict[int, float] = defaultdict(float)
    for total in total_collectives(gpt_plan):
        found[total.stage] += total.time_s
    for stage in gpt_plan.stages:
        assert found[stage.index] == pytest.approx(sum(t for _, t in stage.collectives_s) + stage.resharding_s)


def test_a_plan_without_collectives_says_none(gpt_plan: Plan) -> None:
    assert "Collectives: none" in describe_plan(make_plan_of_ops(gpt_plan, ("forward", (), ())))


def test_pins_and_warnings_are_listed_only_where_there_are_any(gpt_plan: Plan) -> None:
    assert describe_plan(gpt_plan).endswith("Pins\n  there are 2 stages")
    text = describe_plan(replace(gpt_plan, pins=(), warnings=("something is odd",)))
    assert "Pins" not in text
    assert text.endswith("Warnings\n  something is odd")


def test_memory_over_capacity_is_a_warning(gpt_plan: Plan) -> None:
    memory = replace(gpt_plan.stages[0].memory, activations_bytes=6e9)
    plan = replace(gpt_plan, stages=(replace(gpt_plan.stages[0], memory=memory), gpt_plan.stages[1]))
    assert describe_plan(plan).endswith("Warnings\n  stage 0 needs 6 GB on a device of 4 GB")


@pytest.mark.parametrize(("bound", "gap", "text"), [
    (2.0, 0.0, "proven best for the cost model"), (1.9, 0.05, "within 5.00% of the bound"),
    (2.1, 0.0, "proven best"),
])  # fmt: skip
def test_the_gap_is_said_in_words(gpt_plan: Plan, bound: float, gap: float, text: str) -> None:
    plan = replace(gpt_plan, solver=replace(gpt_plan.solver, objective=2.0, bound=bound))
    assert measure_gap(plan) == pytest.approx(gap)
    assert text in describe_plan(plan)


def test_a_diff_shows_sentences_then_rows(gpt_plan: Plan) -> None:
    text = describe_diff(compare_plans(gpt_plan, replace(gpt_plan, pins=())))
    assert text.splitlines()[-3:] == [
        "", "  what  which               before  after", "  pin   there are 2 stages  pinned  -",
    ]  # fmt: skip
