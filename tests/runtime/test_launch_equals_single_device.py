"""A launched plan computes what the plain step computes on one device."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest

import alpaviz
from alpaviz.errors import LaunchError, PlanMismatchError
from alpaviz.planner import Planner
from tests.program.small_models import adam_step, gpt_loss, init_gpt_state, sgd_step_without_marker

IDS = np.asarray(jax.random.randint(jax.random.key(1), (16, 17), 0, 64))


def plan_and_launch(planner: Planner) -> Any:
    planner.solve(on_progress=lambda _: None)
    return planner.launch()


def assert_equal_trees(got: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, expected)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (1, 4), (2, 1), (2, 4), (4, 8)])
def test_a_plan_of_some_stages_gives_the_single_device_result(stages: int, microbatches: int) -> None:
    state = init_gpt_state(4)
    planner = Planner(adam_step, state, IDS, cluster="virtual:8", num_microbatches=microbatches)
    planner.pin_num_stages(stages)
    with plan_and_launch(planner) as executable:
        ours = theirs = state
        for _ in range(2):
            ours, loss = executable(ours, IDS)
            theirs, expected = jax.jit(adam_step)(theirs, IDS)
            np.testing.assert_allclose(loss, expected, rtol=1e-5)
        assert_equal_trees(executable.fetch(ours), theirs)


def test_gpipe_gives_the_single_device_result() -> None:
    state = init_gpt_state(4)
    planner = Planner(adam_step, state, IDS, cluster="virtual:4", num_microbatches=4, schedule="gpipe")
    planner.pin_num_stages(2)
    with plan_and_launch(planner) as executable:
        assert_equal_trees(executable.fetch(executable(state, IDS)), jax.jit(adam_step)(state, IDS))


def test_pinned_layouts_give_the_single_device_result() -> None:
    state = init_gpt_state(2)
    planner = Planner(adam_step, state, IDS, cluster="virtual:8", num_microbatches=2)
    planner.pin_num_stages(1)
    planner.pin_logical_mesh("4x2")
    planner.pin_strategy("block_0/mlp/dot_general.0", "a:x d:y")
    planner.pin_strategy("block_1/mlp/dot_general.1", "c:y d:x>1")
    planner.pin_spec("state['params']['wte']", "[xy, -]")
    planner.pin_spec("state['mu']['block_0']['up']", "[y, x]")
    with plan_and_launch(planner) as executable:
        assert_equal_trees(executable.fetch(executable(state, IDS)), jax.jit(adam_step)(state, IDS))


def test_clipping_by_the_global_norm_couples_the_stages() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(0.05), optax.adamw(1e-2, eps=1e-3))
    params = init_gpt_state(4)["params"]

    def step(state: Any, ids: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(gpt_loss)(state["params"], ids)
        updates, inner = optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": inner}, {"loss": loss}

    state = {"params": params, "optimizer": optimizer.init(params)}
    planner = Planner(step, state, IDS, cluster="virtual:4", num_microbatches=4)
    planner.pin_num_stages(2)
    with plan_and_launch(planner) as executable:
        assert_equal_trees(executable.fetch(executable(state, IDS)), jax.jit(step)(state, IDS))


def test_a_dropout_key_in_the_state_gives_the_single_device_result() -> None:
    def loss_fn(w: Any, key: Any, x: Any) -> Any:
        for i in range(4):
            keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, (16,))
            x = jax.numpy.tanh(x @ w[i]) * keep
        return (x**2).mean()

    def step(state: Any, x: Any) -> Any:
        key, use = jax.random.split(state["key"])
        loss, grads = alpaviz.value_and_grad(loss_fn)(state["w"], use, x)
        return {"w": jax.tree.map(lambda p, g: p - g, state["w"], grads), "key": key}, loss

    weights = [jax.random.normal(jax.random.key(i), (16, 16)) for i in range(4)]
    state = {"w": weights, "key": jax.random.PRNGKey(7)}
    x = np.asarray(jax.random.normal(jax.random.key(9), (8, 16)))
    planner = Planner(step, state, x, cluster="virtual:4", num_microbatches=2, num_layers=2)
    planner.pin_num_stages(2)
    with plan_and_launch(planner) as executable:
        assert_equal_trees(executable.fetch(executable(state, x)), jax.jit(step)(state, x))


def test_a_step_without_the_marker_runs_as_one_stage() -> None:
    state = init_gpt_state(2)
    planner = Planner(sgd_step_without_marker, state, IDS, cluster="virtual:4", num_microbatches=4)
    with plan_and_launch(planner) as executable:
        assert executable.plan.num_stages == 1
        got = executable.fetch(executable(state, IDS))
        assert_equal_trees(got, jax.jit(sgd_step_without_marker)(state, IDS))


def test_the_users_arrays_survive_a_launch() -> None:
    state = init_gpt_state(2)
    planner = Planner(adam_step, state, IDS, cluster="virtual:4", num_microbatches=2)
    with plan_and_launch(planner) as executable:
        first = executable.fetch(executable(state, IDS))
        jax.tree.map(np.asarray, state)
        assert_equal_trees(executable.fetch(executable(state, IDS)), first)


def test_profiling_measures_every_stage() -> None:
    planner = Planner(adam_step, init_gpt_state(4), IDS, cluster="virtual:4", num_microbatches=2)
    planner.pin_num_stages(2)
    with plan_and_launch(planner) as executable:
        executable.profile(init_gpt_state(4), IDS)
        assert executable.measured is not None
        assert sorted(executable.measured) == [0, 1]
        assert all(seconds > 0 for stage in executable.measured.values() for seconds in stage.values())


def test_a_saved_plan_is_launched_after_loading(tmp_path: Any) -> None:
    state = init_gpt_state(4)
    planner = Planner(adam_step, state, IDS, cluster="virtual:4", num_microbatches=2)
    planner.pin_num_stages(2)
    planner.solve(on_progress=lambda _: None)
    planner.save(tmp_path / "plan.alpaplan.json")
    other = Planner(adam_step, state, IDS, cluster="virtual:4", num_microbatches=2)
    other.load(tmp_path / "plan.alpaplan.json")
    with other.launch() as executable:
        assert_equal_trees(executable.fetch(executable(state, IDS)), jax.jit(adam_step)(state, IDS))


def test_another_batch_shape_is_named() -> None:
    planner = Planner(adam_step, init_gpt_state(2), IDS, cluster="virtual:2", num_microbatches=2)
    with (
        plan_and_launch(planner) as executable,
        pytest.raises(LaunchError, match=r"batch has shape \(8, 17\).*\(16, 17\)"),
    ):
        executable(init_gpt_state(2), IDS[:8])


def test_a_plan_of_another_program_is_refused() -> None:
    planner = Planner(adam_step, init_gpt_state(2), IDS, cluster="virtual:2")
    plan = planner.solve(on_progress=lambda _: None)
    other = Planner(adam_step, init_gpt_state(3), IDS, cluster="virtual:2")
    with pytest.raises(PlanMismatchError, match="was made for program"):
        alpaviz.launch(plan, other.program)


def test_too_few_devices_are_counted() -> None:
    planner = Planner(adam_step, init_gpt_state(4), IDS, cluster="virtual:16")
    planner.solve(on_progress=lambda _: None)
    with pytest.raises(LaunchError, match="needs 16 devices, this process has 8"):
        planner.launch(backend="local")


def test_a_closed_executable_says_so() -> None:
    planner = Planner(adam_step, init_gpt_state(2), IDS, cluster="virtual:2")
    executable = plan_and_launch(planner)
    executable.close()
    with pytest.raises(LaunchError, match="has been closed"):
        executable(init_gpt_state(2), IDS)
