"""Schedules and the simulator, against drawings by hand and the paper's closed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpaviz.errors import AlpaVizError
from alpaviz.schedule import (
    SCHEDULES,
    StageDurations,
    TaskKind,
    count_in_flight,
    export_trace,
    get_order,
    order_1f1b,
    order_gpipe,
    simulate_schedule,
)

EQUAL = StageDurations(1.0, 2.0, 0.0)


def draw(order: tuple[tuple[object, ...], ...], stage: int) -> str:
    """A stage's tasks as text: F0 F1 B0 ... U."""
    letters = {TaskKind.FORWARD: "F", TaskKind.BACKWARD: "B", TaskKind.UPDATE: "U"}
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


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
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


def test_an_unknown_schedule_is_named_with_those_there_are() -> None:
    with pytest.raises(AlpaVizError, match=r"'zigzag'\. Known: 1f1b, gpipe"):
        get_order("zigzag", 2, 2)


def test_a_trace_has_one_event_per_task() -> None:
    timeline = simulate_schedule(order_1f1b(2, 3), [EQUAL, EQUAL])
    events = export_trace(timeline)["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 2 * 7  # type: ignore[attr-defined]
