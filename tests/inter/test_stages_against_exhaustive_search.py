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
def cost_tables(draw: st.DrawFn) -> StageCostTable:
    """Up to 5 layers on 4 devices, four options, costs that grow with the microbatches in flight; some impossible."""
    layers = draw(st.integers(1, 5))
    stages = min(layers, DEVICES)
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    latency = rng.integers(1, 20, (layers, layers, len(OPTION_SIZES), stages)).astype(float)
    latency = np.maximum.accumulate(latency, axis=3)
    latency[rng.random(latency.shape) < draw(st.sampled_from([0.0, 0.2, 0.5]))] = np.inf
    latency[np.tril_indices(layers, -1)] = np.inf
    return StageCostTable(latency, OPTION_SIZES)


def every_choice(layers: int) -> Iterator[list[tuple[int, int, int]]]:
    """All (first, last, option) lists that cover the layers and use all devices."""
    for count in range(1, min(layers, DEVICES) + 1):
        for cuts in itertools.combinations(range(1, layers), count - 1):
            bounds = [0, *cuts, layers]
            for options in itertools.product(range(len(OPTION_SIZES)), repeat=count):
                if sum(OPTION_SIZES[m] for m in options) == DEVICES:
                    yield [(bounds[i], bounds[i + 1] - 1, options[i]) for i in range(count)]


def price(table: StageCostTable, choice: list[tuple[int, int, int]], microbatches: int) -> float:
    times = [table.latency[i, j, m, len(choice) - 1 - q] for q, (i, j, m) in enumerate(choice)]
    return float("inf") if np.isinf(times).any() else float(sum(times) + (microbatches - 1) * max(times))


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


@settings(max_examples=150, deadline=None)
@given(cost_tables(), st.integers(1, 8))
def test_the_best_stages_cost_what_exhaustive_search_finds(table: StageCostTable, microbatches: int) -> None:
    choice = choose_stages(table, DEVICES, microbatches)
    assert choice.objective == pytest.approx(search(table, microbatches, StageConstraints()))


@settings(max_examples=100, deadline=None)
@given(cost_tables(), st.integers(1, 8), st.data())
def test_constraints_are_kept_and_the_rest_is_best(
    table: StageCostTable, microbatches: int, data: st.DataObject
) -> None:
    stages = table.max_stages
    count = data.draw(st.sampled_from([None, *range(1, stages + 1)]))
    layer_stage = data.draw(
        st.dictionaries(st.integers(0, table.num_layers - 1), st.integers(0, stages - 1), max_size=2)
    )
    stage_options = data.draw(
        st.dictionaries(st.integers(0, stages - 1), st.frozensets(st.integers(0, 3), max_size=3), max_size=2)
    )
    constraints = StageConstraints(count, layer_stage, stage_options)
    choice = choose_stages(table, DEVICES, microbatches, constraints)
    assert choice.objective == pytest.approx(search(table, microbatches, constraints))


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


@settings(max_examples=60, deadline=None)
@given(cost_tables(), st.integers(1, 8))
def test_chosen_stages_cover_the_layers_in_order_and_use_every_device_once(
    table: StageCostTable, microbatches: int
) -> None:
    choice = choose_stages(table, DEVICES, microbatches)
    if not choice.is_feasible:
        return
    covered = [layer for stage in choice.stages for layer in range(stage.first, stage.last + 1)]
    assert covered == list(range(table.num_layers))
    assert sum(OPTION_SIZES[stage.option] for stage in choice.stages) == DEVICES
    assert [stage.in_flight for stage in choice.stages] == list(range(len(choice.stages), 0, -1))
