"""Branches: `lax.cond` and `lax.switch` become the ops of all their branches and a choice between the results.

In: a closed jaxpr without nested calls. Out: one without `cond` equations, but for those whose branches hold products,
a `while` loop (which may not end where it is not meant to run) or effects: these are planned as one op. An op that is
the whole of a branch could not be placed: an update that is skipped when gradients are not finite would gather every
stage's parameters on one. A launched step computes all branches, as `jax.vmap` of a conditional does.
"""

from __future__ import annotations

from typing import Any

from alpaviz.program import jax_internals as internals
from alpaviz.program.flatten import drop_unused, inline_calls


def select_branches(closed: Any) -> Any:
    """`closed` with every `cond` equation that can be replaced by its branches and `select_n`."""
    while any(_can_select(eqn) for eqn in closed.jaxpr.eqns):
        closed = inline_calls(_select_outermost(closed))
    return closed


def _can_select(eqn: Any) -> bool:
    return eqn.primitive.name == "cond" and not eqn.effects and not any(map(_has_heavy_op, eqn.params["branches"]))


def _has_heavy_op(closed: Any) -> bool:
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive.name in ("while", "dot_general", "conv_general_dilated"):
            return True
        if any(_has_heavy_op(body) for body in internals.list_bodies(eqn)):
            return True
    return False


def _select_outermost(closed: Any) -> Any:
    eqns: list[Any] = []
    constvars, consts = list(closed.jaxpr.constvars), list(closed.consts)
    for eqn in closed.jaxpr.eqns:
        if not _can_select(eqn):
            eqns.append(eqn)
            continue
        index, *operands = eqn.invars
        results = []
        for branch in eqn.params["branches"]:
            fresh = [internals.make_variable(v.aval) for v in branch.jaxpr.constvars]
            constvars += fresh
            consts += branch.consts
            results.append(_append_branch(branch.jaxpr, [*fresh, *operands], eqn, eqns))
        select = internals.select_primitive()
        for chosen, *cases in zip(eqn.outvars, *results, strict=True):
            eqns.append(internals.make_equation(select, [index, *cases], [chosen], {}, like=eqn))
    eqns = drop_unused(eqns, closed.jaxpr.outvars)
    return internals.make_jaxpr(constvars, closed.jaxpr.invars, closed.jaxpr.outvars, eqns, consts)


def _append_branch(jaxpr: Any, operands: list[Any], caller: Any, eqns: list[Any]) -> list[Any]:
    """Append the equations of one branch to `eqns`, with new variables; its results."""
    env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], operands, strict=True))

    def read(v: Any) -> Any:
        return v if isinstance(v, internals.Literal) else env[v]

    for eqn in jaxpr.eqns:
        fresh = [internals.make_variable(v.aval) for v in eqn.outvars]
        placed = internals.prepend_source(caller, eqn, use_outer_traceback=False)
        eqns.append(placed.replace(invars=[read(v) for v in eqn.invars], outvars=fresh))
        env.update(zip(eqn.outvars, fresh, strict=True))
    return [read(v) for v in jaxpr.outvars]
