"""A plan as text for a terminal: what was decided, what it costs, what it fills."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from alpaviz.plan import OpPlan, Plan, PlannedCollective, ProgramSummary, StagePlan
from alpaviz.plan_diff import PlanDiff, format_bytes, format_seconds, spell_layers
from alpaviz.types import MeshAxis, ShardingSpec, count_shards, format_spec

_FIRST_KEY = re.compile(r"^(\w+)\[('?)(\w+)\2\](.+)$")


@dataclass(frozen=True, slots=True)
class CollectiveTotal:
    """All collectives of one kind over the same axes of one stage, in one step.

    `count` runs; `num_bytes` sums what each takes part with (see `PlannedCollective`), `time_s` what each takes.
    """

    stage: int
    kind: str
    axes: tuple[MeshAxis, ...]
    count: int
    num_bytes: float
    time_s: float


def describe_plan(plan: Plan) -> str:
    """`plan` for a terminal, in paragraphs; empty ones (no pins, no warnings) are left out. No newline at the end."""
    sections = (
        _describe_header(plan), _describe_step(plan), _describe_stages(plan), _describe_shardings(plan),
        _describe_collectives(plan), _describe_transfers(plan), _describe_solver(plan), _describe_tries(plan),
        _list_items("Pins", plan.pins), _list_items("Warnings", _list_warnings(plan)),
    )  # fmt: skip
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def describe_diff(diff: PlanDiff) -> str:
    """What `compare_plans` found, for a terminal: its sentences, then a table of the changes."""
    lines = list(diff.summary)
    if diff.rows:
        rows = [(row.kind, row.subject, row.before or "-", row.after or "-") for row in diff.rows]
        lines += ["", *_format_table(("what", "which", "before", "after"), rows)]
    return "\n".join(lines)


def total_collectives(plan: Plan) -> tuple[CollectiveTotal, ...]:
    """Collectives of one step by stage, kind and axes, those of reshardings included; slowest first."""
    sums: dict[tuple[int, str, tuple[MeshAxis, ...]], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for op in plan.ops:
        for collective in _list_collectives(op):
            times = 1 if op.role == "update" or collective.once else plan.num_microbatches
            total = sums[op.stage, collective.kind, collective.axes]
            total[0] += times
            total[1] += times * collective.num_bytes
            total[2] += times * collective.time_s
    totals = [CollectiveTotal(*key, int(count), size, time) for key, (count, size, time) in sums.items()]
    return tuple(sorted(totals, key=lambda t: (-t.time_s, t.stage, t.kind, t.axes)))


def measure_gap(plan: Plan) -> float:
    """How far, at most, the plan is from the best one for the cost model, as a share of its objective (0 to 1)."""
    solver = plan.solver
    return max(0.0, 1 - solver.bound / solver.objective) if solver.objective > 0 else 0.0


def _list_collectives(op: OpPlan) -> Iterator[PlannedCollective]:
    yield from op.collectives
    for resharding in op.reshardings:
        yield from resharding.collectives


def _format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of columns as wide as their widest cell, indented by two."""
    table = [tuple(header), *map(tuple, rows)]
    widths = [max(len(row[c]) for row in table) for c in range(len(header))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]


def _list_items(title: str, items: Iterable[object]) -> list[str]:
    lines = [f"  {item}" for item in items]
    return [title, *lines] if lines else []


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def _format_flops(flops: float) -> str:
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops / 1e6:.3g} MFLOP"


