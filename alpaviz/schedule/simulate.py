"""Plays a schedule with given durations: who does what when, and where the bubbles are."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alpaviz.schedule.orders import Order, Task, TaskKind


@dataclass(frozen=True, slots=True)
class StageDurations:
    """Seconds of one forward, one backward and the update of a stage."""

    forward_s: float
    backward_s: float
    update_s: float

    def of(self, kind: TaskKind) -> float:
        match kind:
            case TaskKind.FORWARD:
                return self.forward_s
            case TaskKind.BACKWARD:
                return self.backward_s
            case TaskKind.UPDATE:
                return self.update_s


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """`task` runs from `start_s` to `end_s`."""

    task: Task
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Send:
    """A transfer for one microbatch: of activations to a later stage, of cotangents to an earlier one."""

    source: int
    target: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened: events per stage in order, sends that take time, and the end of the last event."""

    stages: tuple[tuple[TimelineEvent, ...], ...]
    sends: tuple[Send, ...]
    makespan_s: float

    def busy_s(self, stage: int) -> float:
        """Seconds in which a stage works."""
        return sum(event.end_s - event.start_s for event in self.stages[stage])

    def bubble_fraction(self, stage: int) -> float:
        """Share of the step in which a stage waits."""
        return 1 - self.busy_s(stage) / self.makespan_s if self.makespan_s > 0 else 0.0

    def list_in_flight(self, stage: int) -> tuple[tuple[float, int], ...]:
        """(seconds, microbatches whose activations the stage keeps from then on), one entry for each change.

        A microbatch counts from the start of its forward task to the end of its backward task; of changes at one
        moment, frees come first. Where nothing runs backward, all stay.
        """
        steps = sorted(
            (event.start_s, 1) if event.task.kind is TaskKind.FORWARD else (event.end_s, -1)
            for event in self.stages[stage]
            if event.task.kind is not TaskKind.UPDATE
        )
        return tuple(zip((at for at, _ in steps), itertools.accumulate(change for _, change in steps)))


def simulate_schedule(
    order: Order,
    durations: Sequence[StageDurations],
    transfers: Mapping[tuple[int, int], float] | None = None,
) -> Timeline:
    """Play `order`.

    A forward task needs the forward of every earlier stage that sends to it (the neighbour always counts), a backward
    the backward of the later ones, and its own forward where it has one. A send begins when its value is made and
    overlaps with the sender's next work; of the sends from one stage to another, each waits for the one before.

    Args:
        transfers: (source stage, target stage) -> seconds for each microbatch.

    Raises:
        ValueError: the order waits for itself.
    """
    player = _Player(order, durations, transfers or {})
    player.play()
    sends = tuple(sorted(player.sends, key=lambda send: (send.start_s, send.source, send.target)))
    return Timeline(tuple(map(tuple, player.events)), sends, max(player.free, default=0.0))


