"""Exact optimum of the pairwise costs alone: bound by messages, drop what cannot be better, eliminate or branch.

On the planner's problems messages nearly always close the gap themselves; bucket elimination on the candidates left
closes what remains, and branching is for graphs that are dense and frustrated at once.
"""

from __future__ import annotations

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.dominance import drop_dominated
from alpaviz.intra.solvers.elimination import eliminate, plan_elimination
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.messages import MessageMemo, MessagePassing
from alpaviz.intra.solvers.network import IntArray, Network, keep_candidates
from alpaviz.intra.solvers.search import Assignment
from alpaviz.intra.solvers.sparse import GrownTree, TreeGrower
from alpaviz.intra.solvers.watch import Watch

_ENTRIES_AT_ONCE = 2e4
"""Tables of fewer entries take less time than looking for dominated candidates."""
_FIRST_ENTRIES = 2e5
_MOST_ENTRIES = 2e7
_ENTRIES_BEFORE_BRANCHING = 6e8
_LARGEST_TABLE = 3e7
_GAP_WORTH_A_DESCENT = 1e-3
_SWEEPS_A_ROUND = 4
_SWEEPS_A_TRY = 32
_ROWS_PER_SWEEP = 300
_SWEEPS_BEFORE_GIVING_UP = 32
_MOST_ROWS = 20_000


def close_gap(
    network: Network,
    incumbent: Incumbent,
    watch: Watch,
    parent: MessagePassing | None = None,
    memo: MessageMemo | None = None,
) -> float:
    """Improve `incumbent` to the optimum of `network`, memory not looked at; returns a bound on its choices.

    `parent` has messages to start from, of this network or of one of which it is a part; those of `memo` are of an
    earlier solve.

    The bound is below `incumbent.target` only if the watch stopped the work. It never exceeds the optimum of `network`
    except where that is above the target.
    """
    if parent is not None and parent.network is network:
        messages = parent
    else:
        messages = MessagePassing(network)
        if parent is not None:
            messages.copy_messages(parent)
    memo = MessageMemo() if memo is None else memo
    messages.load_messages(memo.start)
    memo.passes.append(messages)
    grower = TreeGrower(messages)
    entries, proven, sweeps, least = _FIRST_ENTRIES, -np.inf, 0, len(network.unary)
    while True:
        stalled = _run_round(messages, network, incumbent, watch)
        sweeps += _SWEEPS_A_ROUND
        proven = max(proven, messages.bound)
        watch.report(incumbent.objective, min(proven, incumbent.objective))
        if watch.is_over() and not incumbent.choice:
            incumbent.offer(network, messages.pick(is_forward=True))
        if proven >= incumbent.target or watch.is_over():
            return proven
        if incumbent.choice and sweeps % _SWEEPS_A_TRY == 0:
            grown = grower.attempt(incumbent.target, min(_MOST_ROWS, _ROWS_PER_SWEEP * sweeps), watch)
            if grown is not None:
                return max(proven, _accept(grown, network, incumbent))
        pruned = keep_candidates(network, messages.forced < incumbent.target)
        if pruned is None:
            return incumbent.target
        stalled = stalled and sweeps >= _SWEEPS_BEFORE_GIVING_UP
        plan = plan_elimination(pruned, _ENTRIES_AT_ONCE)
        if plan is None and (stalled or len(pruned.unary) < 0.6 * least):
            pruned = drop_dominated(pruned, with_memory=False)
            least = len(pruned.unary)
        if plan is None:
            plan = plan_elimination(pruned, _ENTRIES_BEFORE_BRANCHING if stalled else entries)
        if plan is not None and plan.largest <= _LARGEST_TABLE:
            solved = eliminate(pruned, plan, watch=watch)
            if solved is None:
                return proven
            target = incumbent.target
            incumbent.offer(pruned, solved[1])
            return max(proven, min(target, solved[0]))
        if len(pruned.unary) < 0.6 * len(network.unary):
            shrunk = MessagePassing(pruned)
            shrunk.copy_messages(messages)
            network, messages, grower = pruned, shrunk, TreeGrower(shrunk)
            memo.passes.append(messages)
        elif stalled:
            return _branch(pruned, messages, network, incumbent, watch, proven)
        entries = min(_MOST_ENTRIES, entries * 2.0)


