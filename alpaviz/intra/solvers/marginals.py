"""Min-marginals: for each candidate the optimum among choices that take it. The difference to the optimum is regret.

Where tables stay small one pass up and down the tree of buckets gives all of them at once. Elsewhere each candidate is
forced in turn; the bounds of one run of messages then say which other candidates can matter, and few can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from alpaviz.errors import SolveCancelledError
from alpaviz.intra.problem import FloatArray, ShardingProblem, ShardingSolution
from alpaviz.intra.solvers.elimination import complete_buckets, eliminate, find_min_marginals, plan_elimination
from alpaviz.intra.solvers.exact import solve_exact
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import IntArray, Network, build_network, keep_candidates
from alpaviz.intra.solvers.pairwise import close_gap
from alpaviz.intra.solvers.search import Assignment
from alpaviz.intra.solvers.watch import Watch

_TREE_ENTRIES = 5e6
_FORCED_ENTRIES = 1e6
_TOLERANCE = 1e-10
_SWEEPS = 30


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
    wanted = list(range(problem.num_variables)) if variables is None else list(variables)
    network = build_network(problem)
    found = [np.full(len(problem.unary[v]), np.inf) for v in wanted]
    if network is None or not solution.choice:
        return tuple(found)
    start = network.find_choice(solution.choice)
    assert start is not None, "a solution takes legal candidates only"
    values = _find_values(network, start, wanted, Watch("marginals", None, None, should_stop))
    for v, marginal in zip(wanted, found, strict=True):
        candidates = slice(int(network.offsets[v]), int(network.offsets[v + 1]))
        marginal[network.kept[candidates]] = np.where(values[candidates] > network.ceiling, np.inf, values[candidates])
        marginal[solution.choice[v]] = solution.objective
    return tuple(found)


def _find_values(network: Network, start: IntArray, wanted: list[int], watch: Watch) -> FloatArray:
    """(candidates of all variables,), forced optima of the candidates of `wanted`."""
    has_limits = len(network.limits) > 0
    plan = None if has_limits else plan_elimination(network, _TREE_ENTRIES)
    if plan is not None:
        return find_min_marginals(network, complete_buckets(network, plan))
    messages = MessagePassing(network)
    for _ in range(_SWEEPS):
        messages.run(1)
        _stop_if(watch)
    values = np.full(len(network.unary), np.inf)
    for v in wanted:
        for k in range(int(network.sizes[v])):
            _stop_if(watch)
            if has_limits:
                values[network.offsets[v] + k] = _force_legally(network, v, k, start, watch)
            else:
                values[network.offsets[v] + k] = _force(network, v, k, start, messages, watch)
            _stop_if(watch)
    return values


def _force(network: Network, v: int, k: int, start: IntArray, messages: MessagePassing, watch: Watch) -> float:
    """Optimum of the pairwise costs among choices that take candidate `k` of variable `v`."""
    alone = _hold(network, v, k)
    incumbent = Incumbent(network.ceiling, _TOLERANCE)
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
        return incumbent.objective
    plan = plan_elimination(pruned, _FORCED_ENTRIES)
    solved = None if plan is None else eliminate(pruned, plan)
    if solved is not None:
        return min(incumbent.objective, solved[0])
    close_gap(pruned, incumbent, watch, messages)
    return incumbent.objective


def _force_legally(network: Network, v: int, k: int, start: IntArray, watch: Watch) -> float:
    """The same under the memory limits."""
    named = network.name_choice(_place(start, v, k))
    return solve_exact(_hold(network, v, k), watch, _TOLERANCE, named).incumbent.objective


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
    if watch.is_over():
        raise SolveCancelledError("the search for regrets was stopped")
