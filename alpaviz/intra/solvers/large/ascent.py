"""Lower bounds on a large problem, or on a block of it with the rest fixed, and choices decoded on the way.

Memory is priced: a step of the timeline has a price per byte, and a candidate pays for what it uses over its interval.
With prices given, a pairwise problem is left, on which message passing gives a bound and a choice. Prices follow the
volume method (Barahona and Anbil, Math. Programming 87, 2000): steps from the best prices so far along an average of
the excesses. Only few steps of the timeline matter, so prices are kept to those where the averaged use peaks.
"""

from __future__ import annotations

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.large.kernels import Kernels
from alpaviz.intra.solvers.large.layout import Layout
from alpaviz.intra.solvers.network import BoolArray, IntArray

_SWEEPS_PER_STEP = 4
_AVERAGING = 0.1
_MOST_STEP = 2.0
_STEPS_BETWEEN_PEAKS = 5
_PATIENCE = 5


class Ascent:
    """Prices and messages of the variables in play; bounds are without the layout's constant.

    Attributes:
        bound: best bound so far.
        prices: those that gave it.
        choice: decoded by the last sweep, over all variables; those not in play as given.
        excess: of that choice, bytes over the limit at each step of the timeline (negative where under).
        priced: unary costs with memory at the prices last tried.
    """

    def __init__(
        self,
        layout: Layout,
        kernels: Kernels,
        nodes: IntArray,
        unary: FloatArray,
        limits: FloatArray,
        choice: IntArray,
        prices: FloatArray | None = None,
        messages: FloatArray | None = None,
    ) -> None:
        self._layout, self._kernels = layout, kernels
        self.nodes = nodes
        self.is_in: BoolArray = np.zeros(layout.size, dtype=np.bool_)
        self.is_in[nodes] = True
        self.unary, self.limits = unary, limits
        self.choice = choice.copy()
        self.prices = np.zeros(len(limits)) if prices is None else prices
        self.messages = np.zeros(layout.messages_size) if messages is None else messages
        self.priced = unary.copy()
        self.bound = -np.inf
        self.excess = np.zeros(len(limits))
        self.is_forward = True
        self._trial = self.prices
        self._average: FloatArray | None = None
        self._is_priced: BoolArray = self.prices > 0.0
        self._step_size = 1.0
        self._failures = 0
        self._count = 0
        widest = int(np.diff(layout.offsets).max(initial=1))
        self._total, self._decoded = np.zeros(widest), np.zeros(widest)
        self._used = np.zeros(len(limits) + 1)

    def evaluate(self) -> float:
        """Cost of the decoded choice."""
        it = self._layout
        return self._kernels.evaluate(
            self.nodes, self.is_in, it.offsets, it.arc_starts, it.heads, it.cost_offsets, it.costs, self.unary,
            self.choice,
        )  # fmt: skip

    def sweep(self) -> float:
        """One pass over the variables at the prices last set, in the other direction than the one before."""
        it = self._layout
        bound = self._kernels.sweep(
            self.nodes, self.is_in, it.offsets, it.arc_starts, it.heads, it.reverses, it.cost_offsets, it.costs,
            it.message_offsets, self.priced, self.messages, self.is_forward, self.choice, self._total, self._decoded,
        )  # fmt: skip
        self.is_forward = not self.is_forward
        return bound - float(self._trial @ self.limits)

    def decode_within(self) -> bool:
        """Decode once more, so that memory holds; False where that got stuck."""
        it = self._layout
        return self._kernels.decode_within(
            self.nodes, self.is_in, it.offsets, it.arc_starts, it.heads, it.reverses, it.cost_offsets, it.costs,
            it.message_offsets, it.item_starts, it.item_firsts, it.item_lasts, it.usage_offsets, it.usages,
            self.priced, self.messages, self.is_forward, self.choice, self.limits.copy(), self._decoded,
        )  # fmt: skip

    def measure(self) -> None:
        """Set `excess` to that of `choice`."""
        it = self._layout
        self._kernels.measure(
            self.nodes, it.item_starts, it.item_firsts, it.item_lasts, it.usage_offsets, it.usages, self.choice,
            self._used,
        )  # fmt: skip
        np.subtract(self._used[:-1], self.limits, out=self.excess)

    def try_prices(self) -> float:
        """Price memory as last set, pass messages, and give the bound; `choice` and `excess` are those decoded."""
        it = self._layout
        sums = np.concatenate([[0.0], np.cumsum(self._trial)])
        self._kernels.price_items(
            self.nodes, it.offsets, it.item_starts, it.item_firsts, it.item_lasts, it.usage_offsets, it.usages, sums,
            self.unary, self.priced,
        )  # fmt: skip
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
