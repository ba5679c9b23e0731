"""Plans on Ray workers: the same results, and faults in words."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import ray

from alpaviz.errors import LaunchError
from alpaviz.planner import Planner
from tests.program.small_models import adam_step, init_gpt_state

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

IDS = np.asarray(jax.random.randint(jax.random.key(1), (8, 17), 0, 64))


@pytest.fixture(scope="module", autouse=True)
def running_ray() -> Iterator[None]:
    """One Ray for the module, started as a user would."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", namespace="mine")
    yield
    ray.shutdown()


def launch(cluster: str, stages: int, microbatches: int, **pins: Any) -> Any:
    planner = Planner(adam_step, init_gpt_state(2), IDS, cluster=cluster, num_microbatches=microbatches)
    planner.pin_num_stages(stages)
    if "mesh" in pins:
        planner.pin_logical_mesh(pins["mesh"])
    if "op" in pins:
        planner.pin_strategy(pins["op"], pins["strategy"])
    planner.solve(on_progress=lambda _: None)
    return planner.launch(backend="ray", timeout_s=60.0)


def expected_after(steps: int) -> tuple[Any, Any]:
    state, loss = init_gpt_state(2), None
    for _ in range(steps):
        state, loss = jax.jit(adam_step)(state, IDS)
    return state, loss


@pytest.mark.parametrize(
    ("cluster", "stages", "microbatches", "pins"),
    [
        ("virtual:4", 4, 4, {}),
        ("virtual:2x2", 2, 2, {}),
        ("virtual:2x2", 2, 2, {"op": "block_0/mlp/dot_general.0", "strategy": "a:x"}),
        ("virtual:2x2", 1, 2, {"mesh": "2x2"}),
    ],
    ids=["four stages on one host", "a stage on each of two hosts", "a pinned op", "one mesh over two hosts"],
)
def test_ray_workers_give_the_single_device_result(cluster: str, stages: int, microbatches: int, pins: Any) -> None:
    with launch(cluster, stages, microbatches, **pins) as executable:
        state = init_gpt_state(2)
        for _ in range(2):
            state, loss = executable(state, IDS)
        expected, expected_loss = expected_after(2)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
        got = executable.fetch(state)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, expected)
    assert ray.is_initialized(), "a Ray that the user started is left alive"


def test_placed_state_and_profiles_work_on_ray() -> None:
    with launch("virtual:2", 2, 2) as executable:
        placed = executable.place(init_gpt_state(2))
        _, loss = executable(placed, IDS)
        np.testing.assert_allclose(loss, expected_after(1)[1], rtol=1e-5)
        executable.profile(placed, IDS)
        assert all(times["forward_s"] > 0 for times in executable.measured.values())


def test_a_killed_worker_is_reported_with_its_stages() -> None:
    executable = launch("virtual:2x1", 2, 2)
    try:
        executable(init_gpt_state(2), IDS)
        pid = ray.get(executable._workers[1].find_address.remote())[2]
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(LaunchError, match=r"worker of host 1 \(stage 1\) died"):
            executable(init_gpt_state(2), IDS)
        assert time.monotonic() - began < 30
    finally:
        executable.close()


def test_an_error_in_a_worker_says_where() -> None:
    with launch("virtual:2", 2, 2) as executable:
        bad = init_gpt_state(2)
        bad["params"]["wte"] = bad["params"]["wte"].astype(np.int32)
        with pytest.raises(LaunchError, match=r"stage 0, forward of microbatch 0 on host 0 failed"):
            executable(bad, IDS)
