"""What changed between two plans, in sentences and rows, largest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from alpaviz.plan import OpPlan, Plan, StagePlan
from alpaviz.types import ShardingSpec, format_spec


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One thing that changed: what kind of thing, which one, and its text before and after ("" where it was absent)."""

    kind: str
    subject: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """From one plan to another; `summary` holds sentences, `rows` the changes, both largest first."""

    step_before_s: float
    step_after_s: float
    summary: tuple[str, ...]
    rows: tuple[DiffRow, ...]


def compare_plans(before: Plan, after: Plan) -> PlanDiff:
    """What changed from `before` to `after`. Ops are matched by name, so plans of different programs compare too."""
    old = {op.name: op for op in before.ops}
    changed = [(old[op.name], op) for op in after.ops if op.name in old and _is_changed(old[op.name], op)]
    rows = (
        *_compare_settings(before, after), *_compare_pins(before, after), *_compare_stages(before, after),
        *_compare_times(before, after), *_compare_memory(before, after), *_compare_values(before, after),
        *_compare_ops(changed),
    )  # fmt: skip
    step_before, step_after = before.estimate.step_s, after.estimate.step_s
    return PlanDiff(step_before, step_after, tuple(_summarise(before, after, changed)), rows)


def _is_changed(before: OpPlan, after: OpPlan) -> bool:
    return before.output_specs != after.output_specs or before.strategy != after.strategy


def _describe_stage(stage: StagePlan) -> str:
    mesh = "x".join(map(str, stage.mesh_shape))
    layers = (
        f"layer {stage.first_layer}"
        if stage.first_layer == stage.last_layer
        else (f"layers {stage.first_layer} to {stage.last_layer}")
    )
    return f"{layers} on {stage.submesh}, mesh {mesh}"


def _compare_settings(before: Plan, after: Plan) -> list[DiffRow]:
    settings = (
        ("program", before.program.name, after.program.name),
        ("cluster", before.cluster.name, after.cluster.name),
        ("microbatches", str(before.num_microbatches), str(after.num_microbatches)),
        ("schedule", before.schedule, after.schedule),
    )
    return [DiffRow("setting", name, old, new) for name, old, new in settings if old != new]


def _compare_pins(before: Plan, after: Plan) -> list[DiffRow]:
    gone = [DiffRow("pin", str(pin), "pinned", "") for pin in before.pins if pin not in after.pins]
    new = [DiffRow("pin", str(pin), "", "pinned") for pin in after.pins if pin not in before.pins]
    return gone + new


def _compare_stages(before: Plan, after: Plan) -> list[DiffRow]:
    rows = []
    for index in range(max(before.num_stages, after.num_stages)):
        old = _describe_stage(before.stages[index]) if index < before.num_stages else ""
        new = _describe_stage(after.stages[index]) if index < after.num_stages else ""
        if old != new:
            rows.append(DiffRow("stage", f"stage {index}", old, new))
    return rows


def _list_times(plan: Plan) -> dict[str, float]:
    estimate = plan.estimate
    return {
        "step": estimate.step_s, "compute": estimate.compute_s, **dict(estimate.collectives_s),
        "resharding": estimate.resharding_s, "waiting": estimate.bubble_s,
    }  # fmt: skip


def _compare_times(before: Plan, after: Plan) -> list[DiffRow]:
    old, new = _list_times(before), _list_times(after)
    changes = [(abs(new.get(part, 0.0) - old.get(part, 0.0)), part) for part in dict.fromkeys([*old, *new])]
    least = 1e-4 * max(before.estimate.step_s, after.estimate.step_s)
    return [
        DiffRow("time", part, format_seconds(old.get(part, 0.0)), format_seconds(new.get(part, 0.0)))
        for change, part in sorted(changes, reverse=True)
        if change > least
    ]


def _compare_memory(before: Plan, after: Plan) -> list[DiffRow]:
    rows = []
    for index in range(min(before.num_stages, after.num_stages)):
        old, new = before.stages[index].memory.total_bytes, after.stages[index].memory.total_bytes
        if abs(new - old) > 0.001 * max(old, new):
            rows.append(DiffRow("memory", f"stage {index}, each device", format_bytes(old), format_bytes(new)))
    return rows


def _compare_values(before: Plan, after: Plan) -> list[DiffRow]:
    old = {v.name: v for v in before.values if v.kind != "intermediate"}
    return [
        DiffRow("value", v.name, format_spec(old[v.name].spec), format_spec(v.spec))
        for v in after.values
        if v.name in old and v.kind != "intermediate" and old[v.name].spec != v.spec
    ]


def _compare_ops(changed: list[tuple[OpPlan, OpPlan]]) -> list[DiffRow]:
    def cost(op: OpPlan) -> float:
        return op.compute_s + sum(c.time_s for c in op.collectives)

    ordered = sorted(changed, key=lambda pair: -max(cost(pair[0]), cost(pair[1])))
    return [DiffRow("op", new.name, old.strategy, new.strategy) for old, new in ordered if new.is_decision]


def _summarise(before: Plan, after: Plan, changed: list[tuple[OpPlan, OpPlan]]) -> list[str]:
    old, new = before.estimate.step_s, after.estimate.step_s
    if abs(new - old) <= 1e-4 * old:
        sentences = [f"The step takes as long as before, {format_seconds(new)}."]
    elif old == 0:
        sentences = [f"The step takes {format_seconds(new)} instead of {format_seconds(old)}."]
    else:
        word = "longer" if new > old else "shorter"
        sentences = [
            f"The step is {abs(new - old) / old:.1%} {word}: {format_seconds(new)} instead of {format_seconds(old)}."
        ]
    if before.num_stages != after.num_stages:
        sentences.append(f"There are {after.num_stages} stages instead of {before.num_stages}.")
    peak_old = max(s.memory.total_bytes for s in before.stages)
    peak_new = max(s.memory.total_bytes for s in after.stages)
    if abs(peak_new - peak_old) > 0.001 * peak_old:
        sentences.append(f"The fullest device holds {format_bytes(peak_new)} instead of {format_bytes(peak_old)}.")
    groups = Counter(
        (_name_split(a.output_specs), _name_split(b.output_specs))
        for a, b in changed
        if a.output_specs != b.output_specs
    )
    for (was, now), count in groups.most_common(4):
        sentences.append(f"{count} op{'s' if count > 1 else ''} went from {was} to {now}.")
    if len(sentences) == 1 and not changed:
        sentences.append("No decision changed.")
    return sentences


def _name_split(specs: tuple[ShardingSpec, ...]) -> str:
    return format_spec(specs[0]) if specs else "no result"


def format_seconds(seconds: float) -> str:
    """`25.1 s`, `3.2 ms`, `48 µs`."""
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def format_bytes(num_bytes: float) -> str:
    """`12.3 GB`, `4 MB` (SI)."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def spell_layers(layers: Sequence[int]) -> str:
    """`layer 3`, `layers 0 to 6`, `layers 0, 4 to 6`; layers in ascending order."""
    runs = [[layer] for layer in layers if layer - 1 not in layers]
    for run in runs:
        while run[-1] + 1 in layers:
            run.append(run[-1] + 1)
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"{'layer' if len(layers) == 1 else 'layers'} {text}"
