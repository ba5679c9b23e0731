"""Runs a chunk's ops one by one under `jit`, each value held in the layout that the plan gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from alpaviz.plan import OpPlan, Plan
from alpaviz.program.jax_internals import bind_equation
from alpaviz.program.program import Program
from alpaviz.runtime.meshes import StageLayouts
from alpaviz.runtime.partial_sums import evaluate_partially
from alpaviz.types import ShardingSpec

PLAN_SCOPE = "alpaviz_plan_"
"""Scope of an op's layouts, before its number: what XLA makes of them is found by it."""


def evaluate_ops(
    program: Program,
    plan: Plan,
    layouts: StageLayouts,
    ops: Sequence[int],
    env: dict[int, Any],
    returned: dict[int, Any] | None = None,
) -> None:
    """Apply `ops` in order; `env` (value id -> array) gains what they make.

    A constraint is put on every result, so that GSPMD has nothing left to guess; resharding goes through the plan's
    steps one by one, since XLA alone may replicate a value where the plan moves it with one all-to-all.

    Args:
        returned: gains new state in the layout in which the state is stored, where that is not the one it is made in.
    """
    converter = _Converter(layouts)
    is_split = layouts.mesh.size > 1
    shares: set[int | None] = set()
    for number in ops:
        op, eqn = plan.ops[number], program.jaxpr.eqns[number]
        converter.scope = f"{PLAN_SCOPE}{number}"
        operands = [eqn.invars[k].val if v is None else env[v] for k, v in enumerate(op.inputs)]
        if is_split:
            for resharding in op.reshardings:
                v = op.inputs[resharding.operand] if resharding.operand >= 0 else None
                if v is not None:
                    operands[resharding.operand] = converter.convert(v, env[v], resharding.specs)
        if op.partial_axes:
            (made,) = op.outputs
            assert made is not None, "what is accumulated is not dropped"
            env[made] = evaluate_partially(op, eqn, operands, op.inputs[0] in shares, layouts)
            shares.add(made)
            continue
        results = bind_equation(eqn, operands)
        for k, (v, result) in enumerate(zip(op.outputs, results, strict=True)):
            if v is not None:
                env[v] = converter.hold(result, op.output_specs[k]) if is_split else result
        if returned is not None and is_split:
            _return_state(op, env, converter, returned)


def _return_state(op: OpPlan, env: dict[int, Any], converter: _Converter, returned: dict[int, Any]) -> None:
    for resharding in op.reshardings:
        v = op.outputs[-1 - resharding.operand] if resharding.operand < 0 else None
        if v is not None:
            returned[v] = converter.convert(v, env[v], resharding.specs)


class _Converter:
    """Puts arrays into layouts; what has been converted once is not converted again."""

    def __init__(self, layouts: StageLayouts) -> None:
        self._layouts = layouts
        self._known: dict[tuple[int, tuple[ShardingSpec, ...]], Any] = {}
        self.scope = ""

    def convert(self, value: int, array: Any, specs: tuple[ShardingSpec, ...]) -> Any:
        """`array` taken through `specs`; a beginning that another conversion of `value` shares is shared."""
        for count in range(1, len(specs) + 1):
            key = (value, specs[:count])
            if key not in self._known:
                self._known[key] = self.hold(array, specs[count - 1])
            array = self._known[key]
        return array

    def hold(self, array: Any, spec: ShardingSpec) -> Any:
        """`array` constrained to `spec`; scalars have no layout."""
        with jax.named_scope(self.scope):
            return jax.lax.with_sharding_constraint(array, self._layouts.spread(spec)) if spec else array
