"""Lower bounds on a large problem, and choices decoded on the way.

Memory is priced: a step of the timeline has a price per byte, and a candidate pays for what it uses over its interval.
With prices given, a pairwise problem is left, on which message passing gives a bound and a choice. Prices follow the
volume method (Barahona and Anbil, Math. Programming 87, 2000): steps from the best prices so far along an average of
the excesses. Only few steps of the timeline matter, so prices are kept to those where the averaged use peaks.
"""

from __future__ import annotations

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.large.loops import Loops
from alpaviz.intra.solvers.network import BoolArray, IntArray

_SWEEPS_PER_STEP = 4
_AVERAGING = 0.1
_MOST_STEP = 2.0
_STEPS_BETWEEN_PEAKS = 5
_PATIENCE = 5


class Ascent:
    """Prices and messages of all variables; bounds are without the layout's constant.

    Attributes:
        bound: best bound so far.
        prices: those that gave it.
        choice: decoded by the last sweep.
        excess: of that choice, bytes over the limit at each step of the timeline (negative where under).
        priced: unary costs with memory at the prices last tried.
    """

    def __init__(self, loops: Loops) -> None:
        layout = loops.layout
        self._loops, self._unary, self._limits = loops, layout.unary, layout.limits
        self.choice: IntArray = np.zeros(layout.size, dtype=np.int64)
        self.prices = np.zeros(len(layout.limits))
        self.priced = layout.unary.copy()
        self.bound = -np.inf
        self.excess = np.zeros(len(layout.limits))
        self._messages = np.zeros(layout.messages_size)
        self._is_forward = True
        self._trial = self.prices
        self._average: FloatArray | None = None
        self._is_priced: BoolArray = self.prices > 0.0
        self._step_size = 1.0
        self._failures = 0
        self._count = 0

    def evaluate(self) -> float:
        """Cost of the decoded choice."""
        return self._loops.evaluate(self._loops.whole, self._unary, self.choice)

    def sweep(self) -> float:
        """One pass over the variables at the prices last set, in the other direction than the one before."""
        bound = self._loops.sweep(
            self._loops.whole, self.priced, self._messages, self.choice, is_forward=self._is_forward
        )
        self._is_forward = not self._is_forward
        return bound - float(self._trial @ self._limits)

    def decode_within(self) -> bool:
        """Decode once more, so that memory holds; False where that got stuck."""
        return self._loops.decode_within(
            self._loops.whole, self.priced, self._messages, self.choice, self._limits.copy(),
            is_forward=self._is_forward,
        )  # fmt: skip

    def measure(self) -> None:
        """Set `excess` to that of `choice`."""
        np.subtract(self._loops.measure(self._loops.whole, self.choice), self._limits, out=self.excess)

    def improve(self) -> None:
        """Local search from `choice`, whose excess is measured and not over."""
        self._loops.improve(self.choice, -self.excess)
        self.measure()

    def try_prices(self) -> float:
        """Price memory as last set, pass messages, and give the bound; `choice` and `excess` are those decoded."""
        sums = np.concatenate([[0.0], np.cumsum(self._trial)])
        self._loops.price(self._loops.whole, self._unary, sums, self.priced)
        bound = max(self.sweep() for _ in range(_SWEEPS_PER_STEP))
        self.measure()
        return bound

    def move(self, bound: float, target: float) -> None:
        """Set the next prices, after `bound` from the last; `target` is the cost of a choice, or a guess at it."""
        self._average = (
            self.excess.copy() if self._average is None else self._average + _AVERAGING * (self.excess - self._average)
        )
        if self._count % _STEPS_BETWEEN_PEAKS == 0:
            self._price_peaks(self._average)
        self._count += 1
        if bound > self.bound:
            self._succeed(bound)
        else:
            self._failures += 1
            if self._failures >= _PATIENCE:
                self._step_size *= 0.66
                self._failures = 0
        direction = np.where(self._is_priced, self._average, 0.0)
        direction[(self.prices <= 0.0) & (direction < 0.0)] = 0.0
        length = float(direction @ direction)
        distance = max(target - self.bound, 1e-6 * abs(self.bound))
        step = self._step_size * distance / length if length > 0.0 else 0.0
        self._trial = np.maximum(0.0, self.prices + step * direction)

    def _succeed(self, bound: float) -> None:
        assert self._average is not None, "set by the caller"
        # The new excess still points along the average: the step was short.
        if float(self.excess[self._is_priced] @ self._average[self._is_priced]) >= 0.0:
            self._step_size = min(1.1 * self._step_size, _MOST_STEP)
        if bound > self.bound + 1e-4 * abs(self.bound):
            self._failures = 0
        self.bound, self.prices = bound, self._trial

    def _price_peaks(self, average: FloatArray) -> None:
        """Let the highest step of each stretch over the limit have a price."""
        is_over = np.concatenate([[False], average > 0.0, [False]])
        borders = np.flatnonzero(is_over[1:] != is_over[:-1])
        for first, last in zip(borders[::2], borders[1::2], strict=True):
            self._is_priced[first + int(average[first:last].argmax())] = True
