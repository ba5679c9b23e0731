"""Which gradients may stay partial sums until the end of a step.

A gradient that is summed over a split batch is needed whole only by the update. Each device may therefore accumulate
its own share over the microbatches, and the sum over devices is taken once a step instead of once a microbatch. (Alpa's
artifact does the same by rewriting the compiled step; its paper does not say so.)

In: a program. Out: the ops whose reduction may wait, and the ops that then work on partial sums.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from alpaviz.program.program import SHARED_LAYER, Op, Program, Role
from alpaviz.program.rule import FactorKind

_SUMS = frozenset({"dot_general", "reduce_sum", "conv_general_dilated", "scatter-add"})
"""Ops that add up, so that each device's share is what the op makes of its own part of the operands."""
_LINEAR = frozenset({"transpose", "neg", "convert_element_type"})
"""Ops of one operand that may come after the sum as well as before it, and keep its layout."""
_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims", "reduce_sum"})
"""The same, where only dimensions of size 1 come or go."""


@dataclass(frozen=True, slots=True)
class Deferrals:
    """Ids of ops: `sums` whose reduction may wait, and `followers` that pass their partial results on."""

    sums: frozenset[int]
    followers: frozenset[int]


def find_deferrals(program: Program, accumulated: frozenset[int]) -> Deferrals:
    """Ops of `program` whose reduction may wait for the end of the step; none where a step is one microbatch.

    Args:
        accumulated: values whose mean over the microbatches is taken.
    """
    if program.num_microbatches == 1:
        return Deferrals(frozenset(), frozenset())
    finder = _Finder(program)
    sums: set[int] = set()
    followers: set[int] = set()
    for v in accumulated:
        found = finder.trace_back(v)
        if found is not None:
            sums.add(found[0])
            followers.update(found[1])
    return Deferrals(frozenset(sums), frozenset(followers))


class _Finder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.maker = {v: op for op in program.ops for v in op.outputs if v is not None}
        self.readers: dict[int, list[Op]] = defaultdict(list)
        for op in program.ops:
            for v in op.inputs:
                if v is not None:
                    self.readers[v].append(op)
        self.results = frozenset(v for v in program.outputs if v is not None)

    def trace_back(self, value: int) -> tuple[int, list[int]] | None:
        """The op that sums up what becomes accumulated `value`, and the ops between; None where it cannot wait."""
        op = self.maker.get(value)
        if op is None or op.layer == SHARED_LAYER or op.role is Role.UPDATE or not self.program.values[value].shape:
            return None
        layer = op.layer
        if any(reader.role is not Role.UPDATE for reader in self.readers[value]):
            return None
        between: list[int] = []
        while self._keeps_layout(op):
            between.append(op.id)
            operand = op.inputs[0]
            if operand is None or len(self.readers[operand]) != 1 or operand in self.results:
                return None
            maker = self.maker.get(operand)
            if maker is None or maker.layer != layer or maker.role is Role.UPDATE:
                return None
            op = maker
        return (op.id, between) if self._is_sum(op) else None

    def _keeps_layout(self, op: Op) -> bool:
        if op.primitive not in _RESHAPES:
            return op.primitive in _LINEAR
        shapes = [
            [size for size in self.program.values[v].shape if size > 1]
            for v in (op.inputs[0], op.outputs[0])
            if v is not None
        ]
        return len(shapes) == 2 and shapes[0] == shapes[1]

    def _is_sum(self, op: Op) -> bool:
        if op.primitive not in _SUMS or len(op.outputs) != 1 or op.rule.halos:
            return False
        if not any(factor.kind is FactorKind.REDUCTION for factor in op.rule.factors):
            return False
        if op.primitive == "conv_general_dilated":
            return self._count_groups(op) == 1
        return op.primitive != "scatter-add" or self._is_zero(op.inputs[0])

    def _count_groups(self, op: Op) -> int:
        if self.program.jaxpr is None:
            return 0
        params = self.program.jaxpr.eqns[op.id].params
        return int(params["feature_group_count"] * params["batch_group_count"])

    def _is_zero(self, value: int | None) -> bool:
        """Whether a value is all zeros: what a scatter adds to would otherwise be added once for each device."""
        op = self.maker.get(value) if value is not None else None
        if op is None or op.primitive != "broadcast_in_dim" or self.program.jaxpr is None:
            return False
        literal = getattr(self.program.jaxpr.eqns[op.id].invars[0], "val", None)
        return literal is not None and not bool(literal)
