"""Played plans: the step that they promise, the memory that they count, and what goes over the links."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest

from alpaviz.errors import AlpaVizError, LaunchError
from alpaviz.plan import Plan
from alpaviz.plan_text import describe_plan
from alpaviz.planner import Planner
from alpaviz.schedule import DeviceMemory, Simulation, TaskKind, count_in_flight, export_trace, get_order, simulate
from tests.program.small_models import adam_step, init_gpt_state

STATE = jax.eval_shape(lambda: init_gpt_state(4))
IDS = jax.ShapeDtypeStruct((8, 17), np.int32)
SCHEDULES = ("1f1b", "gpipe", "zero-bubble", "interleaved-2")


def make_plan(schedule: str, num_stages: int, cluster: str = "virtual:4") -> tuple[Planner, Plan]:
    planner = Planner(adam_step, STATE, IDS, cluster=cluster, num_microbatches=4, schedule=schedule, num_layers=4)
    planner.pin_num_stages(num_stages)
    return planner, planner.solve(on_progress=lambda _: None)


@pytest.fixture(scope="module", params=SCHEDULES)
def planned(request: pytest.FixtureRequest) -> tuple[Planner, Plan]:
    return make_plan(request.param, 4 if request.param == "interleaved-2" else 2)


@pytest.fixture(scope="module")
def plan(planned: tuple[Planner, Plan]) -> Plan:
    return planned[1]


@pytest.fixture(scope="module")
def played(plan: Plan) -> Simulation:
    return simulate(plan)


def test_the_step_of_a_plan_is_the_end_of_its_simulation(plan: Plan, played: Simulation) -> None:
    assert plan.estimate.step_s == played.step_s
    ends = [event.end_s for row in played.timeline.stages for event in row]
    assert played.step_s == max(ends + [send.end_s for send in played.timeline.sends])
    assert f"schedule {plan.schedule}" in describe_plan(plan)


def test_parts_of_the_estimate_add_up_to_the_step(plan: Plan) -> None:
    estimate = plan.estimate
    parts = estimate.compute_s + sum(s for _, s in estimate.collectives_s) + estimate.resharding_s + estimate.bubble_s
    assert parts == pytest.approx(estimate.step_s)


def test_stages_that_share_a_row_share_devices_and_all_devices_are_used_once(plan: Plan, played: Simulation) -> None:
    devices = [d for held in played.memory for d in held.devices]
    assert sorted(devices) == [(0, d) for d in range(4)]
    for held, events in zip(played.memory, played.timeline.stages, strict=True):
        assert {plan.stages[event.task.stage].devices for event in events} == {held.devices}


def count_by_hand(plan: Plan, played: Simulation, held: DeviceMemory, at: float) -> dict[str, float]:
    """What the row holds just after `at`, from the times of its tasks."""
    events = played.timeline.stages[held.row]
    total = dict.fromkeys(("parameters", "optimizer", "batch", "gradients", "activations", "temporary"), 0.0)
    for stage in sorted({event.task.stage for event in events}):
        memory, own = plan.stages[stage].memory, [e for e in events if e.task.stage == stage]
        total["parameters"] += memory.parameters_bytes
        total["optimizer"] += memory.optimizer_bytes
        total["batch"] += memory.batch_bytes
        begins = {e.task.microbatch: e.start_s for e in own if e.task.kind is TaskKind.FORWARD}
        ends = {e.task.microbatch: e.end_s for e in own if e.task.kind not in (TaskKind.FORWARD, TaskKind.UPDATE)}
        alive = sum(begins[m] <= at < ends[m] for m in begins)
        total["activations"] += alive * memory.activations_bytes / plan.stages[stage].in_flight
        first = min(e.start_s for e in own if e.task.kind not in (TaskKind.FORWARD, TaskKind.UPDATE))
        last = max(e.end_s for e in own if e.task.kind is TaskKind.UPDATE)
        total["gradients"] += memory.gradients_bytes * (first <= at < last)
        total["temporary"] += memory.temporary_bytes * sum(e.start_s <= at < e.end_s for e in own)
    return total


def test_memory_over_time_is_what_the_times_of_the_tasks_say(plan: Plan, played: Simulation) -> None:
    for held in played.memory:
        for point in held.points:
            expected = count_by_hand(plan, played, held, point.start_s)
            assert dict(point.parts) == pytest.approx(expected, abs=1e-3)
        assert [p.start_s for p in held.points] == sorted({p.start_s for p in held.points})


def test_the_peak_is_what_the_plan_counts_and_no_more_than_devices_hold(plan: Plan, played: Simulation) -> None:
    for held in played.memory:
        stages = [s for s in plan.stages if s.devices == held.devices]
        counted = sum(stage.memory.total_bytes for stage in stages)
        if len(stages) == 1:
            assert held.peak.total_bytes == pytest.approx(counted)
        assert held.peak.total_bytes <= counted * (1 + 1e-9)
        assert held.capacity_bytes == stages[0].memory.capacity_bytes


def test_traffic_is_every_transfer_times_the_microbatches(plan: Plan, played: Simulation) -> None:
    for link in played.links:
        own = [t for t in plan.transfers if (t.source_stage, t.target_stage) == (link.source, link.target)]
        times = [1 if t.once else plan.num_microbatches for t in own]
        assert link.num_sends == sum(times)
        assert link.num_bytes == pytest.approx(sum(n * t.num_bytes for n, t in zip(times, own, strict=True)))
        sent = [s for s in played.timeline.sends if (s.source, s.target) == (link.source, link.target)]
        assert link.busy_s == pytest.approx(sum(s.end_s - s.start_s for s in sent))
        assert 0 < link.busy_s <= played.step_s
    assert sum(link.num_sends for link in played.links) > 0


def test_weight_gradients_are_a_part_of_the_backward_and_all_of_it_on_the_first_stage(plan: Plan) -> None:
    assert plan.stages[0].weights_s == pytest.approx(plan.stages[0].backward_s)
    for stage in plan.stages[1:]:
        assert 0 < stage.weights_s < stage.backward_s


def test_counters_of_the_trace_are_the_memory_points(plan: Plan, played: Simulation) -> None:
    trace: Any = json.loads(json.dumps(export_trace(played.timeline, plan.program.name, played.memory)))
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    points = [point for held in played.memory for point in held.points]
    assert [sum(c["args"].values()) for c in counters] == pytest.approx([point.total_bytes for point in points])
    assert [c["ts"] for c in counters] == pytest.approx([point.start_s * 1e6 for point in points])
    assert len({c["name"] for c in counters}) == len(played.memory)


def test_the_step_is_no_longer_than_the_closed_form_that_the_search_minimised(plan: Plan) -> None:
    """sum t + (B - 1) max t, with sends and the update: an upper limit of what 1F1B and the cut backward take."""
    if plan.schedule in ("1f1b", "zero-bubble"):
        assert plan.estimate.step_s <= plan.solver.objective * 1.02


def test_plans_with_other_schedules_can_be_shown_and_only_some_run(planned: tuple[Planner, Plan]) -> None:
    planner, plan = planned
    if plan.schedule in ("1f1b", "gpipe"):
        return
    with pytest.raises(LaunchError, match=rf"'{plan.schedule}' can be simulated and shown, but not launched yet"):
        planner.launch("local")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
def test_every_stage_is_planned_with_the_microbatches_that_it_keeps(schedule: str) -> None:
    _, plan = make_plan(schedule, 3)
    order = get_order(schedule, 3, plan.num_microbatches)
    assert [stage.in_flight for stage in plan.stages] == [count_in_flight(tasks) for tasks in order]


def test_another_schedule_can_be_tried_on_a_plan_whose_devices_it_fits() -> None:
    _, plan = make_plan("1f1b", 2)
    assert simulate(plan).step_s == simulate(plan, "1f1b").step_s
    cut, whole = simulate(plan, "zero-bubble"), simulate(plan)
    assert cut.step_s <= whole.step_s * (1 + 1e-9)
    assert simulate(plan, "gpipe").memory[1].peak.total_bytes > whole.memory[1].peak.total_bytes
    with pytest.raises(AlpaVizError, match="runs 2 stages on 1 groups of devices, the plan on 2"):
        simulate(plan, "interleaved-2")
    with pytest.raises(AlpaVizError, match="No schedule is called 'round'"):
        simulate(plan, "round")
