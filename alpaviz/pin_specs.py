"""Whether a pinned spec can be: axes that some logical mesh has, splits that divide."""

from __future__ import annotations

from collections.abc import Sequence

from alpaviz.cluster.mesh import MESH_AXES, LogicalMesh
from alpaviz.errors import PinError
from alpaviz.pins import Pin
from alpaviz.program.program import Value
from alpaviz.types import ShardingSpec


def parse_spec(text: str) -> ShardingSpec | None:
    """The inverse of `format_spec`: `"[x, -, xy]"`; None where the text is no spec."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    parts = [part.strip() for part in text[1:-1].split(",")] if text != "[]" else []
    spec = tuple(() if part == "-" else tuple(part) for part in parts)
    axes = [axis for entry in spec for axis in entry]
    is_legal = all(parts) and set(axes) <= set(MESH_AXES) and len(set(axes)) == len(axes)
    return spec if is_legal else None


def check_spec_pin(pin: Pin, value: Value, meshes: Sequence[LogicalMesh]) -> None:
    """Raise unless one of `meshes` splits `value` evenly as the pin says.

    Raises:
        PinError: it names the dimension, its size and the number of parts.
    """
    spec = parse_spec(str(pin.choice))
    if spec is None or len(spec) != len(value.shape):
        raise PinError(
            f"Pin '{pin}': {value.name} has {len(value.shape)} dimensions, so its spec has as many entries: "
            f"axes such as x or xy, or - for a dimension that is whole, as in '[{', '.join('-' * len(value.shape))}]'."
        )
    reasons = [_find_reason(spec, value, mesh) for mesh in meshes]
    found = [reason for reason in reasons if reason is not None]
    if found and len(found) == len(reasons):
        raise PinError(f"Pin '{pin}': {max(found)[1]}.")


def _find_reason(spec: ShardingSpec, value: Value, mesh: LogicalMesh) -> tuple[int, str] | None:
    """(rank, why `mesh` cannot split `value` so); a reason of a mesh that has all axes ranks first. None if it can."""
    sizes = {axis: size for axis, size in mesh.axis_sizes.items() if size > 1}
    missing = [axis for entry in spec for axis in entry if axis not in sizes]
    if missing:
        return -len(missing), f"the logical mesh {mesh} has no axis {missing[0]} of more than one device"
    for dimension, (axes, size) in enumerate(zip(spec, value.shape, strict=True)):
        parts = 1
        for axis in axes:
            parts *= sizes[axis]
        if size % parts:
            return 0, (
                f"dimension {dimension} of {value.name} has {size} elements, which do not divide into {parts} parts "
                f"({''.join(axes)} of the logical mesh {mesh})"
            )
    return None
