"""The stage dynamic programme (paper section 5.2, equations 2 to 4): layers to stages, stages to submeshes.

In: what every run of layers costs on every option (submesh and logical mesh) with every number of microbatches in
flight. Out: the stages with the least step time, or what stands in the way of any.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from alpaviz.inter.programme import ChosenRange, FloatArray, Incumbent, StageProgramme
from alpaviz.inter.search import search_stages


@dataclass(frozen=True, slots=True, eq=False)
class StageCostTable:
    """Costs of all stage candidates.

    Arrays of candidates have the axes (first layer, last layer, option, stages from here to the end - 1). In 1F1B a
    stage keeps as many microbatches in flight as there are stages from it to the end.

    Attributes:
        latency: seconds a microbatch, forward and backward; inf where the layers do not fit or the option is not
            allowed.
        sizes: devices of each option.
        once: seconds once a step, such as the update; None for none.
        transfer: (layers,), seconds to pass the cut before a layer, activations there and cotangents back; None for
            none. Sends overlap with work, and both directions with one another.
        missing: bytes of memory that a candidate lacks on its fullest device, 0 where it has enough or fails for
            another reason. Only used to explain why nothing fits.
        kinds: which kind of host each option is on; empty where all hosts are alike.
    """

    latency: FloatArray
    sizes: tuple[int, ...]
    once: FloatArray | None = None
    transfer: FloatArray | None = None
    missing: FloatArray | None = None
    kinds: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        return int(self.latency.shape[0])

    @property
    def max_stages(self) -> int:
        return int(self.latency.shape[3])


@dataclass(frozen=True, slots=True)
class StageConstraints:
    """What pins ask of the stages, counted from the front.

    Attributes:
        num_stages: exactly this many; None for any number.
        layer_stage: layer -> stage.
        stage_options: stage -> options that it may have.
    """

    num_stages: int | None = None
    layer_stage: Mapping[int, int] = field(default_factory=dict)
    stage_options: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @property
    def is_by_stage(self) -> bool:
        """Whether anything is asked of a certain stage, so that its number from the front matters."""
        return bool(self.layer_stage or self.stage_options)

    @property
    def is_empty(self) -> bool:
        return self.num_stages is None and not self.is_by_stage


class ObstacleKind(enum.StrEnum):
    """Why there are no stages; the first of these that applies."""

    CONSTRAINTS = "constraints"
    """There would be stages without the constraints."""
    MEMORY = "memory"
    """There would be stages if devices had more memory."""
    LAYERS = "layers"
    """Some layers are in no candidate at all."""
    DEVICES = "devices"
    """Candidates hold every layer, but none together use all devices."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What stands in the way.

    Attributes:
        kind: which of the cases.
        layers: those that no candidate holds.
        bytes_short: with this many more bytes on each device, and no fewer, there are stages (that keep the
            constraints, if it is those); 0 where memory alone does not help, or `StageCostTable.missing` is not known.
        stages: some that there would then be.
        most_devices: the largest number of devices that stages can use together; 0 where not even one does.
    """

    kind: ObstacleKind
    layers: tuple[int, ...] = ()
    bytes_short: float = 0.0
    stages: tuple[ChosenRange, ...] = ()
    most_devices: int = 0


@dataclass(frozen=True, slots=True)
class StageChoice:
    """The best stages; none, and an infinite objective, where nothing is feasible.

    Attributes:
        stages: from the first to the last.
        objective: seconds a step, as `choose_stages` defines it.
        bound: no stages take less; equal to the objective unless a tolerance was given.
        obstacle: why there are no stages, where there are none.
        num_runs: how often the dynamic programme ran.
    """

    stages: tuple[ChosenRange, ...]
    objective: float
    bound: float = float("inf")
    obstacle: Obstacle | None = None
    num_runs: int = 0

    @property
    def is_feasible(self) -> bool:
        return bool(self.stages)


def choose_stages(
    table: StageCostTable,
    num_devices: int | tuple[int, ...],
    num_microbatches: int,
    constraints: StageConstraints | None = None,
    *,
    tolerance: float = 0.0,
) -> StageChoice:
    """The stages of least step time that use all `num_devices` devices.

    For B microbatches and stages i with latency t_i, transfer x_i before them and once_i the step time is

        T = sum_i (t_i + x_i) + (B - 1) max_i max(t_i, x_i / 2) + max_i once_i

    Ties go to the smaller slowest stage, then to fewer stages, then to earlier cuts, then to the first option.

    Args:
        num_devices: of each kind of host, where there are several.
        tolerance: seconds by which the answer may be worse than the best. The paper's eps of 1e-6 s between
            thresholds is a tolerance of B * 1e-6.
    """
    constraints = constraints or StageConstraints()
    best, bound, runs = Incumbent(), float("inf"), 0
    for programme, count in _list_programmes(table, num_devices, num_microbatches, constraints):
        found = search_stages(programme, count, best, tolerance)
        best, bound, runs = found.best, min(bound, found.bound), runs + found.num_runs
    if best.stages:
        return StageChoice(best.stages, best.objective, min(bound, best.objective), None, runs)
    return StageChoice((), float("inf"), float("inf"), _explain(table, num_devices, constraints), runs)


def _list_programmes(
    table: StageCostTable, num_devices: int | tuple[int, ...], num_microbatches: int, constraints: StageConstraints
) -> list[tuple[StageProgramme, int | None]]:
    """What has to be searched, each with the number of stages that it is for."""

    def make(latency: FloatArray) -> StageProgramme:
        return StageProgramme.build(
            latency, table.sizes, num_devices, num_microbatches, table.once, table.transfer, table.kinds
        )

    if not constraints.is_by_stage:
        count = constraints.num_stages
        return [] if count is not None and count > table.max_stages else [(make(table.latency), count)]
    # The programme counts stages from the end, pins from the front: only for a given number of stages are they the
    # same. A stage that a pin names must exist.
    least = 1 + max([*constraints.layer_stage.values(), *constraints.stage_options])
    counts = range(least, table.max_stages + 1)
    return [
        (make(_restrict(table, constraints, count)), count)
        for count in counts
        if constraints.num_stages in (None, count)
    ]


def _restrict(table: StageCostTable, constraints: StageConstraints, count: int) -> FloatArray:
    """Latencies for exactly `count` stages; the last axis then stands for one stage each, `count - 1 - stage`."""
    latency = table.latency[:, :, :, :count].copy()
    layers = np.arange(table.num_layers)
    first, last = layers[:, None], layers[None, :]
    for stage in range(count):
        plane = latency[:, :, :, count - 1 - stage]
        for layer, wanted in constraints.layer_stage.items():
            inside = (first <= layer) & (layer <= last)
            plane[inside if wanted != stage else ~inside] = np.inf
        allowed = constraints.stage_options.get(stage)
        if allowed is not None:
            plane[:, :, [m for m in range(len(table.sizes)) if m not in allowed]] = np.inf
    return latency


def _explain(table: StageCostTable, num_devices: int | tuple[int, ...], constraints: StageConstraints) -> Obstacle:
    """Why no stages keep `constraints`."""
    without = StageConstraints()
    if not constraints.is_empty and choose_stages(table, num_devices, 1).is_feasible:
        short, stages = _find_bytes_short(table, num_devices, constraints)
        return Obstacle(ObstacleKind.CONSTRAINTS, bytes_short=short, stages=stages)
    finite = np.isfinite(table.latency)
    layers = tuple(k for k in range(table.num_layers) if not finite[: k + 1, k:].any())
    short, stages = _find_bytes_short(table, num_devices, without)
    if stages:
        return Obstacle(ObstacleKind.MEMORY, layers, short, stages)
    if layers:
        return Obstacle(ObstacleKind.LAYERS, layers)
    ((programme, _),) = _list_programmes(table, num_devices, 1, without)
    return Obstacle(ObstacleKind.DEVICES, most_devices=programme.run().find_most_devices())


def _find_bytes_short(
    table: StageCostTable, num_devices: int | tuple[int, ...], constraints: StageConstraints
) -> tuple[float, tuple[ChosenRange, ...]]:
    """The least bytes that every device needs more, and the stages then; (0, ()) where memory is not all it takes."""
    if table.missing is None:
        return 0.0, ()
    missing = np.where(np.isfinite(table.latency), 0.0, np.where(table.missing > 0, table.missing, np.inf))
    relaxed = StageCostTable(missing, table.sizes, kinds=table.kinds)
    levels = np.unique(missing[np.isfinite(missing)])
    best: tuple[float, tuple[ChosenRange, ...]] = (float("inf"), ())
    for programme, count in _list_programmes(relaxed, num_devices, 1, constraints):
        low, high = 0, len(levels)
        while low < high:
            middle = (low + high) // 2
            is_enough = programme.run(float(levels[middle])).find_best(count) is not None
            low, high = (low, middle) if is_enough else (middle + 1, high)
        if low < len(levels) and levels[low] < best[0]:
            found = programme.run(float(levels[low])).find_best(count)
            assert found is not None, "the bisection ends on a level that is enough"
            best = (float(levels[low]), found.stages)
    return best if best[1] else (0.0, ())
