"""Losses that are sums over the batch: what `value_and_grad(..., reduction="sum")` marks becomes mean times count.

Every result of the microbatches is averaged; the sum of a marked one is its mean times their number, which is known
only when a step is planned. Outside of a plan there is one microbatch and the mark does nothing.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from alpaviz.program import jax_internals as internals

SUM = internals.make_identity_primitive("alpaviz_sum")
"""Marks a result that is the sum of the microbatches' results; `of_batch`: only if it depends on the batch."""


def mark_sum(leaf: Any, *, of_batch: bool = False) -> Any:
    """`leaf`, marked if it is a floating-point or complex array."""
    return SUM.bind(leaf, of_batch=of_batch) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf


def scale_sums(closed: Any, num_microbatches: int, batch_vars: set[Any]) -> Any:
    """`closed` with each mark replaced by a product with the number of microbatches, or by nothing."""
    if not any(eqn.primitive is SUM for eqn in closed.jaxpr.eqns):
        return closed
    from_batch = set(batch_vars)
    alias: dict[Any, Any] = {}
    eqns = []

    def resolve(v: Any) -> Any:
        return v if isinstance(v, internals.Literal) else alias.get(v, v)

    for eqn in closed.jaxpr.eqns:
        inputs = [resolve(v) for v in eqn.invars]
        depends = any(v in from_batch for v in inputs if not isinstance(v, internals.Literal))
        if depends:
            from_batch.update(eqn.outvars)
        if eqn.primitive is not SUM:
            eqns.append(eqn.replace(invars=inputs))
        elif num_microbatches == 1 or (eqn.params["of_batch"] and not depends):
            alias[eqn.outvars[0]] = inputs[0]
        else:
            count = internals.make_scalar(num_microbatches, eqn.outvars[0].aval.dtype)
            product = internals.multiply_primitive()
            eqns.append(internals.make_equation(product, [inputs[0], count], eqn.outvars, {}, like=eqn))
    jaxpr = closed.jaxpr
    outvars = [resolve(v) for v in jaxpr.outvars]
    return internals.make_jaxpr(jaxpr.constvars, jaxpr.invars, outvars, eqns, closed.consts)
