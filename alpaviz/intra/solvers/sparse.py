"""Min-marginals by bucket elimination on sparse tables: only rows that some choice below a target can take.

Messages leave every cost non-negative (`MessagePassing.reparametrise`), so a partial assignment whose costs already
exceed the room between bound and target is dropped the moment it is joined. Dense tables of 10^8 entries then come
down to some hundred rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.elimination import Elimination, plan_elimination
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import IntArray, Network
from alpaviz.intra.solvers.watch import Watch

_MOST_PAIRS = 10_000_000
"""Sparse tables hold every edge as a whole matrix; larger networks have to be pruned first."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseTable:
    """Rows of one bucket over its scope, the bucket's own variable first, with what was joined into them.

    `at[v]` is each row's candidate of `v`; `below` the row's costs in the bucket's subtree; `children[j]` each row's
    line in the j-th child's message. The message itself: `line` of each row, and `message` the least of each line.
    """

    at: dict[int, IntArray]
    below: FloatArray
    children: dict[int, IntArray]
    line: IntArray
    message: FloatArray
    message_at: dict[int, IntArray]


@dataclass(frozen=True, slots=True, eq=False)
class SparseTree:
    """Sparse tables of an elimination with exact completions.

    Attributes:
        tables: per bucket of `plan`, its rows.
        parents: per bucket the bucket that its message goes to; -1 for roots.
        totals: per bucket and row, the optimum among choices that contain the row; more than the room where there is
            none within it.
        optimum: of the network; inf where no choice fits the room.
    """

    network: Network
    plan: Elimination
    tables: tuple[SparseTable, ...]
    parents: tuple[int, ...]
    totals: tuple[FloatArray, ...]
    optimum: float

    def list_children(self) -> list[list[int]]:
        """Per bucket, those whose messages go to it."""
        children: list[list[int]] = [[] for _ in self.parents]
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(i)
        return children

    def sum_least_memory(self, children: list[list[int]]) -> FloatArray:
        """(buckets + 1, memory rows), least memory of each bucket's subtree; the last row is that of all variables."""
        own = np.minimum.reduceat(self.network.usage, self.network.offsets[:-1], axis=1).T
        sums = np.zeros((len(children) + 1, own.shape[1]))
        for i, scope in enumerate(self.plan.scopes):
            sums[i] = own[scope[0]] + sum(sums[c] for c in children[i])
        sums[-1] = own.sum(axis=0)
        return sums

    def find_choice(self) -> IntArray:
        """A choice that has the optimum, which must be finite."""
        choice = np.zeros(self.network.num_variables, dtype=np.int64)
        line = [0] * len(self.tables)
        for i in range(len(self.tables) - 1, -1, -1):
            table = self.tables[i]
            rows = np.flatnonzero(table.line == line[i])
            row = int(rows[table.below[rows].argmin()])
            choice[self.plan.scopes[i][0]] = table.at[self.plan.scopes[i][0]][row]
            for child, lines in table.children.items():
                line[child] = int(lines[row])
        return choice

    def find_marginals(self) -> FloatArray:
        """(candidates of all variables,), the optimum among choices that take the candidate; inf beyond the room."""
        marginals = np.full(len(self.network.unary), np.inf)
        for scope, table, total in zip(self.plan.scopes, self.tables, self.totals, strict=True):
            start, end = self.network.offsets[scope[0]], self.network.offsets[scope[0] + 1]
            np.minimum.at(marginals[start:end], table.at[scope[0]], total)
        return marginals


def eliminate_sparsely(
    network: Network, plan: Elimination, room: float, most_rows: int, watch: Watch
) -> SparseTree | None:
    """All rows that choices of at most `room` can take; None where a table passes `most_rows` or `watch` stops.

    `network` must have costs of at least 0.
    """
    try:
        tables = _SparseElimination(network, plan, room, most_rows, watch).go_up()
    except _TooManyRows:
        return None
    return _complete(network, plan, tables)


@dataclass(frozen=True, slots=True, eq=False)
class GrownTree:
    """A tree over reparametrised costs; every choice costs `constant` more than there.

    `target`: all choices cheaper than this are in the tree.
    """

    tree: SparseTree
    constant: float
    target: float

    @property
    def optimum(self) -> float:
        """Of the network where it is below the target; inf elsewhere."""
        return self.tree.optimum + self.constant


