"""Inlining: a jaxpr with nested calls becomes one flat list of equations.

In: a closed jaxpr. Out: one without `jit`, `closed_call`, `custom_jvp_call`, `custom_vjp_call`, `remat` and
`sharding_constraint` equations.
Regions under `jax.checkpoint` are kept recomputed: their backward copy reads its operands through an optimization
barrier, which is what JAX's own lowering does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from alpaviz.program import jax_internals as internals

CALLS = frozenset(
    {
        "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
        "remat2", "checkpoint", "remat", "custom_lin",
    }
)  # fmt: skip
PLAIN_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call"})
RECOMPUTED = "alpaviz_recomputed"
"""Scope of what a `jax.checkpoint` region does again in the backward pass."""
_REMAT = frozenset({"remat2", "checkpoint", "remat"})


def inline_calls(closed: Any, calls: frozenset[str] = CALLS) -> Any:
    """`closed` with every equation of a primitive in `calls` replaced by its body. Unused equations are dropped."""
    inliner = _Inliner(calls)
    invars = [internals.make_variable(v.aval) for v in closed.jaxpr.invars]
    constvars = [internals.make_variable(v.aval) for v in closed.jaxpr.constvars]
    inliner.constvars, inliner.consts = list(constvars), list(closed.consts)
    outvars = inliner.inline(closed.jaxpr, constvars + invars)
    eqns = drop_unused(inliner.eqns, outvars)
    return internals.make_jaxpr(inliner.constvars, invars, outvars, eqns, inliner.consts)


def drop_unused(eqns: Sequence[Any], outvars: Iterable[Any]) -> list[Any]:
    """The equations whose results are read, in order. Equations with effects stay."""
    needed = {v for v in outvars if not isinstance(v, internals.Literal)}
    kept = []
    for eqn in reversed(eqns):
        if eqn.effects or any(v in needed for v in eqn.outvars):
            needed.update(v for v in eqn.invars if not isinstance(v, internals.Literal))
            kept.append(eqn)
    return kept[::-1]


class _Inliner:
    """Collects equations; `constvars` and `consts` grow by the constants of nested closed jaxprs."""

    def __init__(self, calls: frozenset[str]) -> None:
        self.calls = calls
        self.eqns: list[Any] = []
        self.constvars: list[Any] = []
        self.consts: list[Any] = []

    def inline(self, jaxpr: Any, operands: Sequence[Any], caller: Any = None, from_library: bool = False) -> list[Any]:
        """Append `jaxpr`'s equations applied to `operands` (constants first); its results."""
        env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], operands, strict=True))

        def read(v: Any) -> Any:
            return v if isinstance(v, internals.Literal) else env[v]

        for eqn in jaxpr.eqns:
            placed = eqn
            if caller is not None:
                placed = internals.prepend_source(caller, eqn, use_outer_traceback=from_library)
            inputs = [read(v) for v in eqn.invars]
            if eqn.primitive.name == "sharding_constraint":
                results = inputs  # the plan decides layouts; the mesh that the user named is not the plan's
            elif eqn.primitive.name in self.calls:
                results = self._inline_call(placed, inputs)
            elif eqn.primitive.name == "optimization_barrier":
                # One barrier for each operand, so that each may have its own layout.
                results = [self._add_barrier(placed, v) for v in inputs]
            else:
                results = [internals.make_variable(v.aval) for v in eqn.outvars]
                self.eqns.append(placed.replace(invars=inputs, outvars=results))
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _inline_call(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        body = _find_body(eqn.params)
        if eqn.primitive.name in _REMAT and eqn.params.get("differentiated"):
            eqn = internals.add_scope(eqn, RECOMPUTED)
            if eqn.params.get("prevent_cse", True):
                inputs = [self._add_barrier(eqn, v) for v in inputs]
        consts: list[Any] = []
        # jax 0.12 has one class for open and closed jaxprs; an open one has no constants.
        for const, variable in zip(getattr(body, "consts", ()) or (), getattr(body, "jaxpr", body).constvars):
            consts.append(internals.make_variable(variable.aval))
            self.constvars.append(consts[-1])
            self.consts.append(const)
        body = getattr(body, "jaxpr", body)
        return self.inline(body, consts + inputs, caller=eqn, from_library=_is_library_function(body))

    def _add_barrier(self, eqn: Any, variable: Any) -> Any:
        if isinstance(variable, internals.Literal):
            return variable
        result = internals.make_variable(variable.aval)
        barrier = internals.optimization_barrier_primitive()
        self.eqns.append(internals.make_equation(barrier, [variable], [result], {}, like=eqn))
        return result


def _find_body(params: dict[str, Any]) -> Any:
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if name in params:
            return params[name]
    raise KeyError(f"no jaxpr among the parameters {sorted(params)} of a call")


def _is_library_function(jaxpr: Any) -> bool:
    """Whether a nested jaxpr is one of JAX's own helpers, whose cached source lines are those of its first caller."""
    info = getattr(jaxpr, "debug_info", None)
    source = str(getattr(info, "func_src_info", "") or "")
    return "/jax/_src/" in source or "/jax/numpy/" in source
