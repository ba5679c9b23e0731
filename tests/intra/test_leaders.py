"""Which neighbour a light op follows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import alpaviz
from alpaviz.intra.leaders import LeaderKind, find_leaders
from alpaviz.intra.structure import find_structure
from alpaviz.program import trace_program


def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.mean(jax.nn.logsumexp(x @ params["w"], -1))


def step(params: dict[str, jax.Array], x: jax.Array) -> Any:
    value, gradients = alpaviz.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - g, params, gradients), value


def test_a_gradient_of_softmax_follows_its_exponentials_and_not_what_is_repeated_to_their_shape() -> None:
    shape = jax.ShapeDtypeStruct
    program = trace_program(step, {"w": shape((32, 64), jnp.float32)}, shape((8, 32), jnp.float32), num_layers=1)
    made_by = {v: op.primitive for op in program.ops for v in op.outputs if v is not None}
    instance = find_structure(program).instances[0]
    leaders = find_leaders(program, instance).ops
    followed = {
        (op.primitive, made_by.get(op.inputs[leader.index] or -1))
        for op, leader in zip((program.ops[i] for i in instance.ops), leaders, strict=True)
        if leader.kind is LeaderKind.OPERAND
        and op.primitive == "mul"
        and {"exp", "broadcast_in_dim"} == {made_by.get(v) for v in op.inputs if v is not None}
    }
    assert followed == {("mul", "exp")}
