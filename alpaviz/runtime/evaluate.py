"""Runs a chunk's ops one by one under `jit`, each value held in the layout that the plan gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from alpaviz.plan import OpPlan, Plan
from alpaviz.program.jax_internals import bind_equation
from alpaviz.program.program import Program
from alpaviz.runtime.meshes import StageLayouts
from alpaviz.types import ShardingSpec


def evaluate_ops(
    program: Program, plan: Plan, layouts: StageLayouts, ops: Sequence[int], env: dict[int, Any]
) -> None:
    """Apply `ops` in order; `env` (value id -> array) gains what they make.

    A constraint is put on every result, so that GSPMD has nothing left to guess; resharding goes through the plan's steps one
    by one, since XLA alone may replicate a value where the plan moves it with one all-to-all.
    """
    converted: dict[tuple[int, tuple[ShardingSpec, ...]], Any] = {}
    is_split = layouts.mesh.size > 1
    for number in ops:
        op, eqn = plan.ops[number], program.jaxpr.eqns[number]
        operands = [
            eqn.invars[k].val if v is None else env[v] for k, v in enumerate(op.inputs)
        ]
        if is_split:
            _reshard_operands(op, operands, layouts, converted)
        results = bind_equation(eqn, operands)
        for k, (v, result) in enumerate(zip(op.outputs, results, strict=True)):
            if v is not None:
                env[v] = _constrain(result, op.output_specs[k], layouts) if is_split else result


def _reshard_operands(
    op: OpPlan, operands: list[Any], layouts: StageLayouts, converted: dict[tuple[int, tuple[ShardingSpec, ...]], Any]
) -> None:
    for resharding in op.reshardings:
        if resharding.operand < 0:
            continue  # a result that goes back to its stored layout: the chunk's output sharding does that
        v = op.inputs[resharding.operand]
        if v is None:
            continue
        key = (v, resharding.specs)
        if key not in converted:
            array = operands[resharding.operand]
            for spec in resharding.specs:
                array = _constrain(array, spec, layouts)
            converted[key] = array
        operands[resharding.operand] = converted[key]


def _constrain(array: Any, spec: ShardingSpec, layouts: StageLayouts) -> Any:
    if not spec:
        return array
    return jax.lax.with_sharding_constraint(array, layouts.spread(spec))