def _describe_header(plan: Plan) -> list[str]:
    program, cluster = plan.program, plan.cluster
    measured = cluster.device_type.measured
    devices = ", ".join(
        f"{_count(cluster.hosts.count(host), 'host')} of {host.num_devices} x {host.device_type.name}"
        for host in cluster.kinds.values()
    )
    return [
        f"Plan of {program.name} on {cluster.name}",
        f"  program   {_count(program.num_ops, 'op')} in {_count(program.num_layers, 'layer')}, "
        f"{_format_flops(program.flops)} a step, state of {format_bytes(program.state_bytes)}, "
        f"fingerprint {program.fingerprint}",
        f"  cluster   {devices}",
        *([] if measured is None else [f"  costs     measured costs: {measured.source}"]),
        f"  pipeline  {_count(plan.num_stages, 'stage')}, {_count(plan.num_microbatches, 'microbatch')}, "
        f"schedule {plan.schedule}",
        *_describe_recomputed(program),
    ]


def _describe_recomputed(program: ProgramSummary) -> list[str]:
    layers = program.recomputed_layers
    return [f"  memory    activations of {spell_layers(layers)} are made again in the backward pass"] if layers else []


def _describe_step(plan: Plan) -> list[str]:
    estimate = plan.estimate
    waiting = max(0.0, estimate.bubble_s - estimate.transfer_s)
    parts = [
        ("compute", estimate.compute_s), *estimate.collectives_s, ("resharding", estimate.resharding_s),
        ("waiting for sends", estimate.transfer_s), ("pipeline bubble", waiting),
    ]  # fmt: skip
    rows = [
        (name, format_seconds(time), f"{time / estimate.step_s:.1%}" if estimate.step_s > 0 else "-")
        for name, time in parts
        if time > 0
    ]
    return [
        f"Step {format_seconds(estimate.step_s)}, {estimate.model_flops_utilisation:.1%} of peak FLOP/s; "
        "parts on the stage that works longest",
        *_format_table(("part", "time", "share"), rows),
    ]


def _describe_stages(plan: Plan) -> list[str]:
    header = ("stage", "layers", "submesh", "devices", "mesh", "forward", "backward", "update", "memory a device")
    return ["Stages, forward and backward of one microbatch", *_format_table(header, map(_make_stage_row, plan.stages))]


def _make_stage_row(stage: StagePlan) -> tuple[str, ...]:
    layers = (
        f"{stage.first_layer}" if stage.first_layer == stage.last_layer else (f"{stage.first_layer}-{stage.last_layer}")
    )
    mesh = " ".join(f"{axis}={size}" for axis, size in stage.axis_sizes.items())
    memory = stage.memory
    return (
        str(stage.index), layers, stage.submesh, _name_devices(stage), mesh, format_seconds(stage.forward_s),
        format_seconds(stage.backward_s), format_seconds(stage.update_s),
        f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} "
        f"({memory.total_bytes / memory.capacity_bytes:.0%})",
    )  # fmt: skip


def _name_devices(stage: StagePlan) -> str:
    """`host 0: 0-3`, or `hosts 0-1` where several hosts are used."""
    hosts = sorted({host for host, _ in stage.devices})
    if len(hosts) > 1:
        return f"hosts {_name_numbers(hosts)}"
    return f"host {hosts[0]}: {_name_numbers(sorted(device for _, device in stage.devices))}"


def _name_numbers(numbers: Sequence[int]) -> str:
    is_run = numbers[-1] - numbers[0] == len(numbers) - 1 and len(numbers) > 1
    return f"{numbers[0]}-{numbers[-1]}" if is_run else ",".join(map(str, numbers))


def _describe_shardings(plan: Plan) -> list[str]:
    """State by name with numbers replaced, then by the part of the state that it is in, where all else is equal."""
    groups: dict[tuple[str, tuple[int, ...], str, ShardingSpec, int], dict[str, int]] = {}
    for value in plan.values:
        if value.kind != "state":
            continue
        match = _FIRST_KEY.match(value.name)
        root, first, rest = (match[1], match[3], match[4]) if match else (value.name, "", "")
        shards = count_shards(value.spec, plan.stages[value.stage].axis_sizes)
        name = f"{root}|{re.sub(r'[0-9]+', '*', rest)}"
        counts = groups.setdefault((name, value.shape, value.dtype, value.spec, shards), {})
        counts[first] = counts.get(first, 0) + 1
    rows = []
    for (name, shape, dtype, spec, shards), counts in groups.items():
        root, _, rest = name.partition("|")
        shown = f"{root}[{', '.join(counts)}]{rest}" if rest else root
        size = f"{dtype}[{', '.join(map(str, shape))}]"
        held = f"1/{shards}" if shards > 1 else "whole"
        rows.append((str(sum(counts.values())), shown, size, format_spec(spec), held))
    if not rows:
        return []
    header = ("count", "name", "shape", "spec", "a device holds")
    return ["State, each array as it is stored", *_format_table(header, rows)]


