"""Schedules: the order of forward, backward and update work on every stage.

A schedule is a plain function of (number of stages, number of microbatches) that gives each stage's tasks in order. In
an interleaved schedule several stages share devices, and their tasks one row. To add a schedule, write it here and list
it in `SCHEDULES`.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from alpaviz.errors import AlpaVizError


class TaskKind(enum.StrEnum):
    """What a stage does in one piece."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input gradient"
    """The part of a backward that the stage before waits for."""
    WEIGHT_GRADIENT = "weight gradient"
    """The rest of it; it may come any time later."""
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work of one stage; `microbatch` is 0 for the update."""

    kind: TaskKind
    stage: int
    microbatch: int


Order = tuple[tuple[Task, ...], ...]
"""Rows of tasks in order: one for each stage, or for the stages that share devices in an interleaved schedule."""


def order_1f1b(num_stages: int, num_microbatches: int) -> Order:
    """One forward, one backward: stage i runs S - i forwards ahead, then alternates.

    Source: Narayanan et al., PipeDream-Flush / Megatron-LM, SC 2021, section 2.2.
    """
    stages = []
    for stage in range(num_stages):
        ahead = min(num_stages - stage - 1, num_microbatches)
        tasks = [Task(TaskKind.FORWARD, stage, m) for m in range(ahead)]
        for m in range(num_microbatches):
            if m + ahead < num_microbatches:
                tasks.append(Task(TaskKind.FORWARD, stage, m + ahead))
            tasks.append(Task(TaskKind.BACKWARD, stage, m))
        stages.append((*tasks, Task(TaskKind.UPDATE, stage, 0)))
    return tuple(stages)


def order_gpipe(num_stages: int, num_microbatches: int) -> Order:
    """All forwards, then all backwards, last microbatch first.

    Source: Huang et al., GPipe, NeurIPS 2019.
    """
    return tuple(
        (
            *(Task(TaskKind.FORWARD, stage, m) for m in range(num_microbatches)),
            *(Task(TaskKind.BACKWARD, stage, m) for m in reversed(range(num_microbatches))),
            Task(TaskKind.UPDATE, stage, 0),
        )
        for stage in range(num_stages)
    )


def order_interleaved(num_stages: int, num_microbatches: int, num_chunks: int) -> Order:
    """1F1B where stages s, s + W, s + 2 W, ... take turns on one of W = num_stages / num_chunks groups of devices.

    Source: Narayanan et al., Megatron-LM, SC 2021, section 2.2.2.

    Raises:
        AlpaVizError: the stages cannot be shared out evenly, or the microbatches do not come in groups of W.
    """
    num_rows, rest = divmod(num_stages, num_chunks)
    if rest or not num_rows:
        raise AlpaVizError(
            f"Interleaving {num_chunks} stages on each group of devices needs a multiple of {num_chunks} stages, not "
            f"{num_stages}."
        )
    if num_microbatches % num_rows:
        raise AlpaVizError(
            f"Interleaved stages on {num_rows} groups of devices need a multiple of {num_rows} microbatches, not "
            f"{num_microbatches}."
        )
    # Groups of W microbatches go through one chunk after another.
    turns = [
        (chunk, first + m)
        for first in range(0, num_microbatches, num_rows)
        for chunk in range(num_chunks)
        for m in range(num_rows)
    ]
    rows = []
    for row in range(num_rows):
        forwards = [Task(TaskKind.FORWARD, chunk * num_rows + row, m) for chunk, m in turns]
        backwards = [Task(TaskKind.BACKWARD, (num_chunks - 1 - chunk) * num_rows + row, m) for chunk, m in turns]
        ahead = min((num_rows - row - 1) * 2 + (num_chunks - 1) * num_rows, len(turns))
        both = [task for pair in itertools.zip_longest(forwards[ahead:], backwards) for task in pair if task]
        updates = [Task(TaskKind.UPDATE, chunk * num_rows + row, 0) for chunk in range(num_chunks)]
        rows.append((*forwards[:ahead], *both, *updates))
    return tuple(rows)


def order_zero_bubble(num_stages: int, num_microbatches: int) -> Order:
    """1F1B with the backward cut in two: stage i puts its weight gradients off by i microbatches.

    The stage before gets its cotangents sooner, and what was put off fills the wait at the end. Every stage keeps as
    many microbatches as the first one does in 1F1B.

    Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, schedule ZB-H1.
    """
    stages = []
    for stage in range(num_stages):
        ahead = min(num_stages - stage - 1, num_microbatches)
        tasks = [Task(TaskKind.FORWARD, stage, m) for m in range(ahead)]
        for m in range(num_microbatches + stage):
            if m + ahead < num_microbatches:
                tasks.append(Task(TaskKind.FORWARD, stage, m + ahead))
            if m < num_microbatches:
                tasks.append(Task(TaskKind.INPUT_GRADIENT, stage, m))
            if m >= stage:
                tasks.append(Task(TaskKind.WEIGHT_GRADIENT, stage, m - stage))
        stages.append((*tasks, Task(TaskKind.UPDATE, stage, 0)))
    return tuple(stages)


def order_forward(num_stages: int, num_microbatches: int) -> Order:
    """Forward tasks only, for inference."""
    return tuple(
        tuple(Task(TaskKind.FORWARD, stage, m) for m in range(num_microbatches)) for stage in range(num_stages)
    )


SCHEDULES: dict[str, Callable[[int, int], Order]] = {
    "1f1b": order_1f1b,
    "gpipe": order_gpipe,
    "interleaved-2": functools.partial(order_interleaved, num_chunks=2),
    "interleaved-4": functools.partial(order_interleaved, num_chunks=4),
    "zero-bubble": order_zero_bubble,
}
"""Schedules of a training step by name."""

RUNNABLE_SCHEDULES = ("1f1b", "gpipe")
"""Those that the runtime can run."""


def get_order(schedule: str, num_stages: int, num_microbatches: int) -> Order:
    """The order of the schedule called `schedule`.

    Raises:
        AlpaVizError: there is no such schedule, or it does not take these numbers.
    """
    if schedule not in SCHEDULES:
        raise AlpaVizError(f"No schedule is called {schedule!r}. Known: {', '.join(SCHEDULES)}.")
    return SCHEDULES[schedule](num_stages, num_microbatches)


def count_chunks(schedule: str) -> int:
    """Stages that share devices in the schedule called `schedule`."""
    name, _, count = schedule.partition("interleaved-")
    return int(count) if not name and count else 1


def count_in_flight(tasks: Sequence[Task]) -> int:
    """The largest number of microbatches whose forward has run and whose backward has not, on one row.

    A microbatch counts once for each stage. One whose weight gradients are put off counts until they are done.
    """
    return max(itertools.accumulate(count_change(task.kind) for task in tasks), default=0)


def count_most_in_flight(schedule: str, num_stages: int, num_microbatches: int) -> int:
    """The most microbatches that any one stage keeps."""
    order = get_order(schedule, num_stages, num_microbatches)
    counts = [
        count_in_flight([task for task in tasks if task.stage == stage])
        for tasks in order
        for stage in {task.stage for task in tasks}
    ]
    return max(counts)


def count_change(kind: TaskKind) -> int:
    """By how much a task of `kind` changes the number of microbatches that a stage keeps."""
    return {TaskKind.FORWARD: 1, TaskKind.BACKWARD: -1, TaskKind.WEIGHT_GRADIENT: -1}.get(kind, 0)
