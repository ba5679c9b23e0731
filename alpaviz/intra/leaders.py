"""Which ops are decisions and which follow a neighbour (paper section 4.2: light ops are merged into an operand).

In: one layer. Out: per op how its strategy is found. Matrix products, convolutions, look-ups, their gradients and loops
are decisions. Other ops follow their largest operand, the deepest among equals. A value that was repeated along a
dimension counts as large as before, for whoever follows it cannot split that dimension. Optimizer ops follow the
optimizer state, so that a parameter's whole update happens in one layout. Values made from scalars alone are free: they
are made in whatever layout is read.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass

from alpaviz.intra.structure import LayerInstance, UnionFind
from alpaviz.program.program import Op, Program, Role, ValueKind

DECISIONS = frozenset(
    {
        "dot_general", "conv_general_dilated", "gather", "scatter-add", "scatter_add", "ragged_dot",
        "ragged_dot_general", "scan", "while", "cond",
    }
)  # fmt: skip


class LeaderKind(enum.StrEnum):
    """How an op's strategy is found."""

    DECISION = "decision"
    OPERAND = "operand"
    """It keeps the spec of operand `index`."""
    RESULT = "result"
    """Its results have the spec of local value `index`."""
    FREE = "free"
    """Whatever its readers want; costs nothing."""


@dataclass(frozen=True, slots=True)
class Leader:
    """`index` is an operand's position or a local value, by `kind`."""

    kind: LeaderKind
    index: int = 0


@dataclass(frozen=True, slots=True)
class LayerLeaders:
    """Per op of a layer its leader; per owned input (local number) the input whose spec it shares, itself included."""

    ops: tuple[Leader, ...]
    shared_inputs: dict[int, int]


def find_leaders(program: Program, instance: LayerInstance) -> LayerLeaders:
    """Leaders of the ops of one layer."""
    local = {v: i for i, v in enumerate(instance.values)}
    ops = [program.ops[i] for i in instance.ops]
    update_leaders, shared_inputs = _find_update_leaders(program, instance, ops, local)
    free: set[int] = set()
    depth: dict[int, int] = defaultdict(int)
    told = {v: float(program.values[v].num_bytes) for v in instance.values}
    leaders = []
    for op in ops:
        leader = _find_leader(program, op, free, depth, told, update_leaders)
        leaders.append(leader)
        results = [v for v in op.outputs if v is not None]
        told.update({v: _count_told(program, op, leader, v, told) for v in results})
        if leader.kind is LeaderKind.FREE:
            free.update(results)
        level = 1 + max((depth[v] for v in op.inputs if v is not None), default=0)
        depth.update(dict.fromkeys(results, level))
    return LayerLeaders(tuple(leaders), shared_inputs)


def _find_leader(
    program: Program,
    op: Op,
    free: set[int],
    depth: dict[int, int],
    told: dict[int, float],
    update_leaders: dict[int, int],
) -> Leader:
    followable = [
        (k, v) for k, v in enumerate(op.inputs) if v is not None and program.values[v].shape and v not in free
    ]
    if op.role is Role.UPDATE and op.outputs and op.outputs[0] in update_leaders:
        return Leader(LeaderKind.RESULT, update_leaders[op.outputs[0]])
    if not followable:
        return Leader(LeaderKind.FREE)
    if op.primitive in DECISIONS:
        return Leader(LeaderKind.DECISION)
    best = max(followable, key=lambda kv: (told[kv[1]], program.values[kv[1]].num_bytes, depth[kv[1]], -kv[0]))
    return Leader(LeaderKind.OPERAND, best[0])


def _count_told(program: Program, op: Op, leader: Leader, result: int, told: dict[int, float]) -> float:
    """Bytes of `result` without the dimensions along which it, or what it follows, was repeated."""
    num_bytes = float(program.values[result].num_bytes)
    followed = op.inputs[leader.index] if leader.kind is LeaderKind.OPERAND else None
    if followed is None:
        return num_bytes
    if op.primitive == "broadcast_in_dim":
        return min(num_bytes, told[followed])
    return num_bytes * told[followed] / max(program.values[followed].num_bytes, 1)


def _find_update_leaders(
    program: Program, instance: LayerInstance, ops: list[Op], local: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Value id -> local input that its update happens in the layout of; and which inputs share one layout.

    Values of one shape that update ops connect are one parameter's update. They follow its optimizer state, or the
    parameter itself where that is a vector (sharding it apart gains nothing) or where there is no such state.
    """
    groups = UnionFind()
    for op in ops:
        if op.role is Role.UPDATE:
            same = [
                v
                for v in (*op.inputs, *op.outputs)
                if v is not None and program.values[v].shape and program.values[v].shape == _result_shape(program, op)
            ]
            for v in same[1:]:
                groups.union(same[0], v)
    read_in_pass = {v for op in ops if op.role is not Role.UPDATE for v in op.inputs}
    members: dict[int, list[int]] = defaultdict(list)
    for number in instance.owned_inputs:
        v = instance.values[number]
        if v in groups.parent and program.values[v].kind is ValueKind.STATE:
            members[groups.find(v)].append(v)
    leader_of_group: dict[int, int] = {}
    shared = {number: number for number in instance.owned_inputs}
    for root, inputs in members.items():
        parameters = [v for v in inputs if v in read_in_pass]
        optimizer = [v for v in inputs if v not in read_in_pass]
        follow_parameter = bool(parameters) and (not optimizer or len(program.values[inputs[0]].shape) == 1)
        leader = parameters[0] if follow_parameter else optimizer[0]
        leader_of_group[root] = local[leader]
        shared.update({local[v]: local[leader] for v in optimizer})
    leaders = {
        v: leader_of_group[groups.find(v)]
        for op in ops
        if op.role is Role.UPDATE
        for v in op.outputs
        if v is not None and v in groups.parent and groups.find(v) in leader_of_group
    }
    return leaders, shared


def _result_shape(program: Program, op: Op) -> tuple[int, ...]:
    return next((program.values[v].shape for v in op.outputs if v is not None), ())
