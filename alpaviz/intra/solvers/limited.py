"""Exact optimum under memory limits: price the bytes, prune by the price, enumerate what is left within the gap."""

from __future__ import annotations

from alpaviz.intra.solvers.dominance import drop_dominated
from alpaviz.intra.solvers.enumeration import THOROUGH, enumerate_legal
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.lagrange import price_memory
from alpaviz.intra.solvers.network import IntArray, Network
from alpaviz.intra.solvers.watch import Watch


def close_limited_gap(
    network: Network, incumbent: Incumbent, watch: Watch, start: IntArray
) -> tuple[float, Network | None]:
    """Improve `incumbent` to the optimum under memory limits; `start` is the cheapest choice without limits.

    Returns a bound on every legal choice, and the network that a better choice must be in: None once there is none.
    The bound stays below `incumbent.target` where time or table sizes leave a gap; then `incumbent` may be empty.
    """
    left = drop_dominated(network, with_memory=True)
    named = left.find_choice(network.name_choice(start))
    pricing = price_memory(network if named is None else left, incumbent, watch, start if named is None else named)
    bound = min(pricing.bound, incumbent.target)
    if bound < incumbent.target and not watch.is_over():
        found = enumerate_legal(pricing.network, pricing.messages, pricing.multipliers, incumbent, watch, THOROUGH)
        bound = min(max(bound, found), incumbent.target)
    return bound, None if bound >= incumbent.target else pricing.network
