"""From chosen stages to a `Plan`: every op's layout, every transfer, times and memory.

In: the program, the cluster, and for each stage its layers, mesh and solved sharding. Out: the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from alpaviz.cluster import Cluster, place_submeshes
from alpaviz.cluster.mesh import LogicalMesh, Submesh
from alpaviz.cost import price_compute
from alpaviz.intra.op_cost import MeshCosts
from alpaviz.intra.realize import StageRealization, make_op_plan, sum_deferred, sum_times
from alpaviz.intra.stage_problem import StageShapes
from alpaviz.intra.stage_solver import SolvedStage, StageSolver
from alpaviz.intra.structure import ProgramStructure
from alpaviz.pins import Pin
from alpaviz.plan import (
    PLAN_SCHEMA_VERSION,
    MemoryEstimate,
    OpPlan,
    Plan,
    ProgramSummary,
    SolverReport,
    StagePlan,
    ValuePlan,
)
from alpaviz.plan_times import estimate_step
from alpaviz.plan_transfers import find_transfers
from alpaviz.program.program import SHARED_LAYER, Program, Role, ValueKind
from alpaviz.program.strategy import build_strategy
from alpaviz.schedule import count_chunks
from alpaviz.types import ShardingSpec, replicated_spec


@dataclass(frozen=True, slots=True)
class ChosenStage:
    """Layers `first` .. `last` on `mesh`, solved with `in_flight` microbatches alive."""

    first: int
    last: int
    mesh: LogicalMesh
    solver: StageSolver
    shapes: StageShapes
    solved: SolvedStage
    in_flight: int


def build_plan(
    program: Program,
    structure: ProgramStructure,
    cluster: Cluster,
    chosen: Sequence[ChosenStage],
    *,
    schedule: str,
    pins: tuple[Pin, ...],
    report: SolverReport,
    known: Mapping[int, StageRealization] | None = None,
) -> Plan:
    """The plan of `chosen`, which are in pipeline order and cover all layers.

    Args:
        known: by index, stages that were realized before (`realize_stage`), which saves most of their time.
    """
    rows = len(chosen) // count_chunks(schedule)
    blocks = place_submeshes(cluster, [stage.mesh.submesh for stage in chosen[:rows]])
    placed = [blocks[index % rows] for index in range(len(chosen))]
    realized = [
        (known or {}).get(index) or realize_stage(program, structure, index, stage, is_alone=len(chosen) == 1)
        for index, stage in enumerate(chosen)
    ]
    stage_of_layer = {
        layer: index for index, stage in enumerate(chosen) for layer in range(stage.first, stage.last + 1)
    }
    ops = _collect_ops(program, realized)
    values = _plan_values(program, realized, stage_of_layer)
    transfers = find_transfers(program, cluster, placed, ops, values, [r.arrivals for r in realized])
    sent = {(t.source_stage, t.value) for t in transfers if not t.once}
    stages = tuple(
        _plan_stage(
            program,
            index,
            stage,
            placed[index],
            realized[index],
            {v for s, v in sent if s == index},
            is_alone=len(chosen) == 1,
        )
        for index, stage in enumerate(chosen)
    )
    estimate = estimate_step(program, cluster, stages, transfers, schedule)
    return Plan(
        schema_version=PLAN_SCHEMA_VERSION, program=summarise_program(program), cluster=cluster,
        num_microbatches=program.num_microbatches, schedule=schedule, stages=stages, ops=ops, values=values,
        transfers=transfers, estimate=estimate, pins=pins, solver=report, warnings=program.warnings,
    )  # fmt: skip


def realize_stage(
    program: Program, structure: ProgramStructure, index: int, stage: ChosenStage, *, is_alone: bool
) -> StageRealization:
    """Layouts of all ops and values of one stage; they do not depend on the other stages."""
    realization = StageRealization(
        program, stage.solver.costs, index, structure.deferrals, dict(structure.state_pairs), is_alone=is_alone
    )
    shape = stage.shapes.find(stage.first, stage.last)
    problem = stage.solver.build(shape)
    for layer in range(stage.first, stage.last + 1):
        key = stage.shapes.keys[layer]
        layer_problem = stage.solver.problems[key[0]]
        offset = problem.offsets[key]
        choice = stage.solved.choice[offset : offset + len(layer_problem.variables)]
        realization.add_inputs(structure.instances[layer], layer_problem, choice)
    for layer in range(stage.first, stage.last + 1):
        key = stage.shapes.keys[layer]
        layer_problem = stage.solver.problems[key[0]]
        offset = problem.offsets[key]
        choice = stage.solved.choice[offset : offset + len(layer_problem.variables)]
        realization.add_layer(structure.instances[layer], layer_problem, choice)
    realization.finish()
    return realization


def _collect_ops(program: Program, realized: Sequence[StageRealization]) -> tuple[OpPlan, ...]:
    """Plans in program order. Shared ops are whole on every device of every stage."""
    found: dict[int, OpPlan] = {op.id: op for realization in realized for op in realization.ops}
    for op in program.ops:
        if op.layer == SHARED_LAYER:
            whole = build_strategy(op.rule, ((),) * len(op.rule.factors))
            found[op.id] = make_op_plan(op, 0, whole, False)
    return tuple(found[op.id] for op in program.ops)


def _plan_values(
    program: Program, realized: Sequence[StageRealization], stage_of_layer: dict[int, int]
) -> tuple[ValuePlan, ...]:
    stage_of_value = dict.fromkeys(range(len(program.values)), 0)
    for v, layer in zip(program.inputs, program.input_layers, strict=True):
        stage_of_value[v] = stage_of_layer.get(layer, 0)
    for op in program.ops:
        stage_of_value.update({v: stage_of_layer.get(op.layer, 0) for v in op.outputs if v is not None})
    plans = []
    for value in program.values:
        stage = stage_of_value[value.id]
        spec: ShardingSpec = realized[stage].specs.get(value.id, replicated_spec(len(value.shape)))
        plans.append(ValuePlan(value.id, value.name, value.shape, value.dtype, value.kind.value, stage, spec))
    return tuple(plans)


def _plan_stage(
    program: Program,
    index: int,
    stage: ChosenStage,
    submesh: Submesh,
    realization: StageRealization,
    sent: Collection[int],
    *,
    is_alone: bool,
) -> StagePlan:
    price = stage.solved.price
    assert price is not None, "a chosen stage is feasible"
    by_role = {role: dict(sum_times([op for op in realization.ops if op.role == role.value])) for role in Role}
    for part, seconds in sum_deferred(realization.ops).items():
        by_role[Role.UPDATE][part] = by_role[Role.UPDATE].get(part, 0.0) + seconds
    for role, seconds in _price_running(program, stage.mesh, price.gradient_bytes, realization.ops, is_alone=is_alone):
        by_role[role]["compute"] = by_role[role].get("compute", 0.0) + seconds
    count = {Role.FORWARD: program.num_microbatches, Role.BACKWARD: program.num_microbatches, Role.UPDATE: 1}
    total: dict[str, float] = {}
    for role, times in by_role.items():
        for part, seconds in times.items():
            total[part] = total.get(part, 0.0) + seconds * count[role]
    collectives = tuple(
        (part, seconds) for part, seconds in sorted(total.items()) if part not in ("compute", "resharding")
    )
    memory = MemoryEstimate(
        price.parameter_bytes, price.optimizer_bytes, price.gradient_bytes,
        price.activation_bytes * stage.in_flight,
        max(price.transient_bytes, _find_largest_result(program, realization, stage.solver.costs)),
        stage.mesh.device_type.memory_bytes, price.batch_bytes,
    )  # fmt: skip
    backward = sum(by_role[Role.BACKWARD].values())
    return StagePlan(
        index=index, first_layer=stage.first, last_layer=stage.last, submesh=str(stage.mesh.submesh),
        devices=submesh.devices, mesh_shape=stage.mesh.shape, mesh_axes=stage.mesh.axis_names,
        forward_s=sum(by_role[Role.FORWARD].values()), backward_s=backward,
        update_s=sum(by_role[Role.UPDATE].values()), compute_s=total["compute"], collectives_s=collectives,
        resharding_s=total["resharding"], in_flight=stage.in_flight, memory=memory,
        objective=stage.solved.objective, bound=stage.solved.bound,
        weights_s=min(backward, _sum_free_backward(realization, sent)),
    )  # fmt: skip


def _price_running(
    program: Program, mesh: LogicalMesh, gradient_bytes: float, ops: Sequence[OpPlan], *, is_alone: bool
) -> list[tuple[Role, float]]:
    """What a stage takes beside its ops, where costs were measured: to start compiled functions, and to add gradients.

    A plan of one stage is one function; else forward, backward and update are one each. After each backward the
    gradients are added to those of the microbatches before.
    """
    measured = mesh.device_type.measured
    if measured is None:
        return []
    alone = is_alone or not program.has_gradient_marker
    parts = [(Role.UPDATE, list(ops))] if alone else [(role, [op for op in ops if op.role == role]) for role in Role]
    found = [(role, measured.price_call(mesh.num_devices, _count_arrays(part))) for role, part in parts]
    if program.num_microbatches > 1:
        # Two arrays are read and one is written; Adam moves 7 in the time of 12 ops.
        moved = gradient_bytes * 12 * 3 / 7
        seconds = price_compute(0.0, moved, "float32", mesh.device_type, "update", mesh.num_devices)
        found.append((Role.BACKWARD, seconds))
    return found


def _count_arrays(ops: Sequence[OpPlan]) -> int:
    """Arrays that a function of `ops` is given, and about as many as it gives back."""
    made = {v for op in ops for v in op.outputs}
    return 2 * len({v for op in ops for v in op.inputs if v is not None} - made)


def _sum_free_backward(realization: StageRealization, sent: Collection[int]) -> float:
    """Seconds of the backward ops that nothing which goes to another stage needs."""
    needed = set(sent)
    free = []
    for op in reversed(realization.ops):
        if op.role != Role.BACKWARD.value:
            continue
        if needed.isdisjoint(op.outputs):
            free.append(op)
        else:
            needed.update(v for v in op.inputs if v is not None)
    return sum(sum_times(free).values())


def _find_largest_result(program: Program, realization: StageRealization, costs: MeshCosts) -> float:
    """Bytes of the largest array that a device makes while it works on one op: a lower limit of the working set.

    What is repeated or counted up is left out: XLA works it out where it is read.
    """
    largest = 0.0
    for op in realization.ops:
        if op.primitive in ("broadcast_in_dim", "iota"):
            continue
        made = sum(
            costs.local_bytes(program.values[v], spec)
            for v, spec in zip(op.outputs, op.output_specs, strict=True)
            if v is not None
        )
        largest = max(largest, made)
    return largest


def summarise_program(program: Program) -> ProgramSummary:
    """What a plan says of its program."""
    flops = [0.0] * program.num_layers
    for op in program.ops:
        if 0 <= op.layer < program.num_layers:
            flops[op.layer] += op.flops * (1 if op.role is Role.UPDATE else program.num_microbatches)
    state = sum(v.num_bytes for v in program.values if v.kind is ValueKind.STATE)
    return ProgramSummary(
        program.name, program.fingerprint, len(program.ops), program.num_layers, name_layers(program), tuple(flops),
        program.flops, float(state), program.recomputed_layers,
    )  # fmt: skip


def name_layers(program: Program) -> tuple[str, ...]:
    """A name per layer from the outermost scopes of its forward ops: `block_0 … block_1`."""
    scopes: list[dict[str, None]] = [{} for _ in range(program.num_layers)]
    for op in program.ops:
        if op.role is Role.FORWARD and op.scope and 0 <= op.layer < program.num_layers:
            scopes[op.layer].setdefault(op.scope.split("/")[0])
    names = []
    for layer, found in enumerate(scopes):
        parts = list(found)
        names.append(f"layer {layer}" if not parts else parts[0] if len(parts) == 1 else f"{parts[0]} … {parts[-1]}")
    return tuple(names)
