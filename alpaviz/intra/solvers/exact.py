"""The "exact" method: message passing, pruning, elimination; memory by multipliers and enumeration. Only numpy."""

from __future__ import annotations

from dataclasses import dataclass

from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.limited import close_limited_gap
from alpaviz.intra.solvers.messages import MessageMemo
from alpaviz.intra.solvers.network import IntArray, Network
from alpaviz.intra.solvers.pairwise import close_gap, offer_descent
from alpaviz.intra.solvers.search import Assignment
from alpaviz.intra.solvers.watch import Watch


@dataclass(frozen=True, slots=True, eq=False)
class ExactResult:
    """Answer in the problem's candidate indices; `incumbent` may be empty. `bound` holds for every legal choice.

    `open_network` is what a better choice must be found in, where the gap is not closed; None where it is, or where
    there is nothing legal at all.
    """

    incumbent: Incumbent
    bound: float
    open_network: Network | None


def solve_exact(
    network: Network,
    watch: Watch,
    tolerance: float,
    warm_start: tuple[int, ...] | None = None,
    memo: MessageMemo | None = None,
) -> ExactResult:
    """Optimum of `network`, or the best found when `watch` says stop or memory leaves a gap."""
    free = Incumbent(network.ceiling, tolerance)
    start = None if warm_start is None else network.find_choice(warm_start)
    if start is not None:
        offer_descent(network, start, free)
    bound = close_gap(network, free, watch, memo=memo)
    if len(network.limits) == 0 or not free.choice:
        return ExactResult(free, bound, None if bound >= free.target else network)
    unlimited = network.find_choice(free.choice)
    assert unlimited is not None, "the first network keeps all legal candidates"
    if Assignment(network, unlimited).is_legal():
        return ExactResult(free, bound, None if bound >= free.target else network)
    limited = Incumbent(network.ceiling, tolerance)
    if start is not None:
        offer_legally(network, start, limited)
    bound = min(bound, free.objective)
    if watch.is_over():
        offer_legally(network, unlimited, limited)
        return ExactResult(limited, bound, network)
    closed, left = close_limited_gap(network, limited, watch, unlimited)
    return ExactResult(limited, max(bound, closed), left)


def offer_legally(network: Network, choice: IntArray, incumbent: Incumbent) -> None:
    """Offer `choice` mended to keep memory limits, where that can be done by single moves."""
    assignment = Assignment(network, choice)
    if assignment.repair():
        assignment.descend(legally=True, most_moves=100)
        incumbent.offer(network, assignment.choice)
