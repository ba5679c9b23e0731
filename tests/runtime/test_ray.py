"""Plans on Ray workers: the same results, and faults in words."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ray

import alpaviz
from alpaviz.errors import LaunchError
from alpaviz.planner import Planner
from alpaviz.runtime import ray_backend
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


def test_a_killed_worker_is_reported_with_its_stages_within_ten_seconds() -> None:
    executable = launch("virtual:2x1", 2, 2)
    try:
        executable(init_gpt_state(2), IDS)
        pid = ray.get(executable._workers[1].find_address.remote()).process
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(LaunchError, match=r"worker of host 1 \(stage 1\) died"):
            executable(init_gpt_state(2), IDS)
        assert time.monotonic() - began < 10
        with pytest.raises(LaunchError, match=r"cannot go on, as the worker of host 1 \(stage 1\) died"):
            executable(init_gpt_state(2), IDS)
    finally:
        executable.close()


def test_an_error_in_a_worker_says_where_and_leaves_the_workers_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    with launch("virtual:2", 2, 2) as executable:
        bad = init_gpt_state(2)
        bad["params"]["wte"] = bad["params"]["wte"].astype(np.int32)
        with monkeypatch.context() as patch:
            patch.setattr(ray_backend, "flatten_arguments", lambda _, arguments: jax.tree.leaves(arguments))
            with pytest.raises(LaunchError, match=r"stage 0, forward of microbatch 0 on host 0 failed"):
                executable(bad, IDS)
        np.testing.assert_allclose(executable(init_gpt_state(2), IDS)[1], expected_after(1)[1], rtol=1e-5)


def test_nothing_of_a_closed_executable_runs() -> None:
    executable = launch("virtual:2x1", 2, 2)
    pids = list(executable._pids)
    assert len(pids) == 2
    executable.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("cluster", ["virtual:2", "virtual:2x1"], ids=["one host", "two hosts"])
def test_keys_frozen_state_and_donation_work_on_ray(cluster: str) -> None:
    def step(state: Any, x: Any) -> Any:
        key, use = jax.random.split(state["key"])

        def loss_fn(weights: Any, x: Any) -> Any:
            for i, w in enumerate(weights):
                x = jnp.tanh(x @ w) * jax.random.bernoulli(jax.random.fold_in(use, i), 0.8, (16,))
            return ((x - state["frozen"]) ** 2).mean()

        loss, grads = alpaviz.value_and_grad(loss_fn)(state["w"], x)
        return {**state, "w": jax.tree.map(lambda p, g: p - g, state["w"], grads), "key": key}, loss

    weights = [jax.random.normal(jax.random.key(i), (16, 16)) for i in range(4)]
    state = {"w": weights, "key": jax.random.key(7), "frozen": np.ones(16, np.float32), "unread": np.ones(3)}
    x = np.asarray(jax.random.normal(jax.random.key(9), (8, 16)))
    planner = Planner(step, state, x, cluster=cluster, num_microbatches=2, num_layers=2)
    planner.pin_num_stages(2)
    planner.solve(on_progress=lambda _: None)
    with planner.launch(backend="ray", timeout_s=60.0, donate_state=True) as executable:
        first = ours = executable.place(state)
        theirs = state
        for _ in range(3):
            ours, loss = executable(ours, x)
            theirs, expected = jax.jit(step)(theirs, x)
            np.testing.assert_allclose(loss, expected, rtol=1e-5)
        got = executable.fetch(ours)
        assert jax.random.key_data(got["key"]).tolist() == jax.random.key_data(theirs["key"]).tolist()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got["w"], theirs["w"])
        with pytest.raises(LaunchError, match="donated to a step"):
            executable.fetch(first["w"])


def test_workers_forget_arrays_that_nobody_holds() -> None:
    with launch("virtual:2", 2, 2) as executable:
        state = executable.place(init_gpt_state(2))
        for _ in range(4):
            state, _ = executable(state, IDS)
        (worker,) = executable._workers
        stored = ray.get(worker.count_stored.remote())
        assert stored <= 2 * len(jax.tree.leaves(state))
