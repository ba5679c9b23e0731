"""The k cheapest legal choices of a sparse tree: labels as in `labels.py`, but kept while fewer than k beat them.

A label is a filling-in of one bucket's subtree. Whatever completes it completes the labels that are as cheap and as
small too, so one that k others beat is in none of the k cheapest choices, or in one as cheap as another that is kept.
Where choices must differ in certain variables, the others must differ there as well to count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.labels import NEIGHBOURS_COMPARED, find_running_minimum
from alpaviz.intra.solvers.network import BoolArray, IntArray, Network
from alpaviz.intra.solvers.sparse import SparseTree
from alpaviz.intra.solvers.watch import Watch


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Partial labels of one bucket while its children are joined in turn; arrays are (partial labels,).

    `row` is the table's row that each one extends, `excess` what it costs beyond the optimum, memory priced, and
    `projection` numbers what it takes at the variables that matter. `pointers[j]` indexes the j-th child's labels.
    """

    row: IntArray
    excess: FloatArray
    memory: FloatArray  # (partial labels, memory rows)
    projection: IntArray
    pointers: tuple[IntArray, ...]

    def take(self, keep: IntArray) -> _Rows:
        return _Rows(
            self.row[keep],
            self.excess[keep],
            self.memory[keep],
            self.projection[keep],
            tuple(p[keep] for p in self.pointers),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Labels:
    """Labels of one bucket, sorted by line of its message; `excess` is beyond the cheapest of the line."""

    rows: _Rows
    value: IntArray  # (labels,) candidate of the bucket's variable
    first: IntArray  # (lines + 1,) where each line's labels start


@dataclass(frozen=True, slots=True, eq=False)
class CheapestSearch:
    """The `count` cheapest legal choices of the network that `tree` was made of.

    Attributes:
        multipliers: (memory rows,), price of a byte of each row, as used for `tree`.
        differs: (variables,), where choices must differ to count as two.
        most_labels: limit on the labels of one bucket.
    """

    tree: SparseTree
    multipliers: FloatArray
    count: int
    differs: BoolArray
    most_labels: int

    def run(self, room: float, watch: Watch) -> list[IntArray] | None:
        """Up to `count` choices, cheapest first; every other one costs as much, or over `room` beyond the optimum.

        The room is in cost with memory priced. None where labels grew past the limit or the watch stopped.
        """
        children = self.tree.list_children()
        least = self.tree.sum_least_memory(children)
        found: list[_Labels] = []
        for i in range(len(self.tree.parents)):
            labels = None if watch.is_over() else self._label_bucket(i, children[i], found, room, least)
            if labels is None:
                return None
            found.append(labels)
        roots = [i for i, parent in enumerate(self.tree.parents) if parent < 0]
        zero = np.zeros(1, dtype=np.int64)
        whole = _Rows(zero, np.zeros(1), np.zeros((1, len(self.multipliers))), zero, ())
        joined = self._join(whole, roots, [zero] * len(roots), found, room, least, least[-1])
        if joined is None:
            return None
        cost = joined.excess - joined.memory @ self.multipliers
        order = np.argsort(cost, kind="stable")
        return self._read(joined, order, roots, children, found)

    @property
    def _network(self) -> Network:
        return self.tree.network

    def _label_bucket(
        self, i: int, children: list[int], found: list[_Labels], room: float, least: FloatArray
    ) -> _Labels | None:
        table, beyond = self.tree.tables[i], self.tree.totals[i] - self.tree.optimum
        rows = np.flatnonzero(beyond <= room)
        variable = self.tree.plan.scopes[i][0]
        value = table.at[variable][rows]
        memory = self._network.usage[:, self._network.offsets[variable] + value].T
        projection = value if self.differs[variable] else np.zeros_like(value)
        start = _Rows(np.arange(len(rows)), beyond[rows], memory, projection, ())
        rest = least[-1] - least[i] + sum(least[c] for c in children)
        joined = self._join(start, children, [table.children[c][rows] for c in children], found, room, least, rest)
        if joined is None:
            return None
        line = table.line[rows][joined.row]
        keep = self._reduce(line, joined)
        joined, line = joined.take(keep), line[keep]
        lowest = np.full(len(table.message), np.inf)
        np.minimum.at(lowest, table.line, beyond)
        joined.excess[:] -= lowest[line]
        first = np.searchsorted(line, np.arange(len(table.message) + 1)).astype(np.int64)
        return _Labels(joined, value[joined.row], first)

    def _join(
        self,
        rows: _Rows,
        children: list[int],
        cells: list[IntArray],
        found: list[_Labels],
        room: float,
        least: FloatArray,
        rest: FloatArray,
    ) -> _Rows | None:
        """`rows` with every label of every child that fits; `cells[j]` is each table row's line of the j-th child.

        `rest` is what all variables outside the rows need of memory at least.
        """
        if not children:
            return rows.take(np.flatnonzero(self._fits(rows.memory, rest)))
        for child, cell in zip(children, cells, strict=True):
            labels = found[child]
            start = labels.first[cell[rows.row]]
            counts = labels.first[cell[rows.row] + 1] - start
            size = int(counts.sum())
            if size > self.most_labels:
                return None
            source = np.repeat(np.arange(len(rows.row)), counts)
            label = np.arange(size) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(start, counts)
            excess = rows.excess[source] + labels.rows.excess[label]
            memory = rows.memory[source] + labels.rows.memory[label]
            rest = rest - least[child]
            keep = np.flatnonzero((excess <= room) & self._fits(memory, rest))
            source, label = source[keep], label[keep]
            rows = _Rows(
                rows.row[source],
                excess[keep],
                memory[keep],
                _number_pairs(rows.projection[source], labels.rows.projection[label]),
                (*(p[source] for p in rows.pointers), label),
            )
            rows = rows.take(self._reduce(rows.row, rows))
        return rows

    def _fits(self, memory: FloatArray, rest: FloatArray) -> BoolArray:
        limits = self._network.limits * (1.0 + 1e-12) + 1e-9 * np.abs(rest)
        return np.asarray((memory + rest <= limits).all(axis=1))

    def _reduce(self, group: IntArray, rows: _Rows) -> IntArray:
        """Which of `rows` to keep, sorted by group: fewer than `count` different ones of the group beat them."""
        cost = rows.excess - rows.memory @ self.multipliers
        every = np.arange(len(group))
        if not self.differs.all():
            same = _number_pairs(group, rows.projection)
            every = _keep_layers(same, cost, rows.memory, 1)
            if rows.memory.shape[1] > 1:
                # Layers over several rows may count choices twice that do not differ.
                return every[np.argsort(group[every], kind="stable")]
        kept: IntArray = every[_keep_layers(group[every], cost[every], rows.memory[every], self.count)]
        return kept

    def _read(
        self, joined: _Rows, order: IntArray, roots: list[int], children: list[list[int]], found: list[_Labels]
    ) -> list[IntArray]:
        legal = np.asarray((joined.memory <= self._network.limits * (1.0 + 1e-12)).all(axis=1))
        seen: set[int] = set()
        choices = []
        for at in order[legal[order]]:
            # Numbers of projections tell choices apart only where some variables do not matter.
            number = int(joined.projection[at])
            if number in seen:
                continue
            seen.add(number)
            choice = np.zeros(self._network.num_variables, dtype=np.int64)
            todo = [(root, int(pointer[at])) for root, pointer in zip(roots, joined.pointers, strict=True)]
            while todo:
                i, label = todo.pop()
                choice[self.tree.plan.scopes[i][0]] = found[i].value[label]
                todo += [(c, int(p[label])) for c, p in zip(children[i], found[i].rows.pointers, strict=True)]
            choices.append(choice)
            if len(choices) == self.count:
                break
        return choices


def _number_pairs(first: IntArray, second: IntArray) -> IntArray:
    """One small number per distinct pair."""
    if len(first) == 0:
        return np.zeros(0, dtype=np.int64)
    _, number = np.unique(first * (int(second.max()) + 1) + second, return_inverse=True)
    return np.asarray(number, dtype=np.int64).reshape(-1)


def _keep_layers(group: IntArray, cost: FloatArray, memory: FloatArray, count: int) -> IntArray:
    """Indices, sorted by group, of what is in the first `count` layers of undominated ones of its group.

    What is further down has a chain of at least `count` others above it, each as cheap and as small as the next.
    """
    if memory.shape[1] == 0:
        order = np.lexsort((cost, group))
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
        return order[rank < count]
    left = np.lexsort((cost, *memory.T[::-1], group))
    layers = []
    for _ in range(count):
        if len(left) == 0:
            break
        is_beaten = _find_beaten(group[left], cost[left], memory[left])
        layers.append(left[~is_beaten])
        left = left[is_beaten]
    kept = np.concatenate(layers) if layers else np.zeros(0, dtype=np.int64)
    return np.asarray(kept[np.lexsort((cost[kept], group[kept]))])


def _find_beaten(group: IntArray, cost: FloatArray, memory: FloatArray) -> BoolArray:
    """Whether one before it in its group is as cheap and as small; sorted by group, then memory, then cost."""
    beaten = np.zeros(len(group), dtype=np.bool_)
    if memory.shape[1] == 1:
        starts = np.diff(group, prepend=-1) != 0
        beaten[1:] = find_running_minimum(group, cost)[:-1] <= cost[1:]
        return np.asarray(beaten & ~starts)
    for shift in range(1, min(NEIGHBOURS_COMPARED, len(group) - 1) + 1):
        near, far = slice(0, len(group) - shift), slice(shift, len(group))
        found = (group[near] == group[far]) & (cost[near] <= cost[far])
        beaten[far] |= found & (memory[near] <= memory[far]).all(axis=1)
    return beaten
