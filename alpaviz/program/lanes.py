"""Arrays whose first dimension counts layers, taken apart: what an op on a stack is on each of its slices.

A stacked value is a list of variables, one per layer, without the first dimension. `list_lane_rule` says how a
primitive works on stacks; a primitive that has no rule here gets the stack put together again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from alpaviz.program.rules.elementwise import ELEMENTWISE


class LaneRule(enum.StrEnum):
    """What a primitive does to the first dimension of its operands."""

    EACH = "each"
    """It works on each slice alone, with parameters that `adapt_params` gives."""
    COMBINE = "combine"
    """It reduces the first dimension: each slice is reduced, then the parts are combined."""


_MARKERS = ("alpaviz_seed", "alpaviz_exit", "alpaviz_layer_boundary")
_PLAIN = frozenset((*ELEMENTWISE, *_MARKERS))
_COMBINING = {
    "reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "mul", "reduce_and": "and",
    "reduce_or": "or", "reduce_xor": "xor",
}  # fmt: skip


def find_lane_rule(primitive: str, params: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> LaneRule | None:
    """How `primitive` works on stacks; None where it mixes slices in another way.

    Args:
        shapes: of the operands, with the first dimension.
    """
    if primitive in _PLAIN:
        return LaneRule.EACH
    if primitive in _COMBINING:
        return LaneRule.COMBINE if 0 in params["axes"] else LaneRule.EACH
    return LaneRule.EACH if _keeps_first_dimension(primitive, params, shapes[0]) else None


def _keeps_first_dimension(primitive: str, params: Mapping[str, Any], shape: tuple[int, ...]) -> bool:
    match primitive:
        case "argmax" | "argmin":
            return 0 not in params["axes"]
        case "squeeze" | "rev":
            return 0 not in params["dimensions"]
        case "transpose":
            return bool(params["permutation"][0] == 0)
        case "broadcast_in_dim":
            return tuple(params["broadcast_dimensions"][:1]) == (0,)
        case "reshape":
            return tuple(params["new_sizes"][:1]) == shape[:1] and params.get("dimensions") is None
        case "cumsum" | "cumlogsumexp" | "cummax" | "cummin" | "cumprod":
            return bool(params["axis"] != 0)
        case "sort" | "concatenate":
            return bool(params["dimension"] != 0)
        case "pad":
            return tuple(params["padding_config"][0]) == (0, 0, 0)
        case "slice":
            is_whole = params["start_indices"][0] == 0 and params["limit_indices"][0] == shape[0]
            return bool(is_whole and (params["strides"] is None or params["strides"][0] == 1))
        case "dot_general":
            return _starts_with_batch(params["dimension_numbers"])
    return False


def _starts_with_batch(dimension_numbers: Any) -> bool:
    _, (left, right) = dimension_numbers
    return bool(left) and left[0] == 0 and right[0] == 0


def find_combiner(primitive: str) -> str:
    """The binary primitive that puts two parts of a reduction together."""
    return _COMBINING[primitive]


def adapt_params(primitive: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the same op on one slice."""
    found = dict(params)

    def lower(dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(d - 1 for d in dims)

    if primitive.startswith(("reduce_", "arg")) and "axes" in found:
        found["axes"] = lower([d for d in found["axes"] if d != 0])
    elif primitive == "transpose":
        found["permutation"] = lower(found["permutation"][1:])
    elif primitive == "broadcast_in_dim":
        found["shape"] = tuple(found["shape"][1:])
        found["broadcast_dimensions"] = lower(found["broadcast_dimensions"][1:])
    elif primitive == "reshape":
        found["new_sizes"] = tuple(found["new_sizes"][1:])
    elif primitive in ("squeeze", "rev"):
        found["dimensions"] = lower(found["dimensions"])
    elif primitive.startswith("cum"):
        found["axis"] -= 1
    elif primitive in ("sort", "concatenate"):
        found["dimension"] -= 1
    elif primitive == "pad":
        found["padding_config"] = tuple(found["padding_config"][1:])
    elif primitive == "slice":
        for name in ("start_indices", "limit_indices", "strides"):
            found[name] = None if found[name] is None else tuple(found[name][1:])
    elif primitive == "dot_general":
        (left, right), (left_batch, right_batch) = found["dimension_numbers"]
        found["dimension_numbers"] = (lower(left), lower(right)), (lower(left_batch[1:]), lower(right_batch[1:]))
    return found
