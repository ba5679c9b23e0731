"""Schedules and the simulator, against drawings by hand and the paper's closed form."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpaviz.errors import AlpaVizError
from alpaviz.schedule import (
    StageDurations,
    Task,
    TaskKind,
    count_in_flight,
    export_trace,
    get_order,
    order_1f1b,
    order_forward,
    order_gpipe,
    simulate_schedule,
)

EQUAL = StageDurations(1.0, 2.0, 0.0)


def draw(order: tuple[tuple[object, ...], ...], stage: int) -> str:
    """A stage's tasks as text: F0 F1 B0 ... U."""
    letters = {
        TaskKind.FORWARD: "F", TaskKind.BACKWARD: "B", TaskKind.UPDATE: "U", TaskKind.INPUT_GRADIENT: "I",
        TaskKind.WEIGHT_GRADIENT: "W",
    }  # fmt: skip
    return " ".join(letters[t.kind] + ("" if t.kind is TaskKind.UPDATE else str(t.microbatch)) for t in order[stage])  # type: ignore[attr-defined]


def test_1f1b_of_two_stages_and_four_microbatches_is_the_drawing() -> None:
    order = order_1f1b(2, 4)
    assert draw(order, 0) == "F0 F1 B0 F2 B1 F3 B2 B3 U"
    assert draw(order, 1) == "F0 B0 F1 B1 F2 B2 F3 B3 U"


def test_gpipe_of_two_stages_and_four_microbatches_is_the_drawing() -> None:
    order = order_gpipe(2, 4)
    assert draw(order, 0) == "F0 F1 F2 F3 B3 B2 B1 B0 U"
    assert draw(order, 1) == "F0 F1 F2 F3 B3 B2 B1 B0 U"


def test_1f1b_timeline_of_two_stages_and_four_microbatches_is_the_drawing() -> None:
    timeline = simulate_schedule(order_1f1b(2, 4), [EQUAL, EQUAL])
    starts = [[event.start_s for event in stage[:-1]] for stage in timeline.stages]
    assert starts[0] == [0, 1, 4, 6, 7, 9, 10, 13]
    assert starts[1] == [1, 2, 4, 5, 7, 8, 10, 11]
    assert timeline.makespan_s == 15


def test_gpipe_timeline_of_two_stages_and_four_microbatches_is_the_drawing() -> None:
    timeline = simulate_schedule(order_gpipe(2, 4), [EQUAL, EQUAL])
    starts = [[event.start_s for event in stage[:-1]] for stage in timeline.stages]
    assert starts[0] == [0, 1, 2, 3, 7, 9, 11, 13]
    assert starts[1] == [1, 2, 3, 4, 5, 7, 9, 11]
    assert timeline.makespan_s == 15


def test_forward_only_is_a_pipeline_without_a_way_back() -> None:
    timeline = simulate_schedule(order_forward(3, 2), [EQUAL] * 3)
    assert [[event.start_s for event in stage] for stage in timeline.stages] == [[0, 1], [1, 2], [2, 3]]
    assert timeline.makespan_s == 4


stage_times = st.lists(st.floats(0.1, 5), min_size=1, max_size=5)


@given(stage_times, st.floats(0.3, 3), st.integers(1, 10))
def test_the_papers_closed_form_is_what_gpipe_takes_where_backward_is_a_fixed_multiple_of_forward(
    forward: list[float], ratio: float, microbatches: int
) -> None:
    """T = sum t_i + (B - 1) max t_j, section 5.1."""
    times = [f * (1 + ratio) for f in forward]
    expected = sum(times) + (microbatches - 1) * max(times)
    order = order_gpipe(len(times), microbatches)
    timeline = simulate_schedule(order, [StageDurations(f, f * ratio, 0.0) for f in forward])
    assert timeline.makespan_s == pytest.approx(expected)


@given(stage_times, st.floats(0.3, 3), st.integers(1, 10))
def test_1f1b_takes_no_longer_than_that(forward: list[float], ratio: float, microbatches: int) -> None:
    times = [f * (1 + ratio) for f in forward]
    limit = sum(times) + (microbatches - 1) * max(times)
    order = order_1f1b(len(times), microbatches)
    timeline = simulate_schedule(order, [StageDurations(f, f * ratio, 0.0) for f in forward])
    assert timeline.makespan_s <= limit * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@given(stages=st.integers(1, 6), microbatches=st.integers(1, 12))
def test_equal_stages_wait_for_the_share_that_the_closed_form_says(
    schedule: str, stages: int, microbatches: int
) -> None:
    timeline = simulate_schedule(get_order(schedule, stages, microbatches), [EQUAL] * stages)
    expected = (stages - 1) / (microbatches + stages - 1)
    assert timeline.bubble_fraction(0) == pytest.approx(expected)


@given(
    st.lists(st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)), min_size=1, max_size=5),
    st.integers(1, 10),
)
def test_a_step_is_never_shorter_than_the_papers_lower_limit(
    times: list[tuple[float, float]], microbatches: int
) -> None:
    durations = [StageDurations(f, b, 0.0) for f, b in times]
    timeline = simulate_schedule(order_1f1b(len(times), microbatches), durations)
    slowest = max(f + b for f, b in times)
    assert timeline.makespan_s >= microbatches * slowest - 1e-9
    assert timeline.makespan_s >= sum(f + b for f, b in times) - 1e-9