class _Player:
    """What changes while a schedule plays."""

    def __init__(
        self, order: Order, durations: Sequence[StageDurations], transfers: Mapping[tuple[int, int], float]
    ) -> None:
        self.order, self.durations = order, durations
        self.events: list[list[TimelineEvent]] = [[] for _ in order]
        self.sends: list[Send] = []
        self.free = [0.0] * len(order)
        self.own: dict[tuple[int, int], float] = {}  # (stage, microbatch) -> end of the forward task
        self.arrived: dict[tuple[int, int, int], float] = {}  # (source, target, microbatch) -> when it is there
        self.link_free: dict[tuple[int, int], float] = defaultdict(float)
        self.targets: dict[tuple[int, bool], list[tuple[int, float]]] = defaultdict(list)
        self.sources: dict[tuple[int, bool], list[int]] = defaultdict(list)
        neighbours = {(a, b): 0.0 for a in range(len(order)) for b in (a - 1, a + 1) if 0 <= b < len(order)}
        for (source, target), seconds in sorted({**neighbours, **transfers}.items()):
            is_forward = source < target
            self.targets[source, is_forward].append((target, seconds))
            self.sources[target, is_forward].append(source)
        # Stages whose tasks are all of one kind take no part in the other direction.
        self.has_forward = [any(task.kind is TaskKind.FORWARD for task in tasks) for tasks in order]

    def play(self) -> None:
        position = [0] * len(self.order)
        has_moved = True
        while has_moved:
            has_moved = False
            for stage, tasks in enumerate(self.order):
                while position[stage] < len(tasks):
                    ready = self._ready_at(tasks[position[stage]])
                    if ready is None:
                        break
                    self._run(tasks[position[stage]], ready)
                    position[stage] += 1
                    has_moved = True
        stuck = [tasks[position[s]] for s, tasks in enumerate(self.order) if position[s] < len(tasks)]
        if stuck:
            raise ValueError(f"the schedule waits for itself: {stuck}")

    def _ready_at(self, task: Task) -> float | None:
        """When the inputs of `task` are there; None while something that it needs has not run."""
        if task.kind is TaskKind.UPDATE:
            return 0.0
        stage, microbatch, ready = task.stage, task.microbatch, 0.0
        is_forward = task.kind is TaskKind.FORWARD
        if not is_forward and self.has_forward[stage]:
            own = self.own.get((stage, microbatch))
            if own is None:
                return None
            ready = own
        for source in self.sources[stage, is_forward]:
            arrived = self.arrived.get((source, stage, microbatch))
            if arrived is None:
                return None
            ready = max(ready, arrived)
        return ready

    def _run(self, task: Task, ready: float) -> None:
        stage, microbatch = task.stage, task.microbatch
        start = max(ready, self.free[stage])
        end = start + self.durations[stage].of(task.kind)
        self.events[stage].append(TimelineEvent(task, start, end))
        self.free[stage] = end
        if task.kind is TaskKind.UPDATE:
            return
        is_forward = task.kind is TaskKind.FORWARD
        if is_forward:
            self.own[stage, microbatch] = end
        for target, seconds in self.targets[stage, is_forward]:
            begin = max(end, self.link_free[stage, target])
            self.link_free[stage, target] = self.arrived[stage, target, microbatch] = begin + seconds
            if seconds > 0:
                self.sends.append(Send(stage, target, microbatch, begin, begin + seconds))


def export_trace(timeline: Timeline, name: str = "step") -> dict[str, object]:
    """Trace events for the viewers of Chrome and Perfetto, ready for `json.dump`.

    One track for each stage's work, and below one for each pair of stages between which something is sent.

    Source: Trace Event Format of the Chromium project (complete events `X`, metadata events `M`).
    """
    work, sends = 0, 1
    pairs = {pair: track for track, pair in enumerate(sorted({(s.source, s.target) for s in timeline.sends}))}
    events: list[dict[str, object]] = [_name_track(work, None, name)]
    events.extend(_name_track(work, stage, f"stage {stage}") for stage in range(len(timeline.stages)))
    events.extend(
        _make_event(work, stage, _label(event.task), event.task.kind.value, event.start_s, event.end_s)
        for stage, items in enumerate(timeline.stages)
        for event in items
    )
    if pairs:
        events.append(_name_track(sends, None, "sends"))
    events.extend(_name_track(sends, track, f"stage {a} to {b}") for (a, b), track in pairs.items())
    events.extend(
        _make_event(sends, pairs[s.source, s.target], f"send {s.microbatch}", "send", s.start_s, s.end_s)
        for s in timeline.sends
    )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": name}}


def _label(task: Task) -> str:
    return task.kind.value if task.kind is TaskKind.UPDATE else f"{task.kind.value} {task.microbatch}"


def _name_track(process: int, track: int | None, name: str) -> dict[str, object]:
    """What the viewers write beside a track, or above all tracks of a process."""
    kind = "process_name" if track is None else "thread_name"
    return {"ph": "M", "pid": process, "tid": track or 0, "name": kind, "args": {"name": name}}


def _make_event(process: int, track: int, name: str, category: str, start_s: float, end_s: float) -> dict[str, object]:
    """One complete event; its times are in microseconds, as the viewers want them."""
    return {
        "ph": "X", "pid": process, "tid": track, "name": name, "cat": category, "ts": start_s * 1e6,
        "dur": (end_s - start_s) * 1e6,
    }  # fmt: skip
