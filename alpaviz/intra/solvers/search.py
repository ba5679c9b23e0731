"""Local search: from a choice to a better one, by moving one variable or the two of an edge at a time."""

from __future__ import annotations

import numpy as np

from alpaviz.intra.pair_costs import PairCosts
from alpaviz.intra.problem import Edge, FloatArray
from alpaviz.intra.solvers.network import BoolArray, IntArray, Network

_MOVES_TRIED = 50
_SLACK = 1e-12
"""Share of a memory limit that rounding may exceed."""
_MOST_PAIRS = 1_000_000
"""Edges with more pairs are not moved along while memory is watched."""


class Assignment:
    """A choice with what each candidate would cost given all other variables; changes by `move`."""

    def __init__(self, network: Network, choice: IntArray, unary: FloatArray | None = None) -> None:
        self.network = network
        self.choice = choice.copy()
        self._starts = network.offsets[:-1]
        self._sizes = network.sizes
        self._owner = np.repeat(np.arange(network.num_variables), self._sizes)
        self._touching: list[list[tuple[int, PairCosts]]] = [[] for _ in range(network.num_variables)]
        self._unary = network.unary if unary is None else unary
        self.given = self._unary.copy()
        for e in network.edges:
            self._touching[e.u].append((e.v, e.costs))
            self._touching[e.v].append((e.u, e.costs.transposed()))
            self._at(e.u)[:] += e.costs.column(int(choice[e.v]))
            self._at(e.v)[:] += e.costs.row(int(choice[e.u]))
        self.memory = network.measure_memory(choice)
        self._least_change = 1e-13 * max(1e-300, float(np.abs(self.given[self.current]).sum()))

    @property
    def current(self) -> IntArray:
        """(variables,), flat index of each variable's candidate."""
        return self._starts + self.choice

    def price(self) -> float:
        """Cost of the choice, from the unary costs given at the start."""
        return float(self._unary[self.current].sum()) + sum(
            e.costs.at(int(self.choice[e.u]), int(self.choice[e.v])) for e in self.network.edges
        )

    def is_legal(self) -> bool:
        return bool((self.memory <= self.network.limits * (1.0 + _SLACK)).all())

    def move(self, v: int, k: int) -> None:
        """Give variable `v` its candidate `k`."""
        old = int(self.choice[v])
        for w, costs in self._touching[v]:
            self._at(w)[:] += costs.row(k) - costs.row(old)
        start = int(self._starts[v])
        self.memory += self.network.usage[:, start + k] - self.network.usage[:, start + old]
        self.choice[v] = k

    def descend(self, *, legally: bool = False, most_moves: int = 10_000) -> None:
        """Move single variables, then pairs, for as long as that lowers the cost; `legally` keeps memory limits."""
        for _ in range(most_moves):
            change = self.list_changes()
            if legally:
                change[~self.find_fitting()] = np.inf
            best = int(change.argmin())
            if change[best] < -self._least_change:
                self._move_flat(best)
            elif not self._move_pairs(legally):
                return

    def repair(self) -> bool:
        """Move single variables until memory limits hold, the least extra cost per byte first; whether they hold."""
        limits = np.maximum(self.network.limits, 1.0)
        for _ in range(4 * self.network.num_variables):
            if self.is_legal():
                return True
            # Only rows that are over count for the gain: there may be hundreds of rows, and few are over.
            over = np.flatnonzero(self.memory > self.network.limits * (1.0 + _SLACK))
            after = self._memory_after(over) - self.network.limits[over, None]
            excess = (self.memory - self.network.limits)[over] / limits[over]
            gain = excess.sum() - (np.maximum(after, 0.0) / limits[over, None]).sum(axis=0)
            useful = gain > 1e-15
            change = np.maximum(self.list_changes(), self._least_change)
            rate = np.where(useful, change / np.where(useful, gain, 1.0), np.inf)
            if not self._take_best(rate, limits):
                return False
        return self.is_legal()

    def _take_best(self, rate: FloatArray, limits: FloatArray) -> bool:
        """Make the move of least `rate` that brings all rows together closer to their limits."""
        now = float((np.maximum(self.memory - self.network.limits, 0.0) / limits).sum())
        usage, current = self.network.usage, self.current
        for at in np.argsort(rate, kind="stable")[:_MOVES_TRIED]:
            if not np.isfinite(rate[at]):
                return False
            memory = self.memory + usage[:, at] - usage[:, current[self._owner[at]]]
            if float((np.maximum(memory - self.network.limits, 0.0) / limits).sum()) < now - 1e-15:
                self._move_flat(int(at))
                return True
        return False

    def _at(self, v: int) -> FloatArray:
        return self.given[self._starts[v] : self._starts[v] + self._sizes[v]]

    def list_changes(self) -> FloatArray:
        """(candidates of all variables,), what moving to the candidate adds to the cost."""
        return self.given - self.given[self.current][self._owner]

    def _memory_after(self, rows: IntArray) -> FloatArray:
        """(rows asked for, candidates of all variables), memory once the candidate is taken."""
        usage = self.network.usage[rows]
        return np.asarray(usage + (self.memory[rows, None] - usage[:, self.current])[:, self._owner])

    def find_fitting(self) -> BoolArray:
        """(candidates of all variables,), whether memory limits hold once the candidate is taken."""
        after = self._memory_after(np.arange(len(self.memory))) <= self.network.limits[:, None] * (1.0 + _SLACK)
        return np.asarray(after.all(axis=0))

    def _move_flat(self, at: int) -> None:
        v = int(self._owner[at])
        self.move(v, at - int(self._starts[v]))

    def _move_pairs(self, legally: bool) -> bool:
        """Best joint move over every edge in turn; whether any lowered the cost."""
        moved = False
        for e in self.network.edges:
            if self._sizes[e.u] == 1 or self._sizes[e.v] == 1:
                continue
            a, b = int(self.choice[e.u]), int(self.choice[e.v])
            at_u, at_v = self._at(e.u) - e.costs.column(b), self._at(e.v) - e.costs.row(a)
            now = e.costs.at(a, b) + float(at_u[a] + at_v[b])
            is_limited = legally and len(self.memory) > 0
            if is_limited and e.costs.size > _MOST_PAIRS:
                continue
            least, i, j = self._find_best_pair(e, at_u, at_v) if is_limited else find_least_pair(e.costs, at_u, at_v)
            if least < now - self._least_change:
                self.move(e.u, i)
                self.move(e.v, j)
                moved = True
        return moved

    def _find_best_pair(self, e: Edge, at_u: FloatArray, at_v: FloatArray) -> tuple[float, int, int]:
        """The same as `find_least_pair` among pairs that keep the limits; no such pair costs inf."""
        joint = np.where(self._fits_pair(e.u, e.v), e.cost + at_u[:, None] + at_v, np.inf)
        best = int(joint.argmin())
        return float(joint.flat[best]), *divmod(best, joint.shape[1])

    def _fits_pair(self, u: int, v: int) -> BoolArray:
        usage = self.network.usage
        now = self.current
        rest = self.memory - usage[:, now[u]] - usage[:, now[v]]
        at_u = usage[:, self._starts[u] : self._starts[u] + self._sizes[u]]
        at_v = usage[:, self._starts[v] : self._starts[v] + self._sizes[v]]
        room = (self.network.limits * (1.0 + _SLACK) - rest)[:, None, None]
        return np.asarray((at_u[:, :, None] + at_v[:, None, :] <= room).all(axis=0))


def find_least_pair(costs: PairCosts, at_u: FloatArray, at_v: FloatArray) -> tuple[float, int, int]:
    """Least of `costs[i, j] + at_u[i] + at_v[j]`, and where it is."""
    height, width = costs.table.shape
    of_row, of_column = _least_of_class(costs.rows, at_u, height), _least_of_class(costs.columns, at_v, width)
    joint = costs.table + of_row[:, None] + of_column
    best = int(joint.argmin())
    row, column = divmod(best, joint.shape[1])
    return float(joint.flat[best]), _first_least(costs.rows, at_u, row), _first_least(costs.columns, at_v, column)


def _least_of_class(classes: IntArray | None, values: FloatArray, count: int) -> FloatArray:
    if classes is None:
        return values
    least = np.full(count, np.inf)
    np.minimum.at(least, classes, values)
    return least


def _first_least(classes: IntArray | None, values: FloatArray, wanted: int) -> int:
    if classes is None:
        return wanted
    members = np.flatnonzero(classes == wanted)
    return int(members[values[members].argmin()])
