"""The compiled loops, bound to one layout: what they do for a part of its variables, the others left as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.large.kernels import Kernels
from alpaviz.intra.solvers.large.layout import Layout
from alpaviz.intra.solvers.network import BoolArray, IntArray

_MOST_PASSES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Variables in play: `nodes` in order, and `is_in` (variables,) which marks them."""

    nodes: IntArray
    is_in: BoolArray


class Loops:
    """Kernels with a layout's arrays filled in, and room to work in. Not shared between threads.

    Attributes:
        whole: all variables.
    """

    def __init__(self, layout: Layout, kernels: Kernels) -> None:
        self.layout, self._kernels = layout, kernels
        self.whole = self.select(np.arange(layout.size))
        widest = int(np.diff(layout.offsets).max(initial=1))
        self._total, self._decoded = np.zeros(widest), np.zeros(widest)

    def select(self, nodes: IntArray) -> Part:
        """The part of these variables, which are in order."""
        is_in: BoolArray = np.zeros(self.layout.size, dtype=np.bool_)
        is_in[nodes] = True
        return Part(nodes, is_in)

    def evaluate(self, part: Part, unary: FloatArray, choice: IntArray) -> float:
        """Cost of `choice` over the part and the edges within it."""
        x = self.layout
        return self._kernels.evaluate(
            part.nodes, part.is_in, x.offsets, x.arc_starts, x.heads, x.cost_offsets, x.costs, unary, choice
        )

    def measure(self, part: Part, choice: IntArray) -> FloatArray:
        """(steps of the timeline,), bytes that the part uses."""
        x = self.layout
        used = np.zeros(len(x.limits) + 1)
        self._kernels.measure(
            part.nodes, x.item_starts, x.item_firsts, x.item_lasts, x.usage_offsets, x.usages, choice, used
        )
        return used[:-1]

    def price(self, part: Part, unary: FloatArray, sums: FloatArray, priced: FloatArray) -> None:
        """Into `priced`: `unary` plus usage at the prices whose running sums are `sums` (steps + 1,)."""
        x = self.layout
        self._kernels.price_items(
            part.nodes, x.offsets, x.item_starts, x.item_firsts, x.item_lasts, x.usage_offsets, x.usages, sums, unary,
            priced,
        )  # fmt: skip

    def fix_outside(self, part: Part, choice: IntArray, fixed: FloatArray) -> None:
        """Into `fixed`: the part's own costs with the edges to variables outside, which keep their `choice`."""
        x = self.layout
        self._kernels.fix_outside(
            part.nodes, part.is_in, x.offsets, x.arc_starts, x.heads, x.reverses, x.cost_offsets, x.costs, x.unary,
            choice, fixed,
        )  # fmt: skip

    def sweep(
        self, part: Part, priced: FloatArray, messages: FloatArray, choice: IntArray, *, is_forward: bool
    ) -> float:
        """One pass of messages, which decodes into `choice` on the way; gives its bound."""
        x = self.layout
        return self._kernels.sweep(
            part.nodes, part.is_in, x.offsets, x.arc_starts, x.heads, x.reverses, x.cost_offsets, x.costs,
            x.message_offsets, priced, messages, is_forward, choice, self._total, self._decoded,
        )  # fmt: skip

    def decode_within(
        self,
        part: Part,
        priced: FloatArray,
        messages: FloatArray,
        choice: IntArray,
        free: FloatArray,
        *,
        is_forward: bool,
    ) -> bool:
        """Decode into `choice` within the `free` bytes, which are taken off; False where that got stuck."""
        x = self.layout
        return self._kernels.decode_within(
            part.nodes, part.is_in, x.offsets, x.arc_starts, x.heads, x.reverses, x.cost_offsets, x.costs,
            x.message_offsets, x.item_starts, x.item_firsts, x.item_lasts, x.usage_offsets, x.usages, priced, messages,
            is_forward, choice, free, self._decoded,
        )  # fmt: skip

    def improve(self, choice: IntArray, free: FloatArray) -> None:
        """Move single variables within the `free` bytes, pass after pass, for as long as that saves anything."""
        x = self.layout
        for _ in range(_MOST_PASSES):
            saved = self._kernels.improve(
                self.whole.nodes, x.offsets, x.arc_starts, x.heads, x.reverses, x.cost_offsets, x.costs, x.item_starts,
                x.item_firsts, x.item_lasts, x.usage_offsets, x.usages, x.unary, choice, free, self._decoded,
            )  # fmt: skip
            if saved <= 0.0:
                return
