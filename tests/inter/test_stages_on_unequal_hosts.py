"""Where hosts are of several kinds, the stage programme finds what exhaustive search finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.inter import StageConstraints, StageCostTable, choose_stages
from tests.inter.test_stages_against_exhaustive_search import price

OPTIONS = ((1, 0), (2, 0), (2, 0), (1, 1), (3, 1), (1, 2))
"""(devices, kind) of each option."""

DEVICES = (2, 3, 1)
"""Of each kind; three of one device each do not carry into another kind."""


@st.composite
def cost_tables(draw: st.DrawFn) -> StageCostTable:
    """Up to 6 layers on six devices of three kinds, costs that grow with what is in flight; some impossible."""
    layers = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    latency = rng.integers(1, 20, (layers, layers, len(OPTIONS), layers)).astype(float)
    latency = np.maximum.accumulate(latency, axis=3)
    latency[rng.random(latency.shape) < draw(st.sampled_from([0.0, 0.2]))] = np.inf
    once = rng.integers(0, 30, latency.shape).astype(float)
    return StageCostTable(
        latency, tuple(n for n, _ in OPTIONS), draw(st.sampled_from([None, once])), kinds=tuple(k for _, k in OPTIONS)
    )


def every_choice(layers: int) -> Iterator[list[tuple[int, int, int]]]:
    """All (first, last, option) lists that cover the layers and use all devices of each kind."""
    for count in range(1, min(layers, sum(DEVICES)) + 1):
        used = [
            options
            for options in itertools.product(range(len(OPTIONS)), repeat=count)
            if all(sum(OPTIONS[m][0] for m in options if OPTIONS[m][1] == k) == n for k, n in enumerate(DEVICES))
        ]
        for cuts in itertools.combinations(range(1, layers), count - 1):
            bounds = [0, *cuts, layers]
            for options in used:
                yield [(bounds[i], bounds[i + 1] - 1, options[i]) for i in range(count)]


@settings(max_examples=60, deadline=None)
@given(cost_tables(), st.integers(1, 8))
def test_the_best_stages_cost_what_exhaustive_search_finds(table: StageCostTable, microbatches: int) -> None:
    least = min((price(table, choice, microbatches) for choice in every_choice(table.num_layers)), default=float("inf"))
    assert choose_stages(table, DEVICES, microbatches).objective == pytest.approx(least)


@settings(max_examples=60, deadline=None)
@given(cost_tables())
def test_every_device_of_every_kind_is_used_once(table: StageCostTable) -> None:
    choice = choose_stages(table, DEVICES, 4)
    used = [sum(OPTIONS[s.option][0] for s in choice.stages if OPTIONS[s.option][1] == k) for k in range(len(DEVICES))]
    assert tuple(used) == (DEVICES if choice.is_feasible else (0, 0, 0))


def test_a_pinned_stage_stays_on_its_kind() -> None:
    latency = np.ones((4, 4, 2, 4))
    table = StageCostTable(latency, (1, 1), kinds=(0, 1))
    choice = choose_stages(table, (1, 1), 4, StageConstraints(stage_options={0: frozenset({1})}))
    assert [s.option for s in choice.stages] == [1, 0]


def test_kinds_of_which_no_option_exists_leave_no_stages() -> None:
    choice = choose_stages(StageCostTable(np.ones((2, 2, 1, 2)), (1,), kinds=(0,)), (1, 1), 4)
    assert choice.obstacle is not None
    assert choice.obstacle.most_devices == 1
