"""When the chunks of a step really ran, noted while the step goes on.

JAX only queues what it is told to run, so the moment of a call says little, and waiting after every call would take the
overlap away that is to be seen. Here a thread for each stage waits in the step's place: a chunk ends when its results
are there, and begins when the chunk before has ended, what it was sent has arrived and it has been issued, whichever is
last. Times are those of `time.perf_counter`, in s.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from alpaviz.program.program import Role
from alpaviz.schedule import Task, TaskKind, Timeline, TimelineEvent

_KINDS = {Role.FORWARD: TaskKind.FORWARD, Role.BACKWARD: TaskKind.BACKWARD, Role.UPDATE: TaskKind.UPDATE}


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One chunk of a stage, from `start_s` to `end_s` of a clock of its host; `microbatch` is -1 for an update."""

    role: str
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class _Arrival:
    array: Any


@dataclass(frozen=True, slots=True)
class _Issue:
    role: Role
    microbatch: int
    issued_s: float
    token: Any


class StageRecorder:
    """Notes the runs of one stage in one step. `finish` ends its thread."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[_Arrival | _Issue | None] = queue.SimpleQueue()
        self._runs: list[RecordedRun] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._follow, name="alpaviz-recorder", daemon=True)
        self._thread.start()

    def note_arrival(self, array: Any) -> None:
        """The chunk that is issued next needs `array` of another stage."""
        self._items.put(_Arrival(array))

    def note_run(self, role: Role, microbatch: int, issued_s: float, outcome: Sequence[Sequence[Any]]) -> None:
        """A chunk has been issued that will make `outcome`: (outputs, sums, lasts, finals)."""
        outputs, sums, lasts, finals = outcome
        kept = next((array for array in (*outputs, *lasts) if array.size), None)
        if kept is None:  # Sums and new state may be overwritten by the next chunk before the thread looks at them.
            given = next((array for array in (*finals, *sums) if array.size), None)
            kept = None if given is None else _touch(given.addressable_shards[0].data)
        self._items.put(_Issue(role, microbatch, issued_s, kept))

    def finish(self) -> list[RecordedRun]:
        """What was noted, when the last chunk has ended."""
        self._items.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._runs

    def abandon(self) -> None:
        """End the thread without waiting for it: the step has failed."""
        self._items.put(None)

    def _follow(self) -> None:
        try:
            ready = 0.0
            while (item := self._items.get()) is not None:
                if isinstance(item, _Arrival):
                    jax.block_until_ready(item.array)
                    ready = max(ready, time.perf_counter())
                    continue
                start = max(ready, item.issued_s)
                jax.block_until_ready(item.token)
                ready = max(start, time.perf_counter())
                self._runs.append(RecordedRun(item.role.value, item.microbatch, start, ready))
                del item  # A result is not to live longer for having been waited for.
        except BaseException as error:  # raised again by `finish`
            self._error = error


@jax.jit
def _touch(array: Any) -> Any:
    """One element, there when `array` is."""
    return array[(0,) * array.ndim]


def make_timeline(runs: Mapping[int, Sequence[RecordedRun]], num_stages: int) -> Timeline:
    """Runs by stage, all of one clock, as a timeline that begins with the first of them."""
    begin = min((run.start_s for found in runs.values() for run in found), default=0.0)
    end = max((run.end_s for found in runs.values() for run in found), default=0.0)

    def convert(stage: int, run: RecordedRun) -> TimelineEvent:
        task = Task(_KINDS[Role(run.role)], stage, max(0, run.microbatch))
        return TimelineEvent(task, run.start_s - begin, run.end_s - begin)

    rows = tuple(tuple(convert(stage, run) for run in runs.get(stage, ())) for stage in range(num_stages))
    return Timeline(rows, (), end - begin)


def shift_runs(runs: Sequence[RecordedRun], offset_s: float) -> list[RecordedRun]:
    """Runs on another clock, which is `offset_s` behind theirs."""
    return [RecordedRun(r.role, r.microbatch, r.start_s - offset_s, r.end_s - offset_s) for r in runs]


def estimate_offset(read_clock: Callable[[], float], num_tries: int = 5) -> float:
    """How far another clock is ahead of `time.perf_counter` here, in s; wrong by at most half the quickest answer.

    Source: D. L. Mills, RFC 5905, section 8, for a symmetric delay; of several tries the quickest is the best.
    """
    tries = []
    for _ in range(num_tries):
        sent = time.perf_counter()
        there = read_clock()
        received = time.perf_counter()
        tries.append((received - sent, there - (sent + received) / 2))
    return min(tries)[1]
