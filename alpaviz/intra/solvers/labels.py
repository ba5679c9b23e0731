"""All choices within a gap, kept only where neither cost nor memory is beaten: closes what Lagrange leaves open.

A label is a filling-in of one bucket's subtree: its cost, its bytes per memory row, and where it came from. With memory
priced by multipliers, `SparseTree` knows exactly what the rest costs at least, so a label lives only if some completion
could be below the target, and only if no other label with the same outlook is as cheap and as small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.network import BoolArray, IntArray, Network
from alpaviz.intra.solvers.sparse import SparseTree
from alpaviz.intra.solvers.watch import Watch

NEIGHBOURS_COMPARED = 24


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Labels of one bucket, sorted by line of its message.

    `excess` is how much more than the cheapest filling-in of the line; `children[j]` indexes the j-th child's labels.
    """

    cell: IntArray  # (labels,) line of the bucket's message
    excess: FloatArray  # (labels,)
    memory: FloatArray  # (labels, rows)
    value: IntArray  # (labels,) candidate of the bucket's variable
    children: tuple[IntArray, ...]  # each (labels,)
    first: IntArray  # (cells + 1,) where each cell's labels start


@dataclass(frozen=True, slots=True, eq=False)
class Enumeration:
    """What an enumeration found: `choice` is None where no legal choice costs less than the target.

    `is_complete` is False where the labels grew past the limit or the watch stopped; nothing is proven then.
    """

    choice: IntArray | None
    cost: float
    is_complete: bool


