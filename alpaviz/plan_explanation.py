"""Why a plan is as it is, in sentences. Every number in them is the plan's, or a sum or share of its numbers.

In: a plan and, where they are known, exact regrets of some of its ops. Out: sentences made of fragments, so that a view
can link ops and stages and a test can hold each number against the plan.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alpaviz.plan import RECOMPUTE, Plan, StagePlan, Transfer
from alpaviz.plan_cost_groups import CollectiveShare, OpGroup, group_ops, split_collectives
from alpaviz.plan_diff import format_bytes, format_seconds, spell_layers
from alpaviz.plan_text import CollectiveTotal, measure_gap, total_collectives
from alpaviz.plan_times import play_plan

if TYPE_CHECKING:  # regrets are found by the solver, plans are explained without it
    from alpaviz.stage_variants import Regret

MOST_GROUPS = 3
"""Groups of ops that are named per stage."""
_SMALL = 0.01
"""A collective that takes a smaller share of a step is not worth a sentence."""
_TIGHT = 0.85
"""A device that is fuller than this decides what fits."""


class FragmentKind(enum.StrEnum):
    """What a piece of a sentence is; `value` is seconds, bytes, a share, a number of things, or nothing."""

    TEXT = "text"
    SECONDS = "seconds"
    BYTES = "bytes"
    SHARE = "share"
    COUNT = "count"
    OP = "op"
    """A link to the op named `text`."""
    STAGE = "stage"
    """A link to stage `value`."""
    CODE = "code"
    """Axes, strategies, meshes, names of settings: as the plan spells them."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of a sentence: what is read, and the number of the plan that it spells."""

    kind: FragmentKind
    text: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence about `stage`, or about the whole plan (None)."""

    stage: int | None
    fragments: tuple[Fragment, ...]

    @property
    def text(self) -> str:
        return "".join(fragment.text for fragment in self.fragments)

    def __str__(self) -> str:
        return self.text


def explain_plan(plan: Plan, regrets: Mapping[str, Sequence[Regret]] | None = None) -> tuple[Sentence, ...]:
    """Sentences from the whole to the parts: the step, what limits it, the cuts, then each stage.

    Args:
        regrets: by name of an op, what `plan`'s variants say of it (`StageVariants.regrets`).
    """
    totals = total_collectives(plan)
    sentences = [
        _say(None, *_tell_step(plan)), _say(None, *_tell_limit(plan, totals)), _say(None, *_tell_memory(plan)),
        _say(None, *_tell_proof(plan)),
    ]  # fmt: skip
    sentences += [_say(None, *parts) for parts in (_tell_recomputed(plan), *_tell_cuts(plan))]
    if plan.pins:
        names = "; ".join(map(str, plan.pins))
        sentences.append(_say(None, _count(len(plan.pins), "pin"), " had to be kept: ", _code(names), "."))
    for stage in plan.stages:
        sentences.append(_say(stage.index, *_tell_stage(plan, stage)))
        groups = group_ops(plan, stage.index)[:MOST_GROUPS]
        sentences += [_say(stage.index, *_tell_group(plan, group)) for group in groups]
        for total in _list_worthy(plan, stage, totals):
            sentences.append(_say(stage.index, *_tell_collective(plan, total)))
        for name, rows in (regrets or {}).items():
            op = next((op for op in plan.ops if op.name == name), None)
            if op is not None and op.stage == stage.index:
                sentences.append(_say(stage.index, *_tell_regret(plan, name, rows)))
    return tuple(sentence for sentence in sentences if sentence.fragments)


def list_costly_decisions(plan: Plan, count: int = MOST_GROUPS) -> tuple[str, ...]:
    """Ops whose regrets are worth knowing: per stage, the first of each of the costliest groups that are decided."""
    return tuple(
        group.first.name
        for stage in plan.stages
        for group in [g for g in group_ops(plan, stage.index) if g.first.is_decision][:count]
    )


# Fragments.

_Part = str | Fragment


def _say(stage: int | None, *parts: _Part) -> Sentence:
    return Sentence(stage, tuple(p if isinstance(p, Fragment) else Fragment(FragmentKind.TEXT, p) for p in parts))


def _seconds(value: float) -> Fragment:
    return Fragment(FragmentKind.SECONDS, format_seconds(value), value)


def _bytes(value: float) -> Fragment:
    return Fragment(FragmentKind.BYTES, format_bytes(value), value)


def _share(value: float) -> Fragment:
    return Fragment(FragmentKind.SHARE, f"{value:.1%}", value)


def _count(value: int, noun: str, plural: str = "") -> Fragment:
    word = noun if value == 1 else plural or f"{noun}s"
    return Fragment(FragmentKind.COUNT, f"{value} {word}".rstrip(), float(value))


def _op(name: str) -> Fragment:
    return Fragment(FragmentKind.OP, name)


def _stage(index: int) -> Fragment:
    return Fragment(FragmentKind.STAGE, f"stage {index}", float(index))


def _code(text: str) -> Fragment:
    return Fragment(FragmentKind.CODE, text)


def _join(items: Sequence[Sequence[_Part]]) -> list[_Part]:
    """`a, b and c`."""
    parts: list[_Part] = []
    for i, item in enumerate(items):
        if i:
            parts.append(" and " if i == len(items) - 1 else ", ")
        parts += item
    return parts


def _divide(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


# The whole.


def _tell_step(plan: Plan) -> list[_Part]:
    estimate = plan.estimate
    named = [
        ("compute", estimate.compute_s), *estimate.collectives_s, ("resharding", estimate.resharding_s),
        ("waiting", estimate.bubble_s),
    ]  # fmt: skip
    shares: list[list[_Part]] = [
        [_share(_divide(seconds, estimate.step_s)), f" {name}"] for name, seconds in named if seconds > 0
    ]
    return ["A step takes ", _seconds(estimate.step_s), ": on the stage that works longest, ", *_join(shares), "."]


def _find_busiest(plan: Plan) -> tuple[int, ...]:
    """The stages of the devices that work longest, as `StepEstimate` takes them."""
    timeline = play_plan(plan)
    row = max(range(len(timeline.stages)), key=timeline.busy_s)
    return tuple(sorted({event.task.stage for event in timeline.stages[row]}))


def _tell_limit(plan: Plan, totals: Sequence[CollectiveTotal]) -> list[_Part]:
    """What costs most beside compute: waiting, or a kind of collective over the same axes of the busiest stage."""
    estimate, busiest = plan.estimate, _find_busiest(plan)
    worst = max((t for t in totals if t.stage in busiest), key=lambda total: total.time_s, default=None)
    if max(estimate.bubble_s, worst.time_s if worst else 0.0) < _SMALL * estimate.step_s:
        return ["Beside compute nothing costs much: the devices hardly wait and hardly communicate."]
    if worst is not None and worst.time_s > estimate.bubble_s:
        return [
            "Beside compute, what limits the step most is the ", worst.kind, " over ", _code(" ".join(worst.axes)),
            " in ", _stage(worst.stage), ": it takes ", _seconds(worst.time_s), " or ",
            _share(_divide(worst.time_s, estimate.step_s)), " of the step", *_tell_link(plan, worst), ".",
        ]  # fmt: skip
    return [
        "Beside compute, what limits the step most is the pipeline: ", *_join([[_stage(s)] for s in busiest]),
        " waits ", _seconds(estimate.bubble_s), " or ", _share(_divide(estimate.bubble_s, estimate.step_s)),
        " of the step, ", _seconds(estimate.transfer_s), " of that for sends, with ",
        _count(plan.num_microbatches, "microbatch", "microbatches"), " in ", _count(plan.num_stages, "stage"),
        " under schedule ", _code(plan.schedule), ".",
    ]  # fmt: skip


def _tell_link(plan: Plan, total: CollectiveTotal) -> list[_Part]:
    """Over which connections a collective goes."""
    if _is_between_hosts(plan.stages[total.stage], total):
        network = plan.cluster.network
        return [", between hosts at ", _bytes(network.bandwidth), "/s"] if network is not None else [", between hosts"]
    host = plan.stages[total.stage].devices[0][0]
    return [", inside a host at ", _bytes(plan.cluster.hosts[host].link.bandwidth), "/s"]


def _is_between_hosts(stage: StagePlan, total: CollectiveTotal) -> bool:
    """Whether devices that differ only in the collective's axes are on several hosts."""
    strides = [math.prod(stage.mesh_shape[k + 1 :]) for k in range(len(stage.mesh_shape))]
    moving = [k for k, axis in enumerate(stage.mesh_axes) if axis in total.axes]
    groups: dict[tuple[int, ...], set[int]] = {}
    for number, (host, _) in enumerate(stage.devices):
        place = [number // strides[k] % stage.mesh_shape[k] for k in range(len(strides))]
        key = tuple(0 if k in moving else at for k, at in enumerate(place))
        groups.setdefault(key, set()).add(host)
    return any(len(hosts) > 1 for hosts in groups.values())


def _tell_memory(plan: Plan) -> list[_Part]:
    fullest = max(plan.stages, key=lambda stage: _divide(stage.memory.total_bytes, stage.memory.capacity_bytes))
    memory = fullest.memory
    used = _divide(memory.total_bytes, memory.capacity_bytes)
    ending = ": memory limits what can be chosen" if used > _TIGHT else ": memory leaves room"
    return [
        "The fullest devices are those of ", _stage(fullest.index), ", which hold ", _bytes(memory.total_bytes), " of ",
        _bytes(memory.capacity_bytes), " (", _share(used), "), ", _bytes(memory.activations_bytes),
        " of it activations of ", _count(fullest.in_flight, "microbatch", "microbatches"), " in flight", ending, ".",
    ]  # fmt: skip


def _tell_recomputed(plan: Plan) -> list[_Part]:
    again = [op for op in plan.ops if op.name.startswith(RECOMPUTE)]
    if not again:
        return []
    sent = [c for op in again for c in (*op.collectives, *(c for r in op.reshardings for c in r.collectives))]
    seconds = plan.num_microbatches * (sum(op.compute_s for op in again) + sum(c.time_s for c in sent))
    return [
        "The activations of ", _code(spell_layers(plan.program.recomputed_layers)), " are made again in the backward "
        "pass, which adds ", _seconds(seconds), " to a step over all stages: keeping them does not fit or costs more.",
    ]  # fmt: skip


def _tell_proof(plan: Plan) -> list[_Part]:
    solver = plan.solver
    if measure_gap(plan) < 1e-5:
        return ["The solver proved that by its cost model, ", _seconds(solver.objective), " a step, no plan is better."]
    return [
        "By the solver's cost model the plan costs ", _seconds(solver.objective), " a step; it proved that no plan "
        "costs less than ", _seconds(solver.bound), ".",
    ]  # fmt: skip


def _time_microbatch(stage: StagePlan) -> float:
    return stage.forward_s + stage.backward_s


def _tell_cuts(plan: Plan) -> list[list[_Part]]:
    """Why the layers are cut where they are."""
    if plan.num_stages == 1:
        stage = plan.stages[0]
        return [
            ["All ", _count(plan.program.num_layers, "layer"), " are one stage on ",
             _count(stage.num_devices, "device"), ": nothing is sent between stages."]
        ]  # fmt: skip
    times = [_time_microbatch(stage) for stage in plan.stages]
    slowest, fastest = max(range(len(times)), key=times.__getitem__), min(range(len(times)), key=times.__getitem__)
    balance: list[_Part] = [
        "The layers are cut where all stages together and the waiting for the slowest of them cost least: ",
        _stage(slowest), ", the slowest, takes ", _seconds(times[slowest]), " for a microbatch, forward and backward, ",
        _stage(fastest), ", the fastest, ", _seconds(times[fastest]), ".",
    ]  # fmt: skip
    return [balance, *(_tell_cut(plan, stage) for stage in plan.stages[1:])]


def _tell_cut(plan: Plan, stage: StagePlan) -> list[_Part]:
    """What crosses the cut before `stage`."""
    before = plan.stages[stage.index - 1]
    names = plan.program.layers
    here = [t for t in plan.transfers if {t.source_stage, t.target_stage} == {before.index, stage.index} and not t.once]
    parts: list[_Part] = [
        "Between ", _stage(before.index), " and ", _stage(stage.index), " the cut is before layer ",
        _code(f"{stage.first_layer} ({names[stage.first_layer]})"), ": ",
    ]  # fmt: skip
    if not here:
        return [*parts, "nothing has to cross it."]
    return [
        *parts, "each microbatch sends ", _bytes(sum(t.num_bytes for t in here)), " across, which takes ",
        _seconds(_sum_seconds(here)), " one after the other.",
    ]  # fmt: skip


def _sum_seconds(transfers: Sequence[Transfer]) -> float:
    return sum(t.time_s for t in transfers)


# A stage.


def _tell_stage(plan: Plan, stage: StagePlan) -> list[_Part]:
    mesh = " ".join(f"{axis}={size}" for axis, size in stage.axis_sizes.items())
    layers = f"{stage.first_layer}" if stage.first_layer == stage.last_layer else (
        f"{stage.first_layer} to {stage.last_layer}"
    )  # fmt: skip
    named = [("compute", stage.compute_s), *stage.collectives_s, ("resharding", stage.resharding_s)]
    total = sum(seconds for _, seconds in named)
    shares: list[list[_Part]] = [[_seconds(seconds), f" of {name}"] for name, seconds in named if seconds > 0]
    return [
        "Layers " if stage.first_layer < stage.last_layer else "Layer ", _code(layers), " are " if
        stage.first_layer < stage.last_layer else " is ", _stage(stage.index), " on ",
        _count(stage.num_devices, "device"), ", seen as mesh ", _code(mesh), ": ", _seconds(total),
        " of work in a step, ", *_join(shares), ".",
    ]  # fmt: skip


def _name_ops(op: str, count: int) -> list[_Part]:
    return [_op(op)] if count == 1 else [_count(count, "op"), " like ", _op(op)]


def _tell_group(plan: Plan, group: OpGroup) -> list[_Part]:
    op, whole = group.first, plan.estimate.step_s
    parts: list[_Part] = [
        *_capitalise(_name_ops(op.name, group.count)), " (", op.role, ", ", _code(op.strategy), ") take ",
        _seconds(group.step_s), " or ", _share(_divide(group.step_s, whole)), " of a step",
    ]  # fmt: skip
    if group.count == 1:
        parts[parts.index(") take ")] = ") takes "
    if group.communication_s > 0:
        parts += [", ", _seconds(group.communication_s), " of it communication"]
    return [*parts, "."]


def _capitalise(parts: list[_Part]) -> list[_Part]:
    return ["Op ", *parts] if len(parts) == 1 else ["The ", *parts]


def _list_worthy(plan: Plan, stage: StagePlan, totals: Sequence[CollectiveTotal]) -> list[CollectiveTotal]:
    least = _SMALL * plan.estimate.step_s
    found = [total for total in totals if total.stage == stage.index and total.time_s >= least]
    return found[:MOST_GROUPS]


def _tell_collective(plan: Plan, total: CollectiveTotal) -> list[_Part]:
    """What a kind of collective costs, and which ops cause most of it."""
    worst = split_collectives(plan, total.stage, total.kind, total.axes)[0]
    return [
        "The ", total.kind, " over ", _code(" ".join(total.axes)), " takes ", _seconds(total.time_s), " of a step in ",
        _count(total.count, "run"), *_tell_link(plan, total), "; ", _seconds(worst.time_s), " of that and ",
        _bytes(worst.num_bytes / worst.runs), " at a time are of ", *_name_ops(worst.first.name, worst.count), ", ",
        *_tell_cause(worst), ".",
    ]  # fmt: skip


def _tell_cause(share: CollectiveShare) -> list[_Part]:
    op = share.first
    if share.is_resharding:
        return ["where a tensor arrives in another sharding than ", _code(op.strategy), " needs"]
    summed = _list_summed(op.rule, op.strategy)
    if summed:
        return [
            "whose strategy ", _code(op.strategy), " splits ", _code(", ".join(summed)),
            ", which is summed over: each device has a part of the sum",
        ]  # fmt: skip
    return ["whose strategy ", _code(op.strategy), " needs it"]


def _list_summed(rule: str, strategy: str) -> list[str]:
    """Factors that `strategy` splits and that the results of `rule` do not have."""
    results = rule.rpartition("->")[2].replace("(", " ").replace(")", " ").replace(",", " ").split()
    split = [word.partition(":")[0] for word in strategy.split() if ":" in word]
    return [factor for factor in dict.fromkeys(split) if factor not in results]


def _tell_regret(plan: Plan, name: str, rows: Sequence[Regret]) -> list[_Part]:
    """What the next best strategy of an op would cost."""
    others = [row for row in rows if not row.is_chosen and math.isfinite(row.delta_s)]
    now = next((row for row in rows if row.is_chosen), None)
    if now is None or not others:
        return ["Nothing else fits for ", _op(name), "."]
    best = min(others, key=lambda row: row.delta_s)
    more = best.delta_s - now.delta_s
    parts: list[_Part] = [
        "If ", _op(name), " ran as ", _code(best.strategy), " instead of ", _code(now.strategy),
        ", with the rest of its stage free to follow, a step would take ",
    ]  # fmt: skip
    if abs(more) <= 1e-6 * plan.estimate.step_s:
        parts.append("as long")
    else:
        share = _share(_divide(abs(more), plan.estimate.step_s))
        parts += [_seconds(abs(more)), " or ", share, " longer" if more > 0 else " less"]
    if best.stage_bytes is not None and now.stage_bytes is not None and abs(best.stage_bytes - now.stage_bytes) >= 1:
        change = best.stage_bytes - now.stage_bytes
        parts += [", and a device would hold ", _bytes(abs(change)), " more" if change > 0 else " less"]
    return [*parts, "; no other strategy costs less." if len(others) > 1 else "."]
