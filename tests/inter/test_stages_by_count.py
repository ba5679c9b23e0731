"""Stages whose cost depends on how many there are, and which share devices: what exhaustive search finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.inter import StageConstraints, StageCostTable, choose_stages, choose_stages_by_count
from alpaviz.schedule import (
    SCHEDULES,
    StageDurations,
    count_chunks,
    count_in_flight,
    count_most_in_flight,
    get_order,
    simulate_schedule,
)

SIZES = (1, 2, 2, 4)
DEVICES = 4


@st.composite
def tables(draw: st.DrawFn, max_stages: int | None = None) -> StageCostTable:
    layers = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stages = min(layers, max_stages or layers)
    latency = rng.integers(1, 20, (layers, layers, len(SIZES), stages)).astype(float)
    latency[rng.random(latency.shape) < draw(st.sampled_from([0.0, 0.3]))] = np.inf
    latency[np.tril_indices(layers, -1)] = np.inf
    return StageCostTable(latency, SIZES)


def search(table: StageCostTable, microbatches: int, chunks: int, counts: tuple[int, ...]) -> float:
    """Every cut, every option: the least sum and slowest stage written out."""
    layers, best = table.num_layers, float("inf")
    for count in counts:
        rows, rest = divmod(count, chunks)
        if chunks > 1 and (rest or rows < 2 or microbatches % rows):
            continue
        for cuts in itertools.combinations(range(1, layers), count - 1):
            ends = [0, *cuts, layers]
            for options in itertools.product(range(len(SIZES)), repeat=count):
                sizes = [SIZES[m] for m in options]
                if sum(sizes) != DEVICES * chunks or (chunks > 1 and set(sizes) != {DEVICES // rows}):
                    continue
                times = [table.latency[ends[q], ends[q + 1] - 1, options[q], count - 1] for q in range(count)]
                if np.isinf(times).any():
                    continue
                turns = microbatches if chunks == 1 else microbatches * chunks - rows * (chunks - 1)
                best = min(best, sum(times) + (turns - 1) * max(times))
    return float(best)


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(1, 6), st.sampled_from([1, 2]))
def test_the_best_stages_cost_what_exhaustive_search_finds(
    table: StageCostTable, microbatches: int, chunks: int
) -> None:
    choice = choose_stages_by_count(table, DEVICES, microbatches, num_chunks=chunks)
    best = search(table, microbatches, chunks, tuple(range(1, table.max_stages + 1)))
    assert choice.objective == pytest.approx(best)
    assert choice.is_feasible == np.isfinite(best)
    if choice.is_feasible:
        assert {stage.in_flight for stage in choice.stages} == {len(choice.stages)}
        assert choice.bound == pytest.approx(best)


@settings(max_examples=40, deadline=None)
@given(tables(), st.integers(1, 6), st.integers(1, 5), st.sampled_from([1, 2]))
def test_a_given_number_of_stages_is_kept(table: StageCostTable, microbatches: int, count: int, chunks: int) -> None:
    constraints = StageConstraints(num_stages=count)
    choice = choose_stages_by_count(table, DEVICES, microbatches, constraints, num_chunks=chunks)
    counts = (count,) if count <= table.max_stages else ()
    assert choice.objective == pytest.approx(search(table, microbatches, chunks, counts))


@settings(max_examples=40, deadline=None)
@given(tables(), st.integers(1, 6), st.sampled_from([1, 2]), st.data())
def test_lowering_a_cost_never_raises_the_optimum(
    table: StageCostTable, microbatches: int, chunks: int, data: st.DataObject
) -> None:
    before = choose_stages_by_count(table, DEVICES, microbatches, num_chunks=chunks).objective
    lowered = table.latency.copy()
    entry = tuple(data.draw(st.integers(0, size - 1)) for size in lowered.shape)
    if entry[0] <= entry[1]:
        lowered[entry] = 0.5
    after = choose_stages_by_count(StageCostTable(lowered, SIZES), DEVICES, microbatches, num_chunks=chunks).objective
    assert after <= before


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(2, 3), st.integers(1, 3), st.floats(0.1, 3), st.floats(0.1, 3))
def test_the_objective_of_equal_interleaved_stages_is_their_simulated_step(
    rows: int, chunks: int, groups: int, forward_s: float, backward_s: float
) -> None:
    if rows == 1:
        return
    stages, microbatches = rows * chunks, rows * groups
    latency = np.full((stages, stages, 1, stages), np.inf)
    for layer in range(stages):
        latency[layer, layer] = forward_s + backward_s
    choice = choose_stages_by_count(StageCostTable(latency, (1,)), rows, microbatches, num_chunks=chunks)
    order = get_order(f"interleaved-{chunks}", stages, microbatches) if chunks in (2, 4) else None
    if order is None:
        return
    timeline = simulate_schedule(order, [StageDurations(forward_s, backward_s, 0.0)] * stages)
    assert choice.objective == pytest.approx(timeline.makespan_s)


def list_cuts(layers: list[float]) -> list[list[float]]:
    """Every way to cut layers into stages, as the seconds of each stage."""
    return [
        [sum(layers[a:b]) for a, b in itertools.pairwise([0, *cuts, len(layers)])]
        for count in range(1, len(layers) + 1)
        for cuts in itertools.combinations(range(1, len(layers)), count - 1)
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.2, 3), min_size=1, max_size=5), st.integers(1, 4), st.floats(0.5, 2))
def test_the_programme_finds_the_shortest_simulated_step_of_all_cuts_and_no_schedule_beats_the_slowest_row(
    layers: list[float], microbatches: int, ratio: float
) -> None:
    """Backwards take `ratio` times the forwards, one device a stage: then GPipe takes what the closed form says."""
    steps: dict[str, list[float]] = {schedule: [] for schedule in SCHEDULES}
    for forwards in list_cuts(layers):
        durations = [StageDurations(f, f * ratio, 0.0, f * ratio / 2) for f in forwards]
        for schedule in SCHEDULES:
            chunks = count_chunks(schedule)
            rows, rest = divmod(len(forwards), chunks)
            if chunks > 1 and (rest or microbatches % rows):
                continue
            order = get_order(schedule, len(forwards), microbatches)
            steps[schedule].append(step := simulate_schedule(order, durations).makespan_s)
            work = [sum(forwards[s] * (1 + ratio) for s in {task.stage for task in tasks}) for tasks in order]
            assert step >= microbatches * max(work) - 1e-9
    until = np.concatenate([[0.0], np.cumsum(layers)]) * (1 + ratio)
    count = len(layers)
    latency = np.repeat((until[None, 1:] - until[:-1, None])[:, :, None, None], count, axis=3)
    # Each number of stages has exactly that many devices.
    best = min(choose_stages(StageCostTable(latency, (1,)), n, microbatches).objective for n in range(1, count + 1))
    assert best == pytest.approx(min(steps["gpipe"]))
    assert min(steps["1f1b"]) <= best * (1 + 1e-9)


@given(st.sampled_from(["1f1b", "gpipe", "zero-bubble"]), st.integers(1, 5), st.integers(1, 8))
def test_the_most_in_flight_is_that_of_the_fullest_stage(schedule: str, stages: int, microbatches: int) -> None:
    order = get_order(schedule, stages, microbatches)
    assert count_most_in_flight(schedule, stages, microbatches) == max(map(count_in_flight, order))
