"""The cheapest few legal choices that a search has found so far, told apart by what they take at chosen variables."""

from __future__ import annotations

import numpy as np

from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.network import BoolArray, IntArray, Network, keep_candidates
from alpaviz.intra.solvers.search import Assignment

_MOST_SEEDS = 20
_MOST_FORCED = 30


class Shortlist(Incumbent):
    """Stands in for an `Incumbent` whose choice is the last on the list: to be of use, a choice must beat that one.

    `objective` is inf, and `choice` empty, until `count` choices are known. `differs` (variables,) says where two
    choices must differ to count as two; of those that agree there the cheapest is kept.
    """

    def __init__(self, ceiling: float, tolerance: float, count: int, differs: BoolArray) -> None:
        super().__init__(ceiling, tolerance)
        self._count = count
        self._places = [int(v) for v in np.flatnonzero(differs)]
        self._found: dict[tuple[int, ...], tuple[float, tuple[int, ...]]] = {}

    def offer(self, network: Network, choice: IntArray) -> bool:
        """Take `choice` if it is legal and among the cheapest; memory limits are the caller's to check."""
        objective = network.price(choice)
        if objective > self._ceiling or objective >= self.objective:
            return False
        named = network.name_choice(choice)
        key = tuple(named[v] for v in self._places)
        known = self._found.get(key)
        if known is not None and known[0] <= objective:
            return False
        self._found[key] = (objective, named)
        if len(self._found) > self._count:
            del self._found[max(self._found, key=lambda k: self._found[k])]
        if len(self._found) == self._count:
            self.objective, self.choice = max(self._found.values())
        return True

    @property
    def choices(self) -> list[tuple[int, ...]]:
        """The list, cheapest first, in the problem's candidate indices."""
        return [named for _, named in sorted(self._found.values())]


def offer_neighbours(network: Network, shortlist: Shortlist) -> None:
    """Offer the legal choices that are one move from those on the list, so that its last entry says how far to look."""
    for named in shortlist.choices[:_MOST_SEEDS]:
        choice = network.find_choice(named)
        if choice is None:
            continue
        assignment = Assignment(network, choice)
        owner = np.repeat(np.arange(network.num_variables), network.sizes)
        change = assignment.list_changes()
        change[~assignment.find_fitting()] = np.inf
        change[assignment.current] = np.inf
        for at in np.argsort(change, kind="stable"):
            moved = choice.copy()
            moved[owner[at]] = at - network.offsets[owner[at]]
            if not np.isfinite(change[at]) or assignment.price() + change[at] > shortlist.objective:
                break
            shortlist.offer(network, moved)


def offer_forced(network: Network, shortlist: Shortlist, differs: BoolArray, start: IntArray) -> None:
    """Offer `start` with one variable that matters moved and the others made the best of; the least change first."""
    assignment = Assignment(network, start)
    owner = np.repeat(np.arange(network.num_variables), network.sizes)
    change = assignment.list_changes()
    change[~differs[owner]] = np.inf
    change[assignment.current] = np.inf
    for at in np.argsort(change, kind="stable")[:_MOST_FORCED]:
        if not np.isfinite(change[at]):
            return
        v = int(owner[at])
        keep = owner != v
        keep[at] = True
        held = keep_candidates(network, keep)
        assert held is not None, "one candidate of the variable stays"
        placed = start.copy()
        placed[v] = 0
        forced = Assignment(held, placed)
        forced.descend()
        if forced.is_legal() or forced.repair():
            shortlist.offer(held, forced.choice)
