"""Recomputation: the backward pass of chosen layers makes their activations again instead of keeping them.

In: a program and layers of it. Out: the same program in which the backward ops of these layers read copies of the
forward ops, made in the backward pass from what enters the layer. Only that is then kept from one pass to the other
(Chen et al. 2016, arXiv 1604.06174; per layer as in section 7 of the Alpa paper). The copies read through optimization
barriers, so that a compiler does not take them for the originals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alpaviz.plan import RECOMPUTE
from alpaviz.program import jax_internals as internals
from alpaviz.program.assemble import name_program
from alpaviz.program.program import Op, Program, Role, Value, ValueKind
from alpaviz.program.rules import make_rule, sign_equation


def list_recomputable_layers(program: Program) -> tuple[int, ...]:
    """Layers of which recomputation keeps fewer bytes: they keep more from forward than what enters them."""
    if program.jaxpr is None or program.recomputed_layers:
        return ()
    reads = _LayerReads(program)
    return tuple(layer for layer in range(program.num_layers) if reads.count_freed_bytes(layer) > 0)


def fit_to_layers(program: Program, layers: Sequence[int]) -> Program:
    """`program` as a plan that recomputes `layers` was made for; `program` itself where it cannot be made so."""
    if tuple(layers) == program.recomputed_layers or program.recomputed_layers or program.jaxpr is None:
        return program
    return recompute_layers(program, layers) if max(layers) < program.num_layers else program


def recompute_layers(program: Program, layers: Iterable[int]) -> Program:
    """`program` with the activations of `layers` made again in the backward pass.

    Layers that keep nothing of their own are left as they are. Values keep their ids, and ops their names; new ones
    are added: values at the end, ops before the first backward op that reads them.

    Raises:
        ValueError: a layer does not exist, or some layers of `program` are recomputed already.
    """
    wanted = sorted(set(layers))
    if not wanted:
        return program
    if program.recomputed_layers or program.jaxpr is None:
        raise ValueError("recompute_layers takes a program as it was traced, in this process.")
    if not 0 <= wanted[0] <= wanted[-1] < program.num_layers:
        raise ValueError(f"The program has layers 0 to {program.num_layers - 1}, not {wanted}.")
    reads = _LayerReads(program)
    changed = tuple(layer for layer in wanted if reads.find_own_kept(layer))
    if not changed:
        return program
    rewriter = _Rewriter(program, reads, frozenset(changed))
    rewriter.run()
    recipe = program.recipe if program.recipe is None else replace(program.recipe, recomputed_layers=changed)
    ops, values = tuple(rewriter.ops), (*program.values, *rewriter.new_values)
    jaxpr = program.jaxpr.jaxpr
    return replace(
        program, ops=ops, values=values, recomputed_layers=changed, recipe=recipe,
        fingerprint=name_program(ops, values, program.num_layers, program.num_microbatches),
        jaxpr=internals.make_jaxpr(
            jaxpr.constvars, jaxpr.invars, jaxpr.outvars, rewriter.eqns, program.jaxpr.consts
        ),
    )  # fmt: skip


class _LayerReads:
    """Which forward op makes a value, and which values of its own a layer's backward ops read."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.maker: dict[int, Op] = {}
        self.read_backward: dict[int, set[int]] = defaultdict(set)  # layer -> values
        for op in program.ops:
            if op.role is Role.FORWARD:
                self.maker.update({v: op for v in op.outputs if v is not None})
            elif op.role is Role.BACKWARD:
                self.read_backward[op.layer].update(v for v in op.inputs if v is not None)
        self.all_read = set().union(*self.read_backward.values()) if self.read_backward else set()

    def is_made_in(self, value: int | None, layer: int) -> bool:
        """Whether a forward op of `layer` makes `value`."""
        return value is not None and value in self.maker and self.maker[value].layer == layer

    def find_own_kept(self, layer: int) -> frozenset[int]:
        """Values that the forward ops of `layer` make and its backward ops read."""
        return frozenset(v for v in self.read_backward[layer] if self.is_made_in(v, layer))

    def list_ops_to_repeat(self, layer: int) -> list[Op]:
        """The forward ops of `layer` that make what it keeps, in order."""
        needed = set(self.find_own_kept(layer))
        found = []
        for op in reversed(self.program.ops):
            if op.role is Role.FORWARD and op.layer == layer and not needed.isdisjoint(op.outputs):
                found.append(op)
                needed.update(v for v in op.inputs if v is not None)
        return found[::-1]

    def count_freed_bytes(self, layer: int) -> float:
        """Bytes of a microbatch that `layer` keeps, less what it would have to keep in order to make them again."""
        own = self.find_own_kept(layer)
        kept_anyway = {v for other, read in self.read_backward.items() if other != layer for v in read}
        entering = {
            v for op in self.list_ops_to_repeat(layer) for v in op.inputs
            if v in self.maker and self.maker[v].layer != layer and v not in self.all_read
        }  # fmt: skip
        values = self.program.values
        freed = sum(values[v].num_bytes for v in own - kept_anyway)
        return freed - sum(values[v].num_bytes for v in entering if v is not None)


