"""Schedules that share devices between stages or cut the backward in two, and what holds for every schedule."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpaviz.errors import AlpaVizError
from alpaviz.schedule import (
    RUNNABLE_SCHEDULES,
    SCHEDULES,
    Order,
    StageDurations,
    Task,
    TaskKind,
    Timeline,
    count_chunks,
    count_in_flight,
    get_order,
    order_1f1b,
    order_interleaved,
    order_zero_bubble,
    simulate_schedule,
)

ENDS = (TaskKind.BACKWARD, TaskKind.WEIGHT_GRADIENT)
CUT = StageDurations(1.0, 2.0, 0.0, 1.0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, int, int]:
    """A schedule with numbers of stages and microbatches that it takes."""
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    chunks = count_chunks(schedule)
    if chunks == 1:
        return schedule, draw(st.integers(1, 5)), draw(st.integers(1, 8))
    rows = draw(st.integers(1, 3))
    return schedule, rows * chunks, rows * draw(st.integers(1, 3))


def draw_row(order: Order, row: int) -> str:
    """Tasks as text; with several stages a row as F<stage>.<microbatch>."""
    letters = {
        TaskKind.FORWARD: "F", TaskKind.BACKWARD: "B", TaskKind.INPUT_GRADIENT: "I", TaskKind.WEIGHT_GRADIENT: "W",
        TaskKind.UPDATE: "U",
    }  # fmt: skip
    is_shared = len({task.stage for task in order[row]}) > 1
    numbers = [("" if t.kind is TaskKind.UPDATE else str(t.microbatch)) for t in order[row]]
    stages = [f"{t.stage}." if is_shared else "" for t in order[row]]
    return " ".join(letters[t.kind] + stage + m for t, stage, m in zip(order[row], stages, numbers, strict=True))


def list_starts(timeline: Timeline, row: int) -> list[float]:
    return [event.start_s for event in timeline.stages[row] if event.task.kind is not TaskKind.UPDATE]


def test_zero_bubble_of_two_stages_and_four_microbatches_is_the_drawing() -> None:
    order = order_zero_bubble(2, 4)
    assert draw_row(order, 0) == "F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3 U"
    assert draw_row(order, 1) == "F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3 U"
    timeline = simulate_schedule(order, [CUT, CUT])
    # Time    0  1  2  3  4  5  6  7  8  9  10 11 12
    # Stage 0 F0 F1 .  I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
    # Stage 1 .  F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
    assert list_starts(timeline, 0) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert list_starts(timeline, 1) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert timeline.makespan_s == 13


def test_four_stages_interleaved_on_two_rows_with_four_microbatches_are_the_drawing() -> None:
    order = order_interleaved(4, 4, 2)
    assert draw_row(order, 0) == (
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3 U0. U2."
    )
    assert draw_row(order, 1) == (
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3 U1. U3."
    )
    timeline = simulate_schedule(order, [StageDurations(1.0, 1.0, 0.0)] * 4)
    # Time  0    1    2    3    4    5    6    7    8    9    10   11   12   13   14   15   16
    # Row 0 F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 .    B2.2 B2.3 ...
    # Row 1 .    F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 ...
    assert list_starts(timeline, 1) == list(range(1, 17))
    assert timeline.makespan_s == 18
    assert list_starts(timeline, 0)[:9] == list(range(9))


@given(cases())
def test_every_stage_does_everything_once_forward_before_backward_before_weights_before_its_update(
    case: tuple[str, int, int],
) -> None:
    schedule, stages, microbatches = case
    order = get_order(schedule, stages, microbatches)
    assert len(order) == stages // count_chunks(schedule)
    for row, tasks in enumerate(order):
        assert {task.stage for task in tasks} == set(range(row, stages, len(order)))
        place = {task: position for position, task in enumerate(tasks)}
        assert len(place) == len(tasks)
        for stage, m in itertools.product(range(row, stages, len(order)), range(microbatches)):
            kinds = [kind for kind in TaskKind if Task(kind, stage, m) in place and kind is not TaskKind.UPDATE]
            places = [place[Task(kind, stage, m)] for kind in kinds]
            assert places == sorted(places)
            is_cut = schedule == "zero-bubble"
            cut = [TaskKind.FORWARD, TaskKind.INPUT_GRADIENT, TaskKind.WEIGHT_GRADIENT]
            assert kinds == (cut if is_cut else [TaskKind.FORWARD, TaskKind.BACKWARD])
            assert places[-1] < place[Task(TaskKind.UPDATE, stage, 0)]


@given(cases())
def test_every_schedule_runs_to_its_end_and_sends_what_each_neighbour_waits_for(case: tuple[str, int, int]) -> None:
    schedule, stages, microbatches = case
    sends = {(a, b): 0.25 for a in range(stages) for b in (a - 1, a + 1) if 0 <= b < stages}
    timeline = simulate_schedule(get_order(schedule, stages, microbatches), [CUT] * stages, sends)
    assert len(timeline.sends) == 2 * (stages - 1) * microbatches
    ends = {event.task: event.end_s for row in timeline.stages for event in row}
    starts = {event.task: event.start_s for row in timeline.stages for event in row}
    back = TaskKind.INPUT_GRADIENT if schedule == "zero-bubble" else TaskKind.BACKWARD
    for stage, m in itertools.product(range(stages), range(microbatches)):
        if stage > 0:
            ahead = ends[Task(TaskKind.FORWARD, stage - 1, m)]
            assert starts[Task(TaskKind.FORWARD, stage, m)] >= ahead + 0.25
        if stage + 1 < stages:
            assert starts[Task(back, stage, m)] >= ends[Task(back, stage + 1, m)] + 0.25
        assert starts[Task(back, stage, m)] >= ends[Task(TaskKind.FORWARD, stage, m)]
    for row in timeline.stages:
        assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(row))


@given(cases(), st.floats(0.1, 3), st.floats(0.1, 3))
def test_microbatches_in_flight_are_those_between_forward_and_the_end_of_backward(
    case: tuple[str, int, int], forward_s: float, backward_s: float
) -> None:
    schedule, stages, microbatches = case
    order = get_order(schedule, stages, microbatches)
    durations = [StageDurations(forward_s, backward_s, 0.0, backward_s / 2)] * stages
    timeline = simulate_schedule(order, durations)
    for row, events in enumerate(timeline.stages):
        begins = {(e.task.stage, e.task.microbatch): e.start_s for e in events if e.task.kind is TaskKind.FORWARD}
        ends = {(e.task.stage, e.task.microbatch): e.end_s for e in events if e.task.kind in ENDS}
        counted = [sum(begins[k] <= at < ends[k] for k in begins) for at in begins.values()]
        assert max(count for _, count in timeline.list_in_flight(row)) == max(counted) == count_in_flight(order[row])
        assert timeline.list_in_flight(row)[-1][1] == 0


@given(st.integers(1, 6), st.integers(0, 8), st.floats(0.2, 3), st.floats(0.2, 3), st.floats(0.2, 3))
def test_zero_bubble_waits_less_than_1f1b_by_what_the_paper_says(
    stages: int, more: int, forward_s: float, inputs_s: float, weights_s: float
) -> None:
    """(S - 1) (F + I - W) where weight gradients are the shortest part, against (S - 1) (F + I + W) in 1F1B."""
    weights_s = min(weights_s, forward_s, inputs_s)
    microbatches = stages + more
    durations = [StageDurations(forward_s, inputs_s + weights_s, 0.0, weights_s)] * stages
    work = microbatches * (forward_s + inputs_s + weights_s)
    cut = simulate_schedule(order_zero_bubble(stages, microbatches), durations).makespan_s
    whole = simulate_schedule(order_1f1b(stages, microbatches), durations).makespan_s
    assert whole == pytest.approx(work + (stages - 1) * (forward_s + inputs_s + weights_s))
    if microbatches >= 2 * stages:
        assert cut == pytest.approx(work + (stages - 1) * (forward_s + inputs_s - weights_s))
    assert cut <= whole * (1 + 1e-9)


@given(st.integers(1, 6), st.integers(1, 12))
def test_zero_bubble_keeps_on_every_stage_what_1f1b_keeps_on_the_first(stages: int, microbatches: int) -> None:
    first = count_in_flight(order_1f1b(stages, microbatches)[0])
    assert {count_in_flight(tasks) for tasks in order_zero_bubble(stages, microbatches)} == {first}


@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 3), st.floats(0.1, 3), st.floats(0.1, 3))
def test_interleaved_stages_wait_for_the_first_pass_of_one_chunk_only(
    rows: int, chunks: int, groups: int, forward_s: float, backward_s: float
) -> None:
    """M v (f + b) + (W - 1) (f + b) for chunks of f + b: the wait of 1F1B, divided by v."""
    stages, microbatches = rows * chunks, rows * groups
    durations = [StageDurations(forward_s, backward_s, 0.0)] * stages
    timeline = simulate_schedule(order_interleaved(stages, microbatches, chunks), durations)
    assert timeline.makespan_s == pytest.approx((microbatches * chunks + rows - 1) * (forward_s + backward_s))


@given(st.integers(1, 4), st.integers(2, 4), st.integers(1, 3))
def test_interleaved_rows_keep_what_runs_ahead_and_one_more(rows: int, chunks: int, groups: int) -> None:
    order = order_interleaved(rows * chunks, rows * groups, chunks)
    ahead = [2 * (rows - row - 1) + (chunks - 1) * rows for row in range(rows)]
    assert [count_in_flight(tasks) for tasks in order] == [min(a + 1, rows * groups * chunks) for a in ahead]


@given(cases(), st.data())
def test_a_faster_stage_or_send_never_makes_the_step_longer(case: tuple[str, int, int], data: st.DataObject) -> None:
    schedule, stages, microbatches = case
    seconds = st.floats(0.1, 3)
    durations = [
        StageDurations(data.draw(seconds), (b := data.draw(seconds)), data.draw(seconds), b / 2) for _ in range(stages)
    ]
    sends = {(a, b): data.draw(seconds) for a in range(stages) for b in (a - 1, a + 1) if 0 <= b < stages}
    order = get_order(schedule, stages, microbatches)
    before = simulate_schedule(order, durations, sends).makespan_s
    stage = data.draw(st.integers(0, stages - 1))
    d = durations[stage]
    durations[stage] = StageDurations(d.forward_s / 2, d.backward_s * 0.75, d.update_s, d.weights_s * 0.75)
    faster = {pair: s / (1 + data.draw(st.integers(0, 1))) for pair, s in sends.items()}
    assert simulate_schedule(order, durations, faster).makespan_s <= before + 1e-9


def test_numbers_that_a_schedule_does_not_take_are_refused_with_what_it_takes() -> None:
    with pytest.raises(AlpaVizError, match="needs a multiple of 2 stages, not 3"):
        get_order("interleaved-2", 3, 4)
    with pytest.raises(AlpaVizError, match="needs a multiple of 4 stages, not 2"):
        get_order("interleaved-4", 2, 4)
    with pytest.raises(AlpaVizError, match="2 groups of devices need a multiple of 2 microbatches, not 5"):
        get_order("interleaved-2", 4, 5)


def test_what_can_run_is_a_schedule() -> None:
    assert set(RUNNABLE_SCHEDULES) <= set(SCHEDULES)
