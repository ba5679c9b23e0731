"""From samples to the figures of the cost model, by least squares of relative errors with no figure below 0.

Computation: a sample of several ops takes the sum of what each takes, and each is linear in its class's floor and in
the seconds a unit at its knots, so all classes are fitted together. How far devices slow each other down is tried over
a range, and what leaves the least error is taken. Collectives: a line for each kind and size of the group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from alpaviz.calibration.samples import CHAIN, COLLECTIVES, Case, Sample, list_works
from alpaviz.cluster import Link
from alpaviz.cluster.measured import MeasuredCollective, MeasuredCosts, MeasuredRate, slow_down, weigh_knots
from alpaviz.errors import CalibrationError
from alpaviz.types import CollectiveKind

if TYPE_CHECKING:
    import plotly.graph_objects as go

FloatArray = npt.NDArray[np.float64]

WITH_FLOOR = ("matmul", "convolution", "gather")
"""Classes whose ops have kernels of their own; XLA fuses the others."""

_KNOTS = {"matmul": 4, "convolution": 2}
_USUAL_KNOTS = 3
_MOST_ROUNDS = 3
_ROBUST_ROUNDS = 3
_USUAL_ERROR = 0.15


@dataclass(frozen=True, slots=True)
class Calibration:
    """What devices were measured to reach.

    Attributes:
        device_kind: as JAX calls it.
        device: the name of its `DeviceType`.
        num_devices: that were measured.
        alpaviz_version, jax_version: with which it was measured; with others it does not count.
        costs: what the cost model computes with.
        link: between devices, when a stage sends to another; None for one device.
        samples: what was measured.
        num_left_out: cases for which there was no time.
    """

    device_kind: str
    device: str
    num_devices: int
    alpaviz_version: str
    jax_version: str
    costs: MeasuredCosts
    link: Link | None
    samples: tuple[Sample, ...] = field(repr=False)
    num_left_out: int = 0

    @property
    def residuals(self) -> tuple[tuple[Sample, float], ...]:
        """Each sample with the seconds that the fitted model predicts for it."""
        return tuple((sample, predict_case(sample.case, self.costs, self.link)) for sample in self.samples)

    def figure(self) -> go.Figure:
        """Predicted against measured seconds, a point for each sample."""
        from alpaviz.calibration.figure import draw_residuals

        return draw_residuals(self)

    def __str__(self) -> str:
        from alpaviz.calibration.figure import describe_calibration

        return describe_calibration(self)


def predict_case(case: Case, costs: MeasuredCosts, link: Link | None) -> float:
    """Seconds that the model with `costs` predicts for `case`; NaN for what it knows nothing of."""
    if case.name == "call":
        return costs.price_call(case.num_devices)
    if case.name == "transfer":
        return math.nan if link is None else link.latency + count_sent_bytes(case, costs) / link.bandwidth
    if case.name in COLLECTIVES:
        line = costs.find_line(case.name, case.group_size, case.num_devices)
        return math.nan if line is None else line[0] + line[1] * count_collective_bytes(case)
    seconds = 0.0
    for work in list_works(case):
        rate = costs.find_rate(work.op_class, case.dtype)
        seconds += math.nan if rate is None else work.count * rate.price(work.size, case.num_devices)
    return seconds


def count_collective_bytes(case: Case) -> float:
    """Bytes of a collective as `alpaviz.cost.Collective` counts them: of the gathered result of an all-gather."""
    return case.num_bytes * (case.group_size if case.name == "all-gather" else 1)


def fit_costs(samples: Sequence[Sample], source: str, num_devices: int) -> tuple[MeasuredCosts, Link | None]:
    """The figures under which the model predicts `samples` best, and the link between stages.

    Args:
        source: for people.
        num_devices: that were measured.

    Raises:
        CalibrationError: a sample took no time, or none is of a computation.
    """
    for sample in samples:
        if not (math.isfinite(sample.seconds) and sample.seconds > 0):
            raise CalibrationError(f"{sample.case} took {sample.seconds!r} s; a sample must take some time.")
    computing = [sample for sample in samples if sample.works]
    if not computing:
        raise CalibrationError("No computation was measured, so nothing can be fitted. Measure again.")
    rates = _fit_rates(computing)
    collectives = _fit_collectives([s for s in samples if s.case.name in COLLECTIVES])
    call = [s for s in samples if s.case.name == "call"]
    call_s, call_device_s = _fit_line([s.case.num_devices for s in call], [s.seconds for s in call])
    bandwidth = _find_bandwidth(rates)
    costs = MeasuredCosts(source, num_devices, rates, collectives, bandwidth, call_s, call_device_s)
    sent = [s for s in samples if s.case.name == "transfer"]
    latency, slope = _fit_line([count_sent_bytes(s.case, costs) for s in sent], [s.seconds for s in sent])
    return costs, Link(1 / slope, latency) if slope > 0 else None


def count_sent_bytes(case: Case, costs: MeasuredCosts) -> float:
    """Bytes of a transfer that go through each of the links that it has at full speed: half of the devices send."""
    return case.num_bytes * case.num_devices / costs.count_lanes(max(1, case.num_devices // 2))


def _find_bandwidth(rates: Sequence[MeasuredRate]) -> float:
    """Bytes/s: a chain of the largest arrays reads and writes them once."""
    slopes = [rate.knots[-1][1] for rate in rates if rate.op_class == "elementwise" and rate.knots[-1][1] > 0]
    if not slopes:
        raise CalibrationError("No elementwise chain was measured that took any time. Measure again.")
    return 2 / (CHAIN * min(slopes))


def _list_parallelism(samples: Sequence[Sample]) -> list[float]:
    """Numbers of devices that may work at full speed, the most first: it counts where there is nothing to tell by."""
    most = max(sample.case.num_devices for sample in samples)
    if min(sample.case.num_devices for sample in samples) == most:
        return [float(most)]
    return [float(n) for n in np.geomspace(1, most, 4 * (most.bit_length() - 1) + 1)][::-1]


class _Computation:
    """The linear problem of all computing samples, up to how far devices slow each other down in each class."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.classes = sorted({(work.op_class, sample.case.dtype) for sample in samples for work in sample.works})
        self.sizes = {key: _choose_knots(samples, *key) for key in self.classes}
        self.columns: dict[tuple[str, str, int], int] = {}
        for key in self.classes:
            for k in range(-1 if key[0] in WITH_FLOOR else 0, len(self.sizes[key])):
                self.columns[*key, k] = len(self.columns)
        self.devices = np.array([sample.case.num_devices for sample in samples])
        self.seconds = np.array([sample.seconds for sample in samples])
        self.matrix = np.zeros((len(samples), len(self.columns)))
        for row, sample in enumerate(samples):
            for work in sample.works:
                key = work.op_class, sample.case.dtype
                if (*key, -1) in self.columns:
                    self.matrix[row, self.columns[*key, -1]] += work.count
                for k, weight in enumerate(weigh_knots(work.size, self.sizes[key])):
                    self.matrix[row, self.columns[*key, k]] += work.count * work.size * weight

    def solve(self, parallel: Mapping[str, float]) -> tuple[float, FloatArray]:
        """(error, figure of each column) where `parallel` devices do ops of a class at full speed."""
        slower = np.ones_like(self.matrix)
        for (op_class, _, _), column in self.columns.items():
            slower[:, column] = np.maximum(1.0, self.devices / parallel[op_class])
        found, error = _solve_relative(self.matrix * slower, self.seconds)
        return error, found

    def write(self, found: FloatArray, parallel: Mapping[str, float]) -> tuple[MeasuredRate, ...]:
        """The figures of all columns, class by class."""
        return tuple(
            MeasuredRate(
                *key, float(found[self.columns[*key, -1]]) if (*key, -1) in self.columns else 0.0,
                tuple((size, float(found[self.columns[*key, k]])) for k, size in enumerate(self.sizes[key])),
                parallel[key[0]],
            )
            for key in self.classes
        )  # fmt: skip


