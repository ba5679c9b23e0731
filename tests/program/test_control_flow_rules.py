"""Loops and branches are one op whose body is planned inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import alpaviz
from alpaviz.planner import Planner
from alpaviz.program import trace_program
from alpaviz.program.flatten import inline_calls
from alpaviz.program.jax_internals import count_scan_parts
from alpaviz.program.rule import ShardingRule
from alpaviz.program.rules import make_rule, sign_equation
from alpaviz.program.strategy import Strategy, enumerate_strategies
from alpaviz.runtime.collectives_in_hlo import count_collective_bytes
from alpaviz.types import ShardingSpec

TIME, BATCH, INPUT, WIDTH = 3, 8, 16, 8
AXES = {"x": 4, "y": 2}


def run_recurrent(weights: Any, x: Any) -> Any:
    """x is (time, batch, input)."""

    def cell(hidden: Any, row: Any) -> Any:
        hidden = jnp.tanh(row @ weights["in"] + hidden @ weights["hidden"])
        return hidden, hidden

    return jnp.mean(jax.lax.scan(cell, jnp.zeros((BATCH, WIDTH)), x)[1] ** 2)


def run_gated(weights: Any, x: Any) -> Any:
    """Like a minimal gated unit: what the gates multiply stays elementwise, so that its width can be split."""

    def cell(hidden: Any, row: Any) -> Any:
        gate = jax.nn.sigmoid(row @ weights["in"])
        hidden = gate * hidden + (1 - gate) * (row @ weights["other"])
        return hidden, hidden

    return jnp.mean(jax.lax.scan(cell, jnp.zeros((BATCH, WIDTH)), x)[1] ** 2)


def run_power(weights: Any, x: Any) -> Any:
    """A `while` loop (its trip count is not known when it is traced)."""

    def body(carry: Any) -> Any:
        count, value = carry
        return count + 1, jnp.tanh(value * 0.5) + x[0] @ weights["in"]

    return jax.lax.while_loop(lambda c: c[0] < 3, body, (0, jnp.ones((BATCH, WIDTH))))[1]


def run_branch(weights: Any, x: Any) -> Any:
    """Two branches with a product each."""
    return jax.lax.cond(x[0, 0, 0] > 0, lambda w, v: v @ w["in"], lambda w, v: 2 * (v @ w["other"]), weights, x[1])


def run_nested(weights: Any, x: Any) -> Any:
    """A loop in a loop."""

    def cell(hidden: Any, row: Any) -> Any:
        inner, _ = jax.lax.scan(lambda h, _: (jnp.sin(h + row @ weights["in"]), None), hidden, None, length=2)
        return inner, None

    return jnp.sum(jax.lax.scan(cell, jnp.zeros((BATCH, WIDTH)), x)[0])


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    primitive: str


CASES = [
    Case("recurrent", run_recurrent, "scan"),
    Case("recurrent gradient", jax.grad(run_recurrent), "scan"),
    Case("gated gradient", jax.grad(run_gated), "scan"),
    Case("while", run_power, "while"),
    Case("branch", run_branch, "cond"),
    Case("nested", run_nested, "scan"),
]


def make_arguments() -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {
        "in": jax.random.normal(keys[0], (INPUT, WIDTH)),
        "other": jax.random.normal(keys[1], (INPUT, WIDTH)),
        "hidden": jax.random.normal(keys[2], (WIDTH, WIDTH)) * 0.1,
    }
    return weights, jax.random.normal(keys[3], (TIME, BATCH, INPUT))


def list_loops(case: Case) -> Iterator[tuple[Any, list[np.ndarray]]]:
    """Loops of the trace with the operands that they get."""
    weights, x = make_arguments()
    closed = inline_calls(jax.make_jaxpr(case.function)(weights, x))
    env = dict(zip(closed.jaxpr.invars, [*jax.tree.leaves(weights), x], strict=True))
    env.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    for eqn in closed.jaxpr.eqns:
        values = [v.val if hasattr(v, "val") else env[v] for v in eqn.invars]
        out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out], strict=True))
        if eqn.primitive.name == case.primitive:
            yield eqn, [np.asarray(v) for v in values]


def compile_sharded(eqn: Any, operands: list[np.ndarray], strategy: Strategy) -> tuple[list[np.ndarray], Any]:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), tuple(AXES))

    def shard(spec: ShardingSpec) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[axes or None for axes in spec]))

    def run(*args: Any) -> Any:
        out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
        pairs = zip(out, strategy.output_specs, strict=True)
        return [jax.lax.with_sharding_constraint(r, shard(s)) if s else r for r, s in pairs]

    placed = [jax.device_put(a, shard(s)) for a, s in zip(operands, strategy.input_specs, strict=True)]
    compiled = jax.jit(run).lower(*placed).compile()
    found = count_collective_bytes(str(compiled.as_text()), (4, 2), tuple(AXES))
    return [np.asarray(r) for r in compiled(*placed)], found


def predict_all_reduces(rule: ShardingRule, strategy: Strategy) -> dict[tuple[str, ...], float]:
    """Bytes of one iteration by axes."""
    found: dict[tuple[str, ...], float] = {}
    for part in rule.body:
        axes = tuple(axis for f in part.summed for axis in strategy.factor_axes[f])
        if axes and part.times:
            size = part.num_bytes
            for f in part.result:
                for axis in strategy.factor_axes[f]:
                    size /= AXES[axis]
            key = tuple(sorted(axes))
            found[key] = found.get(key, 0.0) + size
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_every_strategy_of_a_loop_gives_the_unsharded_result_with_the_collectives_it_names(case: Case) -> None:
    has_split = False
    for eqn, operands in list_loops(case):
        rule = make_rule(sign_equation(eqn))
        out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        strategies = enumerate_strategies(rule, AXES)
        for strategy in strategies[:: max(1, len(strategies) // 6)]:
            got, compiled = compile_sharded(eqn, operands, strategy)
            for a, b in zip(got, out, strict=True):
                np.testing.assert_allclose(a, np.asarray(b), rtol=1e-3, atol=1e-4, err_msg=f"{rule}: {strategy.label}")
            assert {kind for kind, _ in compiled} <= {"all-reduce"}, f"{rule}: {strategy.label}: {compiled}"
            predicted = predict_all_reduces(rule, strategy)
            # Both branches are compiled, the heavier one is priced; here they are alike.
            copies = len(eqn.params["branches"]) if case.primitive == "cond" else 1
            expected = copies * sum(predicted.values())
            assert sum(compiled.values()) == pytest.approx(expected), f"{rule}: {strategy.label}"
            has_split |= bool(strategy.split_axes)
    assert has_split


def test_the_carry_of_a_loop_has_one_layout_at_both_ends() -> None:
    for case in CASES:
        for eqn, _ in list_loops(case):
            rule = make_rule(sign_equation(eqn))
            if case.primitive == "scan":
                first, count = count_scan_parts(eqn.params)
                assert rule.operands[first : first + count] == rule.results[:count]


def test_a_factor_that_would_split_two_dimensions_of_one_array_stays_whole() -> None:
    eqn, _ = next(list_loops(CASES[0]))
    rule = make_rule(sign_equation(eqn))
    square = next(term for term, v in zip(rule.operands, eqn.invars, strict=True) if v.aval.shape == (WIDTH, WIDTH))
    assert square == ((), ())


def test_a_body_with_an_unknown_op_is_not_split_through_it() -> None:
    unknown = jax.extend.core.Primitive("test_unknown_in_body")
    unknown.def_abstract_eval(lambda x: x)

    def loop(x: Any) -> Any:
        return jax.lax.scan(lambda h, _: (unknown.bind(h) + 1, None), x, None, length=2)[0]

    eqn = jax.make_jaxpr(loop)(jnp.ones((8, 8))).jaxpr.eqns[-1]
    assert make_rule(sign_equation(eqn)).is_opaque


def make_recurrent_step() -> tuple[Callable[..., Any], Any, np.ndarray]:
    """A recurrent language model with two layers of cells; batch is (batch, time) of tokens."""
    optimizer = optax.adam(1e-2)

    def loss_fn(params: Any, tokens: Any) -> Any:
        x = params["embed"][tokens[:, :-1]].swapaxes(0, 1)
        for layer in params["cells"]:

            def cell(hidden: Any, row: Any, layer: Any = layer) -> Any:
                hidden = jnp.tanh(row @ layer["in"] + hidden @ layer["hidden"])
                return hidden, hidden

            x = jax.lax.scan(cell, jnp.zeros((tokens.shape[0], 16)), x)[1]
        logits = x.swapaxes(0, 1) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(state: Any, tokens: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(state["params"], tokens)
        updates, inner = optimizer.update(grads, state["optimizer"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": inner}, {"loss": loss}

    keys = jax.random.split(jax.random.key(0), 8)

    def weight(key: Any, *shape: int) -> Any:
        return jax.random.normal(key, shape) * 0.3

    params = {
        "embed": weight(keys[0], 32, 16),
        "cells": [{"in": weight(keys[1 + 2 * i], 16, 16), "hidden": weight(keys[2 + 2 * i], 16, 16)} for i in range(2)],
        "out": weight(keys[5], 16, 32),
    }
    tokens = np.asarray(jax.random.randint(keys[6], (8, 7), 0, 32))
    return step, {"params": params, "optimizer": optimizer.init(params)}, tokens


def test_a_recurrent_model_has_no_opaque_op() -> None:
    step, state, tokens = make_recurrent_step()
    program = trace_program(step, state, tokens, num_microbatches=2)
    assert sum(op.primitive == "scan" for op in program.ops) == 4
    assert not [op.name for op in program.ops if op.rule.is_opaque]
    assert not program.warnings


@pytest.mark.parametrize("stages", [1, 2])
def test_a_recurrent_model_gives_the_single_device_result(stages: int) -> None:
    step, state, tokens = make_recurrent_step()
    planner = Planner(step, state, tokens, cluster="virtual:4", num_microbatches=2)
    planner.pin_num_stages(stages)
    planner.solve()
    split = max(planner.alternatives("scan.0"), key=lambda way: way.strategy.count(":"))
    planner.pin_strategy("scan.0", split.strategy)
    loop = next(op for op in planner.solve().ops if op.name == "scan.0")
    assert any(axes for spec in loop.input_specs for axes in spec)
    with planner.launch() as executable:
        new, metrics = executable(state, tokens)
        got = executable.fetch(new)
    expected, reference = jax.jit(step)(state, tokens)
    np.testing.assert_allclose(metrics["loss"], reference["loss"], rtol=1e-4)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)