@given(st.integers(1, 6), st.integers(1, 12))
def test_1f1b_keeps_as_many_microbatches_as_stages_to_the_end(stages: int, microbatches: int) -> None:
    order = order_1f1b(stages, microbatches)
    assert [count_in_flight(tasks) for tasks in order] == [min(stages - i, microbatches) for i in range(stages)]


@given(st.integers(1, 6), st.integers(1, 12))
def test_gpipe_keeps_all_microbatches(stages: int, microbatches: int) -> None:
    assert {count_in_flight(tasks) for tasks in order_gpipe(stages, microbatches)} == {microbatches}


def test_a_send_delays_the_receiver_and_not_the_sender() -> None:
    timeline = simulate_schedule(order_1f1b(2, 1), [EQUAL, EQUAL], {(0, 1): 0.5, (1, 0): 0.25})
    assert [event.start_s for event in timeline.stages[1]] == [1.5, 2.5, 4.5]
    assert timeline.stages[0][1].start_s == 4.75
    assert [(send.start_s, send.end_s) for send in timeline.sends] == [(1.0, 1.5), (4.5, 4.75)]


def test_sends_between_two_stages_wait_for_one_another() -> None:
    # Each send takes twice as long as the forward that feeds it: the link sets the pace.
    timeline = simulate_schedule(order_forward(2, 3), [EQUAL, EQUAL], {(0, 1): 2.0})
    assert [(send.start_s, send.end_s) for send in timeline.sends] == [(1, 3), (3, 5), (5, 7)]
    assert [event.start_s for event in timeline.stages[1]] == [3, 5, 7]
    assert [event.start_s for event in timeline.stages[0]] == [0, 1, 2]


def test_a_send_past_a_stage_delays_only_its_receiver() -> None:
    timeline = simulate_schedule(order_forward(3, 1), [EQUAL] * 3, {(0, 2): 5.0})
    assert [stage[0].start_s for stage in timeline.stages] == [0, 1, 6]


def test_microbatches_in_flight_rise_and_fall_with_the_tasks() -> None:
    timeline = simulate_schedule(order_1f1b(2, 2), [EQUAL, EQUAL])
    # Stage 0: F0 0-1, F1 1-2, B0 4-6, B1 7-9. Stage 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7: one is freed as the next begins.
    assert timeline.list_in_flight(0) == ((0, 1), (1, 2), (6, 1), (9, 0))
    assert timeline.list_in_flight(1) == ((1, 1), (4, 0), (4, 1), (7, 0))


@given(
    st.sampled_from(["1f1b", "gpipe"]),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=5),
    st.integers(1, 6),
    st.floats(0, 3),
)
def test_no_task_begins_before_its_inputs_are_there_or_while_its_stage_works(
    schedule: str, times: list[tuple[float, float]], microbatches: int, send_s: float
) -> None:
    transfers = {(i, j): send_s for i in range(len(times)) for j in (i - 1, i + 1)}
    durations = [StageDurations(f, b, 0.5) for f, b in times]
    timeline = simulate_schedule(get_order(schedule, len(times), microbatches), durations, transfers)
    ends = {event.task: event.end_s for stage in timeline.stages for event in stage}
    for stage in timeline.stages:
        for before, after in itertools.pairwise(stage):
            assert before.end_s <= after.start_s
    for task, end in ends.items():
        start = end - durations[task.stage].of(task.kind)
        ahead = {TaskKind.FORWARD: task.stage - 1, TaskKind.BACKWARD: task.stage + 1}.get(task.kind, -1)
        if 0 <= ahead < len(times):
            assert start >= ends[Task(task.kind, ahead, task.microbatch)] + send_s - 1e-9
        if task.kind is TaskKind.BACKWARD:
            assert start >= ends[Task(TaskKind.FORWARD, task.stage, task.microbatch)] - 1e-9


def test_an_order_that_waits_for_itself_is_refused() -> None:
    backward_first = ((Task(TaskKind.BACKWARD, 0, 0), Task(TaskKind.FORWARD, 0, 0)),)
    with pytest.raises(ValueError, match="the schedule waits for itself"):
        simulate_schedule(backward_first, [EQUAL])


def test_an_unknown_schedule_is_named_with_those_there_are() -> None:
    with pytest.raises(AlpaVizError, match=r"'zigzag'\. Known: 1f1b, gpipe, interleaved-2, interleaved-4, zero-bubble"):
        get_order("zigzag", 2, 2)


def test_a_trace_has_one_event_per_task_and_send_and_names_its_tracks() -> None:
    timeline = simulate_schedule(order_1f1b(2, 3), [EQUAL, EQUAL], {(0, 1): 0.5})
    events: Any = json.loads(json.dumps(export_trace(timeline)))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 2 * 7 + 3
    names = [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert names == ["step", "stage 0", "stage 1", "sends", "stage 0 to 1"]
    first = next(event for event in events if event["ph"] == "X" and event["cat"] == "backward")
    assert (first["name"], first["tid"], first["ts"], first["dur"]) == ("backward 0", 0, 4.5e6, 2e6)
