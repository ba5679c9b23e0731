"""Better legal choices of a large problem, piece by piece: large neighbourhood search.

A piece is a set of variables near each other; all others keep their candidates. Messages within the piece, memory
priced as the ascent left it, and a decoding that keeps to the bytes left over give it new candidates, which stay if the
whole gets cheaper.
"""

from __future__ import annotations

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.large.loops import Loops
from alpaviz.intra.solvers.network import IntArray

_SIZES = (20, 60, 150)
_SWEEPS = 6
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

    def __init__(self, loops: Loops, choice: IntArray, cost: float, prices: FloatArray, room: float) -> None:
        layout = loops.layout
        self._loops, self._layout = loops, layout
        self._limits = layout.limits - room
        self.choice, self.cost = choice.copy(), cost
        self._random = np.random.default_rng(0)
        self._sums = np.concatenate([[0.0], np.cumsum(prices)])
        self._free = self._limits - loops.measure(loops.whole, choice)
        self._messages = np.zeros(layout.messages_size)
        self._fixed, self._priced = layout.unary.copy(), layout.unary.copy()

    def attempt(self) -> bool:
        """Try one piece; whether the choice got cheaper."""
        loops = self._loops
        part = loops.select(self._pick_piece(int(self._random.choice(_SIZES))))
        loops.fix_outside(part, self.choice, self._fixed)
        is_priced = self._random.random() < _SHARE_PRICED
        loops.price(part, self._fixed, self._sums if is_priced else 0.0 * self._sums, self._priced)
        before = loops.evaluate(part, self._fixed, self.choice)
        left = self._free + loops.measure(part, self.choice)
        choice = self.choice.copy()
        for ends_forward in (True, False):
            for turn in range(_SWEEPS):
                is_forward = (turn % 2 == 0) != ends_forward
                loops.sweep(part, self._priced, self._messages, choice, is_forward=is_forward)
            free = left.copy()
            if loops.decode_within(part, self._priced, self._messages, choice, free, is_forward=ends_forward):
                after = loops.evaluate(part, self._fixed, choice)
                if after < before - _LEAST_CHANGE * abs(self.cost):
                    self._accept(choice, free)
                    return True
        return False

    def _accept(self, choice: IntArray, free: FloatArray) -> None:
        loops = self._loops
        loops.improve(choice, free)
        self.choice = choice
        # Measured anew, so that rounding does not add up.
        self._free = self._limits - loops.measure(loops.whole, choice)
        self.cost = loops.evaluate(loops.whole, self._layout.unary, choice)

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