def _fit_rates(samples: Sequence[Sample]) -> tuple[MeasuredRate, ...]:
    """The rates that leave the least error, parallelism class by class until nothing gets better."""
    problem, choices = _Computation(samples), _list_parallelism(samples)
    parallel = dict.fromkeys((op_class for op_class, _ in problem.classes), choices[0])
    least, found = problem.solve(parallel)
    for _ in range(_MOST_ROUNDS):
        before = least
        for op_class in parallel:
            for choice in choices:
                tried = {**parallel, op_class: choice}
                error, figures = problem.solve(tried)
                if error < least * (1 - 1e-9):
                    least, found, parallel = error, figures, tried
        if least > before * (1 - 1e-3):
            break
    return problem.write(found, parallel)


def _choose_knots(samples: Sequence[Sample], op_class: str, dtype: str) -> tuple[float, ...]:
    """Sizes at which the seconds a unit of a class are fitted: some of those measured, the least and most included."""
    own = sorted({w.size for s in samples if s.case.dtype == dtype for w in s.works if w.op_class == op_class})
    count = min(_KNOTS.get(op_class, _USUAL_KNOTS), max(1, len(own) - 1))
    if count == 1:
        return (own[-1],)
    wanted = np.geomspace(own[0], own[-1], count)
    return tuple(sorted({min(own, key=lambda size: abs(math.log(size / place))) for place in wanted}))


