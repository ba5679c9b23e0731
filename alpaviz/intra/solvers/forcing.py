"""The optimum under one candidate after another: compiled sweeps of messages that start from those of the free problem.

Only candidates of the others that nothing beats are looked at, and sweeps stop as soon as a decoded choice meets the
bound: some tens of sweeps at most on nearly all candidates of the planner's problems.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.large.kernels import load_kernels
from alpaviz.intra.solvers.large.layout import lay_out
from alpaviz.intra.solvers.large.loops import Loops, Part
from alpaviz.intra.solvers.large.reduce import Core
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import BoolArray, IntArray, Network, keep_candidates

_FREE_SWEEPS = 60
_MOST_SWEEPS = 80
_SWEEPS_A_LOOK = 8
_LEAST_PROGRESS = 0.1
"""Sweeps end where as many as make a look close less than this share of the gap."""
TOLERANCE = 1e-10
"""Relative gap up to which a forced optimum counts as proven."""


@dataclass(frozen=True, slots=True, eq=False)
class ForcedChoice:
    """A choice that takes the forced candidate, memory not looked at.

    Attributes:
        cost: of the choice.
        bound: on every choice that takes the candidate.
        choice: (variables,), in the network's indices.
        messages: those that gave the bound, in the layout of `Forcing`.
    """

    cost: float
    bound: float
    choice: IntArray
    messages: FloatArray

    @property
    def is_closed(self) -> bool:
        """Whether no choice that takes the candidate is cheaper by more than `TOLERANCE`."""
        return _is_closed(self.cost, self.bound)


class Forcing:
    """Messages of the free problem over the candidates in `unbeaten`, ready to be forced.

    Attributes:
        bound: on every choice of `network`.
    """

    def __init__(self, network: Network, unbeaten: BoolArray) -> None:
        inner = keep_candidates(network, unbeaten)
        assert inner is not None, "a candidate of each variable is unbeaten"
        self.network, self.inner = network, inner
        self.places = np.flatnonzero(unbeaten)
        self.loops = Loops(lay_out(_make_core(inner)), load_kernels())
        self.messages = np.zeros(self.loops.layout.messages_size)
        self.bound, choice = -np.inf, np.zeros(inner.num_variables, dtype=np.int64)
        for i in range(_FREE_SWEEPS):
            swept = self.loops.sweep(self.loops.whole, inner.unary, self.messages, choice, is_forward=i % 2 == 0)
            self.bound = max(self.bound, swept)

    def hand_over(self, v: int, messages: FloatArray, to: MessagePassing) -> None:
        """Start `to`, over the unbeaten candidates of all but `v`, from `messages` of this layout."""
        layout = self.loops.layout
        for i in range(layout.size):
            for a in range(int(layout.arc_starts[i]), int(layout.arc_starts[i + 1])):
                j, at = int(layout.heads[a]), int(layout.message_offsets[a])
                if v not in (i, j):
                    to.set_message(i, j, messages[at : at + int(self.inner.sizes[j])])

    def hold(self, v: int) -> HeldVariable:
        """Ready to force each candidate of `v`."""
        others = np.arange(self.inner.num_variables)
        return HeldVariable(self, v, self.loops.select(others[others != v]), _gather_rows(self, v))


@dataclass(frozen=True, slots=True, eq=False)
class HeldVariable:
    """Variable `v` taken out of the others, which are `part`.

    Attributes:
        rows: per neighbour, where its unbeaten candidates are and (candidates of `v`, those) what the pair costs.
    """

    forcing: Forcing
    v: int
    part: Part
    rows: tuple[tuple[slice, FloatArray], ...]

    def find(self, k: int) -> ForcedChoice:
        """The best choice found that takes candidate `k`, and the bound that proves it or nearly does."""
        forcing, network, loops = self.forcing, self.forcing.network, self.forcing.loops
        own = float(network.unary[network.offsets[self.v] + k])
        priced = forcing.inner.unary.copy()
        for place, costs in self.rows:
            priced[place] += costs[k]
        messages = forcing.messages.copy()
        choice = np.zeros(network.num_variables, dtype=np.int64)
        best, bound, found = np.inf, -np.inf, choice
        gap = np.inf
        for i in range(_MOST_SWEEPS):
            bound = max(bound, own + loops.sweep(self.part, priced, messages, choice, is_forward=i % 2 == 0))
            cost = own + loops.evaluate(self.part, priced, choice)
            if cost < best:
                best, found = cost, choice.copy()
            if _is_closed(best, bound) or bound >= network.ceiling:
                break
            if i % _SWEEPS_A_LOOK == _SWEEPS_A_LOOK - 1:
                if best - bound > (1.0 - _LEAST_PROGRESS) * gap:
                    break
                gap = best - bound
        return ForcedChoice(best, bound, self._name(found, k), messages)

    def _name(self, choice: IntArray, k: int) -> IntArray:
        """A choice of the unbeaten in the network's indices, with candidate `k`."""
        forcing = self.forcing
        inner, network = forcing.inner, forcing.network
        named: IntArray = forcing.places[inner.offsets[:-1] + choice] - network.offsets[:-1]
        named[self.v] = k
        return named


def _is_closed(cost: float, bound: float) -> bool:
    return cost - bound <= TOLERANCE * abs(cost)


def _gather_rows(forcing: Forcing, v: int) -> tuple[tuple[slice, FloatArray], ...]:
    network, inner = forcing.network, forcing.inner
    rows = []
    for e in network.edges:
        if v not in (e.u, e.v):
            continue
        w, costs = (e.v, e.costs) if e.u == v else (e.u, e.costs.transposed())
        place = slice(int(inner.offsets[w]), int(inner.offsets[w + 1]))
        kept = forcing.places[place] - network.offsets[w]
        rows.append((place, costs.take(None, kept).expand()))
    return tuple(rows)


def _make_core(network: Network) -> Core:
    """All of `network` as a core, its memory left out."""
    count = network.num_variables
    unary = [network.unary[network.offsets[v] : network.offsets[v + 1]] for v in range(count)]
    adjacent: list[dict[int, FloatArray]] = [{} for _ in range(count)]
    for e in network.edges:
        adjacent[e.u][e.v], adjacent[e.v][e.u] = e.cost, e.cost.T
    kept = [np.arange(len(cost)) for cost in unary]
    return Core(unary, adjacent, [[] for _ in unary], np.zeros(0), kept, np.ones(count, dtype=np.bool_))
