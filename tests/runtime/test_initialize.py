"""`executable.initialize` creates the state where the plan keeps it, equal to what one device makes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import alpaviz
from alpaviz.errors import LaunchError
from alpaviz.planner import Planner
from alpaviz.runtime.initialize import make_creator, make_portable
from alpaviz.runtime.state_leaves import list_state_leaves

KEY = jax.random.key(3)
WIDTH, LAYERS = 64, 4
BATCH = np.ones((8, WIDTH), np.float32)


def initialize(key: Any) -> Any:
    first, rest = jax.random.split(key)
    stack = jax.random.normal(rest, (LAYERS, WIDTH, WIDTH)) / 8
    return {"head": jax.random.normal(first, (WIDTH, 16)), "stack": stack, "key": key, "count": 0}


def step(state: Any, x: Any) -> Any:
    def loss_fn(weights: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights["stack"])
        return ((x @ weights["head"]) ** 2).mean()

    weights = {"head": state["head"], "stack": state["stack"]}
    loss, grads = alpaviz.value_and_grad(loss_fn)(weights, x)
    return {**state, **jax.tree.map(lambda p, g: p - g, weights, grads), "count": state["count"] + 1}, loss


def launch(cluster: str, stages: int, mesh: str | None = None, **options: Any) -> Any:
    planner = Planner(step, jax.eval_shape(initialize, KEY), BATCH, cluster=cluster, num_microbatches=2)
    planner.pin_num_stages(stages)
    if mesh is not None:
        planner.pin_logical_mesh(mesh)
    if cluster == "virtual:4" and stages == 1:
        planner.pin_logical_mesh("4")
        for leaf in ("state['head']", *(f"state['stack'][{i}]" for i in range(LAYERS))):
            planner.pin_spec(leaf, "[x, -]")
    planner.solve(on_progress=lambda _: None)
    return planner.launch(**options)


def assert_equal_states(got: Any, expected: Any) -> None:
    def check(a: Any, b: Any) -> None:
        if jnp.issubdtype(jnp.asarray(b).dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=1e-6)

    jax.tree.map(check, got, expected)


@pytest.mark.parametrize(("cluster", "stages"), [("virtual:4", 1), ("virtual:4", 2), ("virtual:2x2", 2)])
def test_a_created_state_is_that_of_one_device(cluster: str, stages: int) -> None:
    with launch(cluster, stages) as executable:
        assert_equal_states(executable.fetch(executable.initialize(initialize, KEY)), initialize(KEY))


def test_a_created_state_lies_as_a_placed_one_does() -> None:
    with launch("virtual:4", 2) as executable:
        created, placed = executable.initialize(initialize, KEY), executable.place(initialize(KEY))
        lanes = [(a, b) for s, t in zip(jax.tree.leaves(created), jax.tree.leaves(placed), strict=True)
                 for a, b in zip(getattr(s, "lanes", (s,)), getattr(t, "lanes", (t,)), strict=True)]  # fmt: skip
        assert all(a.sharding == b.sharding for a, b in lanes)


def test_no_device_makes_the_whole_of_a_leaf_that_is_split() -> None:
    with launch("virtual:4", 1) as executable:
        shardings = {leaf: executable._shard(leaf) for leaf in list_state_leaves(executable.program)}
        jitted, words = make_creator(executable.program, initialize, make_portable(KEY), shardings)
        shapes = set(re.findall(r"f32\[[\d,]+\]", jitted.lower(words).compile().as_text()))
        assert f"f32[{WIDTH // 4},16]" in shapes
        assert f"f32[{WIDTH},16]" not in shapes
        assert f"f32[{WIDTH},{WIDTH}]" not in shapes
        assert f"f32[{LAYERS},{WIDTH},{WIDTH}]" not in shapes


def test_a_created_state_can_be_donated_and_trains_like_a_plain_one() -> None:
    with launch("virtual:4", 2, donate_state=True) as executable:
        ours, theirs = executable.initialize(initialize, KEY), initialize(KEY)
        for _ in range(3):
            ours, loss = executable(ours, BATCH)
            theirs, expected = jax.jit(step)(theirs, BATCH)
            np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_an_init_function_of_another_shape_is_refused_by_leaf() -> None:
    with launch("virtual:2", 1) as executable, pytest.raises(LaunchError, match=r"state\['head'\] as float32\[64, 8\]"):
        executable.initialize(lambda key: {**initialize(key), "head": jnp.ones((WIDTH, 8))}, KEY)


def test_an_init_function_of_another_structure_is_refused_by_leaf() -> None:
    with launch("virtual:2", 1) as executable, pytest.raises(LaunchError, match=r"'extra'.* is new"):
        executable.initialize(lambda key: {**initialize(key), "extra": jnp.ones(3)}, KEY)


@pytest.fixture(scope="module")
def running_ray() -> Iterator[None]:
    """One Ray for the module."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("running_ray")
@pytest.mark.parametrize(("stages", "mesh"), [(2, None), (1, "2")], ids=["a stage per host", "a mesh over hosts"])
def test_ray_workers_create_the_state_of_one_device(stages: int, mesh: str | None) -> None:
    with launch("virtual:2x1", stages, mesh, backend="ray", timeout_s=60.0) as executable:
        assert_equal_states(executable.fetch(executable.initialize(initialize, KEY)), initialize(KEY))
