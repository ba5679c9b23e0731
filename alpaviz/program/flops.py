"""FLOP of one equation: multiply and add counted as 2; ops that compute nothing count 0."""

from __future__ import annotations

import math
from typing import Any

_FREE = frozenset(
    {
        "reshape", "transpose", "broadcast_in_dim", "convert_element_type", "iota", "slice", "squeeze", "copy",
        "stop_gradient", "optimization_barrier", "concatenate", "pad", "gather", "dynamic_slice", "rev",
        "dynamic_update_slice", "bitcast_convert_type", "expand_dims", "split",
    }
)  # fmt: skip
_CALLS = frozenset(
    {
        "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
        "remat2", "checkpoint", "remat",
    }
)  # fmt: skip


def count_flops(eqn: Any) -> float:
    """FLOP of `eqn` at its global shapes. Bodies of loops are counted once per trip where the count is known."""
    name = eqn.primitive.name
    if name == "dot_general":
        (contract, _), _ = eqn.params["dimension_numbers"]
        left = eqn.invars[0].aval.shape
        return 2.0 * float(math.prod(eqn.outvars[0].aval.shape) * math.prod(left[d] for d in contract))
    if name == "ragged_dot_general":
        return _count_ragged_flops(eqn)
    if name == "conv_general_dilated":
        kernel = eqn.invars[1].aval.shape
        out_feature = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * float(math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel) / max(1, out_feature))
    if name == "scan":
        return float(eqn.params["length"]) * _count_body(eqn.params["jaxpr"])
    if name == "while":
        return _count_body(eqn.params["body_jaxpr"]) + _count_body(eqn.params["cond_jaxpr"])
    if name == "cond":
        return max(map(_count_body, eqn.params["branches"]))
    if name in _CALLS:
        return sum(_count_body(eqn.params[key]) for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in eqn.params)
    if name in _FREE:
        return 0.0
    if name.startswith("reduce_"):
        return float(math.prod(eqn.invars[0].aval.shape))
    if name.startswith("scatter"):
        return float(math.prod(eqn.invars[-1].aval.shape))
    return float(sum(math.prod(v.aval.shape) for v in eqn.outvars))


def _count_ragged_flops(eqn: Any) -> float:
    """Each row meets the weights of its own group only."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    right = eqn.invars[1].aval.shape
    shared = {*contracted, *batch, *numbers.rhs_group_dimensions}
    free = [size for d, size in enumerate(right) if d not in shared]
    return 2.0 * float(math.prod(eqn.invars[0].aval.shape) * math.prod(free))


def _count_body(closed: Any) -> float:
    return sum(count_flops(eqn) for eqn in getattr(closed, "jaxpr", closed).eqns)
