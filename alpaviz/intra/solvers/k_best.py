"""The k cheapest choices of a sharding problem: what else could be done, and what it would cost.

First all choices that can be cheap enough are laid out in sparse tables and the k best read from them, which settles
the planner's own problems in a fraction of a solve or a few. Where the tables grow too large, the space is partitioned
around each choice found: part i agrees with it on the first i variables and differs on the next, and each part is
solved anew, only once its bound says that it may hold one of the k.

Source of the partition: Lawler, A procedure for computing the k best solutions to discrete optimization problems, 1972.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from alpaviz.errors import SolverError
from alpaviz.intra.problem import FloatArray, ShardingProblem, ShardingSolution, SolveStatus
from alpaviz.intra.solvers.exact import solve_exact
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.k_labels import CheapestSearch
from alpaviz.intra.solvers.lagrange import price_memory
from alpaviz.intra.solvers.large.rows import spell_out_small
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import BoolArray, IntArray, Network, build_network, keep_candidates
from alpaviz.intra.solvers.pairwise import close_gap
from alpaviz.intra.solvers.search import Assignment
from alpaviz.intra.solvers.shortlist import Shortlist, offer_forced, offer_neighbours
from alpaviz.intra.solvers.solve import solve_problem
from alpaviz.intra.solvers.sparse import GrownTree, TreeGrower, grow_tree
from alpaviz.intra.solvers.watch import Watch

_TOLERANCE = 1e-12
_PROVEN = 1e-9
"""Relative gap up to which a choice counts as proven; that of `solve_problem`."""
_SHARES = (1.0 / 64.0, 1.0 / 16.0, 1.0 / 4.0, 1.0)
_MOST_ROWS = 200_000
_SWEEPS_A_ROUND = 10
_MOST_ROUNDS = 8
_MOST_LABELS = 400_000
_ROWS_OF_A_PART = 20_000
_SWEEPS = 16
_SECONDS_FOR_OPEN_GAPS = 10.0
"""What the partition gets where there is no time limit and the solver left a gap, which may never close."""


def find_best_choices(
    problem: ShardingProblem,
    count: int,
    *,
    best: ShardingSolution | None = None,
    differ_in: Iterable[int] | None = None,
    time_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[ShardingSolution, ...]:
    """The `count` cheapest legal choices, cheapest first; fewer where there are no more, none where none is legal.

    The i-th solution's `bound` holds for the i-th cheapest choice there is, and it is OPTIMAL where that is as cheap as
    itself. Choices of equal cost are listed in order of their candidates; which of them are listed, where they do not
    all fit, is the same from run to run. When time is up or `should_stop` gives True, what is known by then is
    listed, as FEASIBLE where something cheaper may be missing.

    Args:
        best: a solution of `problem`, if there is one already; saves a solve.
        differ_in: variables that matter. Choices that agree on all of them count as one, shown by its cheapest form.
        time_limit: seconds of wall time.

    Raises:
        SolverError: a malformed problem, a memory profile too large for rows, or `differ_in` names no variable.
    """
    problem = spell_out_small(problem)
    watch = Watch("k best", time_limit, None, should_stop)
    differs = _mark(problem, differ_in)
    if best is None:
        left = None if time_limit is None else max(0.0, watch.seconds_left)
        best = solve_problem(problem, time_limit=left, should_stop=should_stop)
    network = build_network(problem)
    if count < 1 or network is None or not best.choice:
        is_empty = problem.num_variables == 0 and best.status is SolveStatus.OPTIMAL
        return (best,) if is_empty and count >= 1 else ()
    shortlist = Shortlist(network.ceiling, _TOLERANCE, count, differs)
    start = network.find_choice(best.choice)
    assert start is not None, "a solution takes legal candidates only"
    shortlist.offer(network, start)
    offer_neighbours(network, shortlist)
    if not differs.all():
        offer_forced(network, shortlist, differs, start)
    tables = _Tables(network, shortlist, watch, count, differs)
    bound = tables.fill()
    if bound < shortlist.target and not watch.is_over():
        has_gap = best.objective - best.bound > _PROVEN * abs(best.objective)
        part_watch = watch.take(_SECONDS_FOR_OPEN_GAPS) if has_gap and time_limit is None else watch
        bound = max(bound, _Partition(tables, differs, shortlist, part_watch).run(bound, best.choice))
    return _word(problem, shortlist, max(bound, best.bound), watch)


def _mark(problem: ShardingProblem, differ_in: Iterable[int] | None) -> BoolArray:
    differs = np.full(problem.num_variables, differ_in is None)
    for v in differ_in or ():
        if not 0 <= v < problem.num_variables:
            raise SolverError(f"differ_in has variable {v}; the problem has variables 0 to {problem.num_variables - 1}")
        differs[v] = True
    return differs


def _word(problem: ShardingProblem, shortlist: Shortlist, bound: float, watch: Watch) -> tuple[ShardingSolution, ...]:
    """`bound` holds for every choice that is not on the list, so the i-th best costs that or what is listed i-th."""
    listed = sorted((problem.price(choice), choice) for choice in shortlist.choices)
    solutions = []
    for objective, choice in listed:
        is_proven = objective - bound <= _PROVEN * abs(objective)
        status = SolveStatus.OPTIMAL if is_proven else SolveStatus.FEASIBLE
        least = objective if is_proven else bound
        solutions.append(ShardingSolution(status, choice, objective, least, "k best", watch.seconds))
    return tuple(solutions)


class _Tables:
    """The k best from sparse tables, memory priced where it binds; `network` shrinks to what can still be of use.

    `messages` are those of `network` with memory priced; a bound of theirs less `discount` holds without.
    """

    def __init__(self, network: Network, shortlist: Shortlist, watch: Watch, count: int, differs: BoolArray) -> None:
        self.network, self._shortlist, self._watch = network, shortlist, watch
        self._count, self._differs = count, differs
        self._multipliers: FloatArray = np.zeros(len(network.limits))
        self.discount = 0.0
        self.messages = MessagePassing(network)

    def fill(self) -> float:
        """Fill the list; returns a bound on the choices that are not on it, as far as that got."""
        bound = self._price()
        self._converge()
        for share in _SHARES:
            # Small shares first: they are cheap, and what they find tells how little the next must hold.
            low, high = self.messages.bound - self.discount, self._shortlist.target
            bound = max(bound, min(low, high))
            if self._watch.is_over() or bound >= high:
                break
            grown = self._grow(low + share * (high - low))
            if grown is None or not self._list_from(grown):
                break
            bound = max(bound, min(grown.target - self.discount, self._shortlist.target))
        return bound

    def _price(self) -> float:
        """Find prices of memory where it binds; returns a bound on all choices."""
        network, watch = self.network, self._watch
        if len(network.limits) == 0:
            return -np.inf
        free = Incumbent(network.ceiling, _TOLERANCE)
        bound = close_gap(network, free, watch)
        unlimited = network.find_choice(free.choice) if free.choice else None
        if unlimited is None or watch.is_over() or Assignment(network, unlimited).is_legal():
            return bound
        pricing = price_memory(network, self._shortlist, watch, unlimited)
        self.network, self._multipliers = pricing.network, pricing.multipliers
        self.discount = float(pricing.multipliers @ pricing.network.limits)
        self.messages = MessagePassing(pricing.network)
        self.messages.copy_messages(pricing.messages)
        self.messages.set_unary(pricing.network.unary + pricing.multipliers @ pricing.network.usage)
        return max(bound, pricing.bound)

    def _converge(self) -> None:
        """Sweep until the bound hardly moves: tables are as small as the messages are good."""
        before = -np.inf
        for _ in range(_MOST_ROUNDS):
            self.messages.run(_SWEEPS_A_ROUND)
            gap = self._shortlist.target + self.discount - self.messages.bound
            if self._watch.is_over() or self.messages.bound - before <= 0.01 * gap:
                return
            before = self.messages.bound

    def _grow(self, target: float) -> GrownTree | None:
        grower = TreeGrower(self.messages, whole=True)
        return grower.attempt(target + self.discount, _MOST_ROWS, self._watch)

    def _list_from(self, grown: GrownTree) -> bool:
        """Offer the cheapest choices of the tables; False where there are too many to look at."""
        if not np.isfinite(grown.tree.optimum):
            return True
        search = CheapestSearch(grown.tree, self._multipliers, self._count, self._differs, _MOST_LABELS)
        found = search.run(grown.target - grown.constant - grown.tree.optimum, self._watch)
        for choice in found or ():
            self._shortlist.offer(self.network, choice)
        return found is not None


@dataclass(order=True, slots=True)
class _Part:
    """A part of the space: candidates allowed, and a bound on its choices. `choice` is its cheapest, once solved."""

    bound: float
    number: int
    allowed: BoolArray = field(compare=False)
    choice: IntArray | None = field(compare=False, default=None)


class _Partition:
    """Lawler's search: the part with the least bound is solved, or split around its cheapest choice if it has been."""

    def __init__(self, tables: _Tables, differs: BoolArray, shortlist: Shortlist, watch: Watch) -> None:
        self._network, self._messages, self._discount = tables.network, tables.messages, tables.discount
        self._shortlist, self._watch = shortlist, watch
        self._places = [int(v) for v in np.flatnonzero(differs)]
        self._numbers = itertools.count()
        self._queue: list[_Part] = []

    def run(self, bound: float, start: tuple[int, ...]) -> float:
        """Fill the list; returns a bound on all choices that are not on it. `bound` is known, `start` the optimum."""
        everything = np.ones(len(self._network.unary), dtype=np.bool_)
        self._push(bound, everything, self._network.find_choice(start))
        stuck = np.inf
        while self._queue:
            part = self._queue[0]
            if part.bound >= self._shortlist.target:
                break
            if self._watch.is_over():
                return min(stuck, part.bound)
            heapq.heappop(self._queue)
            if part.choice is not None:
                self._split(part, part.choice)
            elif not self._solve(part):
                stuck = min(stuck, part.bound)
        return min(stuck, self._shortlist.target)

    def _push(self, bound: float, allowed: BoolArray, choice: IntArray | None = None) -> None:
        if bound < self._shortlist.target:
            heapq.heappush(self._queue, _Part(bound, next(self._numbers), allowed, choice))

    def _split(self, part: _Part, choice: IntArray) -> None:
        """Parts that agree with `choice` on some of the variables that matter, and differ on the next."""
        offsets = self._network.offsets
        agreed = part.allowed.copy()
        for v in self._places:
            candidates = slice(int(offsets[v]), int(offsets[v + 1]))
            taken = int(offsets[v] + choice[v])
            allowed = agreed.copy()
            allowed[taken] = False
            if allowed[candidates].any():
                forced = self._messages.forced[candidates][allowed[candidates]]
                self._push(max(part.bound, float(forced.min()) - self._discount), allowed)
            agreed[candidates] = False
            agreed[taken] = True

    def _solve(self, part: _Part) -> bool:
        """Find the part's cheapest choice; False where that leaves open whether it has any."""
        useful = part.allowed & (self._messages.forced - self._discount < self._shortlist.target)
        alone = keep_candidates(self._network, useful)
        if alone is None:
            return True
        bound, objective, named = self._find_cheapest(alone)
        if not named:
            return bound >= self._shortlist.target
        choice = self._network.find_choice(named)
        assert choice is not None, "a part's candidates are the network's"
        self._shortlist.offer(self._network, choice)
        self._push(max(part.bound, min(bound, objective)), part.allowed, choice)
        return True

    def _find_cheapest(self, alone: Network) -> tuple[float, float, tuple[int, ...]]:
        """Bound, cost and candidates of a part's cheapest choice; nothing is said of choices that are of no use."""
        target = self._shortlist.target
        if len(alone.limits) == 0 and np.isfinite(target):
            messages = MessagePassing(alone)
            messages.copy_messages(self._messages)
            grown = grow_tree(messages, target, self._watch, min(_MOST_ROWS, _ROWS_OF_A_PART), _SWEEPS, whole=False)
            if grown is None and messages.bound >= target:
                return target, np.inf, ()
            if grown is not None and np.isfinite(grown.tree.optimum):
                choice = grown.tree.find_choice()
                objective = alone.price(choice)
                return objective, objective, alone.name_choice(choice)
            if grown is not None:
                return grown.target, np.inf, ()
        result = solve_exact(alone, self._watch, _TOLERANCE)
        incumbent = result.incumbent
        if not incumbent.choice:
            return (np.inf if result.open_network is None else result.bound), np.inf, ()
        bound = incumbent.objective if result.open_network is None else result.bound
        return bound, incumbent.objective, incumbent.choice
