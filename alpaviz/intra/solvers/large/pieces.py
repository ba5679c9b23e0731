"""Better legal choices of a large problem, piece by piece: large neighbourhood search.

A piece is a set of variables near each other; all others keep their candidates. Messages within the piece, memory
priced as the ascent left it, and a decoding that keeps to the bytes left over give it new candidates, which stay if the
whole gets cheaper.
"""

from __future__ import annotations

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.large.kernels import Kernels
from alpaviz.intra.solvers.large.layout import Layout
from alpaviz.intra.solvers.network import BoolArray, IntArray

_SIZES = (20, 60, 150)
_SWEEPS = 6
_MOST_PASSES = 20
_SHARE_PRICED = 0.7
"""Of the tries; the others take memory as free as long as it lasts."""
_LEAST_CHANGE = 1e-12


class PieceSearch:
    """Improves one legal choice, at random but the same from run to run.

    Args:
        choice: legal.
        cost: of it, without the layout's constant.
        prices: (steps of the timeline,), of a byte.
        room: bytes that are left free at each step.
    """

    def __init__(
        self, layout: Layout, kernels: Kernels, choice: IntArray, cost: float, prices: FloatArray, room: float
    ) -> None:
        self._layout, self._kernels = layout, kernels
        self._limits = layout.limits - room
        self.choice, self.cost = choice.copy(), cost
        self._random = np.random.default_rng(0)
        self._sums = np.concatenate([[0.0], np.cumsum(prices)])
        self._nodes = np.arange(layout.size)
        self._everything: BoolArray = np.ones(layout.size, dtype=np.bool_)
        self._free = self._limits - self._measure(self._nodes, choice)
        widest = int(np.diff(layout.offsets).max(initial=1))
        self._total, self._decoded = np.zeros(widest), np.zeros(widest)
        self._messages = np.zeros(layout.messages_size)
        self._fixed, self._priced = layout.unary.copy(), layout.unary.copy()

    def attempt(self) -> bool:
        """Try one piece; whether the choice got cheaper."""
        nodes = self._pick_piece(int(self._random.choice(_SIZES)))
        is_in: BoolArray = np.zeros(self._layout.size, dtype=np.bool_)
        is_in[nodes] = True
        self._price(nodes, is_in)
        before = self._evaluate(nodes, is_in, self._fixed, self.choice)
        left = self._free + self._measure(nodes, self.choice)
        choice = self.choice.copy()
        for ends_forward in (True, False):
            for turn in range(_SWEEPS):
                self._sweep(nodes, is_in, choice, is_forward=(turn % 2 == 0) != ends_forward)
            free = left.copy()
            if self._decode(nodes, is_in, choice, free, is_forward=ends_forward):
                after = self._evaluate(nodes, is_in, self._fixed, choice)
                if after < before - _LEAST_CHANGE * abs(self.cost):
                    self._accept(choice, free)
                    return True
        return False

    def _accept(self, choice: IntArray, free: FloatArray) -> None:
        x = self._layout
        for _ in range(_MOST_PASSES):
            saved = self._kernels.improve(
                self._nodes, x.offsets, x.arc_starts, x.heads, x.reverses, x.cost_offsets, x.costs, x.item_starts,
                x.item_firsts, x.item_lasts, x.usage_offsets, x.usages, x.unary, choice, free, self._decoded,
            )  # fmt: skip
            if saved <= 0.0:
                break
        self.choice = choice
        # Measured anew, so that rounding does not add up.
        self._free = self._limits - self._measure(self._nodes, choice)
        self.cost = self._evaluate(self._nodes, self._everything, x.unary, choice)

    def _pick_piece(self, size: int) -> IntArray:
        """Variables around a random one: next to it in the order, or over edges."""
        x = self._layout
        seed = int(self._random.integers(x.size))
        if self._random.random() < 0.5:
            first = max(0, min(seed - size // 2, x.size - size))
            return np.arange(first, min(first + size, x.size))
        found, order, at = {seed}, [seed], 0
        while at < len(order) and len(order) < size:
            v = order[at]
            at += 1
            for w in self._random.permutation(x.heads[x.arc_starts[v] : x.arc_starts[v + 1]]).tolist():
                if w not in found:
                    found.add(w)
                    order.append(w)
        return np.array(sorted(order[:size]), dtype=np.int64)

    def _price(self, nodes: IntArray, is_in: BoolArray) -> None:
        """Costs of the piece with everything outside fixed, without and with the price of its memory."""
        x = self._layout
        self._kernels.fix_outside(
            nodes, is_in, x.offsets, x.arc_starts, x.heads, x.reverses, x.cost_offsets, x.costs, x.unary, self.choice,
            self._fixed,
        )  # fmt: skip
        is_priced = self._random.random() < _SHARE_PRICED
        self._kernels.price_items(
            nodes, x.offsets, x.item_starts, x.item_firsts, x.item_lasts, x.usage_offsets, x.usages,
            self._sums if is_priced else 0.0 * self._sums, self._fixed, self._priced,
        )  # fmt: skip

    def _sweep(self, nodes: IntArray, is_in: BoolArray, choice: IntArray, *, is_forward: bool) -> None:
        x = self._layout
        self._kernels.sweep(
            nodes, is_in, x.offsets, x.arc_starts, x.heads, x.reverses, x.cost_offsets, x.costs, x.message_offsets,
            self._priced, self._messages, is_forward, choice, self._total, self._decoded,
        )  # fmt: skip

    def _decode(
        self, nodes: IntArray, is_in: BoolArray, choice: IntArray, free: FloatArray, *, is_forward: bool
    ) -> bool:
        x = self._layout
        return self._kernels.decode_within(
            nodes, is_in, x.offsets, x.arc_starts, x.heads, x.reverses, x.cost_offsets, x.costs, x.message_offsets,
            x.item_starts, x.item_firsts, x.item_lasts, x.usage_offsets, x.usages, self._priced, self._messages,
            is_forward, choice, free, self._decoded,
        )  # fmt: skip

    def _measure(self, nodes: IntArray, choice: IntArray) -> FloatArray:
        x = self._layout
        used = np.zeros(len(x.limits) + 1)
        self._kernels.measure(
            nodes, x.item_starts, x.item_firsts, x.item_lasts, x.usage_offsets, x.usages, choice, used
        )
        return used[:-1]

    def _evaluate(self, nodes: IntArray, is_in: BoolArray, unary: FloatArray, choice: IntArray) -> float:
        x = self._layout
        return self._kernels.evaluate(
            nodes, is_in, x.offsets, x.arc_starts, x.heads, x.cost_offsets, x.costs, unary, choice
        )
