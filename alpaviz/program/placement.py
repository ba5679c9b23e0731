"""Layers of all ops: forward ops by clustering or markers, backward ops with their forward op, update ops with the
parameter that they update.

In: a `MarkedStep`. Out: its equations with layers, cheap constants copied to each place that reads them, and sums of
gradients from different layers moved into the update.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from alpaviz.errors import InvalidStepError
from alpaviz.program import jax_internals as internals
from alpaviz.program.flops import count_flops
from alpaviz.program.layers import FlowValue, ForwardGroups, cluster_layers
from alpaviz.program.program import SHARED_LAYER, Role
from alpaviz.program.roles import MarkedEquation, MarkedStep


@dataclass(frozen=True, slots=True)
class PlacedEquation:
    """An equation with its role and layer."""

    eqn: Any
    role: Role
    layer: int
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """Flat equations with roles and layers; `input_layers` is per input variable."""

    equations: tuple[PlacedEquation, ...]
    outvars: tuple[Any, ...]
    input_layers: tuple[int, ...]
    num_layers: int


def place_in_layers(step: MarkedStep, invars: Sequence[Any], num_layers: int | None) -> PlacedStep:
    """Give each equation a layer.

    Raises:
        InvalidStepError: more layers are asked for than the forward pass has heavy ops, or `num_layers` contradicts
            explicit boundaries.
    """
    constant_vars = _find_constants(step.equations)
    working = [m for m in step.equations if m.eqn.outvars[0] not in constant_vars]
    layer_of_group, count = _assign_groups(working, step, num_layers)
    layers: dict[int, int] = {}
    for position, marked in enumerate(working):
        if marked.role is not Role.UPDATE and marked.group in layer_of_group:
            layers[position] = layer_of_group[marked.group]
    _fill_by_consumers(working, layers)
    roles = _defer_gradient_sums(working, layers, step.outvars)
    input_layers = _place_update(working, roles, layers, invars, step.outvars)
    placed = [
        PlacedEquation(m.eqn, role, layers[i], m.scopes) for i, (m, role) in enumerate(zip(working, roles, strict=True))
    ]
    placed, outvars = _copy_constants(step.equations, constant_vars, placed, step.outvars)
    return PlacedStep(tuple(placed), tuple(outvars), tuple(input_layers), count)


def _inputs(eqn: Any) -> list[Any]:
    return [v for v in eqn.invars if not isinstance(v, internals.Literal)]


def _find_constants(equations: Sequence[MarkedEquation]) -> set[Any]:
    """Results that are made from nothing but literals: counters, zeros, masks."""
    constants: set[Any] = set()
    for marked in equations:
        if not marked.eqn.effects and all(v in constants for v in _inputs(marked.eqn)):
            constants.update(marked.eqn.outvars)
    return constants


def _assign_groups(
    working: Sequence[MarkedEquation], step: MarkedStep, num_layers: int | None
) -> tuple[dict[int, int], int]:
    """Layer of each forward group, and how many layers there are."""
    groups = sorted({m.group for m in working if m.group is not None and m.role is Role.FORWARD})
    if not step.has_gradient_marker or not groups:
        return {}, 1
    if step.boundaries:
        cuts = sorted(set(step.boundaries))
        if num_layers is not None and num_layers != len(cuts) + 1:
            raise InvalidStepError(
                f"num_layers={num_layers} contradicts the step's {len(cuts)} layer_boundary marks, which make "
                f"{len(cuts) + 1} layers. Leave num_layers out or move the marks."
            )
        found = np.searchsorted(np.array(cuts), np.array(groups), side="right")
    else:
        try:
            found = np.array(cluster_layers(_describe_forward(working, groups), num_layers))
        except ValueError as error:
            raise InvalidStepError(f"{error}. Ask for fewer layers or leave num_layers out.") from None
    # A layer without ops (two marks side by side) is not a layer.
    used = {layer: i for i, layer in enumerate(sorted({int(layer) for layer in found}))}
    return {g: used[int(layer)] for g, layer in zip(groups, found, strict=True)}, len(used)


def _describe_forward(working: Sequence[MarkedEquation], groups: Sequence[int]) -> ForwardGroups:
    index = {g: i for i, g in enumerate(groups)}
    flops = [0.0] * len(groups)
    signatures = [""] * len(groups)
    scopes: list[tuple[str, ...]] = [()] * len(groups)
    producer: dict[Any, int] = {}
    readers: dict[Any, list[int]] = defaultdict(list)
    size: dict[Any, float] = {}
    for marked in working:
        if marked.role is not Role.FORWARD or marked.group not in index:
            continue
        group = index[marked.group]
        flops[group] += count_flops(marked.eqn)
        path = tuple("/".join(marked.scopes).split("/"))  # one scope may be written as a path
        scopes[group] = max(scopes[group], path, key=len)
        signatures[group] += f"{marked.eqn.primitive.name}{[v.aval.str_short() for v in marked.eqn.outvars]}"
        for v in _inputs(marked.eqn):
            if v in producer:
                readers[v].append(group)
        for v in marked.eqn.outvars:
            producer[v] = group
            size[v] = float(np.prod(v.aval.shape, dtype=float)) * getattr(v.aval.dtype, "itemsize", 8)
    values = tuple(
        FlowValue(producer[v], tuple(g for g in read if g != producer[v]), size[v]) for v, read in readers.items()
    )
    return ForwardGroups(tuple(flops), tuple(signatures), values, tuple(scopes))


def _fill_by_consumers(working: Sequence[MarkedEquation], layers: dict[int, int]) -> None:
    """Forward and backward ops without a number go to the first layer that reads them, else to that of an operand."""
    wanted: dict[Any, int] = {}
    for position in range(len(working) - 1, -1, -1):
        marked = working[position]
        if marked.role is Role.UPDATE:
            continue
        if position not in layers:
            readers = [wanted[v] for v in marked.eqn.outvars if v in wanted]
            if readers:
                layers[position] = min(readers)
        if position in layers:
            for v in _inputs(marked.eqn):
                wanted[v] = min(wanted.get(v, layers[position]), layers[position])
    made: dict[Any, int] = {}
    for position, marked in enumerate(working):
        if marked.role is Role.UPDATE:
            continue
        layers.setdefault(position, max((made[v] for v in _inputs(marked.eqn) if v in made), default=0))
        made.update(dict.fromkeys(marked.eqn.outvars, layers[position]))


def _defer_gradient_sums(
    working: Sequence[MarkedEquation], layers: dict[int, int], outvars: Sequence[Any]
) -> list[Role]:
    """Roles, where a sum of gradients that come from different layers (a tied parameter) becomes part of the update.

    Each layer then accumulates its own part over the microbatches, and the parts meet once per step.
    """
    roles = [m.role for m in working]
    read_by_microbatch: set[Any] = set()
    made_in: dict[Any, int] = {}
    for position, marked in enumerate(working):
        if marked.role is not Role.UPDATE:
            made_in.update(dict.fromkeys(marked.eqn.outvars, layers[position]))
    for position in range(len(working) - 1, -1, -1):
        marked = working[position]
        if marked.role is Role.UPDATE:
            continue
        result = marked.eqn.outvars[0]
        is_sum = marked.role is Role.BACKWARD and marked.eqn.primitive.name == "add_any"
        if is_sum and result not in read_by_microbatch:
            parts = {made_in[v] for v in _inputs(marked.eqn) if v in made_in}
            if len(parts) > 1:
                roles[position] = Role.UPDATE
                del layers[position]
                continue
        read_by_microbatch.update(_inputs(marked.eqn))
    return roles


def _place_update(
    working: Sequence[MarkedEquation],
    roles: Sequence[Role],
    layers: dict[int, int],
    invars: Sequence[Any],
    outvars: Sequence[Any],
) -> list[int]:
    """Fill in the layers of update ops; the layers of the inputs.

    An input belongs to the first layer that reads it, else (optimizer state) to that of the update ops around it. Ops
    of scalars that belong to no layer (step counters, schedules) are shared.
    """
    owner: dict[Any, int] = {}
    inputs = set(invars)
    for position, marked in enumerate(working):
        if roles[position] is not Role.UPDATE:
            for v in _inputs(marked.eqn):
                if v in inputs:
                    owner[v] = min(owner.get(v, layers[position]), layers[position])
            owner.update(dict.fromkeys(marked.eqn.outvars, layers[position]))
    update = [i for i, role in enumerate(roles) if role is Role.UPDATE]
    while _spread_layers(working, update, layers, owner):
        pass
    for position in update:
        layers.setdefault(position, SHARED_LAYER)
    return [owner.get(v, SHARED_LAYER) for v in invars]


def _spread_layers(
    working: Sequence[MarkedEquation], update: Sequence[int], layers: dict[int, int], owner: dict[Any, int]
) -> bool:
    """One pass over the update ops, there and back; whether anything was found."""
    changed = False
    for position in update:
        eqn = working[position].eqn
        if position in layers:
            continue
        known = [v for v in _inputs(eqn) if v in owner]
        if known:
            # The largest operand's layer: the op runs where most of its data is.
            main = max(known, key=lambda v: (float(np.prod(v.aval.shape, dtype=float)), -owner[v]))
            layers[position] = owner[main]
            owner.update(dict.fromkeys(eqn.outvars, owner[main]))
            changed = True
    for position in reversed(update):
        eqn = working[position].eqn
        if position not in layers:
            readers = [owner[v] for v in eqn.outvars if v in owner]
            if readers and eqn.outvars[0].aval.shape != ():
                layers[position] = min(readers)
                owner.update(dict.fromkeys(eqn.outvars, layers[position]))
                changed = True
        if position in layers:
            for v in _inputs(eqn):
                if v not in owner and v.aval.shape != ():
                    owner[v] = layers[position]
                    changed = True
    return changed


def _copy_constants(
    equations: Sequence[MarkedEquation],
    constant_vars: set[Any],
    placed: Sequence[PlacedEquation],
    outvars: Sequence[Any],
) -> tuple[list[PlacedEquation], list[Any]]:
    """The equations with each constant made anew in every (role, layer) that reads it."""
    makers = {v: m for m in equations if m.eqn.outvars[0] in constant_vars for v in m.eqn.outvars}
    copies: dict[tuple[Any, Role, int], Any] = {}
    result: list[PlacedEquation] = []

    def copy(v: Any, role: Role, layer: int) -> Any:
        if isinstance(v, internals.Literal) or v not in makers:
            return v
        if (v, role, layer) not in copies:
            maker = makers[v]
            operands = [copy(operand, role, layer) for operand in maker.eqn.invars]
            made = [internals.make_variable(out.aval) for out in maker.eqn.outvars]
            copies.update({(out, role, layer): new for out, new in zip(maker.eqn.outvars, made, strict=True)})
            eqn = maker.eqn.replace(invars=operands, outvars=made)
            result.append(PlacedEquation(eqn, role, layer, maker.scopes))
        return copies[(v, role, layer)]

    for item in placed:
        if any(v in makers for v in _inputs(item.eqn)):
            operands = [copy(v, item.role, item.layer) for v in item.eqn.invars]
            item = replace(item, eqn=item.eqn.replace(invars=operands))
        result.append(item)
    return result, [copy(v, Role.UPDATE, SHARED_LAYER) for v in outvars]
