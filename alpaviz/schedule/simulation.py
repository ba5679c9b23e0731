"""Plays a plan: when each stage works, what its devices hold meanwhile, and what goes over the links.

In: a plan, without the program and without JAX. Out: a `Simulation`, whose end is the plan's step time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alpaviz.cluster.description import Cluster
from alpaviz.errors import AlpaVizError
from alpaviz.plan import Plan, StagePlan, Transfer
from alpaviz.schedule.orders import Order, TaskKind, count_change, get_order
from alpaviz.schedule.timeline import Send, Sharing, StageDurations, Timeline, TimelineEvent, simulate_schedule
from alpaviz.types import DeviceId

ONCE = -1
"""Microbatch number of sends that happen once a step."""

LASTING = ("parameters", "optimizer", "batch")
"""Parts of a device's memory that stay for the whole step."""


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """What a device holds from `start_s` on: (part, bytes) pairs in a fixed order."""

    start_s: float
    parts: tuple[tuple[str, float], ...]

    @property
    def total_bytes(self) -> float:
        return sum(size for _, size in self.parts)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of the fullest device of a row of the timeline, over one step.

    Attributes:
        devices: those of the row.
        points: at each change, in order of time.
    """

    row: int
    devices: tuple[DeviceId, ...]
    capacity_bytes: float
    points: tuple[MemoryPoint, ...]

    @property
    def peak(self) -> MemoryPoint:
        """The first moment at which most is held, with what makes it up."""
        return max(self.points, key=lambda point: point.total_bytes)


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """All that goes from stage `source` to stage `target` in one step; `busy_s` of the step something is under way."""

    source: int
    target: int
    num_sends: int
    num_bytes: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """One step of a plan.

    Attributes:
        timeline: work and sends, those once a step (microbatch -1) last.
        step_s: the end of everything.
        memory: for each row of the timeline.
        links: for each pair of stages between which something is sent.
    """

    schedule: str
    timeline: Timeline
    step_s: float
    memory: tuple[DeviceMemory, ...]
    links: tuple[LinkTraffic, ...]


def simulate(plan: Plan, schedule: str | None = None) -> Simulation:
    """Play one step of `plan`, with its own schedule or with another.

    Sends that happen once a step are taken to start together when all else has ended.

    Raises:
        AlpaVizError: there is no such schedule, it does not take the plan's numbers of stages and microbatches, or it
            shares devices between other stages than the plan does.
    """
    name = schedule or plan.schedule
    order = get_order(name, plan.num_stages, plan.num_microbatches)
    _check_devices(order, plan.stages, name)
    timeline = play_stages(order, plan.stages, plan.transfers, plan.cluster)
    memory = tuple(_follow_memory(row, events, plan.stages) for row, events in enumerate(timeline.stages))
    return Simulation(name, timeline, timeline.makespan_s, memory, _total_traffic(plan, timeline))


def play_stages(order: Order, stages: Sequence[StagePlan], transfers: Sequence[Transfer], cluster: Cluster) -> Timeline:
    """The timeline of one step; on measured devices that share hardware, stages take turns."""
    durations = [StageDurations(s.forward_s, s.backward_s, s.update_s, s.weights_s) for s in stages]
    sends: dict[tuple[int, int], float] = defaultdict(float)
    once: dict[tuple[int, int], float] = defaultdict(float)
    for transfer in transfers:
        kept = once if transfer.once else sends
        pair = transfer.source_stage, transfer.target_stage
        kept[pair] = max(kept[pair], transfer.time_s) if transfer.once else kept[pair] + transfer.time_s
    timeline = simulate_schedule(order, durations, sends, find_sharing(stages, cluster))
    return _add_last_sends(timeline, once)


def find_sharing(stages: Sequence[StagePlan], cluster: Cluster) -> Sharing | None:
    """What each stage takes of hardware that all share; None where devices have their own, or were not measured."""
    measured = cluster.device_type.measured
    if measured is None or not measured.shares_hardware:
        return None
    return Sharing(tuple(min(1.0, stage.num_devices / measured.parallel_devices) for stage in stages))


def _add_last_sends(timeline: Timeline, once: Mapping[tuple[int, int], float]) -> Timeline:
    """`timeline` with sends once a step after its end."""
    if not once:
        return timeline
    begin = timeline.makespan_s
    sends = tuple(Send(a, b, ONCE, begin, begin + seconds) for (a, b), seconds in sorted(once.items()) if seconds > 0)
    return Timeline(timeline.stages, timeline.sends + sends, begin + max(once.values()))


def _check_devices(order: Order, stages: Sequence[StagePlan], name: str) -> None:
    """Stages share devices where they share a row, and nowhere else."""
    rows = [{task.stage for task in tasks} for tasks in order]
    devices = [{stages[s].devices for s in row} for row in rows]
    if any(len(found) > 1 for found in devices) or len({d for (d,) in devices}) < len(rows):
        raise AlpaVizError(
            f"Schedule {name!r} runs {len(stages)} stages on {len(rows)} groups of devices, the plan on "
            f"{len({stage.devices for stage in stages})}. Plan with schedule={name!r} for it."
        )


def _follow_memory(row: int, events: Sequence[TimelineEvent], stages: Sequence[StagePlan]) -> DeviceMemory:
    """What the row's fullest device holds from the start of the step to its end.

    Parameters, optimizer state and the batch stay. A stage's gradients are there from its first backward to its update,
    the activations of a microbatch from its forward to the end of its backward, the working set of a task while it
    runs.
    """
    own = sorted({event.task.stage for event in events})
    lasting = {part: sum(_part(stages[s], part) for s in own) for part in LASTING}
    changes: dict[float, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    changes[0.0].update(lasting)
    started: set[int] = set()
    for event in events:
        stage = stages[event.task.stage]
        memory, kind = stage.memory, event.task.kind
        change = count_change(kind) * memory.activations_bytes / max(1, stage.in_flight)
        changes[event.start_s if change > 0 else event.end_s]["activations"] += change
        if event.end_s > event.start_s:
            changes[event.start_s]["temporary"] += memory.temporary_bytes
            changes[event.end_s]["temporary"] -= memory.temporary_bytes
        if kind is TaskKind.UPDATE:
            changes[event.end_s]["gradients"] -= memory.gradients_bytes if stage.index in started else 0.0
        elif kind is not TaskKind.FORWARD and stage.index not in started:
            started.add(stage.index)
            changes[event.start_s]["gradients"] += memory.gradients_bytes
    held = dict.fromkeys((*LASTING, "gradients", "activations", "temporary"), 0.0)
    points = []
    for at in sorted(changes):
        for part, change in changes[at].items():
            held[part] += change
        points.append(MemoryPoint(at, tuple((part, max(0.0, size)) for part, size in held.items())))
    first = stages[own[0]]
    return DeviceMemory(row, first.devices, first.memory.capacity_bytes, tuple(points))


def _part(stage: StagePlan, part: str) -> float:
    memory = stage.memory
    return {"parameters": memory.parameters_bytes, "optimizer": memory.optimizer_bytes, "batch": memory.batch_bytes}[
        part
    ]


def _total_traffic(plan: Plan, timeline: Timeline) -> tuple[LinkTraffic, ...]:
    busy: dict[tuple[int, int], float] = defaultdict(float)
    for send in timeline.sends:
        busy[send.source, send.target] += send.end_s - send.start_s
    totals: dict[tuple[int, int], tuple[int, float]] = {}
    for transfer in plan.transfers:
        pair = transfer.source_stage, transfer.target_stage
        times = 1 if transfer.once else plan.num_microbatches
        count, size = totals.get(pair, (0, 0.0))
        totals[pair] = count + times, size + times * transfer.num_bytes
    return tuple(LinkTraffic(*pair, *total, busy[pair]) for pair, total in sorted(totals.items()))
