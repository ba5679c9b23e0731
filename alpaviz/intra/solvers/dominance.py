"""Drops candidates that another one of the same variable beats whatever the neighbours take (dead-end elimination).

Candidate t beats r where taking t instead of r costs no more even at the neighbours' choices that favour r most. At
least one optimum stays; other choices of the same cost may go, so this is for finding an optimum, not for counting.

Source: Goldstein, Efficient rotamer elimination applied to protein side-chains, 1994, criterion 2.
"""

from __future__ import annotations

import numpy as np

from alpaviz.intra.pair_costs import PairCosts
from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.network import BoolArray, Network, keep_candidates

_MOST_CANDIDATES = 400
"""Variables with more are left alone: they are compared pair by pair."""
_MOST_ENTRIES = 4_000_000
"""Of the differences over one edge; where there are more, its variable is left alone."""
_ROUNDS = 3
_SHARE_WORTH_A_ROUND = 0.02


def drop_dominated(network: Network, *, with_memory: bool) -> Network:
    """`network` without beaten candidates.

    Args:
        with_memory: a candidate only beats those that use at least as much memory, so that the optimum under the limits
            stays, at any limits.
    """
    for _ in range(_ROUNDS):
        left = keep_candidates(network, find_unbeaten(network, with_memory=with_memory))
        assert left is not None, "the first of those that beat each other stays"
        is_done = len(left.unary) > (1.0 - _SHARE_WORTH_A_ROUND) * len(network.unary)
        network = left
        if is_done:
            break
    return network


def find_unbeaten(network: Network, *, with_memory: bool) -> BoolArray:
    """(candidates of all variables,), those that nothing beats while every neighbour has all of its candidates.

    Unlike what rounds of `drop_dominated` leave, these suffice for the others whatever one variable is made to take: a
    later round rests on candidates that the first has dropped.
    """
    gains = _add_up_gains(network)
    keep = np.ones(len(network.unary), dtype=np.bool_)
    rounding = 1e-15 * float(np.abs(network.unary).max(initial=0.0))
    for v, gain in enumerate(gains):
        if gain is None:
            continue
        beats = gain >= -rounding
        candidates = slice(int(network.offsets[v]), int(network.offsets[v + 1]))
        if with_memory:
            for usage in network.usage[:, candidates]:
                beats &= usage[:, None] >= usage[None, :]
        np.fill_diagonal(beats, val=False)
        keep[candidates] = _drop_in_turn(beats)
    return keep


def _drop_in_turn(beats: BoolArray) -> BoolArray:
    """Which rows are left when each in turn goes if one that is left beats it; `beats[r, t]`: t beats r."""
    left = np.ones(len(beats), dtype=np.bool_)
    for r in np.flatnonzero(beats.any(axis=1)):
        left[r] = not (beats[r] & left).any()
    return left


def _add_up_gains(network: Network) -> list[FloatArray | None]:
    """Per variable (candidates r, candidates t), what is surely gained by taking t instead of r."""
    gains: list[FloatArray | None] = []
    for v, size in enumerate(network.sizes):
        own = network.unary[network.offsets[v] : network.offsets[v + 1]]
        gains.append(own[:, None] - own[None, :] if 1 < size <= _MOST_CANDIDATES else None)
    for e in network.edges:
        for v, costs in ((e.u, e.costs), (e.v, e.costs.transposed())):
            gain = gains[v]
            if gain is not None:
                change = _find_least_gain(costs)
                gains[v] = None if change is None else gain + change
    return gains


def _find_least_gain(costs: PairCosts) -> FloatArray | None:
    """(candidates r, candidates t), the least of row r less row t."""
    table = costs.table
    if table.shape[0] ** 2 * table.shape[1] > _MOST_ENTRIES:
        return None
    least = np.asarray((table[:, None, :] - table[None, :, :]).min(axis=2))
    return least if costs.rows is None else least[np.ix_(costs.rows, costs.rows)]
