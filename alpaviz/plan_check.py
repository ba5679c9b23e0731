"""Whether a plan is whole and belongs to a program and a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpaviz.cluster.description import Cluster
from alpaviz.errors import PlanFormatError, PlanMismatchError
from alpaviz.plan import OpPlan, Plan
from alpaviz.schedule import count_chunks
from alpaviz.types import ShardingSpec, list_axes

if TYPE_CHECKING:
    from alpaviz.program.program import Program


def validate_plan(plan: Plan, program: Program | None = None, cluster: Cluster | None = None) -> tuple[str, ...]:
    """Check `plan`; warnings in sentences (memory over capacity).

    Raises:
        PlanFormatError: the plan contradicts itself: layers are not covered once and in order, a device is used twice
            or does not exist, ops or transfers name stages or values that do not exist, or a spec does not fit.
        PlanMismatchError: it was made for another program or cluster.
    """
    _check_stages(plan)
    _check_layouts(plan)
    if program is not None:
        _check_program(plan, program)
    if cluster is not None:
        _check_cluster(plan, cluster)
    return tuple(
        f"stage {s.index} needs {s.memory.total_bytes / 1e9:.2f} GB of {s.memory.capacity_bytes / 1e9:.2f} GB"
        for s in plan.stages
        if s.memory.total_bytes > s.memory.capacity_bytes
    )


def _check_stages(plan: Plan) -> None:
    if not plan.stages:
        raise PlanFormatError("The plan has no stages.")
    covered = [layer for s in plan.stages for layer in range(s.first_layer, s.last_layer + 1)]
    if covered != list(range(plan.program.num_layers)):
        raise PlanFormatError(
            f"The plan's stages hold layers {covered}, not each of 0 to {plan.program.num_layers - 1} once, in order."
        )
    used: set[tuple[int, int]] = set()
    rows = plan.num_stages // count_chunks(plan.schedule)
    for stage in plan.stages:
        if 0 < rows <= stage.index and stage.devices == plan.stages[stage.index % rows].devices:
            continue  # an interleaved schedule runs both there
        size = 1
        for n in stage.mesh_shape:
            size *= n
        if size != stage.num_devices:
            raise PlanFormatError(f"stage {stage.index}: a mesh of {size} devices lies on {stage.num_devices} devices.")
        for device in stage.devices:
            host, number = device
            if device in used:
                raise PlanFormatError(f"device {number} of host {host} is in two stages, or twice in one.")
            if not (0 <= host < plan.cluster.num_hosts and 0 <= number < plan.cluster.hosts[host].num_devices):
                raise PlanFormatError(f"stage {stage.index}: cluster {plan.cluster.name!r} has no device {device}.")
            used.add(device)


def _check_layouts(plan: Plan) -> None:
    for position, value in enumerate(plan.values):
        what = f"value {value.name!r}"
        if value.id != position:
            raise PlanFormatError(f"{what} has id {value.id}, but stands at place {position}.")
        _check_stage(plan, value.stage, what)
        _check_spec(plan, value.stage, f"{what} {value.shape}", value.shape, value.spec)
    for op in plan.ops:
        _check_stage(plan, op.stage, f"op {op.name!r}")
        _check_side(plan, op, "a result", op.outputs, op.output_specs)
        _check_side(plan, op, "an operand", op.inputs, op.input_specs)
    for transfer in plan.transfers:
        what = f"the transfer of value {transfer.value}"
        _check_stage(plan, transfer.source_stage, what)
        _check_stage(plan, transfer.target_stage, what)
        shape = _find_shape(plan, transfer.value, what)
        _check_spec(plan, transfer.target_stage, what, shape, transfer.target_spec)


def _check_side(
    plan: Plan, op: OpPlan, side: str, values: tuple[int | None, ...], specs: tuple[ShardingSpec, ...]
) -> None:
    what = f"{side} of op {op.name!r}"
    if len(values) != len(specs):
        raise PlanFormatError(f"{what}: there are {len(values)}, but specs for {len(specs)}.")
    for v, spec in zip(values, specs, strict=True):
        if v is None or (side == "an operand" and not spec):  # literals, scalars
            continue
        _check_spec(plan, op.stage, what, _find_shape(plan, v, what), spec)


def _check_stage(plan: Plan, stage: int, what: str) -> None:
    if not 0 <= stage < plan.num_stages:
        raise PlanFormatError(f"{what} is in stage {stage}, of {plan.num_stages}.")


def _find_shape(plan: Plan, value: int, what: str) -> tuple[int, ...]:
    if not 0 <= value < len(plan.values):
        raise PlanFormatError(f"{what}: there is no value {value}, only {len(plan.values)}.")
    return plan.values[value].shape


def _check_spec(plan: Plan, stage: int, what: str, shape: tuple[int, ...], spec: ShardingSpec) -> None:
    sizes = plan.stages[stage].axis_sizes
    axes = list_axes(spec)
    if len(spec) != len(shape) or len(set(axes)) != len(axes) or any(axis not in sizes for axis in axes):
        raise PlanFormatError(
            f"{what}: {spec} is no spec of {len(shape)} dimensions on a mesh with axes {tuple(sizes)}."
        )
    for d, dim_axes in enumerate(spec):
        shards = 1
        for axis in dim_axes:
            shards *= sizes[axis]
        if shape[d] % shards:
            raise PlanFormatError(f"{what}: dimension {d} of size {shape[d]} cannot be split in {shards}.")


def _check_program(plan: Plan, program: Program) -> None:
    if plan.program.fingerprint != program.fingerprint:
        reasons = []
        if plan.num_microbatches != program.num_microbatches:
            reasons.append(f"{plan.num_microbatches} microbatches against {program.num_microbatches}")
        if plan.program.num_ops != len(program.ops):
            reasons.append(f"{plan.program.num_ops} ops against {len(program.ops)}")
        if plan.program.num_layers != program.num_layers:
            reasons.append(f"{plan.program.num_layers} layers against {program.num_layers}")
        detail = f" ({', '.join(reasons)})" if reasons else ""
        raise PlanMismatchError(
            f"The plan was made for program {plan.program.name!r} [{plan.program.fingerprint}], not for "
            f"{program.name!r} [{program.fingerprint}]{detail}. Plan again, or trace "
            "with the same step, shapes and options."
        )


def _check_cluster(plan: Plan, cluster: Cluster) -> None:
    ours, theirs = plan.cluster, cluster
    if [host.num_devices for host in ours.hosts] != [host.num_devices for host in theirs.hosts]:
        raise PlanMismatchError(
            f"The plan is for {ours.name!r} ({ours.num_hosts} x {ours.devices_per_host} devices), the cluster is "
            f"{theirs.name!r} ({theirs.num_hosts} x {theirs.devices_per_host}). Plan again for this cluster."
        )