@dataclass(slots=True, eq=False)
class _Rewriter:
    program: Program
    reads: _LayerReads
    layers: frozenset[int]
    ops: list[Op] = field(default_factory=list)
    eqns: list[Any] = field(default_factory=list)
    new_values: list[Value] = field(default_factory=list)
    variables: dict[int, Any] = field(default_factory=dict)
    copies: dict[int, dict[int, int]] = field(default_factory=dict)

    def run(self) -> None:
        """Fill `ops` and `eqns`, in an order in which every operand is made before it is read."""
        program, jaxpr = self.program, self.program.jaxpr.jaxpr
        self.variables.update(zip(program.inputs, jaxpr.invars, strict=True))
        self.variables.update(zip(program.constants, jaxpr.constvars, strict=True))
        for op, eqn in zip(program.ops, jaxpr.eqns, strict=True):
            if op.role is Role.BACKWARD and op.layer in self.layers:
                if op.layer not in self.copies and any(self.reads.is_made_in(v, op.layer) for v in op.inputs):
                    self._repeat_layer(op.layer)
                replaced = self.copies.get(op.layer, {})
                inputs = tuple(v if v is None else replaced.get(v, v) for v in op.inputs)
                if inputs != op.inputs:
                    op, eqn = replace(op, inputs=inputs), eqn.replace(invars=self._read(eqn, inputs))
            self._append(op, eqn)
            self.variables.update(
                {v: variable for v, variable in zip(op.outputs, eqn.outvars, strict=True) if v is not None}
            )

    def _read(self, eqn: Any, inputs: Sequence[int | None]) -> list[Any]:
        """Operands of `eqn` that are the values `inputs`; literals stay."""
        return [old if v is None else self.variables[v] for old, v in zip(eqn.invars, inputs, strict=True)]

    def _append(self, op: Op, eqn: Any) -> None:
        self.ops.append(replace(op, id=len(self.ops)))
        self.eqns.append(eqn)

    def _repeat_layer(self, layer: int) -> None:
        """Append copies of the forward ops that make what `layer` keeps; notes the copy of each value."""
        copies = self.copies[layer] = {}
        entered: dict[int, int] = {}
        jaxpr = self.program.jaxpr.jaxpr
        for op in self.reads.list_ops_to_repeat(layer):
            eqn = jaxpr.eqns[op.id]
            inputs: list[int | None] = []
            for v in op.inputs:
                if v is None:
                    inputs.append(None)
                elif v in copies:
                    inputs.append(copies[v])
                else:
                    if v not in entered:
                        entered[v] = self._enter(op, eqn, v)
                    inputs.append(entered[v])
            results = [
                old if v is None else internals.make_variable(old.aval)
                for v, old in zip(op.outputs, eqn.outvars, strict=True)
            ]
            name = RECOMPUTE + op.name
            outputs = self._add_values(op.outputs, results, name)
            copies.update({old: new for old, new in zip(op.outputs, outputs, strict=True) if old is not None and new})
            again = replace(
                op, name=name, inputs=tuple(inputs), outputs=outputs, role=Role.BACKWARD, is_recomputed=True
            )
            self._append(again, eqn.replace(invars=self._read(eqn, inputs), outvars=results))

    def _enter(self, op: Op, like: Any, value: int) -> int:
        """Append a barrier through which copies read `value`, which enters the layer; the value behind it."""
        variable = self.variables[value]
        result = internals.make_variable(variable.aval)
        barrier = internals.optimization_barrier_primitive()
        eqn = internals.make_equation(barrier, [variable], [result], {}, like=like)
        name = f"{RECOMPUTE}layer_{op.layer}/{self.program.values[value].name}"
        (made,) = self._add_values((value,), [result], name)
        assert made is not None, "a value that enters a layer is read"
        self._append(
            Op(
                0, name, barrier.name, (value,), (made,), make_rule(sign_equation(eqn)), Role.BACKWARD, op.layer,
                op.scope, op.source, 0.0, is_recomputed=True,
            ),
            eqn,
        )  # fmt: skip
        return made

    def _add_values(self, like: Sequence[int | None], variables: Sequence[Any], name: str) -> tuple[int | None, ...]:
        made: list[int | None] = []
        for position, (old, variable) in enumerate(zip(like, variables, strict=True)):
            if old is None:
                made.append(None)
                continue
            number = len(self.program.values) + len(self.new_values)
            of = self.program.values[old]
            label = name if position == 0 else f"{name}#{position}"
            self.new_values.append(Value(number, of.shape, of.dtype, ValueKind.INTERMEDIATE, label))
            self.variables[number] = variable
            made.append(number)
        return tuple(made)
