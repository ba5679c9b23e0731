"""`executable.replan`: the step planned for other devices goes on from a checkpoint with the same losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from alpaviz.errors import LaunchError
from tests.runtime.checkpoint_steps import BATCH, KEY, initialize, plan


def train(executable: Any, state: Any, steps: int) -> tuple[Any, list[float]]:
    losses = []
    for _ in range(steps):
        state, loss = executable(state, BATCH)
        losses.append(float(loss))
    return state, losses


def test_four_devices_become_two_with_the_same_losses(tmp_path: Path) -> None:
    planner = plan("virtual:4", 2)
    with planner.launch() as executable:
        _, unbroken = train(executable, executable.initialize(initialize, KEY), 6)
    executable = planner.launch(donate_state=True)
    state, losses = train(executable, executable.initialize(initialize, KEY), 3)
    executable.save(state, tmp_path, 3)
    with executable.replan("virtual:2") as smaller:
        assert sum(len(stage.devices) for stage in smaller.plan.stages) == 2
        _, rest = train(smaller, smaller.restore(tmp_path), 3)
    np.testing.assert_allclose(losses + rest, unbroken, rtol=1e-5)


def test_what_was_recomputed_for_want_of_memory_is_kept_where_there_is_enough() -> None:
    planner = plan("virtual:4", 2, recompute="always")
    assert planner.program.recomputed_layers
    with planner.launch().replan("virtual:2") as smaller:
        assert smaller.plan.program.recomputed_layers == ()
        _, losses = train(smaller, smaller.initialize(initialize, KEY), 2)
        assert np.isfinite(losses).all()


def test_what_the_plan_was_asked_for_is_kept() -> None:
    executable = plan("virtual:4", 2, schedule="gpipe").launch()
    with executable.replan("virtual:2") as smaller:
        found, asked = smaller.plan, executable.plan
        assert (found.pins, found.schedule, found.num_microbatches) == (asked.pins, "gpipe", 2)
        assert executable.is_closed


def test_pins_that_are_not_possible_any_more_are_named() -> None:
    executable = plan("virtual:4", 1, "4").launch()
    with (
        pytest.warns(UserWarning, match=r"left out: every stage has logical mesh 4\.$"),
        executable.replan("virtual:2") as smaller,
    ):
        assert [str(pin) for pin in smaller.plan.pins] == ["there is 1 stage"]


def test_other_devices_can_be_named() -> None:
    devices = jax.devices()[4:6]
    with plan("virtual:4", 1).launch().replan("virtual:2", devices=devices) as smaller:
        leaves = jax.tree.leaves(jax.tree.map(lambda s: getattr(s, "lanes", s), smaller.initialize(initialize, KEY)))
        assert {device for leaf in leaves for device in leaf.devices()} <= set(devices)


def test_without_a_cluster_the_devices_of_this_process_are_planned_for() -> None:
    with plan("virtual:2", 1).launch().replan() as found:
        assert found.plan.cluster.num_devices == len(jax.devices())


def test_more_devices_than_there_are_are_refused() -> None:
    with pytest.raises(LaunchError, match="needs 16 devices, this process has 8"):
        plan("virtual:2", 1).launch().replan("virtual:16")
