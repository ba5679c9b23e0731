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
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import IntArray, Network, keep_candidates
from alpaviz.intra.solvers.search import Assignment
from alpaviz.intra.solvers.watch import Watch

_MOST_PRICINGS = 40
_ENTRIES_TO_ELIMINATE = 3e5
_MOST_ROUNDS = 12
_CUTS_COMBINED = 14
_MOST_EFFORT = 8


@dataclass(frozen=True, slots=True, eq=False)
class Pricing:
    """Best multipliers found: `bound` holds for every legal choice of the network that `network` is a part of.

    `seen` are the choices met on the way, over and under the limits, in the problem's indices.
    """

    network: Network
    multipliers: FloatArray
    bound: float
    seen: tuple[tuple[int, ...], ...]


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
    return Pricing(state.network, state.best, state.bound, tuple(cuts.choices))


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

    def evaluate(self, scaled: FloatArray, ceiling: float) -> tuple[FloatArray, bool]:
        """Bound at multipliers `scaled`; `ceiling` is what cuts allow at most.

        Returns how far the cheapest choice found is over each limit (scaled), and whether its plane is new.
        """
        multipliers = scaled / self.cuts.scale
        unary = self.network.unary + multipliers @ self.network.usage
        discount = float(multipliers @ self.network.limits)
        plan = plan_elimination(self.network, _ENTRIES_TO_ELIMINATE)
        solved = None if plan is None else eliminate(self.network, plan, unary)
        if solved is not None:
            bound, choice = solved[0] - discount, solved[1]
        else:
            bound, choice = self._pass_messages(unary, discount, ceiling)
        if bound > self.bound:
            self.bound, self.best = bound, multipliers
        self.watch.report(self.incumbent.objective, min(self.bound, self.incumbent.objective))
        over = (self.network.measure_memory(choice) - self.network.limits) / self.cuts.scale
        is_new = self.note_choice(choice)
        self.mend(choice)
        if plan is None:
            self._shrink(discount)
        return over, is_new

    def _pass_messages(self, unary: FloatArray, discount: float, ceiling: float) -> tuple[float, IntArray]:
        self.messages.set_unary(unary)
        best_choice, best_cost, before = np.zeros(0, np.int64), np.inf, -np.inf
        for i in range(_MOST_ROUNDS * self.effort):
            self.messages.run(2)
            assignment = Assignment(self.network, self.messages.pick(is_forward=True), unary)
            assignment.descend()
            cost = assignment.price() - discount
            if cost < best_cost:
                best_cost, best_choice = cost, assignment.choice
            bound = self.messages.bound - discount
            close = 1e-7 * abs(best_cost)
            if best_cost - bound <= close or bound >= self.incumbent.target or self.watch.is_over():
                break
            if i >= 2 and bound - before < 0.05 / self.effort * (min(best_cost, ceiling) - bound):
                break
            before = bound
        return self.messages.bound - discount, best_choice

    def _shrink(self, discount: float) -> None:
        """Drop candidates that no better legal choice takes."""
        target = self.incumbent.target
        keep = self.messages.forced - discount < target
        if keep.mean() < 0.8:
            pruned = keep_candidates(self.network, keep)
            if pruned is None:
                self.bound = max(self.bound, target)
                return
            messages = MessagePassing(pruned)
            messages.copy_messages(self.messages)
            self.network, self.messages = pruned, messages


def _climb_by_cuts(state: _State) -> None:
    cap = 10.0 * max(abs(state.cuts.costs[0]), 1e-12)
    for _ in range(_MOST_PRICINGS):
        scaled, height = state.cuts.find_peak(cap)
        if height - state.bound <= 1e-9 * abs(height) or state.watch.is_over():
            return
        if (scaled >= cap).any() and cap < 1e9 * max(abs(state.cuts.costs[0]), 1e-12):
            cap *= 10.0
        _, is_new = state.evaluate(scaled, height)
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
        over, _ = state.evaluate(scaled, np.inf)
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
