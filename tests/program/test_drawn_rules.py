"""Rules of drawn shapes and parameters: sharded results equal unsharded ones, with the collectives that are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpaviz.program.flatten import inline_calls
from alpaviz.program.rule import ShardingRule
from alpaviz.program.rules import make_rule, sign_equation
from alpaviz.program.strategy import Strategy, enumerate_strategies
from alpaviz.runtime.collectives_in_hlo import count_collective_bytes
from alpaviz.types import ShardingSpec, count_shards

AXES = {"x": 4, "y": 2}
Drawn = tuple[str, Callable[..., Any], list[tuple[int, ...]]]
"""Primitive, a function that traces to it, and the shapes of its operands."""
sizes = st.sampled_from([1, 2, 4, 6, 8])
shapes = st.lists(sizes, min_size=1, max_size=3).map(tuple)


@st.composite
def draw_reduction(draw: Any) -> Drawn:
    shape = draw(shapes)
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    name, function = draw(st.sampled_from([("reduce_sum", jnp.sum), ("reduce_max", jnp.max), ("reduce_min", jnp.min)]))
    return name, lambda a: function(a, axis=tuple(axes)), [shape]


@st.composite
def draw_product(draw: Any) -> Drawn:
    batch, left, right, summed = (draw(st.lists(sizes, max_size=1)) for _ in range(4))
    left_order = draw(st.permutations(range(len(batch + left + summed))))
    shape = [*batch, *left, *summed]
    left_shape = tuple(shape[i] for i in left_order)
    right_shape = (*summed, *right, *batch)
    batch_left = [left_order.index(i) for i in range(len(batch))]
    summed_left = [left_order.index(len(batch) + len(left) + i) for i in range(len(summed))]
    batch_right = [len(summed) + len(right) + i for i in range(len(batch))]
    numbers = (tuple(summed_left), tuple(range(len(summed)))), (tuple(batch_left), tuple(batch_right))
    return "dot_general", lambda a, b: jax.lax.dot_general(a, b, numbers), [left_shape, right_shape]


@st.composite
def draw_transpose(draw: Any) -> Drawn:
    shape = draw(shapes)
    order = draw(st.permutations(range(len(shape))))
    return "transpose", lambda a: jax.lax.transpose(a, order), [shape]


@st.composite
def draw_reshape(draw: Any) -> Drawn:
    outer, inner, last = draw(sizes), draw(sizes), draw(sizes)
    whole, parts = (outer * inner, last), (outer, inner, last)
    before, after = draw(st.sampled_from([(whole, parts), (parts, whole), (parts, (outer, inner * last))]))
    return "reshape", lambda a: jax.lax.reshape(a, after), [before]


@st.composite
def draw_broadcast(draw: Any) -> Drawn:
    result = draw(st.lists(sizes, min_size=2, max_size=3).map(tuple))
    kept = sorted(draw(st.sets(st.integers(0, len(result) - 1))))
    shape = tuple(draw(st.sampled_from([1, result[d]])) for d in kept)
    return "broadcast_in_dim", lambda a: jax.lax.broadcast_in_dim(a, result, tuple(kept)), [shape]


@st.composite
def draw_join(draw: Any) -> Drawn:
    shape = draw(shapes)
    axis = draw(st.integers(0, len(shape) - 1))
    other = (*shape[:axis], draw(sizes), *shape[axis + 1 :])
    return "concatenate", lambda a, b: jax.lax.concatenate([a, b], axis), [shape, other]


@st.composite
def draw_pad(draw: Any) -> Drawn:
    shape = draw(shapes)
    amounts = st.sampled_from([(0, 0, 0), (1, 0, 0), (0, 2, 0), (1, -1, 0), (0, 0, 1)])
    config = [draw(amounts) for _ in shape]
    return "pad", lambda a: jax.lax.pad(a, jnp.float32(0), config), [shape]


@st.composite
def draw_slice(draw: Any) -> Drawn:
    shape = draw(shapes)
    starts = [draw(st.integers(0, size - 1)) for size in shape]
    stops = [draw(st.integers(start + 1, size)) for start, size in zip(starts, shape, strict=True)]
    return "slice", lambda a: jax.lax.slice(a, starts, stops), [shape]


@st.composite
def draw_cumulative(draw: Any) -> Drawn:
    shape = draw(shapes)
    axis = draw(st.integers(0, len(shape) - 1))
    reverse = draw(st.booleans())
    name, function = draw(st.sampled_from([("cumsum", jax.lax.cumsum), ("cummax", jax.lax.cummax)]))
    return name, lambda a: function(a, axis, reverse), [shape]


@st.composite
def draw_look_up(draw: Any) -> Drawn:
    table, rows = draw(st.lists(sizes, min_size=2, max_size=2)), draw(sizes)
    axis = draw(st.integers(0, 1))
    ids = np.arange(rows) * 5 % table[axis]
    return "gather", lambda a: jnp.take(a, ids, axis=axis, mode="clip"), [tuple(table)]


@st.composite
def draw_scatter(draw: Any) -> Drawn:
    table, rows = draw(st.lists(sizes, min_size=2, max_size=2)), draw(sizes)
    ids = np.arange(rows) * 5 % table[0]
    return "scatter-add", lambda a, u: a.at[ids].add(u, mode="drop"), [tuple(table), (rows, table[1])]


@st.composite
def draw_convolution(draw: Any) -> Drawn:
    groups, incoming, outgoing = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([2, 4])), 2 * draw(sizes)
    stride, dilation = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    padding, length = draw(st.sampled_from(["SAME", "VALID"])), draw(st.sampled_from([6, 7, 8, 16]))
    size, base = draw(st.sampled_from([1, 2, 3, 5])), draw(st.sampled_from([1, 1, 2]))

    def convolve(a: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            a, kernel, (stride, 1), padding if base == 1 else [(size // 2, size // 2), (0, 1)], lhs_dilation=(1, base),
            rhs_dilation=(dilation, 1), feature_group_count=groups,
        )  # fmt: skip

    return "conv_general_dilated", convolve, [(4, incoming, length, 8), (outgoing, incoming // groups, size, 2)]


@st.composite
def draw_kernel_gradient(draw: Any) -> Drawn:
    size, stride = draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2]))

    def differentiate(a: Any, kernel: Any, g: Any) -> Any:
        def convolve(k: Any) -> Any:
            return jax.lax.conv_general_dilated(a, k, (stride, stride), "SAME")

        return jax.linear_transpose(convolve, kernel)(g)

    made = 8 // stride
    return "conv_general_dilated", differentiate, [(4, 2, 8, 8), (4, 2, size, size), (4, 4, made, made)]


@st.composite
def draw_window(draw: Any) -> Drawn:
    window = tuple(draw(st.sampled_from([1, 2, 3])) for _ in range(3))
    strides = tuple(draw(st.integers(1, min(2, size))) for size in window)
    padding = draw(st.sampled_from(["SAME", "VALID"]))

    def reduce(a: Any) -> Any:
        return jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, window, strides, padding)

    return "reduce_window_max", reduce, [draw(st.tuples(*[st.sampled_from([4, 8])] * 3))]


FAMILIES = {
    "reduction": draw_reduction, "product": draw_product, "transpose": draw_transpose, "reshape": draw_reshape,
    "broadcast": draw_broadcast, "join": draw_join, "pad": draw_pad, "slice": draw_slice,
    "cumulative": draw_cumulative, "look up": draw_look_up, "scatter": draw_scatter, "convolution": draw_convolution,
    "window": draw_window, "kernel gradient": draw_kernel_gradient,
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_drawn_op_under_a_drawn_strategy(family: str, data: st.DataObject) -> None:
    primitive, function, operand_shapes = data.draw(FAMILIES[family]())
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in operand_shapes]
    closed = inline_calls(jax.make_jaxpr(function)(*arrays))
    found = [eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == primitive]
    if not found or 0 in found[0].outvars[0].aval.shape:
        return  # JAX found something simpler for these sizes, or windows are longer than what they slide over
    eqn = found[0]
    rule = make_rule(sign_equation(eqn))
    strategy = data.draw(st.sampled_from(enumerate_strategies(rule, AXES)))
    operands = _find_operands(closed, eqn, arrays)
    params = eqn.primitive.get_bind_params(eqn.params)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), tuple(AXES))

    def shard(spec: ShardingSpec) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[axes or None for axes in spec]))

    def run(*args: Any) -> Any:
        return jax.lax.with_sharding_constraint(eqn.primitive.bind(*args, **params), shard(strategy.output_specs[0]))

    placed = [jax.device_put(a, shard(s)) for a, s in zip(operands, strategy.input_specs, strict=True)]
    compiled = jax.jit(run).lower(*placed).compile()
    expected = np.asarray(eqn.primitive.bind(*operands, **params))
    np.testing.assert_allclose(compiled(*placed), expected, rtol=1e-4, atol=1e-5, err_msg=f"{rule}: {strategy.label}")
    found_bytes = count_collective_bytes(str(compiled.as_text()), (4, 2), tuple(AXES))
    kinds = {kind for kind, _ in found_bytes}
    reduced = bool(strategy.reduce_axes or strategy.scatter)
    exchanged = any(strategy.factor_axes[halo.factor] for halo in rule.halos)
    if strategy.scatter and not exchanged:
        kinds.discard("collective-permute")  # where the slices are not in the order of the devices
    kinds = {"all-reduce" if kind == "reduce-scatter" else kind for kind in kinds}
    wanted = ({"all-reduce"} if reduced else set()) | ({"collective-permute"} if exchanged else set())
    assert kinds == wanted, f"{rule}: {strategy.label}: {kinds}"
    if exchanged and not strategy.scatter:
        sent = sum(size for (kind, _), size in found_bytes.items() if kind == "collective-permute")
        assert sent == _count_exchanged_bytes(rule, strategy, operands), f"{rule}: {strategy.label}"


def _count_exchanged_bytes(rule: ShardingRule, strategy: Strategy, operands: list[Any]) -> float:
    """Rows that neighbours need; those of a second dimension are longer by what the first one brought."""
    total, part = 0.0, 0.0
    for halo in rule.halos:
        if strategy.factor_axes[halo.factor]:
            part = part or operands[halo.operand].nbytes / count_shards(strategy.input_specs[halo.operand], AXES)
            rows = halo.length // count_shards((strategy.factor_axes[halo.factor],), AXES)
            sent = part / rows * (halo.before + halo.after)
            total, part = total + sent, part + sent
    return total


def _find_operands(closed: Any, wanted: Any, arrays: list[np.ndarray]) -> list[Any]:
    """Values of the operands of `wanted`."""
    env = dict(zip([*closed.jaxpr.constvars, *closed.jaxpr.invars], [*closed.consts, *arrays], strict=True))

    def read(v: Any) -> Any:
        return np.asarray(v.val) if hasattr(v, "val") else env[v]

    for eqn in closed.jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        if eqn is wanted:
            return [np.asarray(value) for value in values]
        out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out], strict=True))
    raise AssertionError("the equation is one of the jaxpr's")
