"""Layers follow the numbered modules that a model's scopes name."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import alpaviz
from alpaviz.program import trace_program
from alpaviz.program.layers import ForwardGroups, find_module_starts
from alpaviz.program.program import Program, Role


def trace_blocks(kinds: list[int], outer: str = "") -> Program:
    """A model whose `block_i` has `kinds[i]` products, under the scope `outer`."""

    def loss_fn(weights: Any, x: Any) -> Any:
        for i, (block, count) in enumerate(zip(weights, kinds, strict=True)):
            with jax.named_scope(f"{outer}/block_{i}/mlp" if outer else f"block_{i}"):
                for k in range(count):
                    x = jnp.tanh(x @ block[k])
        return jnp.mean(x**2)

    def step(weights: Any, x: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), loss

    weights = [[jax.ShapeDtypeStruct((16, 16), "float32") for _ in range(count)] for count in kinds]
    return trace_program(step, weights, jax.ShapeDtypeStruct((8, 16), "float32"), num_microbatches=2)


def list_layers_of_blocks(program: Program) -> list[set[int]]:
    found: dict[str, set[int]] = {}
    for op in program.ops:
        if op.role is Role.FORWARD and op.primitive == "dot_general":
            block = next(part for part in op.scope.split("/") if part.startswith("block_"))
            found.setdefault(block, set()).add(op.layer)
    return list(found.values())


@pytest.mark.parametrize("outer", ["", "model"])
def test_unequal_modules_are_cut_between_and_not_within(outer: str) -> None:
    layers = list_layers_of_blocks(trace_blocks([2, 3, 2, 3, 2, 3], outer))
    assert all(len(found) == 1 for found in layers)
    assert len(set().union(*layers)) > 1


def test_few_modules_are_cut_by_the_modules_in_them() -> None:
    scopes = tuple((f"stage_{i}", f"block_{k}") for i in range(3) for k in range(2))
    groups = ForwardGroups((1.0,) * 6, ("",) * 6, (), scopes)
    assert find_module_starts(groups, range(6)) == [1, 2, 3, 4, 5]


def test_modules_that_hold_little_of_the_work_decide_nothing() -> None:
    scopes = tuple((f"norm_{i}",) if i % 2 else () for i in range(12))
    groups = ForwardGroups(tuple(1.0 if i % 2 else 9.0 for i in range(12)), ("",) * 12, (), scopes)
    assert find_module_starts(groups, range(12)) is None
