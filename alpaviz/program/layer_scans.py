"""Scans over stacked layers, written out: each iteration becomes a layer that planning can place on its own.

In: a flat jaxpr in which `lax.scan` runs over parameters that are stacked along their first dimension. Out: one in
which every such parameter (and optimizer state, gradient, residual) is one variable per layer, and each scan over
them as many copies of its body. Scans over anything else (time steps) stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.program import jax_internals as internals
from alpaviz.program.flatten import drop_unused, inline_calls
from alpaviz.program.lanes import LaneRule, adapt_params, find_combiner, find_lane_rule

LAYER_SCOPE = "alpaviz_layer_"
"""Scope of an iteration; people see `layer_3`."""
MAX_WRITTEN_OUT = 300_000
"""Equations of all iterations together, above which a scan stays a loop."""


@dataclass(frozen=True, slots=True)
class UnstackedStep:
    """A flat jaxpr without scans over layers.

    Attributes:
        input_lanes: per invar of the original, into how many variables it was taken apart; 0 for those left whole.
        output_lanes: the same per outvar.
    """

    closed: Any
    input_lanes: tuple[int, ...]
    output_lanes: tuple[int, ...]


def unstack_layers(closed: Any, state_outputs: Sequence[tuple[int, int]], num_state: int) -> UnstackedStep:
    """Write out the scans over stacked state.

    Args:
        state_outputs: (outvar, invar) positions of the new state; both ends of a stacked leaf are taken apart.
        num_state: the first invars, which are state.
    """
    jaxpr = closed.jaxpr
    stacked = _find_stacked_inputs(jaxpr, set(jaxpr.invars[:num_state]))
    if not stacked:
        return UnstackedStep(closed, (0,) * len(jaxpr.invars), (0,) * len(jaxpr.outvars))
    writer = _Writer()
    invars: list[Any] = []
    for v in jaxpr.invars:
        lanes = [internals.make_variable(drop_first_dimension(v.aval)) for _ in range(stacked.get(v, 0))]
        variables = lanes or [internals.make_variable(v.aval)]
        writer.env[v] = lanes or variables[0]
        invars += variables
    for v in jaxpr.constvars:
        writer.env[v] = internals.make_variable(v.aval)
    writer.constvars, writer.consts = [writer.env[v] for v in jaxpr.constvars], list(closed.consts)
    for eqn in jaxpr.eqns:
        writer.write(eqn)
    input_lanes = tuple(stacked.get(v, 0) for v in jaxpr.invars)
    wanted = {o: input_lanes[i] for o, i in state_outputs if input_lanes[i]}
    outvars: list[Any] = []
    for position, v in enumerate(jaxpr.outvars):
        if position in wanted:
            outvars += writer.read_lanes(v, wanted[position])
        else:
            outvars.append(writer.read_whole(v))
    eqns = drop_unused(writer.eqns, outvars)
    made = internals.make_jaxpr(writer.constvars, invars, outvars, eqns, writer.consts)
    return UnstackedStep(made, input_lanes, tuple(wanted.get(o, 0) for o in range(len(jaxpr.outvars))))


def drop_first_dimension(aval: Any) -> Any:
    """The type of one slice along the first dimension."""
    return jax.core.ShapedArray(aval.shape[1:], aval.dtype, weak_type=getattr(aval, "weak_type", False))


def _shape(v: Any) -> tuple[int, ...]:
    return tuple(v.aval.shape)


def _find_stacked_inputs(jaxpr: Any, state: set[Any]) -> dict[Any, int]:
    """State that a scan runs over (as it is or after ops on each slice), and state that meets it: invar -> layers."""
    stacked: dict[Any, int] = {}
    while True:
        before = len(stacked)
        # What each variable is made of, slice by slice; and which are stacks.
        roots: dict[Any, set[Any]] = {v: {v} for v in state if len(_shape(v)) > 0}
        laned: dict[Any, int] = dict(stacked)
        for eqn in jaxpr.eqns:
            _spread_stacks(eqn, roots, laned, stacked)
        if len(stacked) == before:
            return stacked


def _spread_stacks(eqn: Any, roots: dict[Any, set[Any]], laned: dict[Any, int], stacked: dict[Any, int]) -> None:
    inputs = [v for v in eqn.invars if not isinstance(v, internals.Literal)]

    def claim(variables: Sequence[Any], length: int) -> None:
        for v in variables:
            for root in roots.get(v, ()):
                if _shape(root)[:1] == (length,):
                    stacked[root] = laned[root] = length

    if eqn.primitive.name == "scan":
        length, (num_consts, num_carry) = eqn.params["length"], internals.count_scan_parts(eqn.params)
        over = [v for v in eqn.invars[num_consts + num_carry :] if not isinstance(v, internals.Literal)]
        if _is_short_enough(eqn) and any(v in laned or roots.get(v) for v in over):
            claim(over, length)
            laned.update(dict.fromkeys(eqn.outvars[num_carry:], length))
        return
    lengths = {laned[v] for v in inputs if v in laned}
    rule = _find_rule(eqn, lengths)
    if rule is LaneRule.EACH and lengths:
        length = lengths.pop()
        claim([v for v in inputs if v not in laned], length)
        laned.update(dict.fromkeys(eqn.outvars, length))
    elif rule is LaneRule.EACH:
        found: set[Any] = set()
        for v in inputs:
            found |= roots.get(v, set())
        if found:
            roots.update({v: found for v in eqn.outvars if _shape(v)[:1] == _shape(inputs[0])[:1]})


def _find_rule(eqn: Any, lengths: set[int] | None = None) -> LaneRule | None:
    if lengths is not None and len(lengths) > 1:
        return None
    ranked = [v for v in eqn.invars if _shape(v)]
    if not ranked:
        return None
    return find_lane_rule(eqn.primitive.name, eqn.params, [_shape(v) for v in ranked])


def _is_short_enough(eqn: Any) -> bool:
    body = eqn.params["jaxpr"]
    return bool(eqn.params["length"] * len(getattr(body, "jaxpr", body).eqns) <= MAX_WRITTEN_OUT)


class _Writer:
    """Writes equations anew; `env` maps an old variable to a new one, or to a list of one per layer."""

    def __init__(self) -> None:
        self.env: dict[Any, Any] = {}
        self.eqns: list[Any] = []
        self.constvars: list[Any] = []
        self.consts: list[Any] = []
        self._joined: dict[Any, Any] = {}
        self._slices: dict[tuple[Any, int], Any] = {}
        self._uniform: dict[Any, Any] = {}

    def write(self, eqn: Any) -> None:
        """Append what `eqn` is on the new variables."""
        inputs = [v if isinstance(v, internals.Literal) else self.env[v] for v in eqn.invars]
        if eqn.primitive.name == "scan":
            over = inputs[sum(internals.count_scan_parts(eqn.params)) :]
            if _is_short_enough(eqn) and any(isinstance(v, list) for v in over):
                self._write_scan(eqn, inputs)
                return
        lengths = {len(v) for v in inputs if isinstance(v, list)}
        rule = _find_rule(eqn, lengths) if lengths else None
        if rule is LaneRule.EACH:
            self._write_each(eqn, lengths.pop())
        elif rule is LaneRule.COMBINE:
            self._write_combined(eqn, self.env[eqn.invars[0]])
        else:
            results = [internals.make_variable(v.aval) for v in eqn.outvars]
            self.eqns.append(eqn.replace(invars=[self.read_whole(v) for v in eqn.invars], outvars=results))
            self.env.update(zip(eqn.outvars, results, strict=True))
            if len(results) == 1 and self._is_uniform(self.eqns[-1]):
                self._uniform[results[0]] = self.eqns[-1]

    def _is_uniform(self, eqn: Any) -> bool:
        """Whether the (new) equation's result is the same in all slices: a scalar that was broadcast, for instance."""
        if eqn.primitive.name == "broadcast_in_dim" and _shape(eqn.outvars[0]):
            return 0 not in eqn.params["broadcast_dimensions"]
        ranked = [v for v in eqn.invars if _shape(v)]
        if not ranked or any(isinstance(v, internals.Literal) or v not in self._uniform for v in ranked):
            return False
        return _find_rule(eqn) is LaneRule.EACH

    def read_whole(self, v: Any) -> Any:
        """The variable that holds all of `v`; a stack that was taken apart is put together, once."""
        held = v if isinstance(v, internals.Literal) else self.env[v]
        if not isinstance(held, list):
            return held
        if v not in self._joined:
            self._joined[v] = self._trace(lambda *parts: jnp.stack(parts), held)
        return self._joined[v]

    def read_lanes(self, v: Any, length: int) -> list[Any]:
        """`v` as one variable per layer."""
        held = v if isinstance(v, internals.Literal) else self.env[v]
        return held if isinstance(held, list) else [self._slice(held, i) for i in range(length)]

    def _slice(self, whole: Any, index: int) -> Any:
        if not _shape(whole):
            return whole
        key = (whole, index)
        if isinstance(whole, internals.Literal) or key not in self._slices:
            maker = None if isinstance(whole, internals.Literal) else self._uniform.get(whole)
            if maker is None:
                part = self._trace(lambda a: jax.lax.index_in_dim(a, index, 0, keepdims=False), [whole])
            else:
                part = self._make_again(maker, index)
            if isinstance(whole, internals.Literal):
                return part
            self._slices[key] = part
        return self._slices[key]

    def _make_again(self, maker: Any, index: int) -> Any:
        """One slice of a value that is the same in all layers: made anew, so that no layer waits for another."""
        if maker.primitive.name == "broadcast_in_dim" and 0 not in maker.params["broadcast_dimensions"]:
            operands, params = list(maker.invars), dict(maker.params)
            params["shape"] = tuple(params["shape"][1:])
            params["broadcast_dimensions"] = tuple(d - 1 for d in params["broadcast_dimensions"])
        else:
            operands = [self._slice(v, index) for v in maker.invars]
            params = adapt_params(maker.primitive.name, maker.params)
        result = internals.make_variable(drop_first_dimension(maker.outvars[0].aval))
        self.eqns.append(maker.replace(invars=operands, outvars=[result], params=params))
        return result

    def _trace(self, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """The result of `function`, whose equations are appended."""
        closed = inline_calls(internals.trace_flat(function, [v.aval for v in operands]))
        return self._copy(closed.jaxpr, list(operands))[0]

    def _copy(self, jaxpr: Any, operands: Sequence[Any], caller: Any = None) -> list[Any]:
        inner: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], operands, strict=True))

        def read(v: Any) -> Any:
            return v if isinstance(v, internals.Literal) else inner[v]

        for eqn in jaxpr.eqns:
            results = [internals.make_variable(v.aval) for v in eqn.outvars]
            placed = eqn if caller is None else internals.prepend_source(caller, eqn, use_outer_traceback=False)
            self.eqns.append(placed.replace(invars=[read(v) for v in eqn.invars], outvars=results))
            inner.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _write_each(self, eqn: Any, length: int) -> None:
        operands = [self.read_lanes(v, length) for v in eqn.invars]
        params = adapt_params(eqn.primitive.name, eqn.params)
        results: list[list[Any]] = [[] for _ in eqn.outvars]
        for index in range(length):
            made = [internals.make_variable(drop_first_dimension(v.aval)) for v in eqn.outvars]
            self.eqns.append(eqn.replace(invars=[lanes[index] for lanes in operands], outvars=made, params=params))
            for lanes, variable in zip(results, made, strict=True):
                lanes.append(variable)
        self.env.update(zip(eqn.outvars, results, strict=True))

    def _write_combined(self, eqn: Any, lanes: Sequence[Any]) -> None:
        params = adapt_params(eqn.primitive.name, eqn.params)
        combine = getattr(jax.lax, _LAX_NAMES.get(find_combiner(eqn.primitive.name), find_combiner(eqn.primitive.name)))
        total: Any = None
        for lane in lanes:
            part = lane
            if params["axes"]:
                part = internals.make_variable(eqn.outvars[0].aval)
                self.eqns.append(eqn.replace(invars=[lane], outvars=[part], params=params))
            total = part if total is None else self._trace(combine, [total, part])
        self.env[eqn.outvars[0]] = total

    def _write_scan(self, eqn: Any, inputs: Sequence[Any]) -> None:
        """The body once per layer, in the scan's order; what it stacks stays taken apart."""
        params = eqn.params
        (num_consts, num_carry), length = internals.count_scan_parts(params), params["length"]
        body = inline_calls(params["jaxpr"])
        constvars = [internals.make_variable(v.aval) for v in body.jaxpr.constvars]
        self.constvars += constvars
        self.consts += body.consts
        consts = [self.read_whole(v) for v in eqn.invars[:num_consts]]
        carry = [self.read_whole(v) for v in eqn.invars[num_consts : num_consts + num_carry]]
        over = [self.read_lanes(v, length) for v in eqn.invars[num_consts + num_carry :]]
        stacks: list[list[Any]] = [[None] * length for _ in eqn.outvars[num_carry:]]
        for index in reversed(range(length)) if params["reverse"] else range(length):
            caller = internals.add_scope(eqn, f"{LAYER_SCOPE}{index}")
            slices = [lanes[index] for lanes in over]
            results = self._copy(body.jaxpr, [*constvars, *consts, *carry, *slices], caller)
            carry = results[:num_carry]
            for stack, v in zip(stacks, results[num_carry:], strict=True):
                stack[index] = v
        self.env.update(zip(eqn.outvars, [*carry, *stacks], strict=True))


_LAX_NAMES = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
