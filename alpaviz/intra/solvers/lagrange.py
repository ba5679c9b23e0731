"""Memory limits priced by multipliers: the best bound that pairwise solves can give, and legal choices on the way.

For any prices of a byte, the cheapest choice with memory paid for, less the price of the limits, bounds every legal
choice. Prices come from cutting planes (each choice seen is one) for one or two rows, from subgradient steps for more.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.elimination import eliminate, plan_elimination
from alpaviz.intra.solvers.enumeration import QUICK, enumerate_legal
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import BoolArray, IntArray, Network, keep_candidates
from alpaviz.intra.solvers.search import Assignment
from alpaviz.intra.solvers.sparse import grow_tree
from alpaviz.intra.solvers.watch import Watch

_MOST_PRICINGS = 40
_MOST_ROWS = 40_000
_SWEEPS = 24
_ENTRIES_TO_ELIMINATE = 2e5
_CUTS_COMBINED = 14
_MOST_EFFORT = 8
_LEAST_GAIN = 0.04
"""Prices are good enough where better ones could close no more than this share of the gap."""


@dataclass(frozen=True, slots=True, eq=False)
class Pricing:
    """Best multipliers found: `bound` holds for every legal choice of the network that `network` is a part of."""

    network: Network
    messages: MessagePassing
    multipliers: FloatArray
    bound: float


@dataclass(slots=True)
class _Cuts:
    """Choices seen, as planes over the multipliers: cost and, per row, bytes over the limit in units of `scale`."""

    scale: FloatArray
    costs: list[float] = field(default_factory=list)
    over: list[FloatArray] = field(default_factory=list)
    choices: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, cost: float, over: FloatArray, choice: tuple[int, ...]) -> bool:
        """Whether the plane is new."""
        for known_cost, known in zip(self.costs, self.over, strict=True):
            if abs(known_cost - cost) <= 1e-13 * abs(cost) and np.allclose(known, over, rtol=1e-12, atol=1e-12):
                return False
        self.costs.append(cost)
        self.over.append(over)
        self.choices.append(choice)
        return True

    def find_peak(self, cap: float) -> tuple[FloatArray, float]:
        """Scaled multipliers in [0, cap] where the lower envelope of the planes is highest, and its height there."""
        costs, over = np.array(self.costs), np.array(self.over)
        rows = over.shape[1]
        candidates = [np.array(corner) for corner in itertools.product((0.0, cap), repeat=rows)]
        candidates += _intersect(costs, over, cap)
        points = np.array(candidates)
        heights = (costs[None, :] + points @ over.T).min(axis=1)
        best = int(heights.argmax())
        return points[best], float(heights[best])


def price_memory(network: Network, incumbent: Incumbent, watch: Watch, start: IntArray) -> Pricing:
    """Multipliers with (nearly) the best bound; `start` is the cheapest choice without limits, which is over them."""
    worst = np.maximum.reduceat(network.usage, network.offsets[:-1], axis=1).sum(axis=1)
    cuts = _Cuts(np.maximum(np.where(network.limits > 0.0, network.limits, worst), 1e-300))
    state = _State(network, MessagePassing(network), cuts, incumbent, watch)
    state.note_choice(start)
    state.mend(start)
    if len(network.limits) <= 2:
        _climb_by_cuts(state)
    else:
        _climb_by_steps(state)
    return Pricing(state.network, state.messages, state.best, state.bound)


class _State:
    """One pricing run: the network shrinks, cuts and bound grow."""

    def __init__(
        self, network: Network, messages: MessagePassing, cuts: _Cuts, incumbent: Incumbent, watch: Watch
    ) -> None:
        self.network, self.messages, self.cuts = network, messages, cuts
        self.incumbent, self.watch = incumbent, watch
        self.bound = -np.inf
        self.best: FloatArray = np.zeros(len(network.limits))
        self.effort = 1

    def note_choice(self, choice: IntArray) -> bool:
        """Add the plane of `choice`; whether it is new."""
        over = (self.network.measure_memory(choice) - self.network.limits) / self.cuts.scale
        return self.cuts.add(self.network.price(choice), over, self.network.name_choice(choice))

    def mend(self, choice: IntArray) -> None:
        """Make `choice` legal, improve it legally, and offer it."""
        assignment = Assignment(self.network, choice)
        if assignment.repair():
            assignment.descend(legally=True, most_moves=300)
            if assignment.is_legal():
                self.incumbent.offer(self.network, assignment.choice)
                self.note_choice(assignment.choice)

    def evaluate(self, scaled: FloatArray) -> tuple[FloatArray, bool]:
        """Bound at multipliers `scaled`.

        Returns how far the cheapest choice found is over each limit (scaled), and whether its plane is new.
        """
        multipliers = scaled / self.cuts.scale
        discount = float(multipliers @ self.network.limits)
        bound, choice, forced = self._solve_priced(self.network.unary + multipliers @ self.network.usage, discount)
        if bound > self.bound:
            self.bound, self.best = bound, multipliers
        self.watch.report(self.incumbent.objective, min(self.bound, self.incumbent.objective))
        over = (self.network.measure_memory(choice) - self.network.limits) / self.cuts.scale
        is_new = self.note_choice(choice)
        self.mend(choice)
        if is_new and self.bound < self.incumbent.target and len(self.cuts.choices) > 2:
            self._mix()
        if self.bound < self.incumbent.target:
            self._shrink(forced < self.incumbent.target + discount)
        return over, is_new

    def _solve_priced(self, unary: FloatArray, discount: float) -> tuple[float, IntArray, FloatArray]:
        """Bound, cheapest choice found, and bound per candidate (discount not taken off) at the priced costs."""
        self.messages.set_unary(unary)
        plan = plan_elimination(self.network, _ENTRIES_TO_ELIMINATE)
        solved = None if plan is None else eliminate(self.network, plan, unary)
        if solved is not None:
            return solved[0] - discount, solved[1], self.messages.forced
        target = self.incumbent.target + discount
        most_rows, most_sweeps = _MOST_ROWS * self.effort, _SWEEPS * self.effort
        grown = grow_tree(self.messages, target, self.watch, most_rows, most_sweeps, whole=False)
        if grown is None:
            return self.messages.bound - discount, self._pick(unary), self.messages.forced
        forced = np.minimum(grown.tree.find_marginals() + grown.constant, grown.target)
        if np.isfinite(grown.tree.optimum):
            return grown.optimum - discount, grown.tree.find_choice(), np.maximum(forced, self.messages.forced)
        return self.incumbent.target, self._pick(unary), forced

    def _mix(self) -> None:
        """Look for the best legal mixture of the choices seen: half the layers as in one, half as in another."""
        owner = np.repeat(np.arange(self.network.num_variables), self.network.sizes)
        keep = np.zeros(len(self.network.unary), dtype=np.bool_)
        for choice in self.cuts.choices:
            keep |= self.network.kept == np.array(choice)[owner]
        mixed = keep_candidates(self.network, keep)
        if mixed is not None:
            enumerate_legal(mixed, self.messages, self.best, self.incumbent, self.watch, QUICK)

    def _pick(self, unary: FloatArray) -> IntArray:
        assignment = Assignment(self.network, self.messages.pick(is_forward=True), unary)
        assignment.descend()
        return assignment.choice

    def _shrink(self, keep: BoolArray) -> None:
        """Drop candidates that no better legal choice takes."""
        if keep.mean() < 0.9:
            pruned = keep_candidates(self.network, keep)
            if pruned is None:
                self.bound = max(self.bound, self.incumbent.target)
                return
            messages = MessagePassing(pruned)
            messages.copy_messages(self.messages)
            self.network, self.messages = pruned, messages


def _climb_by_cuts(state: _State) -> None:
    cap = 10.0 * max(abs(state.cuts.costs[0]), 1e-12)
    for _ in range(_MOST_PRICINGS):
        scaled, height = state.cuts.find_peak(cap)
        gap = state.incumbent.target - state.bound
        if height - state.bound <= max(1e-9 * abs(height), _LEAST_GAIN * gap if np.isfinite(gap) else 0.0):
            return
        if state.watch.is_over():
            return
        if (scaled >= cap).any() and cap < 1e9 * max(abs(state.cuts.costs[0]), 1e-12):
            cap *= 10.0
        _, is_new = state.evaluate(scaled)
        if state.bound >= state.incumbent.target:
            return
        if not is_new:
            # The same peak comes up again: messages have not settled there, or their bound has a gap of its own.
            state.effort *= 2
            if state.effort > _MOST_EFFORT:
                return


def _climb_by_steps(state: _State) -> None:
    """Polyak steps along the subgradient, halved where the bound does not grow."""
    scaled = np.zeros(len(state.network.limits))
    pace = 1.0
    for _ in range(3 * _MOST_PRICINGS):
        before = state.bound
        over, _ = state.evaluate(scaled)
        if state.bound >= state.incumbent.target or state.watch.is_over() or pace < 1e-3:
            return
        if state.bound <= before + 1e-6 * abs(before):
            pace *= 0.7
            scaled = state.best * state.cuts.scale
        goal = state.incumbent.objective if state.incumbent.choice else abs(state.bound) * 1.1 + 1e-12
        length = float(over @ over)
        if length == 0.0:
            return
        scaled = np.maximum(0.0, scaled + pace * max(goal - state.bound, 1e-9 * abs(goal)) / length * over)


def _intersect(costs: FloatArray, over: FloatArray, cap: float) -> list[FloatArray]:
    """Points in [0, cap]^rows where as many planes (or sides of the box) meet as it takes to fix one."""
    rows = over.shape[1]
    if rows == 1:
        first, second = np.triu_indices(len(costs), 1)
        slopes = over[first, 0] - over[second, 0]
        at = (costs[second] - costs[first])[slopes != 0.0] / slopes[slopes != 0.0]
        return [np.array([x]) for x in at[(at > 0.0) & (at < cap)]]
    recent = list(range(len(costs)))[-_CUTS_COMBINED:]
    found: list[FloatArray] = []
    for i, j, k in itertools.combinations(recent, 3):
        matrix = np.array([over[i] - over[j], over[i] - over[k]])
        if abs(np.linalg.det(matrix)) > 1e-14:
            found.append(np.linalg.solve(matrix, np.array([costs[j] - costs[i], costs[k] - costs[i]])))
    for i, j in itertools.combinations(recent, 2):
        for held, side in itertools.product((0, 1), (0.0, cap)):
            slope = float(over[i, 1 - held] - over[j, 1 - held])
            if slope != 0.0:
                point = np.full(2, side)
                point[1 - held] = (costs[j] - costs[i] + side * (over[j, held] - over[i, held])) / slope
                found.append(point)
    return [p for p in found if (p >= 0.0).all() and (p <= cap).all()]