def _describe_collectives(plan: Plan) -> list[str]:
    rows = [
        (str(t.stage), t.kind, " ".join(t.axes), str(t.count), format_bytes(t.num_bytes), format_seconds(t.time_s))
        for t in total_collectives(plan)
    ]
    if not rows:
        return ["Collectives: none"]
    return ["Collectives of one step", *_format_table(("stage", "kind", "axes", "runs", "bytes", "time"), rows)]


def _describe_transfers(plan: Plan) -> list[str]:
    sums: dict[tuple[int, int, bool], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for transfer in plan.transfers:
        total = sums[transfer.source_stage, transfer.target_stage, transfer.once]
        total[0] += 1
        total[1] += transfer.num_bytes
        total[2] += transfer.time_s
    rows = [
        (
            f"{source} to {target}", f"{count:.0f}", "step" if once else "microbatch", format_bytes(size),
            format_seconds(time),
        )
        for (source, target, once), (count, size, time) in sorted(sums.items())
    ]  # fmt: skip
    if not rows:
        return []
    return ["Sends between stages", *_format_table(("stages", "values", "once a", "bytes", "time"), rows)]


def _describe_solver(plan: Plan) -> list[str]:
    solver, gap = plan.solver, measure_gap(plan)
    quality = "proven best for the cost model" if gap < 1e-5 else f"within {gap:.2%} of the bound"
    return [
        f"Solver {solver.solver}: {quality}, {format_seconds(solver.seconds)}, {solver.num_solved} of "
        f"{solver.num_candidates} stage candidates solved",
        *(f"  {note}" for note in solver.notes),
    ]


def _describe_tries(plan: Plan) -> list[str]:
    """Why this number of microbatches and this schedule."""
    tries = plan.solver.tries
    if not tries:
        return []
    own = plan.num_microbatches, plan.schedule
    usable = [t for t in tries if not t.reason and (t.num_microbatches, t.schedule) != own]
    others = [t.step_s for t in usable if t.step_s is not None]
    chosen = f"{_count(plan.num_microbatches, 'microbatch')} and schedule {plan.schedule}"
    if not others:
        why = f"{chosen}: nothing else that was tried gives a plan"
    else:
        gain = max(0.0, min(others) / plan.estimate.step_s - 1)
        why = f"{chosen} take least" + (f", the next {gain:.2%} more" if gain > 0 else ", as long as the next")
    rows = [
        (
            str(t.num_microbatches), t.schedule, "-" if t.step_s is None else format_seconds(t.step_s),
            "-" if t.memory_bytes is None else format_bytes(t.memory_bytes), str(t.num_stages or "-"), t.reason,
        )
        for t in tries
    ]  # fmt: skip
    header = ("microbatches", "schedule", "step", "memory a device", "stages", "not taken because")
    return [f"Microbatches and schedule: {why}", *_format_table(header, rows)]


def _list_warnings(plan: Plan) -> Iterator[str]:
    yield from plan.warnings
    for stage in plan.stages:
        memory = stage.memory
        if memory.total_bytes > memory.capacity_bytes:
            yield (
                f"stage {stage.index} needs {format_bytes(memory.total_bytes)} on a device of "
                f"{format_bytes(memory.capacity_bytes)}"
            )
