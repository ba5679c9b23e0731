"""Schedules: the order of forward, backward and update work on every stage.

A schedule is a plain function of (number of stages, number of microbatches) that gives each stage's tasks in order. To
add one, write it here and list it in `SCHEDULES`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from alpaviz.errors import AlpaVizError


class TaskKind(enum.StrEnum):
    """What a stage does in one piece."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work of one stage; `microbatch` is 0 for the update."""

    kind: TaskKind
    stage: int
    microbatch: int


Order = tuple[tuple[Task, ...], ...]
"""Per stage, its tasks in order."""


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


def order_forward(num_stages: int, num_microbatches: int) -> Order:
    """Forward tasks only, for inference."""
    return tuple(
        tuple(Task(TaskKind.FORWARD, stage, m) for m in range(num_microbatches)) for stage in range(num_stages)
    )


SCHEDULES: dict[str, Callable[[int, int], Order]] = {"1f1b": order_1f1b, "gpipe": order_gpipe}
"""Schedules of a training step by name."""

RUNNABLE_SCHEDULES = ("1f1b", "gpipe")
"""Those that the runtime can run."""


def get_order(schedule: str, num_stages: int, num_microbatches: int) -> Order:
    """The order of the schedule called `schedule`.

    Raises:
        AlpaVizError: there is no such schedule.
    """
    if schedule not in SCHEDULES:
        raise AlpaVizError(f"No schedule is called {schedule!r}. Known: {', '.join(SCHEDULES)}.")
    return SCHEDULES[schedule](num_stages, num_microbatches)


def count_in_flight(tasks: Sequence[Task]) -> int:
    """The largest number of microbatches whose forward has run and whose backward has not, on one stage."""
    alive, largest = 0, 0
    for task in tasks:
        if task.kind is TaskKind.FORWARD:
            alive += 1
        elif task.kind is TaskKind.BACKWARD:
            alive -= 1
        largest = max(largest, alive)
    return largest
