"""What training reaches: throughput, model FLOP/s utilisation and the memory that devices needed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from alpaviz.plan import Plan

MOST_STEPS = 1000
"""How many steps the clock remembers."""

ALLOCATOR, HELD = "allocator", "held arrays"
"""Whence a peak is: the device's allocator, or arrays that a stage held (without what XLA needs inside a chunk)."""


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """The most bytes that were in use on a device. `source` is `"allocator"` or `"held arrays"`."""

    stage: int
    device: str
    peak_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Of the steps that an executable has made.

    Attributes:
        num_steps: all steps so far.
        step_s: mean seconds from one call to the next, whatever the caller does in between included; None before the
            third call. The first call compiles and does not count.
        steps_per_s: its inverse.
        samples_per_s: steps times the batch's size; None where that is unknown.
        model_flops_utilisation: FLOPs of the model over the seconds and peak FLOP/s of all devices, as the plan's
            estimate counts them.
        peaks: the most memory in use on each device, as far as it is known: allocators of CPUs keep no account, there
            it is what `profile` has seen stages hold.
    """

    num_steps: int
    step_s: float | None
    steps_per_s: float | None
    samples_per_s: float | None
    model_flops_utilisation: float | None
    peaks: tuple[DevicePeak, ...]

    def __str__(self) -> str:
        if self.step_s is None:
            return f"{self.num_steps} steps: make some more to measure throughput."
        words = [f"{self.num_steps} steps", f"{self.step_s * 1e3:.4g} ms a step"]
        if self.samples_per_s is not None:
            words.append(f"{self.samples_per_s:.4g} samples/s")
        words.append(f"{self.model_flops_utilisation or 0:.2%} of the devices' peak FLOP/s")
        peaks = [f"stage {p.stage} {p.device}: {p.peak_bytes:,} bytes ({p.source})" for p in self.peaks]
        return "\n".join([", ".join(words), *peaks])


class StepClock:
    """Notes when steps are called."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._began: deque[float] = deque(maxlen=MOST_STEPS)

    def note_step(self) -> None:
        """A step begins."""
        self.num_steps += 1
        if self.num_steps > 1:  # the first compiles
            self._began.append(time.perf_counter())

    def mean_step_s(self, last: int) -> float | None:
        """Mean seconds from call to call over at most `last` steps."""
        began = list(self._began)[-last - 1 :]
        return (began[-1] - began[0]) / (len(began) - 1) if len(began) > 1 else None


def summarise_run(
    plan: Plan, clock: StepClock, peaks: Iterable[DevicePeak], batch_size: int | None, last: int
) -> RunStatistics:
    """The statistics of an executable; throughput over the `last` steps."""
    seconds = clock.mean_step_s(last)
    ordered = tuple(sorted(peaks, key=lambda peak: (peak.stage, peak.device)))
    if seconds is None:
        return RunStatistics(clock.num_steps, None, None, None, None, ordered)
    samples = batch_size / seconds if batch_size is not None else None
    utilisation = plan.estimate.model_flops_utilisation * plan.estimate.step_s / seconds
    return RunStatistics(clock.num_steps, seconds, 1 / seconds, samples, utilisation, ordered)


def list_peaks(stage: int, devices: Sequence[Any], held_bytes: int) -> list[DevicePeak]:
    """Peaks of this process's devices of a stage: of their allocators, else `held_bytes` where anything was seen."""
    found = []
    for device in devices:
        figures = device.memory_stats() or {}
        if "peak_bytes_in_use" in figures:
            found.append(DevicePeak(stage, str(device), int(figures["peak_bytes_in_use"]), ALLOCATOR))
        elif held_bytes:
            found.append(DevicePeak(stage, str(device), held_bytes, HELD))
    return found


def count_bytes(arrays: Iterable[Any]) -> int:
    """Bytes that arrays, each counted once, take on one device."""
    return sum(_count_shard_bytes(array) for array in {id(array): array for array in arrays}.values())


def _count_shard_bytes(array: Any) -> int:
    size = 1
    for length in array.sharding.shard_shape(array.shape):
        size *= length
    itemsize = getattr(array.dtype, "itemsize", 0)
    return size * int(itemsize)
