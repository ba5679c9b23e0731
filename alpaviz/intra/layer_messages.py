"""What solving one stage teaches about others of the same layers: messages of each edge, by layer.

A pin sets one layer of a group apart, which makes another problem, but nearly all of its edges are those of the problem
without the pin, for another number of layers. Messages are as large as the costs that they sum up, so those of one
layer, times the number of layers, are a start from which a few sweeps lead to the optimum.
"""

from __future__ import annotations

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.messages import MessageMemo
from alpaviz.intra.stage_problem import StageProblem

_Place = tuple[int, int]


class LayerMessages:
    """Messages per layer, by the places (layer class, variable) of sender and receiver, in seconds."""

    def __init__(self) -> None:
        self._known: dict[tuple[_Place, _Place], FloatArray] = {}

    def keep(self, problem: StageProblem, memo: MessageMemo) -> None:
        """Take over what a solve of `problem` has left in `memo`."""
        sizes = [len(costs) for costs in problem.problem.unary]
        for (u, v), message in memo.collect(sizes).items():
            count = problem.repeats[min(u, v), max(u, v)]
            self._known[problem.places[u], problem.places[v]] = message / count

    def spread(self, problem: StageProblem) -> dict[tuple[int, int], FloatArray]:
        """By (sender, receiver), the messages to start solving `problem` with."""
        found = {}
        for (u, v), count in problem.repeats.items():
            for sender, receiver in ((u, v), (v, u)):
                known = self._known.get((problem.places[sender], problem.places[receiver]))
                if known is not None:
                    found[sender, receiver] = known * count
        return found
