"""Stages for schedules where what a stage keeps depends on how many stages there are, and which may share devices.

In 1F1B a stage keeps as many microbatches as there are stages from it to the end. Where it is another number, the same
for all stages of a pipeline, each number of stages is searched by itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from alpaviz.inter.stages import StageChoice, StageConstraints, StageCostTable, choose_stages


def choose_stages_by_count(
    table: StageCostTable,
    num_devices: int | tuple[int, ...],
    num_microbatches: int,
    constraints: StageConstraints | None = None,
    *,
    num_chunks: int = 1,
) -> StageChoice:
    """The stages of least step time; `in_flight` of each is the number of stages, as in `table`.

    With `num_chunks` v > 1, W = S / v groups of equally many devices run v of the S stages each. They wait for the
    first pass of one stage only, so with equal stages of t seconds the step takes (B v + W - 1) t.

    Args:
        table: the last axis stands for the number of stages less one, `once` and `transfer` included.
    """
    constraints = constraints or StageConstraints()
    counts = (num_devices,) if isinstance(num_devices, int) else num_devices
    best = StageChoice((), float("inf"))
    bound, runs = float("inf"), 0
    for count in range(1, table.max_stages + 1):
        rows = count // num_chunks
        if constraints.num_stages not in (None, count) or not _is_possible(count, rows, num_chunks, num_microbatches):
            continue
        own = _take_count(table, count, None if num_chunks == 1 else sum(counts) / rows)
        found = choose_stages(
            own, tuple(n * num_chunks for n in counts), num_microbatches * num_chunks - rows * (num_chunks - 1),
            replace(constraints, num_stages=count),
        )  # fmt: skip
        bound, runs = min(bound, found.bound), runs + found.num_runs
        if found.objective < best.objective:
            best = found
    if not best.is_feasible:
        return StageChoice((), float("inf"), float("inf"), None, runs)
    count = len(best.stages)
    return StageChoice(tuple(replace(r, in_flight=count) for r in best.stages), best.objective, bound, None, runs)


def _is_possible(count: int, rows: int, num_chunks: int, num_microbatches: int) -> bool:
    """Groups of devices take turns only where there are several, and they divide the microbatches."""
    return num_chunks == 1 or (rows > 1 and count % num_chunks == 0 and num_microbatches % rows == 0)


def _take_count(table: StageCostTable, count: int, size: float | None) -> StageCostTable:
    """The costs in a pipeline of `count` stages, on options of `size` devices where that is given."""

    def take(array: np.ndarray) -> np.ndarray:
        plane = array[:, :, :, count - 1 : count]
        return np.repeat(plane, count, axis=3)

    latency = take(table.latency)
    if size is not None:
        latency[:, :, [m for m, devices in enumerate(table.sizes) if devices != size]] = np.inf
    once = None if table.once is None else take(table.once)
    return StageCostTable(latency, table.sizes, once, table.transfer, kinds=table.kinds)
