"""Plays a schedule with given durations: who does what when, and where the bubbles are."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alpaviz.schedule.orders import Order, Task, TaskKind, count_change


@dataclass(frozen=True, slots=True)
class StageDurations:
    """Seconds of one forward, one backward and the update of a stage; `weights_s` of a backward makes weight gradients.

    Where a schedule cuts the backward in two, the rest of it makes what the stage before waits for.
    """

    forward_s: float
    backward_s: float
    update_s: float
    weights_s: float = 0.0

    def of(self, kind: TaskKind) -> float:
        match kind:
            case TaskKind.FORWARD:
                return self.forward_s
            case TaskKind.BACKWARD:
                return self.backward_s
            case TaskKind.INPUT_GRADIENT:
                return max(0.0, self.backward_s - self.weights_s)
            case TaskKind.WEIGHT_GRADIENT:
                return self.weights_s
            case TaskKind.UPDATE:
                return self.update_s


@dataclass(frozen=True, slots=True)
class Sharing:
    """All stages work on the same hardware, as virtual devices do: each at work takes its share of it, at most 1."""

    shares: tuple[float, ...]


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
    """What happened: events of each row of the order, sends that take time, and the end of the last event.

    A row is a stage, or in an interleaved schedule the stages that share devices.
    """

    stages: tuple[tuple[TimelineEvent, ...], ...]
    sends: tuple[Send, ...]
    makespan_s: float

    def name_row(self, row: int) -> str:
        """`stage 1`, or `stages 1, 3` where they share devices."""
        stages = sorted({event.task.stage for event in self.stages[row]})
        return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"

    def busy_s(self, stage: int) -> float:
        """Seconds in which a row works."""
        return sum(event.end_s - event.start_s for event in self.stages[stage])

    def bubble_fraction(self, stage: int) -> float:
        """Share of the step in which a row waits."""
        return 1 - self.busy_s(stage) / self.makespan_s if self.makespan_s > 0 else 0.0

    def list_in_flight(self, stage: int) -> tuple[tuple[float, int], ...]:
        """(seconds, microbatches whose activations the row keeps from then on), one entry for each change.

        A microbatch counts from the start of its forward task to the end of its backward task, or of its weight
        gradients where they come apart; of changes at one moment, frees come first. Where nothing runs backward, all
        stay.
        """
        steps = sorted(
            (event.start_s if change > 0 else event.end_s, change)
            for event in self.stages[stage]
            if (change := count_change(event.task.kind))
        )
        return tuple(zip((at for at, _ in steps), itertools.accumulate(change for _, change in steps)))


def simulate_schedule(
    order: Order,
    durations: Sequence[StageDurations],
    transfers: Mapping[tuple[int, int], float] | None = None,
    sharing: Sharing | None = None,
) -> Timeline:
    """Play `order`.

    A forward task needs the forward of every earlier stage that sends to it (the neighbour always counts), a backward
    the backward of the later ones, and its own forward where it has one. A send begins when its value is made and
    overlaps with the sender's next work; of the sends between the devices of one row and of another, each waits for the
    one before, in each direction.

    Args:
        durations: of each stage.
        transfers: (source stage, target stage) -> seconds for each microbatch.
        sharing: of hardware by all stages; None where each has its own.

    Raises:
        ValueError: the order waits for itself.
    """
    player = _Player(order, durations, transfers or {}, sharing)
    player.play() if sharing is None else player.take_turns()
    sends = tuple(sorted(player.sends, key=lambda send: (send.start_s, send.source, send.target)))
    return Timeline(tuple(map(tuple, player.events)), sends, max(player.free, default=0.0))


class _Player:
    """What changes while a schedule plays."""

    def __init__(
        self,
        order: Order,
        durations: Sequence[StageDurations],
        transfers: Mapping[tuple[int, int], float],
        sharing: Sharing | None = None,
    ) -> None:
        self.order, self.durations, self.sharing = order, durations, sharing
        self.running: list[tuple[float, float]] = []  # (end, share of the hardware) of tasks
        self.events: list[list[TimelineEvent]] = [[] for _ in order]
        self.sends: list[Send] = []
        self.free = [0.0] * len(order)
        self.row = {task.stage: row for row, tasks in enumerate(order) for task in tasks}
        self.own: dict[tuple[int, int, bool], float] = {}  # (stage, microbatch, is forward) -> end of its own task
        self.arrived: dict[tuple[int, int, int], float] = {}  # (source, target, microbatch) -> when it is there
        self.link_free: dict[tuple[int, int], float] = defaultdict(float)  # by row
        self.targets: dict[tuple[int, bool], list[tuple[int, float]]] = defaultdict(list)
        self.sources: dict[tuple[int, bool], list[int]] = defaultdict(list)
        neighbours = {(a, b): 0.0 for a in self.row for b in (a - 1, a + 1) if b in self.row}
        for (source, target), seconds in sorted({**neighbours, **transfers}.items()):
            if source not in self.row or target not in self.row:
                continue
            is_forward = source < target
            self.targets[source, is_forward].append((target, seconds))
            self.sources[target, is_forward].append(source)
        # Stages whose tasks are all of one kind take no part in the other direction.
        self.with_forward = {task.stage for tasks in order for task in tasks if task.kind is TaskKind.FORWARD}

    def play(self) -> None:
        position = [0] * len(self.order)
        has_moved = True
        while has_moved:
            has_moved = False
            for row, tasks in enumerate(self.order):
                while position[row] < len(tasks):
                    ready = self._ready_at(tasks[position[row]])
                    if ready is None:
                        break
                    self._run(row, tasks[position[row]], ready)
                    position[row] += 1
                    has_moved = True
        stuck = [tasks[position[r]] for r, tasks in enumerate(self.order) if position[r] < len(tasks)]
        if stuck:
            raise ValueError(f"the schedule waits for itself: {stuck}")

    def take_turns(self) -> None:
        """Play on shared hardware: of the tasks that come next in their rows, the one that can start first does."""
        position = [0] * len(self.order)
        for _ in range(sum(map(len, self.order))):
            waiting = [
                (max(ready, self.free[row]), row)
                for row, tasks in enumerate(self.order)
                if position[row] < len(tasks) and (ready := self._ready_at(tasks[position[row]])) is not None
            ]
            if not waiting:
                stuck = [tasks[position[r]] for r, tasks in enumerate(self.order) if position[r] < len(tasks)]
                raise ValueError(f"the schedule waits for itself: {stuck}")
            start, row = min((self._wait_for_room(ready, self.order[r][position[r]]), r) for ready, r in waiting)
            self._run(row, self.order[row][position[row]], start)
            position[row] += 1

    def _wait_for_room(self, ready: float, task: Task) -> float:
        """When enough of the hardware is free for `task`."""
        assert self.sharing is not None, "only where hardware is shared"
        share = self.sharing.shares[task.stage]
        for moment in sorted({ready, *(end for end, _ in self.running if end > ready)}):
            if share + sum(other for end, other in self.running if end > moment) <= 1 + 1e-9:
                return moment
        raise AssertionError("after the last end all is free")

    def _ready_at(self, task: Task) -> float | None:
        """When the inputs of `task` are there; None while something that it needs has not run."""
        if task.kind is TaskKind.UPDATE:
            return 0.0
        stage, microbatch, ready = task.stage, task.microbatch, 0.0
        is_forward = task.kind is TaskKind.FORWARD
        is_weights = task.kind is TaskKind.WEIGHT_GRADIENT
        if not is_forward and (is_weights or stage in self.with_forward):
            own = self.own.get((stage, microbatch, not is_weights))
            if own is None:
                return None
            ready = own
        for source in () if is_weights else self.sources[stage, is_forward]:
            arrived = self.arrived.get((source, stage, microbatch))
            if arrived is None:
                return None
            ready = max(ready, arrived)
        return ready

    def _run(self, row: int, task: Task, ready: float) -> None:
        stage, microbatch = task.stage, task.microbatch
        start = max(ready, self.free[row])
        end = start + self.durations[stage].of(task.kind)
        self.events[row].append(TimelineEvent(task, start, end))
        self.free[row] = end
        if self.sharing is not None:
            self.running = [entry for entry in self.running if entry[0] > start]
            self.running.append((end, self.sharing.shares[stage]))
        if task.kind in (TaskKind.UPDATE, TaskKind.WEIGHT_GRADIENT):
            return
        is_forward = task.kind is TaskKind.FORWARD
        self.own[stage, microbatch, is_forward] = end
        for target, seconds in self.targets[stage, is_forward]:
            link = row, self.row[target]
            begin = max(end, self.link_free[link])
            self.arrived[stage, target, microbatch] = begin + seconds
            if seconds > 0:
                self.link_free[link] = begin + seconds
                self.sends.append(Send(stage, target, microbatch, begin, begin + seconds))