def _fit_collectives(samples: Sequence[Sample]) -> tuple[MeasuredCollective, ...]:
    """A line for each kind and size of the group, and how far devices slow each other down for each kind."""
    found = []
    for kind in COLLECTIVES:
        own = [sample for sample in samples if sample.case.name == kind]
        if own:
            fits = (_fit_kind(kind, own, parallel) for parallel in _list_parallelism(own))
            found += min(fits, key=lambda fit: fit[0])[1]
    return tuple(found)


def _fit_kind(
    kind: CollectiveKind, samples: Sequence[Sample], parallel: float
) -> tuple[float, list[MeasuredCollective]]:
    """(error, a line for each size of the group) where `parallel` devices communicate at full speed."""
    total, found = 0.0, []
    for group in sorted({sample.case.group_size for sample in samples}):
        own = [sample for sample in samples if sample.case.group_size == group]
        slower = np.array([slow_down(sample.case.num_devices, parallel) for sample in own])
        sizes = np.array([count_collective_bytes(sample.case) for sample in own])
        figures, error = _solve_relative(
            np.column_stack([slower, slower * sizes]), np.array([sample.seconds for sample in own])
        )
        total += error * len(own)
        found.append(MeasuredCollective(kind, group, float(figures[0]), float(figures[1]), parallel))
    return total, found


def _fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(seconds, seconds a unit); zeros without samples."""
    if not sizes:
        return 0.0, 0.0
    found, _ = _solve_relative(np.column_stack([np.ones(len(sizes)), sizes]), np.array(seconds))
    return float(found[0]), float(found[1])


def _solve_relative(matrix: FloatArray, seconds: FloatArray) -> tuple[FloatArray, float]:
    """x of at least 0 with small relative errors of `matrix @ x`, and a mean of these errors.

    Errors beyond `_USUAL_ERROR` count linearly instead of squared (Huber): now and then a sample is far too long,
    as something else ran meanwhile.
    """
    weighted = matrix / seconds[:, None]
    scale = np.where(weighted.any(axis=0), np.abs(weighted).max(axis=0), 1.0)
    weighted /= scale
    weights = np.ones(len(seconds))
    for _ in range(_ROBUST_ROUNDS):
        found = _solve_nonnegative(weighted * weights[:, None], weights)
        errors = np.abs(weighted @ found - 1)
        weights = np.sqrt(1 / np.maximum(1.0, errors / _USUAL_ERROR))
    loss = np.where(errors <= _USUAL_ERROR, errors**2, _USUAL_ERROR * (2 * errors - _USUAL_ERROR))
    return found / scale, float(np.mean(loss))


def _solve_nonnegative(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """Least squares with no entry below 0, by the active-set method.

    Source: Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    count = matrix.shape[1]
    square, right = matrix.T @ matrix + 1e-13 * np.eye(count), matrix.T @ target
    whole: FloatArray = np.asarray(np.linalg.solve(square, right), dtype=np.float64)
    if (whole >= 0).all():
        return whole
    found, free = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(3 * count + 10):
        gradient = right - square @ found
        gradient[free] = -np.inf
        if free.all() or gradient.max() <= 1e-12:
            break
        free[int(gradient.argmax())] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.solve(square[np.ix_(free, free)], right[free])
            below = free & (trial <= 0)
            if not below.any():
                break
            step = float(np.min(found[below] / (found[below] - trial[below] + 1e-300)))
            found = found + step * (trial - found)
            free &= found > 1e-15
        found = trial
    return found
