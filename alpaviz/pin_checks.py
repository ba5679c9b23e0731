"""What is wrong with pins, found without solving.

In: a program, a cluster and pins. Out: nothing, or an error that names the pin and what to do.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from alpaviz.cluster import Cluster, enumerate_logical_meshes, enumerate_submeshes
from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.errors import PinConflictError, PinError
from alpaviz.intra.restrict import find_pinned_layer
from alpaviz.pin_specs import check_spec_pin
from alpaviz.pins import Pin, PinKind
from alpaviz.program.program import Program


def check_pins(program: Program, cluster: Cluster, pins: Sequence[Pin], max_mesh_axes: int = 2) -> None:
    """Find what is wrong with pins without solving.

    Raises:
        PinError: a pin names nothing that exists, or asks for something that cannot be.
        PinConflictError: two pins contradict each other.
    """
    for pin in pins:
        _check_pin(program, cluster, pin, max_mesh_axes)
        if pin.kind is PinKind.SPEC:
            value = next(program.values[v] for v in program.inputs if program.values[v].name == pin.subject)
            check_spec_pin(pin, value, _list_open_meshes(cluster, pins, max_mesh_axes))
    layers = sorted(
        (int(p.subject), int(p.choice), p) for p in pins if p.kind is PinKind.LAYER_STAGE and p.subject is not None
    )
    for (a, stage_a, pin_a), (b, stage_b, pin_b) in itertools.pairwise(layers):
        if stage_a > stage_b or (stage_b - stage_a > b - a):
            raise PinConflictError(
                f"layer {a} is pinned to stage {stage_a} and layer {b} to stage {stage_b}, but stages hold layers in "
                "order and none is empty. Unpin one of the two.",
                (pin_a, pin_b),
            )
    count = next((p for p in pins if p.kind is PinKind.NUM_STAGES), None)
    if count is not None:
        for pin in pins:
            stage = _find_stage(pin)
            if stage is not None and stage >= int(count.choice):
                raise PinConflictError(
                    f"'{pin}' names stage {stage}, but '{count}' (stages are numbered from 0). Unpin one of the two.",
                    (pin, count),
                )


def _list_open_meshes(cluster: Cluster, pins: Sequence[Pin], max_mesh_axes: int) -> list[LogicalMesh]:
    """The logical meshes that a pin of one mesh for all stages leaves."""
    shapes = enumerate_submeshes(cluster)
    meshes = [m for shape in shapes for m in enumerate_logical_meshes(cluster, shape, max_mesh_axes)]
    wanted = {pin.choice for pin in pins if pin.kind is PinKind.LOGICAL_MESH and pin.subject is None}
    return [mesh for mesh in meshes if not wanted or str(mesh) in wanted]


def _find_stage(pin: Pin) -> int | None:
    """The last stage that a pin names or needs, None where it is about no stage."""
    if pin.kind is PinKind.NUM_STAGES:
        return _read_number(pin, pin.choice, "a number of stages") - 1
    if pin.kind is PinKind.LAYER_STAGE:
        return _read_number(pin, pin.choice, "a stage's number")
    if pin.kind in (PinKind.STAGE_SUBMESH, PinKind.LOGICAL_MESH) and pin.subject is not None:
        return _read_number(pin, pin.subject, "a stage's number")
    return None


def _read_number(pin: Pin, text: object, what: str) -> int:
    try:
        return int(str(text))
    except ValueError:
        raise PinError(f"Pin '{pin}': {what} is wanted, such as 0 or 1, not {text!r}.") from None


def _check_pin(program: Program, cluster: Cluster, pin: Pin, max_mesh_axes: int) -> None:
    if pin.kind in (PinKind.STRATEGY, PinKind.SPEC):
        find_pinned_layer(program, pin)
        return
    most = 1 if not program.has_gradient_marker else min(program.num_layers, cluster.num_devices)
    stage = _find_stage(pin)
    if stage is not None and not 0 <= stage < most:
        if not program.has_gradient_marker:
            raise PinError(
                f"Pin '{pin}': at most 1 stage is possible for a step that does not use alpaviz.value_and_grad or "
                "alpaviz.grad, because its layers cannot be told apart."
            )
        raise PinError(
            f"Pin '{pin}': at most {most} stages are possible here ({program.num_layers} layers, "
            f"{cluster.num_devices} devices)."
        )
    if pin.kind is PinKind.LAYER_STAGE:
        layer = _read_number(pin, pin.subject or 0, "a layer's number")
        if not 0 <= layer < program.num_layers:
            raise PinError(f"Pin '{pin}': the program has layers 0 to {program.num_layers - 1}.")
    if pin.kind in (PinKind.STAGE_SUBMESH, PinKind.LOGICAL_MESH):
        shapes = enumerate_submeshes(cluster)
        meshes = [m for shape in shapes for m in enumerate_logical_meshes(cluster, shape, max_mesh_axes)]
        known = {str(m.submesh) if pin.kind is PinKind.STAGE_SUBMESH else str(m): None for m in meshes}
        if pin.choice not in known:
            raise PinError(f"Pin '{pin}': there is no such shape on {cluster.name!r}. Possible: {', '.join(known)}.")
