"""Min-marginals: for each candidate the optimum among choices that take it. The difference to the optimum is regret.

Where tables stay small one pass up and down the tree of buckets gives all of them at once. Elsewhere each candidate is
forced in turn; the bounds of one run of messages then say which other candidates can matter, and few can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from alpaviz.errors import SolveCancelledError
from alpaviz.intra.problem import FloatArray, ShardingProblem, ShardingSolution
from alpaviz.intra.solvers.dominance import drop_dominated
from alpaviz.intra.solvers.elimination import complete_buckets, eliminate, find_min_marginals, plan_elimination
from alpaviz.intra.solvers.exact import solve_exact
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import BoolArray, IntArray, Network, build_network, keep_candidates
from alpaviz.intra.solvers.pairwise import close_gap, where_kept
from alpaviz.intra.solvers.search import Assignment
from alpaviz.intra.solvers.watch import Watch

_TREE_ENTRIES = 5e6
_FORCED_ENTRIES = 1e6
TOLERANCE = 1e-10
"""Relative gap up to which a forced optimum counts as proven."""
_SWEEPS = 30


@dataclass(frozen=True, slots=True, eq=False)
class ForcedOptima:
    """Optima of one variable's candidates, each forced in turn; arrays are (candidates,).

    `objective` is the cost of the best choice found that takes the candidate, inf where none is legal; `bound` a proven
    lower limit on it, equal to it up to `TOLERANCE` unless the time limit or the size of the problem left a gap.
    """

    objective: FloatArray
    bound: FloatArray

    @property
    def is_exact(self) -> BoolArray:
        """(candidates,), whether `objective` is proven to be the optimum, or that there is none."""
        exact: BoolArray = self.bound >= np.where(
            np.isfinite(self.objective), self.objective - 2 * TOLERANCE * np.abs(self.objective), np.inf
        )
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
        return tuple(ForcedOptima(values, values.copy()) for values in nothing)
    start = network.find_choice(solution.choice)
    assert start is not None, "a solution takes legal candidates only"
    watch = Watch("marginals", time_limit, None, should_stop)
    values, bounds = _find_values(network, start, wanted, watch)
    found = []
    for v in wanted:
        forced = ForcedOptima(np.full(len(problem.unary[v]), np.inf), np.full(len(problem.unary[v]), np.inf))
        candidates = slice(int(network.offsets[v]), int(network.offsets[v + 1]))
        kept = network.kept[candidates]
        forced.objective[kept] = np.where(values[candidates] > network.ceiling, np.inf, values[candidates])
        forced.bound[kept] = np.where(bounds[candidates] >= network.ceiling, np.inf, bounds[candidates])
        chosen = solution.choice[v]
        forced.objective[chosen], forced.bound[chosen] = solution.objective, min(solution.bound, solution.objective)
        found.append(forced)
    return tuple(found)


def _find_values(network: Network, start: IntArray, wanted: list[int], watch: Watch) -> tuple[FloatArray, FloatArray]:
    """(candidates of all variables,) twice: forced optima of the candidates of `wanted`, and bounds on them."""
    has_limits = len(network.limits) > 0
    plan = None if has_limits else plan_elimination(network, _TREE_ENTRIES)
    if plan is not None:
        values = find_min_marginals(network, complete_buckets(network, plan))
        return values, values
    messages = MessagePassing(network)
    for _ in range(_SWEEPS):
        messages.run(1)
        _stop_if(watch)
    values, bounds = np.full(len(network.unary), np.inf), messages.forced.copy()
    unbeaten = np.zeros(len(network.unary), dtype=np.bool_)
    unbeaten[where_kept(network, drop_dominated(network, with_memory=has_limits))] = True
    unbeaten[network.offsets[:-1] + start] = True
    for v in wanted:
        candidates = slice(int(network.offsets[v]), int(network.offsets[v + 1]))
        around, hints = _keep_all_of(network, v, unbeaten, messages)
        near = around.find_choice(network.name_choice(start))
        assert near is not None, "the solution is kept"
        for k in range(int(network.sizes[v])):
            if watch.is_over():
                break
            at = candidates.start + k
            values[at], bounds[at] = _force(around, v, k, near, hints, watch)
            _stop_if(watch)
    return values, bounds


def _keep_all_of(
    network: Network, v: int, unbeaten: BoolArray, messages: MessagePassing
) -> tuple[Network, MessagePassing]:
    """`network` with every candidate of `v` but only the unbeaten ones of the others, and its messages.

    Whatever `v` takes, one that beats another does so still.
    """
    keep = unbeaten.copy()
    keep[network.offsets[v] : network.offsets[v + 1]] = True
    around = keep_candidates(network, keep)
    assert around is not None, "a candidate of each variable is unbeaten"
    hints = MessagePassing(around)
    hints.copy_messages(messages)
    hints.run(2)
    return around, hints


def _force(
    network: Network, v: int, k: int, start: IntArray, messages: MessagePassing, watch: Watch
) -> tuple[float, float]:
    """Optimum among choices that take candidate `k` of variable `v`, and a bound on it.

    The cheapest choice without memory limits is the answer if it happens to keep them.
    """
    free, bound = _force_freely(network, v, k, start, messages, watch)
    if len(network.limits) == 0 or not free.choice or watch.is_over():
        return free.objective if len(network.limits) == 0 else np.inf, bound
    named = network.find_choice(free.choice)
    assert named is not None, "the network keeps all legal candidates"
    if Assignment(network, named).is_legal():
        return free.objective, bound
    result = solve_exact(_hold(network, v, k), watch, TOLERANCE, network.name_choice(_place(start, v, k)))
    is_closed = result.open_network is None
    limited = result.incumbent.objective if result.incumbent.choice else np.inf
    return limited, limited if is_closed else max(bound, result.bound)


def _force_freely(
    network: Network, v: int, k: int, start: IntArray, messages: MessagePassing, watch: Watch
) -> tuple[Incumbent, float]:
    """The same for the pairwise costs alone, memory not looked at."""
    alone = _hold(network, v, k)
    incumbent = Incumbent(network.ceiling, TOLERANCE)
    held = alone.find_choice(network.name_choice(_place(start, v, k)))
    assert held is not None, "only candidates of one variable were dropped"
    assignment = Assignment(alone, held)
    assignment.descend()
    incumbent.offer(alone, assignment.choice)
    hopeful = messages.forced < incumbent.target
    hopeful[network.offsets[v] : network.offsets[v + 1]] = False
    hopeful[network.offsets[v] + k] = True
    pruned = keep_candidates(network, hopeful)
    if pruned is None:
        return incumbent, incumbent.objective
    plan = plan_elimination(pruned, _FORCED_ENTRIES)
    if plan is None:
        pruned = drop_dominated(pruned, with_memory=False)
        plan = plan_elimination(pruned, _FORCED_ENTRIES)
    solved = None if plan is None else eliminate(pruned, plan, watch=watch)
    if solved is not None:
        incumbent.offer(pruned, solved[1])
        return incumbent, incumbent.objective
    bound = close_gap(pruned, incumbent, watch, messages)
    return incumbent, incumbent.objective if bound >= incumbent.target else bound


def _hold(network: Network, v: int, k: int) -> Network:
    keep = np.ones(len(network.unary), dtype=np.bool_)
    keep[network.offsets[v] : network.offsets[v + 1]] = False
    keep[network.offsets[v] + k] = True
    held = keep_candidates(network, keep)
    assert held is not None, "one candidate of the variable stays"
    return held


def _place(choice: IntArray, v: int, k: int) -> IntArray:
    placed = choice.copy()
    placed[v] = k
    return placed


def _stop_if(watch: Watch) -> None:
    if watch.is_over() and watch.is_cancelled:
        raise SolveCancelledError("the search for regrets was stopped")
