"""The stage programme finds what exhaustive search finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.inter import StageConstraints, StageCostTable, choose_stages

OPTION_SIZES = (1, 2, 2, 4)
DEVICES = 4


@st.composite
def cost_tables(draw: st.DrawFn, has_extras: bool = False) -> StageCostTable:
    """Up to 5 layers on 4 devices, four options, costs that grow with the microbatches in flight; some impossible."""
    layers = draw(st.integers(1, 5))
    stages = min(layers, DEVICES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    latency = rng.integers(1, 20, (layers, layers, len(OPTION_SIZES), stages)).astype(float)
    latency = np.maximum.accumulate(latency, axis=3)
    latency[rng.random(latency.shape) < draw(st.sampled_from([0.0, 0.2, 0.5]))] = np.inf
    latency[np.tril_indices(layers, -1)] = np.inf
    if not has_extras:
        return StageCostTable(latency, OPTION_SIZES)
    once = rng.integers(0, 30, latency.shape).astype(float)
    transfer = rng.integers(0, 25, layers).astype(float)
    return StageCostTable(
        latency, OPTION_SIZES, draw(st.sampled_from([None, once])), draw(st.sampled_from([None, transfer]))
    )


def every_choice(layers: int) -> Iterator[list[tuple[int, int, int]]]:
    """All (first, last, option) lists that cover the layers and use all devices."""
    for count in range(1, min(layers, DEVICES) + 1):
        for cuts in itertools.combinations(range(1, layers), count - 1):
            bounds = [0, *cuts, layers]
            for options in itertools.product(range(len(OPTION_SIZES)), repeat=count):
                if sum(OPTION_SIZES[m] for m in options) == DEVICES:
                    yield [(bounds[i], bounds[i + 1] - 1, options[i]) for i in range(count)]


def price(table: StageCostTable, choice: list[tuple[int, int, int]], microbatches: int) -> float:
    """T = sum (t + x) + (B - 1) max(t, x / 2) + max once, written out."""
    places = [(i, j, m, len(choice) - 1 - q) for q, (i, j, m) in enumerate(choice)]
    times = [float(table.latency[place]) for place in places]
    if np.isinf(times).any():
        return float("inf")
    sends = [0.0 if table.transfer is None or i == 0 else float(table.transfer[i]) for i, _, _ in choice]
    once = 0.0 if table.once is None else max(float(table.once[place]) for place in places)
    slowest = max(max(t, x / 2) for t, x in zip(times, sends))
    return sum(times) + sum(sends) + (microbatches - 1) * slowest + once


def search(table: StageCostTable, microbatches: int, constraints: StageConstraints) -> float:
    best = float("inf")
    for choice in every_choice(table.num_layers):
        if constraints.num_stages not in (None, len(choice)):
            continue
        held = all(
            q < len(choice) and choice[q][0] <= layer <= choice[q][1] for layer, q in constraints.layer_stage.items()
        )
        fits = all(q < len(choice) and choice[q][2] in allowed for q, allowed in constraints.stage_options.items())
        if held and fits:
            best = min(best, price(table, choice, microbatches))
    return best


@st.composite
def constraints_for(draw: st.DrawFn, table: StageCostTable) -> StageConstraints:
    stages = table.max_stages
    return StageConstraints(
        draw(st.sampled_from([None, *range(1, stages + 1)])),
        draw(st.dictionaries(st.integers(0, table.num_layers - 1), st.integers(0, stages - 1), max_size=2)),
        draw(st.dictionaries(st.integers(0, stages - 1), st.frozensets(st.integers(0, 3), max_size=3), max_size=2)),
    )


@settings(max_examples=150, deadline=None)
@given(cost_tables(), st.integers(1, 8))
def test_the_best_stages_cost_what_exhaustive_search_finds(table: StageCostTable, microbatches: int) -> None:
    choice = choose_stages(table, DEVICES, microbatches)
    assert choice.objective == pytest.approx(search(table, microbatches, StageConstraints()))
    assert choice.bound == choice.objective


@settings(max_examples=100, deadline=None)
@given(cost_tables(has_extras=True), st.integers(1, 8))
def test_so_they_do_with_work_once_a_step_and_sends_between_stages(table: StageCostTable, microbatches: int) -> None:
    choice = choose_stages(table, DEVICES, microbatches)
    assert choice.objective == pytest.approx(search(table, microbatches, StageConstraints()))


@settings(max_examples=100, deadline=None)
@given(cost_tables(has_extras=True), st.integers(1, 8), st.data())
def test_constraints_are_kept_and_the_rest_is_best(
    table: StageCostTable, microbatches: int, data: st.DataObject
) -> None:
    constraints = data.draw(constraints_for(table))
    choice = choose_stages(table, DEVICES, microbatches, constraints)
    assert choice.objective == pytest.approx(search(table, microbatches, constraints))


@settings(max_examples=100, deadline=None)
@given(cost_tables(has_extras=True), st.integers(1, 8), st.floats(0, 30))
def test_with_a_tolerance_the_bound_holds_and_the_choice_is_within_it(
    table: StageCostTable, microbatches: int, tolerance: float
) -> None:
    choice = choose_stages(table, DEVICES, microbatches, tolerance=tolerance)
    best = search(table, microbatches, StageConstraints())
    if np.isinf(best):
        assert not choice.is_feasible
        return
    assert choice.bound <= best + 1e-9
    assert best - 1e-9 <= choice.objective <= best + tolerance + 1e-9
    assert choice.objective <= choice.bound + tolerance + 1e-9


@settings(max_examples=60, deadline=None)
@given(cost_tables(), st.integers(1, 8), st.data())
def test_lowering_a_cost_never_raises_the_optimum(
    table: StageCostTable, microbatches: int, data: st.DataObject
) -> None:
    before = choose_stages(table, DEVICES, microbatches).objective
    lowered = table.latency.copy()
    entry = tuple(data.draw(st.integers(0, size - 1)) for size in lowered.shape)
    if entry[0] <= entry[1]:
        lowered[entry] = 0.5
    after = choose_stages(StageCostTable(lowered, OPTION_SIZES), DEVICES, microbatches).objective
    assert after <= before + 1e-12


@settings(max_examples=100, deadline=None)
@given(cost_tables(has_extras=True), st.integers(1, 8))
def test_chosen_stages_cover_the_layers_in_order_use_every_device_once_and_cost_the_objective(
    table: StageCostTable, microbatches: int
) -> None:
    choice = choose_stages(table, DEVICES, microbatches)
    if not choice.is_feasible:
        assert choice.obstacle is not None
        return
    covered = [layer for stage in choice.stages for layer in range(stage.first, stage.last + 1)]
    assert covered == list(range(table.num_layers))
    assert sum(OPTION_SIZES[stage.option] for stage in choice.stages) == DEVICES
    assert [stage.in_flight for stage in choice.stages] == list(range(len(choice.stages), 0, -1))
    stages = [(stage.first, stage.last, stage.option) for stage in choice.stages]
    assert price(table, stages, microbatches) == pytest.approx(choice.objective)
    assert choice.obstacle is None


@settings(max_examples=60, deadline=None)
@given(cost_tables(), st.integers(1, 8))
def test_of_equally_good_stages_those_with_the_fastest_slowest_stage_are_chosen(
    table: StageCostTable, microbatches: int
) -> None:
    def find_slowest(stages: list[tuple[int, int, int]]) -> float:
        return max(float(table.latency[i, j, m, len(stages) - 1 - q]) for q, (i, j, m) in enumerate(stages))

    choice = choose_stages(table, DEVICES, microbatches)
    if choice.is_feasible:
        equals = [c for c in every_choice(table.num_layers) if price(table, c, microbatches) == choice.objective]
        chosen = [(stage.first, stage.last, stage.option) for stage in choice.stages]
        assert find_slowest(chosen) == min(map(find_slowest, equals))
