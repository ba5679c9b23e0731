"""Plays a schedule with given durations: who does what when, and where the bubbles are."""

from __future__ import annotations

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
    """A transfer between two stages for one microbatch; `forward` from an earlier stage to a later one."""

    source: int
    target: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened: events per stage in order, sends, and the end of the last event."""

    stages: tuple[tuple[TimelineEvent, ...], ...]
    sends: tuple[Send, ...]
    makespan_s: float

    def busy_s(self, stage: int) -> float:
        """Seconds in which a stage works."""
        return sum(event.end_s - event.start_s for event in self.stages[stage])

    def bubble_fraction(self, stage: int) -> float:
        """Share of the step in which a stage waits."""
        return 1 - self.busy_s(stage) / self.makespan_s if self.makespan_s > 0 else 0.0


def simulate_schedule(
    order: Order,
    durations: Sequence[StageDurations],
    transfers: Mapping[tuple[int, int], float] | None = None,
) -> Timeline:
    """Play `order`.

    A forward task needs the forward of every earlier stage that sends to it (the neighbour always counts), a backward
    the backward of the later ones, and its own forward. A send takes its time after the task that makes the value and
    overlaps with the sender's next work.

    Args:
        transfers: (source stage, target stage) -> seconds for each microbatch.

    Raises:
        ValueError: the order waits for itself.
    """
    transfers = dict(transfers or {})
    for stage in range(len(order) - 1):
        transfers.setdefault((stage, stage + 1), 0.0)
        transfers.setdefault((stage + 1, stage), 0.0)
    player = _Player(order, durations, transfers)
    player.play()
    return Timeline(tuple(map(tuple, player.events)), tuple(player.sends), player.makespan)


class _Player:
    def __init__(
        self, order: Order, durations: Sequence[StageDurations], transfers: Mapping[tuple[int, int], float]
    ) -> None:
        self.order, self.durations, self.transfers = order, durations, transfers
        self.events: list[list[TimelineEvent]] = [[] for _ in order]
        self.sends: list[Send] = []
        self.ended: dict[Task, float] = {}
        self.free = [0.0] * len(order)

    @property
    def makespan(self) -> float:
        return max(self.free, default=0.0)

    def play(self) -> None:
        position = [0] * len(self.order)
        remaining = sum(map(len, self.order))
        while remaining:
            moved = False
            for stage, tasks in enumerate(self.order):
                while position[stage] < len(tasks):
                    ready = self._ready_at(tasks[position[stage]])
                    if ready is None:
                        break
                    self._run(tasks[position[stage]], ready)
                    position[stage] += 1
                    remaining -= 1
                    moved = True
            if not moved:
                stuck = [tasks[position[s]] for s, tasks in enumerate(self.order) if position[s] < len(tasks)]
                raise ValueError(f"the schedule waits for itself: {stuck}")

    def _ready_at(self, task: Task) -> float | None:
        """When the inputs of `task` are there; None while something that it needs has not run."""
        if task.kind is TaskKind.UPDATE:
            return 0.0
        ready = 0.0
        if task.kind is TaskKind.BACKWARD:
            own = self.ended.get(Task(TaskKind.FORWARD, task.stage, task.microbatch))
            if own is None:
                return None
            ready = own
        for (source, target), seconds in self.transfers.items():
            is_forward = source < target
            if target != task.stage or is_forward != (task.kind is TaskKind.FORWARD):
                continue
            made = self.ended.get(Task(task.kind, source, task.microbatch))
            if made is None:
                return None
            ready = max(ready, made + seconds)
        return ready

    def _run(self, task: Task, ready: float) -> None:
        start = max(ready, self.free[task.stage])
        end = start + self.durations[task.stage].of(task.kind)
        self.events[task.stage].append(TimelineEvent(task, start, end))
        self.ended[task] = end
        self.free[task.stage] = end
        for (source, target), seconds in self.transfers.items():
            is_forward = source < target
            is_same_way = task.kind is (TaskKind.FORWARD if is_forward else TaskKind.BACKWARD)
            if source == task.stage and seconds > 0 and is_same_way:
                self.sends.append(Send(source, target, task.microbatch, end, end + seconds))


def export_trace(timeline: Timeline, name: str = "step") -> dict[str, object]:
    """Trace events for Chrome's and Perfetto's viewers; one track per stage and one for its sends."""
    events: list[dict[str, object]] = []
    for stage, items in enumerate(timeline.stages):
        events.append({"ph": "M", "pid": 0, "tid": stage, "name": "thread_name", "args": {"name": f"stage {stage}"}})
        events.extend(
            _make_event(0, stage, f"{e.task.kind.value} {e.task.microbatch}", e.task.kind.value, e.start_s, e.end_s)
            for e in items
        )
    events.extend(
        _make_event(1, s.source, f"send {s.microbatch} to stage {s.target}", "send", s.start_s, s.end_s)
        for s in timeline.sends
    )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": name}}


def _make_event(process: int, track: int, name: str, category: str, start_s: float, end_s: float) -> dict[str, object]:
    """One complete event; its times are in microseconds, as the viewers want them."""
    return {
        "ph": "X", "pid": process, "tid": track, "name": name, "cat": category, "ts": start_s * 1e6,
        "dur": (end_s - start_s) * 1e6,
    }  # fmt: skip
