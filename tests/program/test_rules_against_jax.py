"""Every sharding rule, held against JAX: run under any of its strategies, an op gives the unsharded result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpaviz.program import enumerate_strategies, follow_spec
from alpaviz.program.rule import FactorKind
from alpaviz.program.rules import OpSignature, make_rule
from alpaviz.program.strategy import Strategy, iterate_specs
from alpaviz.runtime.collectives_in_hlo import CollectiveBytes, count_collective_bytes
from alpaviz.types import ShardingSpec

AXES = {"x": 4, "y": 2}


@dataclass(frozen=True)
class Case:
    """An op: a function of arrays that traces to exactly one equation of `primitive`."""

    primitive: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    integers: tuple[int, ...] = ()  # operands that hold indices below this bound: (operand, bound) flattened


def _gather_rows(table: Any, ids: Any) -> Any:
    return table.at[ids].get(mode="clip")


CASES = [
    Case("add", lambda a, b: a + b, ((8, 4), (8, 4))),
    Case("mul", lambda a, b: jax.lax.mul(a, b), ((8, 4, 2), (8, 4, 2))),
    Case("tanh", jnp.tanh, ((8, 4),)),
    Case("exp", jnp.exp, ((16,),)),
    Case("select_n", lambda a, b: jax.lax.select(jnp.ones((8, 4), bool), a, b), ((8, 4), (8, 4))),
    Case("convert_element_type", lambda a: a.astype(jnp.bfloat16), ((8, 4),)),
    Case("dot_general", lambda a, b: jnp.dot(a, b), ((8, 4), (4, 16))),
    Case("dot_general", lambda a, b: jax.lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))), ((4, 8, 2), (4, 2, 8))),
    Case("dot_general", lambda a, b: jax.lax.dot_general(a, b, (((0, 2), (1, 0)), ((), ()))), ((4, 8, 2), (2, 4, 8))),
    Case("dot_general", lambda a, b: jnp.einsum("abqd,abkd->abqk", a, b), ((4, 2, 8, 2), (4, 2, 4, 2))),
    Case("psum", jax.vmap(lambda x: jax.lax.psum(x, "rows"), axis_name="rows", out_axes=None), ((8, 4),)),
    Case("reduce_sum", lambda a: a.sum(0), ((8, 4),)),
    Case("reduce_sum", lambda a: a.sum((0, 2)), ((8, 4, 2),)),
    Case("reduce_max", lambda a: a.max(-1), ((8, 4),)),
    Case("argmax", lambda a: jax.lax.argmax(a, 1, jnp.int32), ((8, 4),)),
    Case("cumsum", lambda a: jax.lax.cumsum(a, 1), ((8, 4),)),
    Case("sort", lambda a: jax.lax.sort(a, dimension=0), ((8, 4),)),
    Case("rev", lambda a: jax.lax.rev(a, (1,)), ((8, 4),)),
    Case("transpose", lambda a: a.transpose(2, 0, 1), ((8, 4, 2),)),
    Case("broadcast_in_dim", lambda a: jax.lax.broadcast_in_dim(a, (8, 4, 2), (1,)), ((4,),)),
    Case("broadcast_in_dim", lambda a: jax.lax.broadcast_in_dim(a, (8, 4), (0, 1)), ((8, 1),)),
    Case("reshape", lambda a: a.reshape(8, 4, 2), ((8, 8),)),
    Case("reshape", lambda a: a.reshape(32, 2), ((8, 4, 2),)),
    Case("reshape", lambda a: a.reshape(8, 1, 4), ((8, 4),)),
    Case("reshape", lambda a: a.reshape(8, 8), ((16, 4),)),
    Case("reshape", lambda a: a.reshape(4, 4, 8), ((16, 2, 4),)),
    Case("squeeze", lambda a: jax.lax.squeeze(a, (1,)), ((8, 1, 4),)),
    Case("slice", lambda a: jax.lax.slice(a, (0, 1), (8, 3)), ((8, 4),)),
    Case("pad", lambda a: jax.lax.pad(a, jnp.float32(0), ((0, 0, 0), (1, 2, 0))), ((8, 4),)),
    Case("concatenate", lambda a, b: jax.lax.concatenate([a, b], 1), ((8, 4), (8, 2))),
    Case("dynamic_slice", lambda a: jax.lax.dynamic_slice(a, (0, jnp.int32(1)), (8, 2)), ((8, 4),)),
    Case("dynamic_update_slice", lambda a, b: jax.lax.dynamic_update_slice(a, b, (0, jnp.int32(1))), ((8, 4), (8, 2))),
    Case("gather", _gather_rows, ((16, 4), (8, 2)), (1, 16)),
    Case("gather", lambda a, i: jnp.take_along_axis(a, i, axis=1, mode="clip"), ((8, 16), (8, 1)), (1, 16)),
    *(
        # jax 0.12 has these as primitives of their own; before they are slices and a concatenation.
        [
            Case("stack", lambda a, b: jnp.stack([a, b], 1), ((8, 4), (8, 4))),
            Case("unstack", lambda a: jnp.unstack(a, axis=1)[0], ((8, 2, 4),)),
        ]
        if jax.__version_info__ >= (0, 12)
        else []
    ),
    Case("conv_general_dilated", lambda a, k: jax.lax.conv(a, k, (1, 1), "SAME"), ((8, 4, 6, 6), (8, 4, 3, 3))),
    Case(
        "conv_general_dilated",
        lambda a, k: jax.lax.conv_general_dilated(a, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        ((8, 6, 6, 4), (3, 3, 4, 8)),
    ),
    Case(
        "conv_general_dilated",
        lambda a, k: jax.lax.conv_general_dilated(a, k, (1, 1), "SAME", feature_group_count=4),
        ((8, 4, 6, 6), (8, 1, 3, 3)),
    ),
    Case(
        "reduce_window_max",
        lambda a: jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        ((8, 4, 4, 2),),
    ),
    Case("cholesky", lambda a: jax.lax.linalg.cholesky(a @ a.mT + 4 * jnp.eye(4)), ((8, 4, 4),)),
    Case(
        "triangular_solve",
        lambda a, b: jax.lax.linalg.triangular_solve(a + 4 * jnp.eye(4), b, left_side=True, lower=True),
        ((8, 4, 4), (8, 4, 2)),
    ),
    Case("scatter-add", lambda t, i, u: t.at[i].add(u, mode="drop"), ((16, 4), (8, 2), (8, 2, 4)), (1, 16)),
    Case("scatter-add", lambda t, i, u: t.at[:, i].add(u, mode="drop"), ((8, 16), (4,), (8, 4)), (1, 16)),
    Case("scatter-max", lambda t, i, u: t.at[i].max(u, mode="drop"), ((16, 4), (8,), (8, 4)), (1, 16)),
    Case("gather", lambda a, i: a.at[:, i].get(mode="clip"), ((8, 16), (4,)), (1, 16)),
    Case("gather", lambda a, i: a.at[i, 1:3].get(mode="clip"), ((16, 4), (8,)), (1, 16)),
    Case("dot_general", lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32), ((8, 4), (4, 8))),
    Case("top_k", lambda a: jax.lax.top_k(a, 2)[0], ((8, 4),)),
    Case("sort", lambda a, b: jax.lax.sort([a, b], dimension=1, num_keys=1), ((8, 4), (8, 4))),
    Case("cumprod", lambda a: jax.lax.cumprod(a, 0), ((4, 8),)),
    Case("cumlogsumexp", lambda a: jax.lax.cumlogsumexp(a, 1, reverse=True), ((8, 4),)),
    Case("clamp", lambda a: jax.lax.clamp(-1.0, a, 1.0), ((8, 4),)),
    Case("complex", lambda a, b: jax.lax.abs(jax.lax.complex(a, b)), ((8, 4), (8, 4))),
    Case("erf_inv", lambda a: jax.lax.erf_inv(jnp.tanh(a)), ((8, 4),)),
    Case("nextafter", jax.lax.nextafter, ((8, 4), (8, 4))),
    Case("population_count", lambda a: jax.lax.population_count(a.astype(jnp.int32)), ((8, 4),)),
    Case("pad", lambda a: jax.lax.pad(a, jnp.float32(0), ((0, 0, 0), (1, -1, 0))), ((8, 4),)),
    Case("pad", lambda a: jax.lax.pad(a, jnp.float32(0), ((0, 0, 0), (0, 0, 1))), ((8, 4),)),
    Case("reduce_prod", lambda a: jnp.prod(a, 1), ((8, 4),)),
    Case("reduce_and", lambda a: jnp.all(a > 0, 0), ((8, 4),)),
    Case("fft", lambda a: jnp.abs(jnp.fft.rfft(a)), ((8, 4, 16),)),
    Case("qr", lambda a: jnp.linalg.qr(a)[1], ((8, 4, 4),)),
    Case("svd", lambda a: jnp.linalg.svd(a, compute_uv=False), ((8, 4, 4),)),
    Case("eigh", lambda a: jnp.linalg.eigvalsh(a @ a.mT), ((8, 4, 4),)),
    Case("lu", lambda a: jax.lax.linalg.lu(a + 4 * jnp.eye(4))[0], ((8, 4, 4),)),
    Case("tridiagonal_solve", lambda a, b: jax.lax.linalg.tridiagonal_solve(a, a + 4, a, b), ((8, 4), (8, 4, 2))),
    Case(
        "conv_general_dilated",
        lambda a, k: jax.lax.conv_transpose(a, k, (2, 2), "SAME"),
        ((8, 4, 4, 4), (3, 3, 4, 8)),
    ),
    Case(
        "conv_general_dilated",
        lambda a, k: jax.lax.conv_general_dilated(a, k, (1, 1), "SAME", rhs_dilation=(2, 2)),
        ((8, 4, 6, 6), (8, 4, 3, 3)),
    ),
    Case(
        "conv_general_dilated",
        lambda a, k: jax.lax.conv_general_dilated(a, k, (1, 1), "SAME", batch_group_count=4),
        ((8, 4, 6, 6), (8, 4, 3, 3)),
    ),
    Case(
        "select_and_scatter_add",
        jax.grad(lambda a: jax.lax.reduce_window(
            a, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum()),
        ((8, 4, 4, 2),),
    ),
    Case(
        "reduce_window_sum",
        lambda a: jax.lax.reduce_window(a, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
        ((8, 4, 4, 2),),
    ),
]  # fmt: skip


def _trace(case: Case) -> tuple[Any, list[np.ndarray], list[int]]:
    """The equation of the op, values of its operands, and which of the function's results it makes."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in case.shapes]
    if case.integers:
        operand, bound = case.integers
        arrays[operand] = rng.integers(0, bound, case.shapes[operand]).astype(np.int32)
    found: list[tuple[Any, list[Any]]] = []

    def visit(jaxpr: Any, consts: list[Any], args: list[Any]) -> list[Any]:
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

        def read(v: Any) -> Any:
            return v.val if hasattr(v, "val") else env[v]

        for eqn in jaxpr.eqns:
            values = [read(v) for v in eqn.invars]
            if eqn.primitive.name == case.primitive:
                found.append((eqn, [np.asarray(v) for v in values]))
            if eqn.primitive.name in ("jit", "pjit"):
                inner = eqn.params["jaxpr"]
                results = visit(getattr(inner, "jaxpr", inner), list(inner.consts), values)
            else:
                out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
                results = list(out) if eqn.primitive.multiple_results else [out]
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    closed = jax.make_jaxpr(case.function)(*arrays)
    visit(closed.jaxpr, list(closed.consts), arrays)
    assert found, f"{case.primitive} is not in the trace"
    eqn, operands = found[-1]
    return eqn, operands, list(range(len(eqn.outvars)))