class TreeGrower:
    """Tries, between sweeps, whether the choices within some share of the gap fit into sparse tables.

    The first share is small: the optimum is often just above the bound, far below the best choice known.
    """

    def __init__(self, messages: MessagePassing, *, whole: bool = False) -> None:
        self._messages = messages
        self._plan: Elimination | None = None
        self._whole = whole
        self._share = 1.0 if whole else 1.0 / 16.0

    def attempt(self, target: float, most_rows: int, watch: Watch) -> GrownTree | None:
        """A tree with the optimum, or an empty one that reaches `target`; None where tables grow too large."""
        if self._messages.network.num_pairs > _MOST_PAIRS:
            return None
        if self._plan is None:
            self._plan = plan_elimination(self._messages.network)
        assert self._plan is not None, "a plan without a limit is always found"
        costs, constant = self._messages.reparametrise()
        while not watch.is_over():
            within = target if self._share >= 1.0 else constant + self._share * (target - constant)
            tree = eliminate_sparsely(costs, self._plan, within - constant, most_rows, watch)
            if tree is None:
                self._share = 1.0 if self._whole else max(self._share / 4.0, 1e-4)
                return None
            if np.isfinite(tree.optimum) or self._share >= 1.0:
                return GrownTree(tree, constant, within)
            self._share = min(1.0, self._share * 4.0)
        return None


def grow_tree(
    messages: MessagePassing, target: float, watch: Watch, most_rows: int, most_sweeps: int, *, whole: bool
) -> GrownTree | None:
    """Sparse tables with the optimum, as soon as `messages` are good enough to keep them small.

    With `whole`, the tables hold all choices cheaper than `target`. None where that takes more than `most_sweeps`
    sweeps to and fro, or the bound alone reaches the target.
    """
    grower = TreeGrower(messages, whole=whole)
    swept, sweeps = 0, 3
    while swept < most_sweeps and not watch.is_over():
        for _ in range(sweeps):
            messages.run(1)
            if messages.bound >= target or watch.is_over():
                return None
        swept += sweeps
        sweeps = swept
        # Early tries are cheap ones.
        grown = grower.attempt(target, min(most_rows, int(300 * swept**1.6)), watch)
        if grown is not None:
            return grown
    return None


class _TooManyRows(Exception):
    """A join passed the limit on rows, or the watch stopped."""


