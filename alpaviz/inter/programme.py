"""One run of the stage dynamic programme: the least sum of latencies under limits on single stages.

F(s, k, d) is the least sum for layers k to the end in s stages on exactly d devices (paper section 5.2, equation 3).
A run is a row of (min, +) matrix products, one for each s and size of submesh, done in numpy over all k and d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChosenRange:
    """Layers `first` .. `last` on option `option`, `in_flight` microbatches alive at once."""

    first: int
    last: int
    option: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class FoundStages:
    """Stages and what they cost: the sum of latencies, the slowest pace, the longest work once a step."""

    stages: tuple[ChosenRange, ...]
    total: float
    slowest: float
    once: float


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best stages so far; `slowest` breaks ties of the objective."""

    stages: tuple[ChosenRange, ...] = ()
    objective: float = float("inf")
    slowest: float = float("inf")


@dataclass(frozen=True, slots=True, eq=False)
class StageProgramme:
    """The candidates of a search: arrays of (option, stages to the end - 1, first layer, last layer).

    Options of one size are merged into the cheapest where nothing but latency tells them apart.

    Attributes:
        cost: seconds that a candidate adds to the sum; inf where it is not allowed.
        pace: seconds between its microbatches, which the slowest stage sets for all.
        once: seconds once a step; None where there is none.
        option: the option behind each candidate.
        sizes: devices of each entry of the first axis.
    """

    cost: FloatArray
    pace: FloatArray
    once: FloatArray | None
    option: npt.NDArray[np.intp]
    sizes: tuple[int, ...]
    num_devices: int
    num_microbatches: int

    @staticmethod
    def build(
        latency: FloatArray,
        sizes: tuple[int, ...],
        num_devices: int,
        num_microbatches: int,
        once: FloatArray | None = None,
        transfer: FloatArray | None = None,
    ) -> StageProgramme:
        """From arrays of (first layer, last layer, option, stages to the end - 1); see `StageCostTable`."""
        kept = [m for m, size in enumerate(sizes) if size <= num_devices]
        stages = min(latency.shape[0], latency.shape[3], num_devices)

        def arrange(array: FloatArray) -> FloatArray:
            return np.moveaxis(array[:, :, kept, :stages], (2, 3), (0, 1)).astype(float)

        cost, kept_sizes = arrange(latency), tuple(sizes[m] for m in kept)
        cost[:, :, *np.tril_indices(len(latency), -1)] = np.inf
        option = np.broadcast_to(np.asarray(kept, dtype=np.intp)[:, None, None, None], cost.shape)
        if once is not None:
            once = arrange(once)
        else:
            cost, option, kept_sizes = _merge_equal_sizes(cost, option, kept_sizes)
        pace = cost
        if transfer is not None:
            entry = np.asarray(transfer, dtype=float).copy()
            entry[0] = 0.0  # nothing comes before the first layer
            pace = np.maximum(cost, entry[:, None] / 2)
            cost = cost + entry[:, None]
        return StageProgramme(cost, pace, once, option, kept_sizes, num_devices, num_microbatches)

    def price(self, total: float, slowest: float, once: float) -> float:
        """Seconds a step."""
        return total + (self.num_microbatches - 1) * slowest + once

    def run(self, most_pace: float = np.inf, most_once: float = np.inf) -> StageTables:
        """Allow only candidates within the limits."""
        allowed = np.where(self.pace <= most_pace, self.cost, np.inf)
        if self.once is not None:
            allowed[self.once > most_once] = np.inf
        _, max_stages, layers, _ = allowed.shape
        value = np.full((max_stages + 1, layers + 1, self.num_devices + 1), np.inf)
        value[0, layers, 0] = 0.0
        for s in range(1, max_stages + 1):
            # The s - 1 stages after this one need a layer each.
            firsts = layers - s + 1
            rest = value[s - 1, 1 : firsts + 1]  # (last, devices left)
            if not np.isfinite(rest).any():
                break
            for g, size in enumerate(self.sizes):
                here = allowed[g, s - 1, :firsts, :firsts]  # (first, last)
                least = (here[:, :, None] + rest[None, :, : self.num_devices + 1 - size]).min(axis=1)
                np.minimum(value[s, :firsts, size:], least, out=value[s, :firsts, size:])
        return StageTables(self, allowed, value)


def _merge_equal_sizes(
    cost: FloatArray, option: npt.NDArray[np.intp], sizes: tuple[int, ...]
) -> tuple[FloatArray, npt.NDArray[np.intp], tuple[int, ...]]:
    """Of options with equally many devices the cheapest of each candidate, the first of equals."""
    merged = tuple(sorted(set(sizes)))
    new_cost, new_option = np.empty((len(merged), *cost.shape[1:])), np.empty((len(merged), *cost.shape[1:]), np.intp)
    for g, size in enumerate(merged):
        group = np.flatnonzero(np.asarray(sizes) == size)
        best = np.argmin(cost[group], axis=0, keepdims=True)
        new_cost[g] = np.take_along_axis(cost[group], best, axis=0)[0]
        new_option[g] = np.take_along_axis(option[group], best, axis=0)[0]
    return new_cost, new_option, merged


@dataclass(frozen=True, slots=True, eq=False)
class StageTables:
    """The result of a run: `value` is F, (stages, layers + 1, devices + 1)."""

    programme: StageProgramme
    allowed: FloatArray
    value: FloatArray

    def find_best(self, count: int | None) -> FoundStages | None:
        """The least sum over all layers and devices in `count` stages, or in any number, the fewest of equals."""
        column = self.value[1:, 0, self.programme.num_devices]
        stages = int(np.argmin(column)) + 1 if count is None and len(column) else (count or 0)
        if not 0 < stages <= len(column) or not np.isfinite(column[stages - 1]):
            return None
        return self._trace(stages)

    def find_most_devices(self) -> int:
        """The largest number of devices on which there are stages; 0 where there are none."""
        reached = np.flatnonzero(np.isfinite(self.value[1:, 0, :]).any(axis=0))
        return int(reached.max()) if len(reached) else 0

    def _trace(self, stages: int) -> FoundStages:
        """The stages behind F(stages, 0, all devices)."""
        p, layers = self.programme, self.allowed.shape[2]
        chosen, slowest, once = [], 0.0, 0.0
        k, d = 0, p.num_devices
        for s in range(stages, 0, -1):
            sums = np.full((layers - k, len(p.sizes)), np.inf)  # (last - k, size)
            for g, size in enumerate(p.sizes):
                if size <= d:
                    sums[:, g] = self.allowed[g, s - 1, k, k:] + self.value[s - 1, k + 1 :, d - size]
            last, g = divmod(int(np.argmin(sums)), len(p.sizes))
            last += k
            option = int(p.option[g, s - 1, k, last])
            chosen.append(ChosenRange(k, last, option, s))
            slowest = max(slowest, float(p.pace[g, s - 1, k, last]))
            once = max(once, 0.0 if p.once is None else float(p.once[g, s - 1, k, last]))
            k, d = last + 1, d - p.sizes[g]
        return FoundStages(tuple(chosen), float(self.value[stages, 0, p.num_devices]), slowest, once)