def _accept(grown: GrownTree, network: Network, incumbent: Incumbent) -> float:
    """Offer the tree's optimum; returns the bound that the tree proves."""
    if np.isfinite(grown.tree.optimum):
        target = incumbent.target
        incumbent.offer(network, grown.tree.find_choice())
        return min(target, grown.optimum)
    return grown.target


def _run_round(messages: MessagePassing, network: Network, incumbent: Incumbent, watch: Watch) -> bool:
    """Some sweeps and a choice from them; whether the bound hardly moved."""
    before = messages.bound
    for i in range(_SWEEPS_A_ROUND):
        is_forward = i % 2 == 0
        messages.sweep(is_forward=is_forward)
        if messages.bound >= incumbent.target or watch.is_over():
            return False
    picked = messages.pick(is_forward=True)
    incumbent.offer(network, picked)
    if incumbent.objective - messages.bound > _GAP_WORTH_A_DESCENT * abs(messages.bound):
        offer_descent(network, picked, incumbent)
    gap = incumbent.target - messages.bound
    return bool(np.isfinite(before)) and messages.bound - before < 0.02 * gap


def offer_descent(network: Network, choice: IntArray, incumbent: Incumbent) -> None:
    """Offer what local search makes of `choice`."""
    assignment = Assignment(network, choice)
    assignment.descend()
    incumbent.offer(network, assignment.choice)


def _branch(
    pruned: Network, messages: MessagePassing, network: Network, incumbent: Incumbent, watch: Watch, proven: float
) -> float:
    """Bound after solving `pruned` once per candidate of one variable, the most promising candidate first."""
    shrunk = MessagePassing(pruned)
    shrunk.copy_messages(messages)
    forced = messages.forced[np.isin(np.arange(len(network.unary)), where_kept(network, pruned))]
    variable = _pick_branching(pruned, forced)
    start, end = int(pruned.offsets[variable]), int(pruned.offsets[variable + 1])
    bound = incumbent.target
    for k in np.argsort(forced[start:end], kind="stable"):
        hope = max(proven, float(forced[start + k]))
        if hope >= incumbent.target:
            continue
        if watch.is_over():
            bound = min(bound, hope)
            continue
        keep = np.ones(len(pruned.unary), dtype=np.bool_)
        keep[start:end] = False
        keep[start + k] = True
        child = keep_candidates(pruned, keep)
        assert child is not None, "one candidate of the variable stays"
        bound = min(bound, max(hope, close_gap(child, incumbent, watch, shrunk)))
    return bound


def where_kept(network: Network, pruned: Network) -> IntArray:
    """Flat indices in `network` of the candidates that `pruned` keeps."""
    found = [
        network.offsets[v]
        + np.searchsorted(
            network.kept[network.offsets[v] : network.offsets[v + 1]],
            pruned.kept[pruned.offsets[v] : pruned.offsets[v + 1]],
        )
        for v in range(network.num_variables)
    ]
    return np.concatenate(found)


def _pick_branching(network: Network, forced: FloatArray) -> int:
    """The variable with the most neighbours among those still open, more candidates breaking ties."""
    degree = np.zeros(network.num_variables)
    for e in network.edges:
        if network.sizes[e.u] > 1 and network.sizes[e.v] > 1:
            degree[e.u] += 1
            degree[e.v] += 1
    score = np.where(network.sizes > 1, degree * np.log(network.sizes) + 1e-6 * network.sizes, -1.0)
    return int(score.argmax())
