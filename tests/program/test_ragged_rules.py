"""Ragged products are split over rows and features, never over groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpaviz.program.flops import count_flops
from alpaviz.program.rules import make_rule, sign_equation
from alpaviz.program.strategy import enumerate_strategies
from alpaviz.runtime.collectives_in_hlo import count_collective_bytes
from alpaviz.types import ShardingSpec

ROWS, INNER, OUTER, GROUPS = 16, 8, 24, 4
AXES = {"x": 4, "y": 2}
SIZES = jnp.array([5, 0, 8, 3], jnp.int32)


def multiply(rows: Any, weights: Any) -> Any:
    return jax.lax.ragged_dot(rows, weights, SIZES)


def list_products(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    eqns: list[Any] = jax.make_jaxpr(function)(*arguments).jaxpr.eqns
    return [eqn for eqn in eqns if eqn.primitive.name == "ragged_dot_general"]


def make_operands() -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (ROWS, INNER)), jax.random.normal(keys[1], (GROUPS, INNER, OUTER))


def square(rows: Any, weights: Any) -> Any:
    return jnp.sum(multiply(rows, weights) ** 2)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["product", "gradient of weights", "gradient of rows"])
def test_every_strategy_gives_the_unsharded_result_with_its_collectives(which: int) -> None:
    eqn = list_products(jax.grad(square, (0, 1)), *make_operands())[which]
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(v.aval.shape).astype(np.float32) for v in eqn.invars[:2]] + [np.asarray(SIZES)]
    rule = make_rule(sign_equation(eqn))
    params = eqn.primitive.get_bind_params(eqn.params)
    expected = np.asarray(eqn.primitive.bind(*operands, **params))
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), tuple(AXES))

    def shard(spec: ShardingSpec) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[axes or None for axes in spec]))

    strategies = [s for s in enumerate_strategies(rule, AXES) if not s.scatter]
    for strategy in strategies[:: max(1, len(strategies) // 8)]:

        def run(*args: Any, spec: ShardingSpec = strategy.output_specs[0]) -> Any:
            return jax.lax.with_sharding_constraint(eqn.primitive.bind(*args, **params), shard(spec))

        placed = [jax.device_put(a, shard(s)) for a, s in zip(operands, strategy.input_specs, strict=True)]
        compiled = jax.jit(run).lower(*placed).compile()
        np.testing.assert_allclose(compiled(*placed), expected, rtol=1e-4, atol=1e-4, err_msg=strategy.label)
        found = count_collective_bytes(str(compiled.as_text()), (4, 2), tuple(AXES))
        wanted = {"all-reduce"} if strategy.reduce_axes else set()
        assert {kind for kind, _ in found} == wanted, f"{rule} as {strategy.label}: {found}"


def test_groups_stay_whole_and_rows_do_not() -> None:
    rule = make_rule(sign_equation(list_products(multiply, *make_operands())[0]))
    assert str(rule) == "a c, 1 c b, 1 -> a b"


def test_each_row_is_multiplied_once() -> None:
    products = list_products(jax.grad(square, (0, 1)), *make_operands())
    assert {count_flops(eqn) for eqn in products} == {2.0 * ROWS * INNER * OUTER}