@dataclass(frozen=True, slots=True, eq=False)
class LabelSearch:
    """Cheapest legal choice of a network below a target; `tree` holds its completions with memory priced.

    Attributes:
        constant: what a choice costs, memory priced, beyond its cost in the tree's network.
        multipliers: (rows,), price of a byte of each row, as used for `tree`.
        rounding: costs that differ by no more are taken as equal.
        most_labels: limit on the labels of one bucket.
    """

    tree: SparseTree
    constant: float
    multipliers: FloatArray
    rounding: float
    most_labels: int

    def run(self, target: float, watch: Watch) -> Enumeration:
        """Every legal choice cheaper than `target` is looked at, or one that is no worse."""
        room = target - self.bound
        scopes, children = self.tree.plan.scopes, self.tree.list_children()
        least = self.tree.sum_least_memory(children)
        found: list[_Labels] = []
        for i in range(len(scopes)):
            labels = None if watch.is_over() else self._make_labels(i, children[i], found, room, least)
            if labels is None:
                return Enumeration(None, float("inf"), is_complete=False)
            if len(labels.cell) == 0:
                return Enumeration(None, float("inf"), is_complete=True)
            found.append(labels)
        roots = [i for i in range(len(scopes)) if self.tree.parents[i] < 0]
        nothing = np.zeros((1, len(self.multipliers)))
        one_cell = np.zeros(1, dtype=np.int64)
        joined = self._join(
            one_cell, np.zeros(1), roots, [one_cell] * len(roots), found, room, nothing, least, nothing[0]
        )
        if joined is None:
            return Enumeration(None, float("inf"), is_complete=False)
        return self._read_best(joined, roots, children, found)

    @property
    def network(self) -> Network:
        return self.tree.network

    @property
    def bound(self) -> float:
        """Of every legal choice."""
        return self.tree.optimum + self.constant - float(self.multipliers @ self.network.limits)

    def _make_labels(
        self, i: int, children: list[int], found: list[_Labels], room: float, least: FloatArray
    ) -> _Labels | None:
        """Labels of bucket `i` from those of its children; None where there are too many."""
        table, above_optimum = self.tree.tables[i], self.tree.totals[i] - self.tree.optimum
        rows = np.flatnonzero(above_optimum <= room)
        variable = self.tree.plan.scopes[i][0]
        value = table.at[variable][rows]
        memory = self.network.usage[:, self.network.offsets[variable] + value].T
        own = least[i] - sum(least[c] for c in children)
        at = [table.children[c][rows] for c in children]
        joined = self._join(np.arange(len(rows)), above_optimum[rows], children, at, found, room, memory, least, own)
        if joined is None:
            return None
        row, bound, memory, pointers = joined
        line = table.line[rows][row]
        lowest = np.full(len(table.message), np.inf)
        np.minimum.at(lowest, table.line, above_optimum)
        excess = bound - lowest[line]
        keep = self._find_undominated(line, excess, memory)
        return _Labels(
            cell=line[keep],
            excess=excess[keep],
            memory=memory[keep],
            value=value[row[keep]],
            children=tuple(p[keep] for p in pointers),
            first=np.searchsorted(line[keep], np.arange(len(table.message) + 1)).astype(np.int64),
        )

    def _join(
        self,
        row: IntArray,
        bound: FloatArray,
        children: list[int],
        at: list[IntArray],
        found: list[_Labels],
        room: float,
        memory: FloatArray,
        least: FloatArray,
        own: FloatArray,
    ) -> tuple[IntArray, FloatArray, FloatArray, list[IntArray]] | None:
        """Rows (each one a cell with bound and memory) combined with every label of every child that fits."""
        pointers: list[IntArray] = []
        # What all variables outside the rows so far need at least.
        rest = least[-1] - own
        for child, cells in zip(children, at, strict=True):
            labels = found[child]
            start = labels.first[cells[row]]
            counts = labels.first[cells[row] + 1] - start
            size = int(counts.sum())
            if size > self.most_labels:
                return None
            source = np.repeat(np.arange(len(row)), counts)
            label = np.arange(size) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(start, counts)
            new_bound = bound[source] + labels.excess[label]
            new_memory = memory[source] + labels.memory[label]
            rest = rest - least[child]
            fits = (new_memory + rest <= self.network.limits * (1.0 + 1e-12) + 1e-9 * np.abs(rest)).all(axis=1)
            keep = np.flatnonzero((new_bound <= room) & fits)
            source, label = source[keep], label[keep]
            row, bound, memory = row[source], new_bound[keep], new_memory[keep]
            pointers = [p[source] for p in pointers] + [label]
        return row, bound, memory, pointers

    def _find_undominated(self, cell: IntArray, excess: FloatArray, memory: FloatArray) -> IntArray:
        """Labels to keep, sorted by cell: no other of the cell is as cheap, memory unpriced, and as small."""
        cost = excess - memory @ self.multipliers
        if memory.shape[1] == 1:
            order = np.lexsort((cost, memory[:, 0], cell))
            return order[_is_new_low(cell[order], cost[order], self.rounding)]
        order = np.lexsort((cost, *memory.T[::-1], cell))
        alive = np.ones(len(order), dtype=np.bool_)
        for shift in range(1, min(NEIGHBOURS_COMPARED, len(order) - 1) + 1):
            near, far = order[:-shift], order[shift:]
            beaten = (cell[near] == cell[far]) & (cost[near] <= cost[far] + self.rounding)
            beaten &= (memory[near] <= memory[far]).all(axis=1)
            alive[shift:] &= ~beaten
        return order[alive]

    def _read_best(
        self,
        joined: tuple[IntArray, FloatArray, FloatArray, list[IntArray]],
        roots: list[int],
        children: list[list[int]],
        found: list[_Labels],
    ) -> Enumeration:
        _, bound, memory, pointers = joined
        legal = (memory <= self.network.limits * (1.0 + 1e-12)).all(axis=1)
        if not legal.any():
            return Enumeration(None, float("inf"), is_complete=True)
        cost = np.where(legal, self.tree.optimum + self.constant + bound - memory @ self.multipliers, np.inf)
        best = int(cost.argmin())
        choice = np.zeros(self.network.num_variables, dtype=np.int64)
        todo = [(root, int(pointer[best])) for root, pointer in zip(roots, pointers, strict=True)]
        while todo:
            i, label = todo.pop()
            choice[self.tree.plan.scopes[i][0]] = found[i].value[label]
            todo += [(c, int(p[label])) for c, p in zip(children[i], found[i].children, strict=True)]
        return Enumeration(choice, float(cost[best]), is_complete=True)


def _is_new_low(group: IntArray, cost: FloatArray, rounding: float) -> BoolArray:
    """Where `cost` is lower, by more than `rounding`, than all before it in its group; groups are contiguous."""
    if len(cost) == 0:
        return np.zeros(0, dtype=np.bool_)
    starts = np.concatenate([[True], group[1:] != group[:-1]])
    before = np.concatenate([cost[:1], find_running_minimum(group, cost)[:-1]])
    return np.asarray(starts | (cost < before - rounding))


def find_running_minimum(group: IntArray, cost: FloatArray) -> FloatArray:
    """Least cost up to and with each entry among those of its group; groups are contiguous and ascending."""
    by_cost = np.argsort(cost, kind="stable")
    rank = np.empty(len(cost), dtype=np.int64)
    rank[by_cost] = np.arange(len(cost))
    # Ranks less a step per group: the running minimum starts anew with each group, without any rounding.
    number = np.cumsum(np.diff(group, prepend=group[0]) != 0)
    lowest = np.minimum.accumulate(rank - number * len(cost)) + number * len(cost)
    return np.asarray(cost[by_cost[lowest]])