def _rule_of(eqn: Any) -> Any:
    return make_rule(
        OpSignature(
            eqn.primitive.name,
            tuple(tuple(v.aval.shape) if not hasattr(v, "val") else np.shape(v.val) for v in eqn.invars),
            tuple(tuple(v.aval.shape) for v in eqn.outvars),
            eqn.params,
        )
    )


def _partition(spec: ShardingSpec) -> PartitionSpec:
    return PartitionSpec(*[axes or None for axes in spec])


def _run_sharded(eqn: Any, operands: list[np.ndarray], strategy: Strategy) -> list[np.ndarray]:
    return _compile_sharded(eqn, operands, strategy)[0]


def _compile_sharded(
    eqn: Any, operands: list[np.ndarray], strategy: Strategy
) -> tuple[list[np.ndarray], CollectiveBytes]:
    """Results under `strategy`, and the collectives in the compiled module."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))

    def shard(spec: ShardingSpec) -> NamedSharding:
        return NamedSharding(mesh, _partition(spec))

    def run(*args: Any) -> Any:
        out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
        results = list(out) if eqn.primitive.multiple_results else [out]
        return [
            jax.lax.with_sharding_constraint(r, shard(s)) for r, s in zip(results, strategy.output_specs, strict=True)
        ]

    placed = [jax.device_put(a, shard(s)) for a, s in zip(operands, strategy.input_specs, strict=True)]
    compiled = jax.jit(run).lower(*placed).compile()
    found = count_collective_bytes(str(compiled.as_text()), (4, 2), tuple(AXES))
    return [np.asarray(r) for r in compiled(*placed)], found


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.primitive}-{'x'.join(map(str, c.shapes[0]))}")
def test_every_strategy_of_an_op_gives_the_unsharded_result(case: Case) -> None:
    eqn, operands, _ = _trace(case)
    rule = _rule_of(eqn)
    assert not rule.is_opaque
    out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    expected = [np.asarray(r) for r in (out if eqn.primitive.multiple_results else [out])]
    strategies = enumerate_strategies(rule, AXES)
    # All of them where they are few; a spread of them otherwise, to keep compilation short.
    step = max(1, len(strategies) // 12)
    for strategy in strategies[::step]:
        got, collectives = _compile_sharded(eqn, operands, strategy)
        # On the CPU a reduce-scatter is an all-reduce and a slice.
        wanted = {"all-reduce"} if strategy.reduce_axes or strategy.scatter else set()
        wanted |= {"collective-permute"} if any(strategy.factor_axes[halo.factor] for halo in rule.halos) else set()
        kinds = {"all-reduce" if kind == "reduce-scatter" else kind for kind, _ in collectives}
        if strategy.scatter and "collective-permute" not in wanted:
            kinds.discard("collective-permute")  # where the slices are not in the order of the devices
        assert kinds == wanted, f"{rule} as {strategy.label}: {collectives}"
        for g, e in zip(got, expected, strict=True):
            wide = np.complex64 if np.iscomplexobj(e) else np.float32
            np.testing.assert_allclose(
                g.astype(wide), e.astype(wide), rtol=1e-4, atol=1e-5, err_msg=f"{rule} as {strategy.label}"
            )


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(*[st.sampled_from([1, 2, 3, 4, 8])] * 4),
    st.integers(min_value=0, max_value=10_000),
)
def test_matrix_products_of_drawn_shapes_give_the_unsharded_result(sizes: tuple[int, ...], pick: int) -> None:
    b, m, k, n = sizes
    case = Case(
        "dot_general", lambda p, q: jax.lax.dot_general(p, q, (((2,), (1,)), ((0,), (0,)))), ((b, m, k), (b, k, n))
    )
    eqn, operands, _ = _trace(case)
    strategies = enumerate_strategies(_rule_of(eqn), AXES)
    strategy = strategies[pick % len(strategies)]
    expected = np.einsum("bmk,bkn->bmn", *operands)
    np.testing.assert_allclose(_run_sharded(eqn, operands, strategy)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.primitive}-{'x'.join(map(str, c.shapes[0]))}")
def test_following_an_operand_never_splits_a_whole_factor(case: Case) -> None:
    eqn, _, _ = _trace(case)
    rule = _rule_of(eqn)
    for spec in iterate_specs(eqn.invars[0].aval.shape, AXES):
        strategy = follow_spec(rule, 0, spec, AXES)
        for factor, axes in zip(rule.factors, strategy.factor_axes, strict=True):
            assert factor.kind is not FactorKind.WHOLE or not axes
            shards = int(np.prod([AXES[a] for a in axes], dtype=int))
            assert factor.size % shards == 0
