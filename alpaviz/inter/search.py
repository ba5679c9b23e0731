"""Searches the limits on the slowest stage (and on the longest work once a step) for the least step time.

The paper tries every threshold t_max in ascending order. Here boxes of limits are searched best bound first: the run at
a box's upper corner gives the least sum of latencies of all limits in the box, which with the box's lower corner bounds
every step time in it; and the stages that it finds settle all limits between their own slowest stage and that corner.
A few dozen runs take the place of thousands, with the same result.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from alpaviz.inter.programme import FloatArray, FoundStages, Incumbent, StageProgramme


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best stages, a bound on all that were searched, and how often the programme ran."""

    best: Incumbent
    bound: float
    num_runs: int


@dataclass(frozen=True, slots=True)
class _Box:
    """Limits by index: paces `low` .. `high`, once `once_low` .. `once_high`; `total` bounds the sum of latencies."""

    low: int
    high: int
    once_low: int
    once_high: int
    total: float


def search_stages(
    programme: StageProgramme, count: int | None, best: Incumbent, tolerance: float = 0.0
) -> SearchResult:
    """Stages of `programme`, exactly `count` if given, that beat `best`, or else `best`.

    The answer is within `tolerance` seconds of the best; with 0 it is the best.
    """
    search = _Search(programme, count, best)
    if not search.begin():
        return SearchResult(best, float("inf"), search.num_runs)
    bound = search.finish(tolerance)
    return SearchResult(search.best, bound, search.num_runs)


class _Search:
    """What changes during one search."""

    def __init__(self, programme: StageProgramme, count: int | None, best: Incumbent) -> None:
        self.programme, self.count, self.best = programme, count, best
        self.num_runs = 0
        self.paces: FloatArray = np.zeros(0)
        self.onces: FloatArray = np.zeros(1)
        self.queue: list[tuple[float, int, _Box]] = []
        self.counter = itertools.count()

    def begin(self) -> bool:
        """Collect the limits that make a difference; False where there are no candidates."""
        p = self.programme
        finite = np.isfinite(p.cost)
        if not finite.any():
            return False
        paces = np.unique(p.pace[finite])
        self.paces = paces[paces >= _find_least_pace(np.where(finite, p.pace, np.inf))]
        if p.once is not None:
            self.onces = np.unique(p.once[finite])
        if not len(self.paces):
            return False
        self._push(_Box(0, len(self.paces) - 1, 0, len(self.onces) - 1, 0.0))
        return True

    def finish(self, tolerance: float) -> float:
        """Search until nothing is left that could be better; gives the bound."""
        while self.queue:
            bound, _, box = heapq.heappop(self.queue)
            if bound > self.best.objective - tolerance:
                return bound
            clipped = self._clip(box)
            if clipped is None:
                continue
            found = self._run(clipped)
            if found is not None:
                for child in self._split(clipped, found):
                    self._push(child)
        return self.best.objective

    def _run(self, box: _Box) -> FoundStages | None:
        self.num_runs += 1
        limits = float(self.paces[box.high]), float(self.onces[box.once_high])
        found = self.programme.run(*limits).find_best(self.count)
        if found is not None:
            objective = self.programme.price(found.total, found.slowest, found.once)
            if (objective, found.slowest) < (self.best.objective, self.best.slowest):
                self.best = Incumbent(found.stages, objective, found.slowest)
        return found

    def _push(self, box: _Box) -> None:
        heapq.heappush(self.queue, (self._bound(box, box.low), next(self.counter), box))

    def _bound(self, box: _Box, low: int) -> float:
        return self.programme.price(box.total, float(self.paces[low]), float(self.onces[box.once_low]))

    def _clip(self, box: _Box) -> _Box | None:
        """`box` without limits that cannot give anything better; equally good is better with a faster slowest stage."""

        def may_win(index: int) -> bool:
            bound = self._bound(box, index)
            return (bound, float(self.paces[index])) < (self.best.objective, self.best.slowest)

        if not may_win(box.low):
            return None
        low, high = box.low, box.high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if may_win(middle) else (low, middle - 1)
        return _Box(box.low, low, box.once_low, box.once_high, box.total)

    def _split(self, box: _Box, found: FoundStages) -> Iterator[_Box]:
        """What `found`, the best at the upper corner of `box`, leaves open."""
        slowest = int(np.searchsorted(self.paces, found.slowest))
        once = int(np.searchsorted(self.onces, found.once))
        if once > box.once_low:
            yield _Box(max(slowest, box.low), box.high, box.once_low, once - 1, found.total)
        high = slowest - 1
        if high < box.low:
            return
        middle = (box.low + high) // 2
        yield _Box(box.low, middle, box.once_low, box.once_high, found.total)
        if middle < high:
            yield _Box(middle + 1, high, box.once_low, box.once_high, found.total)


def _find_least_pace(pace: FloatArray) -> float:
    """No stages are all faster than this: the most that any layer needs in its fastest candidate."""
    least = pace.min(axis=(0, 1))  # (first, last)
    # A candidate first .. last holds every layer between: take the least over `last` from the layer on.
    holding = np.minimum.accumulate(least[:, ::-1], axis=1)[:, ::-1]  # (first, layer)
    layers = np.arange(len(least))
    holding = np.where(layers[:, None] <= layers[None, :], holding, np.inf)
    return float(holding.min(axis=0).max())
