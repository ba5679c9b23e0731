"""The stage dynamic programme (paper section 5.2, equations 2 to 4): layers to stages, stages to submeshes.

In: what every run of layers costs on every option (submesh and logical mesh) with every number of microbatches in
flight. Out: the stages with the least step time  T = sum_i t_i + (B - 1) max_i t_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StageCostTable:
    """Costs of all stage candidates.

    Attributes:
        latency: (first layer, last layer, option, stages from here to the end - 1), seconds a microbatch, forward and
            backward; inf where the layers do not fit or the option is not allowed. In 1F1B a stage keeps as many
            microbatches in flight as there are stages from it to the end.
        sizes: devices of each option.
    """

    latency: FloatArray
    sizes: tuple[int, ...]

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


@dataclass(frozen=True, slots=True)
class ChosenRange:
    """Layers `first` .. `last` on option `option`, `in_flight` microbatches alive at once."""

    first: int
    last: int
    option: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class StageChoice:
    """The best stages; none, and an infinite objective, where nothing is feasible."""

    stages: tuple[ChosenRange, ...]
    objective: float

    @property
    def is_feasible(self) -> bool:
        return bool(self.stages)


def choose_stages(
    table: StageCostTable,
    num_devices: int,
    num_microbatches: int,
    constraints: StageConstraints | None = None,
) -> StageChoice:
    """The stages of least step time that use all `num_devices` devices.

    Thresholds t_max on the slowest stage are tried in ascending order, until not even the shortest sum of latencies
    could make up for a slower stage. Ties go to the smaller t_max, then to fewer stages, then to earlier cuts.
    """
    constraints = constraints or StageConstraints()
    if constraints.is_by_stage:
        # A stage that a pin names must exist.
        least = 1 + max([*constraints.layer_stage.values(), *constraints.stage_options])
        counts = [constraints.num_stages] if constraints.num_stages else range(least, table.max_stages + 1)
        choices = [
            _search(_restrict(table, constraints, count), num_devices, num_microbatches, count)
            for count in counts
            if least <= count <= table.max_stages
        ]
        return min(choices, key=lambda c: c.objective, default=StageChoice((), float("inf")))
    return _search(table.latency, num_devices, num_microbatches, constraints.num_stages, table.sizes)


def _restrict(table: StageCostTable, constraints: StageConstraints, count: int) -> tuple[FloatArray, tuple[int, ...]]:
    """Latencies for exactly `count` stages; the last axis then stands for one stage each, `count - 1 - stage`."""
    latency = table.latency.copy()
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
    return latency, table.sizes


def _search(
    latency: FloatArray | tuple[FloatArray, tuple[int, ...]],
    num_devices: int,
    num_microbatches: int,
    count: int | None,
    sizes: tuple[int, ...] = (),
) -> StageChoice:
    if isinstance(latency, tuple):
        latency, sizes = latency
    best = StageChoice((), float("inf"))
    if count is not None and count > latency.shape[3]:
        return best
    finite = latency[np.isfinite(latency)]
    least_sum = _run(latency, np.inf, num_devices, sizes).best(num_devices, count)[0]
    if not np.isfinite(least_sum):
        return best
    slowest_needed = float(np.max(np.min(_cover(latency), axis=0)))
    for threshold in np.unique(finite[finite >= slowest_needed]):
        if least_sum + (num_microbatches - 1) * threshold >= best.objective:
            break
        tables = _run(latency, float(threshold), num_devices, sizes)
        total, stages = tables.best(num_devices, count)
        if not np.isfinite(total):
            continue
        chosen = tables.trace(stages, num_devices)
        slowest = max(float(latency[c.first, c.last, c.option, c.in_flight - 1]) for c in chosen)
        objective = total + (num_microbatches - 1) * slowest
        if objective < best.objective:
            best = StageChoice(chosen, objective)
    return best


def _cover(latency: FloatArray) -> FloatArray:
    """(first layer, layer): the least latency of a candidate that starts there and holds the layer."""
    least = latency.min(axis=(2, 3))
    # A candidate first .. last holds every layer between: take the minimum over `last` from the layer on.
    return np.where(
        np.triu(np.ones_like(least, dtype=bool)), np.minimum.accumulate(least[:, ::-1], axis=1)[:, ::-1], np.inf
    )


@dataclass(slots=True, eq=False)
class _Tables:
    """F(s, k, d) and the decisions behind it; s stages from layer k on, on exactly d devices."""

    value: FloatArray  # (stages, layers + 1, devices + 1)
    decision: npt.NDArray[np.int64]  # last * options + option, same shape
    num_options: int
    sizes: tuple[int, ...]

    def best(self, num_devices: int, count: int | None) -> tuple[float, int]:
        """(least sum, number of stages)."""
        column = self.value[:, 0, num_devices]
        stages = int(np.argmin(column[1:])) + 1 if count is None else count
        return float(column[stages]), stages

    def trace(self, stages: int, num_devices: int) -> tuple[ChosenRange, ...]:
        """The stages behind F(stages, 0, num_devices)."""
        chosen, k, d = [], 0, num_devices
        for s in range(stages, 0, -1):
            last, option = divmod(int(self.decision[s, k, d]), self.num_options)
            chosen.append(ChosenRange(k, last, option, s))
            k, d = last + 1, d - self.sizes[option]
        return tuple(chosen)


def _run(latency: FloatArray, threshold: float, num_devices: int, sizes: tuple[int, ...]) -> _Tables:
    layers, _, options, max_stages = latency.shape
    value = np.full((max_stages + 1, layers + 1, num_devices + 1), np.inf)
    value[0, layers, 0] = 0.0
    decision = np.full(value.shape, -1, dtype=np.int64)
    allowed = np.where(latency <= threshold, latency, np.inf)
    for s in range(1, max_stages + 1):
        if not np.isfinite(value[s - 1]).any():
            break
        for m, size in enumerate(sizes):
            if size > num_devices:
                continue
            rest = value[s - 1, 1:, : num_devices + 1 - size]  # (last, devices left)
            total = allowed[:, :, m, s - 1][:, :, None] + rest[None, :, :]  # (first, last, devices left)
            last = np.argmin(total, axis=1)
            least = np.take_along_axis(total, last[:, None, :], axis=1)[:, 0, :]
            target = value[s, :layers, size:]
            better = least < target
            target[better] = least[better]
            decision[s, :layers, size:][better] = (last * options + m)[better]
    return _Tables(value, decision, options, sizes)
