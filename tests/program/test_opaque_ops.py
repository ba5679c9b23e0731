"""What cannot be looked into is planned whole, says so, and takes a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import alpaviz
from alpaviz.errors import LaunchError
from alpaviz.planner import Planner
from alpaviz.program import trace_program

WEIGHTS, ROWS = jnp.eye(16) + 0.1, jnp.linspace(-1, 2, 8 * 16).reshape(8, 16)


def make_step(function: Callable[..., Any]) -> Callable[..., Any]:
    def step(weights: Any, x: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(lambda w, rows: jnp.mean(function(rows @ w) @ w))(weights, x)
        return weights - 0.1 * grads, loss

    return step


@jax.custom_vjp
def run_kernel(x: Any) -> Any:
    def kernel(source: Any, target: Any) -> None:
        target[...] = jnp.tanh(source[...])

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    result: Any = pallas.pallas_call(kernel, out_shape=shape, interpret=True, name="tanh_kernel")(x)
    return result


run_kernel.defvjp(lambda x: (run_kernel(x), x), lambda x, g: (g * (1 - jnp.tanh(x) ** 2),))


def test_a_kernel_is_planned_whole_with_a_warning_and_gives_the_single_device_result() -> None:
    step = make_step(run_kernel)
    planner = Planner(step, WEIGHTS, ROWS, cluster="virtual:4", num_microbatches=2)
    plan = planner.solve()
    assert any("pallas_call" in warning for warning in planner.program.warnings)
    kernels = [op for op in plan.ops if op.primitive == "pallas_call"]
    assert kernels
    assert all(op.strategy == "whole" for op in kernels)
    with planner.launch() as executable:
        got = executable(WEIGHTS, ROWS)
    for a, b in zip(got, jax.jit(step)(WEIGHTS, ROWS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_custom_derivative_is_looked_into_and_kept() -> None:
    @jax.custom_jvp
    def clip(x: Any) -> Any:
        return jnp.clip(x, -1, 1)

    clip.defjvp(lambda primals, tangents: (clip(*primals), 3.0 * tangents[0]))
    step = make_step(clip)
    planner = Planner(step, WEIGHTS, ROWS, cluster="virtual:2", num_microbatches=2)
    planner.solve()
    assert not planner.program.warnings
    with planner.launch() as executable:
        got = executable(WEIGHTS, ROWS)
    for a, b in zip(got, jax.jit(step)(WEIGHTS, ROWS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_shard_map_over_a_mesh_of_its_own_is_refused_at_launch_with_the_users_line() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("q",))
    spec = PartitionSpec("q")
    double = jax.shard_map(lambda y: y * 2, mesh=mesh, in_specs=spec, out_specs=spec)
    planner = Planner(make_step(double), WEIGHTS, ROWS, cluster="virtual:4")
    plan = planner.solve()
    with pytest.raises(LaunchError, match=r"test_opaque_ops\.py:\d+: the step uses shard_map"):
        planner.launch()
    assert planner.plan is plan


def test_a_users_sharding_constraint_gives_way_to_the_plan() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("q",))

    def constrain(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("q")))

    planner = Planner(make_step(constrain), WEIGHTS, ROWS, cluster="virtual:4", num_microbatches=2)
    planner.solve()
    assert not [op for op in planner.program.ops if op.primitive == "sharding_constraint"]
    with planner.launch() as executable:
        got = executable(WEIGHTS, ROWS)
    for a, b in zip(got, make_step(lambda x: x)(WEIGHTS, ROWS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_an_op_that_a_user_gave_a_rule_is_not_opaque() -> None:
    mine = jax.extend.core.Primitive("test_op_with_a_rule")
    mine.def_abstract_eval(lambda x: x)
    alpaviz.register_sharding_rule(mine, "rows columns -> rows columns")
    program = trace_program(lambda w, x: (w, mine.bind(x)), WEIGHTS, ROWS)
    op = next(op for op in program.ops if op.primitive == "test_op_with_a_rule")
    assert not op.rule.is_opaque
    assert str(op.rule) == "rows columns -> rows columns"
