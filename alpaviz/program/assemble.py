"""The last step of tracing: placed equations become a `Program` of plain data beside a flat jaxpr."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from alpaviz.errors import ShardingRuleError
from alpaviz.program import jax_internals as internals
from alpaviz.program.flops import count_flops
from alpaviz.program.leaves import name_argument
from alpaviz.program.placement import PlacedEquation, PlacedStep
from alpaviz.program.program import Accumulation, Op, Program, Role, Value, ValueKind
from alpaviz.program.results import warn_of_last_results
from alpaviz.program.roles import MarkedStep
from alpaviz.program.rule import ShardingRule
from alpaviz.program.rules import OpSignature, make_rule, sign_equation


def assemble_program(
    closed: Any,
    placed: PlacedStep,
    marked: MarkedStep,
    *,
    names: Sequence[str],
    batch_axes: tuple[int | None, ...],
    num_state: int,
    state_outputs: tuple[tuple[int, int], ...],
    num_microbatches: int,
    name: str,
    in_tree: Any,
    out_tree: Any,
    recipe: Any,
    input_lanes: tuple[int, ...],
    output_lanes: tuple[int, ...],
) -> Program:
    """The program of `placed`. Operands are made before they are read: forward, backward, then update."""
    ordered = sorted(placed.equations, key=lambda e: e.role is Role.UPDATE)
    table = _ValueTable()
    inputs = [
        table.add(v, ValueKind.STATE if i < num_state else ValueKind.BATCH, name_argument(names[i]))
        for i, v in enumerate(closed.jaxpr.invars)
    ]
    constants = [table.add(v, ValueKind.CONSTANT, f"constant[{i}]") for i, v in enumerate(closed.jaxpr.constvars)]
    ops = _make_ops(ordered, table)
    outputs = tuple(None if isinstance(v, internals.Literal) else table.ids[v] for v in placed.outvars)
    jaxpr = internals.make_jaxpr(
        closed.jaxpr.constvars, closed.jaxpr.invars, placed.outvars, [e.eqn for e in ordered], closed.consts
    )
    accumulations, from_batch = _find_accumulations(ops, table.values, outputs, inputs[num_state:])
    opaque = sorted({op.primitive for op in ops if op.rule.is_opaque and op.flops > 0})
    warnings = list(marked.warnings)
    warnings += warn_of_last_results(accumulations, from_batch, ops, table.values, num_microbatches)
    if opaque:
        warnings.append(
            f"No sharding rule is known for {', '.join(opaque)}: these ops are planned whole on every device. "
            "alpaviz.register_sharding_rule gives them one."
        )
    return Program(
        name=name, fingerprint=name_program(ops, table.values, placed.num_layers, num_microbatches),
        values=tuple(table.values), ops=tuple(ops), inputs=tuple(inputs), constants=tuple(constants), outputs=outputs,
        state_outputs=state_outputs, accumulations=accumulations, num_layers=placed.num_layers,
        num_microbatches=num_microbatches, has_gradient_marker=marked.has_gradient_marker,
        input_layers=placed.input_layers, batch_axes=batch_axes, warnings=tuple(warnings), jaxpr=jaxpr,
        in_tree=in_tree, out_tree=out_tree, recipe=recipe, input_lanes=input_lanes, output_lanes=output_lanes,
    )  # fmt: skip


class _ValueTable:
    """Values numbered in the order in which they are added."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.ids: dict[Any, int] = {}

    def add(self, variable: Any, kind: ValueKind, name: str) -> int:
        number = len(self.values)
        aval = variable.aval
        self.values.append(Value(number, tuple(aval.shape), str(aval.dtype), kind, name))
        self.ids[variable] = number
        return number


class _RuleTable:
    """Rules of the equations of one program: made once per signature, and one object for equal ones."""

    def __init__(self) -> None:
        self._of_signature: dict[Any, ShardingRule] = {}
        self._distinct: dict[ShardingRule, ShardingRule] = {}

    def find(self, eqn: Any) -> ShardingRule:
        signature = sign_equation(eqn)
        key = (signature.primitive, signature.operand_shapes, signature.result_shapes, *signature.params.items())
        try:
            rule = self._of_signature.get(key)
        except TypeError:  # a parameter that has no hash
            return self._make(signature)
        if rule is None:
            rule = self._of_signature[key] = self._make(signature)
        return rule

    def _make(self, signature: OpSignature) -> ShardingRule:
        made = make_rule(signature)
        return self._distinct.setdefault(made, made)


def _make_ops(ordered: Sequence[PlacedEquation], table: _ValueTable) -> list[Op]:
    ops: list[Op] = []
    counters: Counter[str] = Counter()
    rules = _RuleTable()
    for number, item in enumerate(ordered):
        eqn = item.eqn
        prefix = "" if item.role is Role.FORWARD else f"{item.role.value}/"
        scope = "/".join(item.scopes)
        stem = f"{prefix}{scope}/{eqn.primitive.name}" if scope else f"{prefix}{eqn.primitive.name}"
        name = f"{stem}.{counters[stem]}"
        counters[stem] += 1
        operands = tuple(None if isinstance(v, internals.Literal) else table.ids[v] for v in eqn.invars)
        results = tuple(
            None if internals.is_dropped(v) else table.add(v, ValueKind.INTERMEDIATE, name if i == 0 else f"{name}#{i}")
            for i, v in enumerate(eqn.outvars)
        )
        source = internals.read_source_line(eqn)
        try:
            rule = rules.find(eqn)
        except ShardingRuleError as error:
            raise ShardingRuleError(f"{source or name}: {error}") from None
        ops.append(
            Op(number, name, eqn.primitive.name, operands, results, rule, item.role, item.layer, scope, source,
               count_flops(eqn))
        )  # fmt: skip
    return ops


def _find_accumulations(
    ops: Sequence[Op], values: Sequence[Value], outputs: Sequence[int | None], batch_inputs: Sequence[int]
) -> tuple[tuple[Accumulation, ...], set[int]]:
    """What crosses into the update, and all values that depend on the batch."""
    made_by_microbatch: set[int] = set()
    from_batch = set(batch_inputs)
    read_once: dict[int, None] = {}
    for op in ops:
        if op.role is Role.UPDATE:
            read_once.update({v: None for v in op.inputs if v in made_by_microbatch and v is not None})
            continue
        results = [v for v in op.outputs if v is not None]
        made_by_microbatch.update(results)
        if any(v in from_batch for v in op.inputs):
            from_batch.update(results)
    read_once.update({v: None for v in outputs if v in made_by_microbatch and v is not None})
    found = [Accumulation(v, "mean" if v in from_batch and _is_float(values[v].dtype) else "last") for v in read_once]
    return tuple(found), from_batch


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


def name_program(ops: Sequence[Op], values: Sequence[Value], num_layers: int, num_microbatches: int) -> str:
    """The fingerprint of a program."""
    digest = hashlib.sha256(f"{num_layers} {num_microbatches}".encode())
    for value in values:
        digest.update(f"{value.shape}{value.dtype}{value.kind}".encode())
    for op in ops:
        digest.update(f"{op.primitive}{op.inputs}{op.outputs}{op.role}{op.layer}{op.rule}".encode())
    return digest.hexdigest()[:16]