class _SparseElimination:
    """The pass up: joins each bucket's costs and its children's messages, row by row."""

    def __init__(self, network: Network, plan: Elimination, room: float, most_rows: int, watch: Watch) -> None:
        self._network, self._plan, self._room, self._most_rows = network, plan, room, most_rows
        self._watch = watch
        self._rows_held = 0
        self._place = {scope[0]: i for i, scope in enumerate(plan.scopes)}
        self._edges: list[list[tuple[int, int, FloatArray]]] = [[] for _ in plan.scopes]
        self._between: dict[tuple[int, int], FloatArray] = {}
        for e in network.edges:
            self._edges[min(self._place[e.u], self._place[e.v])].append((e.u, e.v, e.cost))
            self._between[min(e.u, e.v), max(e.u, e.v)] = e.cost if e.u < e.v else e.cost.T

    def go_up(self) -> list[SparseTable]:
        children: list[list[int]] = [[] for _ in self._plan.scopes]
        tables: list[SparseTable] = []
        for i, scope in enumerate(self._plan.scopes):
            if self._watch.is_over():
                raise _TooManyRows
            tables.append(self._join_bucket(i, scope, children[i], tables))
            self._rows_held += len(tables[-1].below)
            if self._rows_held > 4 * self._most_rows:
                raise _TooManyRows
            if len(scope) > 1:
                children[min(self._place[v] for v in scope[1:])].append(i)
        return tables

    def _join_bucket(
        self, i: int, scope: tuple[int, ...], children: list[int], tables: list[SparseTable]
    ) -> SparseTable:
        v = scope[0]
        at: dict[int, IntArray] = {v: np.arange(int(self._network.sizes[v]))}
        below = self._unary(v).copy()
        lines: dict[int, IntArray] = {}
        at, below, lines = self._keep(at, below, lines)
        todo = sorted(children, key=lambda c: len(tables[c].message))
        edges = {(w if u == v else u): (cost if u == v else cost.T) for u, w, cost in self._edges[i]}
        while todo or edges:
            # Costs over variables that are all set already only drop rows: they go first.
            ready = [w for w in edges if w in at]
            for w in ready:
                below = below + edges.pop(w)[at[v], at[w]]
            if ready:
                at, below, lines = self._keep(at, below, lines)
            elif todo:
                child = self._pick_child(todo, tables, at)
                todo.remove(child)
                at, below, lines = self._join_child(child, tables[child], at, below, lines)
            else:
                w = min(edges, key=lambda x: int(self._network.sizes[x]))
                at, below, lines = self._join_edge(v, w, edges.pop(w), at, below, lines)
        line, message, message_at = self._project(scope[1:], at, below)
        return SparseTable(at, below, lines, line, message, message_at)

    def _unary(self, v: int) -> FloatArray:
        return self._network.unary[self._network.offsets[v] : self._network.offsets[v + 1]]

    def _pick_child(self, todo: list[int], tables: list[SparseTable], at: dict[int, IntArray]) -> int:
        """The child that shares the most variables with what is joined, small messages first."""
        return max(todo, key=lambda c: (sum(w in at for w in tables[c].message_at), -len(tables[c].message)))

    def _join_child(
        self, child: int, table: SparseTable, at: dict[int, IntArray], below: FloatArray, lines: dict[int, IntArray]
    ) -> tuple[dict[int, IntArray], FloatArray, dict[int, IntArray]]:
        shared = [w for w in table.message_at if w in at]
        ours, theirs = self._key(shared, at, len(below)), self._key(shared, table.message_at, len(table.message))
        order = np.argsort(theirs, kind="stable")
        first = np.searchsorted(theirs[order], ours, side="left")
        counts = np.searchsorted(theirs[order], ours, side="right") - first
        size = int(counts.sum())
        if size > self._most_rows:
            raise _TooManyRows
        source = np.repeat(np.arange(len(below)), counts)
        line = order[np.arange(size) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)]
        cost = below[source] + table.message[line]
        keep = np.flatnonzero(cost <= self._room)
        source, line = source[keep], line[keep]
        new = {w: a[source] for w, a in at.items()}
        new.update({w: a[line] for w, a in table.message_at.items() if w not in at})
        return self._keep(new, cost[keep], {**{c: x[source] for c, x in lines.items()}, child: line})

    def _join_edge(
        self,
        v: int,
        w: int,
        cost: FloatArray,
        at: dict[int, IntArray],
        below: FloatArray,
        lines: dict[int, IntArray],
    ) -> tuple[dict[int, IntArray], FloatArray, dict[int, IntArray]]:
        if len(below) * cost.shape[1] > 8 * self._most_rows:
            raise _TooManyRows
        joint = below[:, None] + cost[at[v]]
        peek = joint + self._unary(w)
        source, candidate = np.nonzero(peek <= self._room)
        new = {x: a[source] for x, a in at.items()}
        new[w] = candidate
        return self._keep(new, joint[source, candidate], {c: x[source] for c, x in lines.items()})

    def _keep(
        self, at: dict[int, IntArray], below: FloatArray, lines: dict[int, IntArray]
    ) -> tuple[dict[int, IntArray], FloatArray, dict[int, IntArray]]:
        """Rows that fit the room, costs between their variables that come later included."""
        if len(below) > self._most_rows:
            raise _TooManyRows
        total = below.copy()
        later = list(at)[1:]
        for i, w in enumerate(later):
            total += self._unary(w)[at[w]]
            for x in later[i + 1 :]:
                cost = self._between.get((min(w, x), max(w, x)))
                if cost is not None:
                    total += cost[at[min(w, x)], at[max(w, x)]]
        keep = total <= self._room
        if keep.all():
            return at, below, lines
        return {w: a[keep] for w, a in at.items()}, below[keep], {c: x[keep] for c, x in lines.items()}

    def _key(self, variables: list[int], at: dict[int, IntArray], count: int) -> IntArray:
        key = np.zeros(count, dtype=np.int64)
        for w in variables:
            key = key * int(self._network.sizes[w]) + at[w]
        return key

    def _project(
        self, rest: tuple[int, ...], at: dict[int, IntArray], below: FloatArray
    ) -> tuple[IntArray, FloatArray, dict[int, IntArray]]:
        """Each row's line of the message over `rest`, and the message."""
        key = self._key(list(rest), at, len(below))
        _, first, line = np.unique(key, return_index=True, return_inverse=True)
        message = np.full(len(first), np.inf)
        np.minimum.at(message, line, below)
        return line, message, {w: at[w][first] for w in rest}


def _complete(network: Network, plan: Elimination, tables: list[SparseTable]) -> SparseTree:
    """The pass down: what the rest costs comes to each table from its parent."""
    parents = [-1] * len(tables)
    for i, table in enumerate(tables):
        for child in table.children:
            parents[child] = i
    best = [float(tables[i].message.min(initial=np.inf)) for i, parent in enumerate(parents) if parent < 0]
    optimum = sum(best)
    outside: list[FloatArray] = [np.zeros(0)] * len(tables)
    totals: list[FloatArray] = [np.zeros(0)] * len(tables)
    for i in range(len(tables) - 1, -1, -1):
        table = tables[i]
        if parents[i] < 0:
            outside[i] = np.full(len(table.message), optimum - float(table.message.min(initial=np.inf)))
        totals[i] = table.below + outside[i][table.line]
        for child, line in table.children.items():
            least = np.full(len(tables[child].message), np.inf)
            np.minimum.at(least, line, totals[i])
            outside[child] = least - tables[child].message
    return SparseTree(network, plan, tuple(tables), tuple(parents), tuple(totals), optimum)
