"""Looks at all legal choices within a gap: sparse tables at given prices of a byte, then labels on their rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.labels import LabelSearch
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import Network
from alpaviz.intra.solvers.sparse import GrownTree, TreeGrower, grow_tree
from alpaviz.intra.solvers.watch import Watch

_FEW_LABELS = 30_000
_MOST_LABELS = 1_500_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try.

    `parts` are shares of the gap to tabulate where the whole is too much. `depths` are shares of what is tabulated,
    searched in turn, each with the most labels of a bucket: a choice found within a share is the optimum, whatever lies
    beyond; where little is left, all is searched at once.
    """

    most_rows: int
    most_sweeps: int
    depths: tuple[tuple[float, int], ...]
    parts: tuple[float, ...] = ()


QUICK = Effort(40_000, 12, ((1.0, _FEW_LABELS),))
THOROUGH = Effort(
    150_000,
    100,
    ((1.0, _FEW_LABELS), (0.02, _MOST_LABELS), (0.1, _MOST_LABELS), (0.3, _MOST_LABELS), (1.0, _MOST_LABELS)),
    (0.15, 0.35, 0.6),
)


def enumerate_legal(
    network: Network,
    hints: MessagePassing,
    multipliers: FloatArray,
    incumbent: Incumbent,
    watch: Watch,
    effort: Effort,
) -> float:
    """Improve `incumbent` by looking at all legal choices of `network` within the gap; returns a bound on them.

    `hints` are messages of this network, or of one that this is a part of.
    """
    messages = MessagePassing(network)
    messages.copy_messages(hints)
    messages.set_unary(network.unary + multipliers @ network.usage)
    discount = float(multipliers @ network.limits)
    target = incumbent.target + discount
    grown = grow_tree(messages, target, watch, effort.most_rows, effort.most_sweeps, whole=True)
    if grown is None and messages.bound < target:
        grown = _grow_partly(messages, target, watch, effort)
    if grown is None:
        return messages.bound - discount
    if not np.isfinite(grown.tree.optimum):
        return grown.target - discount
    reach = float("inf") if grown.target >= target else grown.target - discount
    bound = first = grown.optimum - discount
    rounding = max(incumbent.slack, 1e-15 * abs(bound)) / (4.0 * network.num_variables)
    for depth, most_labels in effort.depths:
        target = first + depth * (min(incumbent.target, reach) - first)
        if target <= bound:
            continue
        search = LabelSearch(grown.tree, grown.constant, multipliers, rounding, most_labels)
        found = search.run(target, watch)
        if found.choice is not None:
            incumbent.offer(network, found.choice)
        if found.is_complete:
            bound = min(target, reach, incumbent.target)
            watch.report(incumbent.objective, min(bound, incumbent.objective))
        elif most_labels == effort.depths[-1][1] or watch.is_over():
            break
        if bound >= min(incumbent.target, reach):
            break
    return bound


def _grow_partly(messages: MessagePassing, target: float, watch: Watch, effort: Effort) -> GrownTree | None:
    """Tables of a part of the gap, where those of the whole are too large: they still raise the bound."""
    grower = TreeGrower(messages, whole=True)
    best: GrownTree | None = None
    for share in effort.parts:
        grown = grower.attempt(messages.bound + share * (target - messages.bound), effort.most_rows, watch)
        if grown is None:
            break
        best = grown
    return best
