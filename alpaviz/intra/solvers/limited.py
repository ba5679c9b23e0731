"""Exact optimum under memory limits: price the bytes, prune by the price, enumerate what is left within the gap."""

from __future__ import annotations

import numpy as np

from alpaviz.intra.solvers.elimination import complete_buckets, find_min_marginals, plan_elimination
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.labels import LabelSearch
from alpaviz.intra.solvers.lagrange import Pricing, price_memory
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import IntArray, Network, keep_candidates
from alpaviz.intra.solvers.watch import Watch

_TREE_ENTRIES = 6e6
_MOST_LABELS = 1_500_000
_DEPTHS = ((1.0, 30_000), (0.02, _MOST_LABELS), (0.1, _MOST_LABELS), (0.3, _MOST_LABELS), (1.0, _MOST_LABELS))
"""Shares of the gap that are searched in turn, and the most labels of a bucket.

A choice found within a share is the optimum, whatever lies beyond; where little is left, all is searched at once.
"""


def close_limited_gap(
    network: Network, incumbent: Incumbent, watch: Watch, start: IntArray
) -> tuple[float, Network | None]:
    """Improve `incumbent` to the optimum under memory limits; `start` is the cheapest choice without limits.

    Returns a bound on every legal choice, and the network that a better choice must be in: None once there is none.
    The bound stays below `incumbent.target` where time or table sizes leave a gap; then `incumbent` may be empty.
    """
    pricing = price_memory(network, incumbent, watch, start)
    bound = min(pricing.bound, incumbent.target)
    if bound < incumbent.target and not watch.is_over():
        _combine_seen(pricing, incumbent, watch)
        pruned = _prune(pricing, incumbent)
        if pruned is None:
            return incumbent.target, None
        bound = _enumerate(pruned, pricing, incumbent, watch, bound)
        return bound, None if bound >= incumbent.target else pruned
    return bound, None if bound >= incumbent.target else pricing.network


def _combine_seen(pricing: Pricing, incumbent: Incumbent, watch: Watch) -> None:
    """Look for the best legal mixture of the choices seen: half the layers as in one, half as in another."""
    network = pricing.network
    owner = np.repeat(np.arange(network.num_variables), network.sizes)
    keep = np.zeros(len(network.unary), dtype=np.bool_)
    for choice in pricing.seen:
        keep |= network.kept == np.array(choice)[owner]
    mixed = keep_candidates(network, keep)
    if mixed is not None:
        _enumerate(mixed, pricing, incumbent, watch, -np.inf)


def _prune(pricing: Pricing, incumbent: Incumbent) -> Network | None:
    """Drop candidates that the priced bound excludes, by messages first and by exact marginals where tables allow."""
    network = pricing.network
    discount = float(pricing.multipliers @ network.limits)
    unary = network.unary + pricing.multipliers @ network.usage
    if plan_elimination(network, _TREE_ENTRIES) is None:
        messages = MessagePassing(network)
        messages.set_unary(unary)
        messages.run(20)
        kept = keep_candidates(network, messages.forced - discount < incumbent.target)
        if kept is None:
            return None
        network = kept
    plan = plan_elimination(network, _TREE_ENTRIES)
    if plan is not None:
        unary = network.unary + pricing.multipliers @ network.usage
        marginals = find_min_marginals(network, complete_buckets(network, plan, unary))
        return keep_candidates(network, marginals - discount < incumbent.target)
    return network


def _enumerate(network: Network, pricing: Pricing, incumbent: Incumbent, watch: Watch, bound: float) -> float:
    plan = plan_elimination(network, _TREE_ENTRIES)
    if plan is None:
        return bound
    unary = network.unary + pricing.multipliers @ network.usage
    tree = complete_buckets(network, plan, unary)
    bound = max(bound, tree.optimum - float(pricing.multipliers @ network.limits))
    rounding = max(incumbent.slack, 1e-15 * abs(bound)) / (4.0 * network.num_variables)
    first = bound
    for depth, most_labels in _DEPTHS:
        target = first + depth * (incumbent.target - first)
        if target <= bound:
            continue
        search = LabelSearch(network, tree, pricing.multipliers, rounding, most_labels)
        found = search.run(target, watch)
        if found.choice is not None:
            incumbent.offer(network, found.choice)
        if found.is_complete:
            bound = min(target, incumbent.target)
            watch.report(incumbent.objective, min(bound, incumbent.objective))
        elif most_labels == _MOST_LABELS or watch.is_over():
            break
        if bound >= incumbent.target:
            break
    return bound
