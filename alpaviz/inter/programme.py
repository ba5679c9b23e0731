"""One run of the stage dynamic programme: the least sum of latencies under limits on single stages.

F(s, k, d) is the least sum for layers k to the end in s stages on exactly d devices (paper section 5.2, equation 3).
A run is a row of (min, +) matrix products, one for each s and size of submesh, done in numpy over all k and d.

Where hosts are of several kinds, d counts the devices of each: one number of mixed radix, in which a stage adds its
devices times the stride of their kind. Sums that carry into the next kind are left out.
"""

from __future__ import annotations

import math
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
        steps: what each entry of the first axis adds to the state: its devices, times the stride of their kind.
    """

    cost: FloatArray
    pace: FloatArray
    once: FloatArray | None
    option: npt.NDArray[np.intp]
    steps: tuple[int, ...]
    num_devices: tuple[int, ...]
    num_microbatches: int

    @staticmethod
    def build(
        latency: FloatArray,
        sizes: tuple[int, ...],
        num_devices: int | tuple[int, ...],
        num_microbatches: int,
        once: FloatArray | None = None,
        transfer: FloatArray | None = None,
        kinds: tuple[int, ...] = (),
    ) -> StageProgramme:
        """From arrays of (first layer, last layer, option, stages to the end - 1); see `StageCostTable`."""
        counts = (num_devices,) if isinstance(num_devices, int) else num_devices
        kinds = kinds or (0,) * len(sizes)
        kept = [m for m, (size, kind) in enumerate(zip(sizes, kinds, strict=True)) if size <= counts[kind]]
        strides = [math.prod(n + 1 for n in counts[:kind]) for kind in range(len(counts))]
        stages = min(latency.shape[0], latency.shape[3], sum(counts))

        def arrange(array: FloatArray) -> FloatArray:
            return np.moveaxis(array[:, :, kept, :stages], (2, 3), (0, 1)).astype(float)

        cost, kept_steps = arrange(latency), tuple(sizes[m] * strides[kinds[m]] for m in kept)
        cost[:, :, *np.tril_indices(len(latency), -1)] = np.inf
        option = np.broadcast_to(np.asarray(kept, dtype=np.intp)[:, None, None, None], cost.shape)
        if once is not None:
            once = arrange(once)
        else:
            cost, option, kept_steps = _merge_equal_steps(cost, option, kept_steps)
        pace = cost
        if transfer is not None:
            entry = np.asarray(transfer, dtype=float).copy()
            entry[0] = 0.0  # nothing comes before the first layer
            pace = np.maximum(cost, entry[:, None] / 2)
            cost = cost + entry[:, None]
        return StageProgramme(cost, pace, once, option, kept_steps, counts, num_microbatches)

    @property
    def last_state(self) -> int:
        """The state in which all devices of every kind are used."""
        return math.prod(n + 1 for n in self.num_devices) - 1

    def count_devices(self, state: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Devices of all kinds together that are used in each state."""
        used, rest = np.zeros_like(state), state
        for count in self.num_devices:
            rest, digit = np.divmod(rest, count + 1)
            used = used + digit
        return used

    def list_blocked(self, step: int) -> npt.NDArray[np.intp]:
        """Of the states from `step` on, less `step`, those that carry over: more devices of a kind than there are."""
        if len(self.num_devices) == 1:
            return np.zeros(0, dtype=np.intp)  # there is nothing to carry into
        states = np.arange(step, self.last_state + 1)
        is_carried = self.count_devices(states) - self.count_devices(states - step) != self.count_devices(
            np.array(step)
        )
        return np.flatnonzero(is_carried)

    def price(self, total: float, slowest: float, once: float) -> float:
        """Seconds a step."""
        return total + (self.num_microbatches - 1) * slowest + once

    def run(self, most_pace: float = np.inf, most_once: float = np.inf) -> StageTables:
        """Allow only candidates within the limits."""
        allowed = np.where(self.pace <= most_pace, self.cost, np.inf)
        if self.once is not None:
            allowed[self.once > most_once] = np.inf
        _, max_stages, layers, _ = allowed.shape
        blocked = [self.list_blocked(step) for step in self.steps]
        value = np.full((max_stages + 1, layers + 1, self.last_state + 1), np.inf)
        value[0, layers, 0] = 0.0
        for s in range(1, max_stages + 1):
            # The s - 1 stages after this one need a layer each.
            firsts = layers - s + 1
            rest = value[s - 1, 1 : firsts + 1]  # (last, devices left)
            if not np.isfinite(rest).any():
                break
            for g, step in enumerate(self.steps):
                here = allowed[g, s - 1, :firsts, :firsts]  # (first, last)
                least = (here[:, :, None] + rest[None, :, : self.last_state + 1 - step]).min(axis=1)
                least[:, blocked[g]] = np.inf
                np.minimum(value[s, :firsts, step:], least, out=value[s, :firsts, step:])
        return StageTables(self, allowed, value)


def _merge_equal_steps(
    cost: FloatArray, option: npt.NDArray[np.intp], steps: tuple[int, ...]
) -> tuple[FloatArray, npt.NDArray[np.intp], tuple[int, ...]]:
    """Of options with equally many devices of one kind the cheapest of each candidate, the first of equals."""
    merged = tuple(sorted(set(steps)))
    new_cost, new_option = np.empty((len(merged), *cost.shape[1:])), np.empty((len(merged), *cost.shape[1:]), np.intp)
    for g, step in enumerate(merged):
        group = np.flatnonzero(np.asarray(steps) == step)
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
        column = self.value[1:, 0, self.programme.last_state]
        stages = int(np.argmin(column)) + 1 if count is None and len(column) else (count or 0)
        if not 0 < stages <= len(column) or not np.isfinite(column[stages - 1]):
            return None
        return self._trace(stages)

    def find_most_devices(self) -> int:
        """The largest number of devices on which there are stages; 0 where there are none."""
        reached = np.flatnonzero(np.isfinite(self.value[1:, 0, :]).any(axis=0))
        return int(self.programme.count_devices(reached).max()) if len(reached) else 0

    def _trace(self, stages: int) -> FoundStages:
        """The stages behind F(stages, 0, all devices)."""
        p, layers = self.programme, self.allowed.shape[2]
        chosen, slowest, once = [], 0.0, 0.0
        k, d = 0, p.last_state
        for s in range(stages, 0, -1):
            sums = np.full((layers - k, len(p.steps)), np.inf)  # (last - k, step)
            for g, step in enumerate(p.steps):
                if step <= d and not (p.list_blocked(step) == d - step).any():
                    sums[:, g] = self.allowed[g, s - 1, k, k:] + self.value[s - 1, k + 1 :, d - step]
            last, g = divmod(int(np.argmin(sums)), len(p.steps))
            last += k
            option = int(p.option[g, s - 1, k, last])
            chosen.append(ChosenRange(k, last, option, s))
            slowest = max(slowest, float(p.pace[g, s - 1, k, last]))
            once = max(once, 0.0 if p.once is None else float(p.once[g, s - 1, k, last]))
            k, d = last + 1, d - p.steps[g]
        return FoundStages(tuple(chosen), float(self.value[stages, 0, p.last_state]), slowest, once)
