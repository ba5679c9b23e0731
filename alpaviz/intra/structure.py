"""Which layers are alike: each layer as a list of ops over locally numbered values, hashed by structure.

In: a `Program`. Out: a `LayerInstance` per layer; instances of one class differ only in which ops and values they
stand for, so that the sharding problem of a class is built once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from alpaviz.intra.deferral import Deferrals, find_deferrals
from alpaviz.program.program import SHARED_LAYER, Op, Program, Role, ValueKind


@dataclass(frozen=True, slots=True)
class LayerInstance:
    """One layer.

    Attributes:
        layer: its number.
        layer_class: number of its class; equal for structurally equal layers.
        ops: op ids in program order.
        values: local number -> value id, in order of first use (values of rank 0 are left out).
        owned_inputs: local numbers of program inputs that belong to this layer.
        externals: local numbers of values that other layers make or own.
    """

    layer: int
    layer_class: int
    ops: tuple[int, ...]
    values: tuple[int, ...]
    owned_inputs: tuple[int, ...]
    externals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProgramStructure:
    """All layers of a program, and which of them are alike.

    Attributes:
        instances: per layer.
        representatives: per class, the first layer of it.
        producer_layer: per value id, the layer that makes or owns it (`SHARED_LAYER` for what is in every stage).
        saved: value ids that the forward pass makes and the backward pass reads.
        accumulated: value ids that are accumulated over the microbatches.
        state_pairs: new state value id -> input value id that it replaces.
        deferrals: gradients that may be reduced once a step.
    """

    instances: tuple[LayerInstance, ...]
    representatives: tuple[int, ...]
    producer_layer: tuple[int, ...]
    saved: frozenset[int]
    accumulated: frozenset[int]
    state_pairs: tuple[tuple[int, int], ...]
    deferrals: Deferrals


def find_structure(program: Program) -> ProgramStructure:
    """The layers of `program` and their classes."""
    producer = _find_producers(program)
    saved = _find_saved(program)
    accumulated = frozenset(a.value for a in program.accumulations if a.mode == "mean")
    pairs = tuple(
        (made, program.inputs[i])
        for o, i in program.state_outputs
        if (made := program.outputs[o]) is not None and made != program.inputs[i]
    )
    by_layer: dict[int, list[Op]] = defaultdict(list)
    for op in program.ops:
        by_layer[op.layer].append(op)
    classes: dict[object, int] = {}
    representatives: list[int] = []
    instances = []
    deferrals = find_deferrals(program, accumulated)
    marks = _ValueMarks(program, producer, saved, accumulated, dict(pairs), deferrals)
    for layer in range(program.num_layers):
        ops = _order_updates(program, by_layer.get(layer, []))
        values, owned, externals, key = _number_values(program, layer, ops, marks)
        if key not in classes:
            classes[key] = len(representatives)
            representatives.append(layer)
        instances.append(LayerInstance(layer, classes[key], tuple(op.id for op in ops), values, owned, externals))
    return ProgramStructure(
        tuple(instances), tuple(representatives), tuple(producer), saved, accumulated, pairs, deferrals
    )


def _order_updates(program: Program, ops: list[Op]) -> list[Op]:
    """`ops` with the updates of parameters in the order in which the pass reads the parameters.

    The order of a state's leaves is that of their names, so equal layers (`block_9`, `block_10`) may list them
    differently. Updates that share no array do not depend on each other, so they may change places.
    """
    position: dict[int, int] = {}
    groups = UnionFind()
    for op in ops:
        arrays = [v for v in (*op.inputs, *op.outputs) if v is not None and program.values[v].shape]
        if op.role is Role.UPDATE:
            for v in arrays[1:]:
                groups.union(arrays[0], v)
        else:
            for v in arrays:
                position.setdefault(v, len(position))
    first: dict[int, int] = {}
    for v in groups.parent:
        if v in position:
            root = groups.find(v)
            first[root] = min(first.get(root, position[v]), position[v])

    def rank(op: Op) -> int:
        arrays = [v for v in (*op.outputs, *op.inputs) if v is not None and program.values[v].shape]
        return first.get(groups.find(arrays[0]), -1) if arrays else -1

    update = [op for op in ops if op.role is Role.UPDATE]
    return [op for op in ops if op.role is not Role.UPDATE] + sorted(update, key=rank)


class UnionFind:
    """Disjoint sets of value ids."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}

    def find(self, v: int) -> int:
        """The set of `v`, by one of its members."""
        self.parent.setdefault(v, v)
        while self.parent[v] != v:
            self.parent[v] = self.parent[self.parent[v]]
            v = self.parent[v]
        return v

    def union(self, a: int, b: int) -> None:
        """Join the sets of `a` and `b`."""
        self.parent[self.find(a)] = self.find(b)


@dataclass(frozen=True, slots=True)
class _ValueMarks:
    program: Program
    producer: list[int]
    saved: frozenset[int]
    accumulated: frozenset[int]
    state_pairs: dict[int, int]
    deferrals: Deferrals


def _find_producers(program: Program) -> list[int]:
    producer = [SHARED_LAYER] * len(program.values)
    for value, layer in zip(program.inputs, program.input_layers, strict=True):
        producer[value] = layer
    for op in program.ops:
        for v in op.outputs:
            if v is not None:
                producer[v] = op.layer
    return producer


def _find_saved(program: Program) -> frozenset[int]:
    made_forward = {v for op in program.ops if op.role is Role.FORWARD for v in op.outputs if v is not None}
    read_backward = {v for op in program.ops if op.role is Role.BACKWARD for v in op.inputs if v is not None}
    return frozenset(made_forward & read_backward)


def _number_values(
    program: Program, layer: int, ops: list[Op], marks: _ValueMarks
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], object]:
    """(values, owned inputs, externals, structural key) of one layer."""
    local: dict[int, int] = {}
    made_here = {v for op in ops for v in op.outputs}
    owned: list[int] = []
    externals: list[int] = []
    key: list[object] = []

    def number(v: int | None) -> int | None:
        if v is None or not program.values[v].shape:
            return None
        if v not in local:
            local[v] = len(local)
            value = program.values[v]
            if v not in made_here:
                is_owned = value.kind is not ValueKind.INTERMEDIATE and marks.producer[v] == layer
                (owned if is_owned else externals).append(local[v])
                key.append((is_owned, value.kind, program.count_slices(v), value.shape, value.dtype, v in marks.saved))
        return local[v]

    for op in ops:
        inputs = tuple(number(v) for v in op.inputs)
        outputs = tuple(number(v) for v in op.outputs)
        marked = tuple(
            (v in marks.saved, v in marks.accumulated, program.values[v].shape, program.values[v].dtype)
            for v in op.outputs
            if v is not None
        )
        deferred = (op.id in marks.deferrals.sums, op.id in marks.deferrals.followers)
        key.append((op.primitive, op.role, op.is_recomputed, op.rule, inputs, outputs, marked, deferred))
    key.append(
        tuple(
            sorted((local[a], local.get(b, -1)) for a, b in marks.state_pairs.items() if a in made_here and a in local)
        )
    )
    # State that no op reads still takes memory: it is numbered last.
    for v, owner in zip(program.inputs, program.input_layers, strict=True):
        if owner == layer:
            number(v)
    return tuple(local), tuple(owned), tuple(externals), tuple(key)
