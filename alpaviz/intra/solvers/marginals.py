"""Min-marginals: for each candidate the optimum among choices that take it. The difference to the optimum is regret.

Where tables stay small one pass up and down the tree of buckets gives all of them at once. Elsewhere each candidate is
forced in turn: some sweeps of messages, from those of the free problem on, mostly find its optimum and prove it, and
what they leave open is solved on the candidates that their bounds leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from alpaviz.errors import SolveCancelledError
from alpaviz.intra.problem import FloatArray, ShardingProblem, ShardingSolution
from alpaviz.intra.solvers.dominance import find_unbeaten
from alpaviz.intra.solvers.elimination import complete_buckets, find_min_marginals, plan_elimination
from alpaviz.intra.solvers.exact import solve_exact
from alpaviz.intra.solvers.forcing import TOLERANCE, ForcedChoice, Forcing
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import BoolArray, IntArray, Network, build_network, keep_candidates
from alpaviz.intra.solvers.pairwise import close_gap, offer_descent
from alpaviz.intra.solvers.search import Assignment
from alpaviz.intra.solvers.watch import Watch

_TREE_ENTRIES = 5e6


@dataclass(frozen=True, slots=True, eq=False)
class ForcedOptima:
    """Optima of one variable's candidates, each forced in turn; arrays are (candidates,).

    `objective` is the cost of the best choice found that takes the candidate, inf where none is legal; `bound` a proven
    lower limit on it, equal to it up to `TOLERANCE` unless the time limit or the size of the problem left a gap.
    `choices` are those that cost `objective`, empty where only their cost is known.
    """

    objective: FloatArray
    bound: FloatArray
    choices: tuple[tuple[int, ...], ...]

    @property
    def is_exact(self) -> BoolArray:
        """(candidates,), whether `objective` is proven to be the optimum, or that there is none."""
        finite = np.isfinite(self.objective)
        slack = 2 * TOLERANCE * np.abs(np.where(finite, self.objective, 0.0))
        exact: BoolArray = self.bound >= np.where(finite, self.objective - slack, np.inf)
        return exact


def minimise_marginals(
    problem: ShardingProblem,
    solution: ShardingSolution,
    variables: Iterable[int] | None = None,
    *,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[FloatArray, ...]:
    """Per variable asked for (all where None), (candidates,): the optimum if the candidate is forced, inf if none.

    `solution` is a solution of `problem`; it speeds the work up and is the answer for the candidates that it takes.

    Raises:
        SolveCancelledError: `should_stop` gave True.
    """
    found = find_forced_optima(problem, solution, variables, should_stop=should_stop)
    return tuple(forced.objective for forced in found)


def find_forced_optima(
    problem: ShardingProblem,
    solution: ShardingSolution,
    variables: Iterable[int] | None = None,
    *,
    time_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> tuple[ForcedOptima, ...]:
    """`minimise_marginals` with proofs.

    Args:
        time_limit: seconds of wall time; candidates that are not reached by then keep what is known of them.

    Raises:
        SolveCancelledError: `should_stop` gave True.
    """
    wanted = list(range(problem.num_variables)) if variables is None else list(variables)
    network = build_network(problem)
    if network is None or not solution.choice:
        nothing = [np.full(len(problem.unary[v]), np.inf) for v in wanted]
        return tuple(ForcedOptima(values, values.copy(), ((),) * len(values)) for values in nothing)
    start = network.find_choice(solution.choice)
    assert start is not None, "a solution takes legal candidates only"
    watch = Watch("marginals", time_limit, None, should_stop)
    values, bounds, choices = _find_values(network, start, wanted, watch)
    found = []
    for v in wanted:
        chosen, size = solution.choice[v], len(problem.unary[v])
        candidates = slice(int(network.offsets[v]), int(network.offsets[v + 1]))
        kept = network.kept[candidates]
        named = {int(k): choices[at] for at, k in enumerate(kept, candidates.start) if at in choices}
        named[chosen] = solution.choice
        forced = ForcedOptima(
            np.full(size, np.inf), np.full(size, np.inf), tuple(named.get(k, ()) for k in range(size))
        )
        forced.objective[kept] = np.where(values[candidates] > network.ceiling, np.inf, values[candidates])
        forced.bound[kept] = np.where(bounds[candidates] >= network.ceiling, np.inf, bounds[candidates])
        forced.objective[chosen] = solution.objective
        forced.bound[chosen] = min(max(solution.bound, forced.bound[chosen]), solution.objective)
        found.append(forced)
    return tuple(found)


def _find_values(
    network: Network, start: IntArray, wanted: list[int], watch: Watch
) -> tuple[FloatArray, FloatArray, dict[int, tuple[int, ...]]]:
    """(candidates of all variables,) twice: forced optima of the candidates of `wanted`, and bounds on them.

    Beside them, by candidate, the choices that were found, as the problem names them.
    """
    has_limits = len(network.limits) > 0
    plan = None if has_limits else plan_elimination(network, _TREE_ENTRIES)
    if plan is not None:
        values = find_min_marginals(network, complete_buckets(network, plan))
        return values, values, {}
    unbeaten = find_unbeaten(network, with_memory=has_limits)
    unbeaten[network.offsets[:-1] + start] = True
    forcing = Forcing(network, unbeaten)
    values, bounds = np.full(len(network.unary), np.inf), np.full(len(network.unary), forcing.bound)
    choices: dict[int, tuple[int, ...]] = {}
    for v in wanted:
        around = _look_around(network, v, unbeaten, start, forcing)
        forced = forcing.hold(v)
        for k in range(int(network.sizes[v])):
            if watch.is_over():
                break
            at = int(network.offsets[v]) + k
            values[at], bounds[at], choices[at] = _force(around, k, forced.find(k), watch)
            _stop_if(watch)
    return values, bounds, choices


@dataclass(frozen=True, slots=True, eq=False)
class _Around:
    """Variable `v` among the unbeaten candidates of the others: whatever `v` takes, one that beats another does so.

    Attributes:
        whole: the network with all candidates.
        network: every candidate of `v`, but only the unbeaten ones of the others.
        start: a legal choice of `whole`, of unbeaten candidates.
    """

    whole: Network
    v: int
    network: Network
    start: IntArray
    forcing: Forcing

    def hold(self, k: int) -> Network:
        """`network` with one candidate of `v` only."""
        keep = np.ones(len(self.network.unary), dtype=np.bool_)
        keep[self.network.offsets[self.v] : self.network.offsets[self.v + 1]] = False
        keep[self.network.offsets[self.v] + k] = True
        held = keep_candidates(self.network, keep)
        assert held is not None, "one candidate of the variable stays"
        return held


def _look_around(network: Network, v: int, unbeaten: BoolArray, start: IntArray, forcing: Forcing) -> _Around:
    keep = unbeaten.copy()
    keep[network.offsets[v] : network.offsets[v + 1]] = True
    around = keep_candidates(network, keep)
    assert around is not None, "a candidate of each variable is unbeaten"
    return _Around(network, v, around, start, forcing)


def _force(around: _Around, k: int, forced: ForcedChoice, watch: Watch) -> tuple[float, float, tuple[int, ...]]:
    """Optimum among choices that take candidate `k` of the variable, a bound on it, and the choice (empty for none).

    The cheapest choice without memory limits is the answer if it happens to keep them.
    """
    whole = around.whole
    if forced.bound >= whole.ceiling:
        return np.inf, np.inf, ()
    if not forced.is_closed:
        forced = _force_freely(around, k, forced, watch)
    if len(whole.limits) == 0 or Assignment(whole, forced.choice).is_legal():
        return forced.cost, forced.bound, whole.name_choice(forced.choice)
    if watch.is_over():
        return np.inf, forced.bound, ()
    start = around.start.copy()
    start[around.v] = k
    result = solve_exact(around.hold(k), watch, TOLERANCE, whole.name_choice(start))
    is_closed = result.open_network is None
    limited = result.incumbent.objective if result.incumbent.choice else np.inf
    bound = limited if is_closed else max(forced.bound, result.bound)
    return limited, bound, tuple(result.incumbent.choice)


def _force_freely(around: _Around, k: int, forced: ForcedChoice, watch: Watch) -> ForcedChoice:
    """`forced` made the optimum of the pairwise costs alone, memory not looked at."""
    held = around.hold(k)
    incumbent = Incumbent(held.ceiling, TOLERANCE)
    choice = held.find_choice(around.whole.name_choice(forced.choice))
    assert choice is not None, "the choice takes candidate `k` and unbeaten ones"
    offer_descent(held, choice, incumbent)
    messages = MessagePassing(held)
    around.forcing.hand_over(around.v, forced.messages, messages)
    bound = close_gap(held, incumbent, watch, messages)
    found = around.whole.find_choice(incumbent.choice)
    assert found is not None, "the network keeps all legal candidates"
    proven = incumbent.objective if bound >= incumbent.target else max(bound, forced.bound)
    return ForcedChoice(incumbent.objective, proven, found, forced.messages)


def _stop_if(watch: Watch) -> None:
    if watch.is_over() and watch.is_cancelled:
        raise SolveCancelledError("the search for regrets was stopped")
