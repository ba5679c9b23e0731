"""What a choice without stages says about the reason, and ties."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.inter import ChosenRange, ObstacleKind, StageConstraints, StageCostTable, choose_stages
from alpaviz.inter.stages import FloatArray


def make_latency(layers: int, sizes: tuple[int, ...], stages: int) -> FloatArray:
    """A layer takes a second on one device."""
    latency = np.full((layers, layers, len(sizes), stages), np.inf)
    for i in range(layers):
        for j in range(i, layers):
            for m, size in enumerate(sizes):
                latency[i, j, m] = (j - i + 1) / size
    return latency


def test_of_equally_good_stages_the_fewest_then_the_earliest_cuts_then_the_first_option() -> None:
    # One microbatch: the time is the sum alone, and every cut of four layers of zero seconds is as good.
    latency = np.where(np.isfinite(make_latency(4, (1, 1, 2), 4)), 0.0, np.inf)
    table = StageCostTable(latency, (1, 1, 2))
    assert choose_stages(table, 2, 1).stages == (ChosenRange(0, 3, 2, 1),)
    two = choose_stages(table, 2, 1, StageConstraints(num_stages=2))
    assert two.stages == (ChosenRange(0, 0, 0, 2), ChosenRange(1, 3, 0, 1))


def test_too_little_memory_is_told_with_the_bytes_that_would_be_enough() -> None:
    # Two layers, two devices. Together on both they lack 5 bytes; apart, the first lacks 3 and the second 2.
    latency = np.full((2, 2, 2, 2), np.inf)
    missing = np.zeros_like(latency)
    missing[0, 1, 1, 0] = 5
    missing[0, 0, 0, 1] = 3
    missing[1, 1, 0, 0] = 2
    obstacle = choose_stages(StageCostTable(latency, (1, 2), missing=missing), 2, 4).obstacle
    assert obstacle is not None
    assert (obstacle.kind, obstacle.bytes_short, obstacle.layers) == (ObstacleKind.MEMORY, 3, (0, 1))
    assert obstacle.stages == (ChosenRange(0, 0, 0, 2), ChosenRange(1, 1, 0, 1))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_with_the_bytes_that_are_short_there_are_stages_and_with_fewer_there_are_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    latency = np.full((3, 3, 2, 3), np.inf)
    missing = rng.integers(1, 9, latency.shape).astype(float)
    missing[rng.random(latency.shape) < 0.3] = 0
    obstacle = choose_stages(StageCostTable(latency, (1, 2), missing=missing), 3, 2).obstacle
    assert obstacle is not None
    for extra, is_enough in ((obstacle.bytes_short, True), (obstacle.bytes_short - 1, False)):
        opened = np.where((missing > 0) & (missing <= extra), 1.0, np.inf)
        opened[np.tril_indices(3, -1)] = np.inf
        if obstacle.kind is ObstacleKind.MEMORY:
            assert choose_stages(StageCostTable(opened, (1, 2)), 3, 2).is_feasible == is_enough


def test_layers_that_nothing_holds_are_named() -> None:
    latency = make_latency(3, (1, 2), 3)
    latency[:2, 1:] = np.inf
    obstacle = choose_stages(StageCostTable(latency, (1, 2)), 4, 2).obstacle
    assert obstacle is not None
    assert (obstacle.kind, obstacle.layers) == (ObstacleKind.LAYERS, (1,))


def test_devices_that_cannot_all_be_used_are_counted() -> None:
    obstacle = choose_stages(StageCostTable(make_latency(2, (1, 2), 2), (1, 2)), 8, 2).obstacle
    assert obstacle is not None
    assert (obstacle.kind, obstacle.most_devices) == (ObstacleKind.DEVICES, 4)


def test_constraints_are_blamed_where_there_are_stages_without_them() -> None:
    table = StageCostTable(make_latency(2, (1, 2), 2), (1, 2))
    for constraints in (
        StageConstraints(num_stages=5),
        StageConstraints(layer_stage={0: 1}),
        StageConstraints(stage_options={0: frozenset()}),
    ):
        choice = choose_stages(table, 2, 2, constraints)
        assert choice.obstacle is not None
        assert choice.obstacle.kind is ObstacleKind.CONSTRAINTS


def test_no_option_at_all_is_an_answer_and_not_a_fault() -> None:
    choice = choose_stages(StageCostTable(np.full((2, 2, 1, 2), np.inf), (8,)), 4, 2)
    assert not choice.is_feasible
    assert choice.objective == choice.bound == float("inf")
