"""Each layer twice, kept and recomputed, so that a stage can mix them.

In: a program and its structure. Out: a program and a structure for planning alone, in which a layer has two instances:
as it was traced, and with its activations made again in the backward pass. Values have the same ids in both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from alpaviz.intra.deferral import Deferrals
from alpaviz.intra.structure import ProgramStructure, find_structure
from alpaviz.program.program import Program, Role
from alpaviz.program.recompute import list_recomputable_layers, recompute_layers


@dataclass(frozen=True, slots=True, eq=False)
class TwofoldProgram:
    """A program for planning alone: it cannot run.

    Attributes:
        program: the ops of both forms, those of the recomputed form after the others.
        structure: instance `layer` is the kept form; instance `num_layers + layer` the recomputed one.
        layers: those whose recomputation keeps fewer bytes.
    """

    program: Program
    structure: ProgramStructure
    layers: frozenset[int]


def make_twofold(program: Program, structure: ProgramStructure) -> TwofoldProgram | None:
    """Both forms of every layer of `program`; None where recomputation would gain nothing."""
    layers = list_recomputable_layers(program)
    if not layers:
        return None
    again = recompute_layers(program, layers)
    second = find_structure(again)
    shift, classes = len(program.ops), len(structure.representatives)
    num_layers = program.num_layers
    ops = (*program.ops, *(replace(op, id=op.id + shift) for op in again.ops))
    instances = tuple(
        replace(
            instance,
            layer_class=instance.layer_class + classes,
            ops=tuple(i + shift for i in instance.ops),
        )
        for instance in second.instances
    )
    both = ProgramStructure(
        instances=(*structure.instances, *instances),
        representatives=(*structure.representatives, *(num_layers + layer for layer in second.representatives)),
        producer_layer=second.producer_layer,
        saved=structure.saved | second.saved,
        accumulated=structure.accumulated,
        state_pairs=structure.state_pairs,
        deferrals=Deferrals(
            _join(structure.deferrals.sums, second.deferrals.sums, shift),
            _join(structure.deferrals.followers, second.deferrals.followers, shift),
        ),
    )
    plain = replace(again, ops=ops, jaxpr=None, fingerprint=f"{again.fingerprint} twofold")
    return TwofoldProgram(plain, both, frozenset(layers))


def _join(kept: Iterable[int], again: Iterable[int], shift: int) -> frozenset[int]:
    return frozenset((*kept, *(i + shift for i in again)))


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """What one layer holds, on all devices together: for good (the batch too), and for each microbatch in flight."""

    state: float
    activations: float

    def count(self, in_flight: int) -> float:
        """Bytes with so many microbatches in flight."""
        return self.state + in_flight * self.activations


def count_layer_bytes(program: Program, structure: ProgramStructure, layers: Collection[int] = ()) -> list[LayerBytes]:
    """What each layer holds, however it is split.

    Args:
        layers: those that are recomputed; program and structure are then those of a `TwofoldProgram`.
    """
    found = []
    for layer in range(program.num_layers):
        instance = structure.instances[layer + (program.num_layers if layer in layers else 0)]
        ops = [program.ops[i] for i in instance.ops]
        read = {v for op in ops if op.role is Role.BACKWARD for v in op.inputs if v is not None}
        made = {v for op in ops for v in op.outputs if v is not None}
        owned = {instance.values[n] for n in instance.owned_inputs}
        lasting = sum(program.values[v].num_bytes * program.count_slices(v) for v in owned)
        lasting += sum(program.values[v].num_bytes for v in made & structure.accumulated)
        kept = sum(program.values[v].num_bytes for v in read & structure.saved)
        found.append(LayerBytes(float(lasting), float(kept)))
    return found
