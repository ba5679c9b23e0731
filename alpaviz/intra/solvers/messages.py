"""A bound on every choice by message passing: sequential tree-reweighted messages (TRW-S).

Each sweep visits the variables in order (forward) or in reverse (backward); the problem's own order, that of the
program, was measured to be better than breadth-first or elimination orders. A variable gathers the messages of all its
neighbours and hands an equal share of the sum to each neighbour ahead. After any sweep the sum of what variables keep
is a lower bound on the cost of every choice, and it never falls from one sweep to the next. On trees one sweep each way
is exact; on the planner's problems without a memory limit the bound meets the optimum after some tens of sweeps.

Source: Kolmogorov, Convergent tree-reweighted message passing for energy minimization, 2006, figure 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alpaviz.intra.pair_costs import PairCosts
from alpaviz.intra.problem import Edge, FloatArray
from alpaviz.intra.solvers.network import IntArray, Network

MessageTable = Mapping[tuple[int, int], FloatArray]
"""By (sender, receiver), over the receiver's candidates in the problem."""


class MessageMemo:
    """Messages that carry over from one solve to the next of a similar problem.

    Attributes:
        start: to begin with; bounds hold whatever they are.
        passes: of the solve, each over a part of the network of the one before.
    """

    def __init__(self, start: MessageTable | None = None) -> None:
        self.start: MessageTable = start or {}
        self.passes: list[MessagePassing] = []

    def collect(self, sizes: Sequence[int]) -> dict[tuple[int, int], FloatArray]:
        """The last messages over each candidate, of which variable v has `sizes[v]` in the problem."""
        table: dict[tuple[int, int], FloatArray] = {}
        for messages in self.passes:
            messages.save_messages(table, sizes)
        return table


@dataclass(frozen=True, slots=True, eq=False)
class _Ahead:
    """Edges from one variable to the neighbours ahead of it, side by side."""

    cost: FloatArray  # (candidates, candidates of all neighbours ahead)
    sender: IntArray  # (candidates of all neighbours ahead,) row of the variable's inbox that each column belongs to
    target: IntArray  # (candidates of all neighbours ahead,) where the message goes in the flat message array
    variables: IntArray  # (neighbours ahead,)


@dataclass(frozen=True, slots=True, eq=False)
class _Classed:
    """An edge to a neighbour ahead whose equal rows and columns are kept once."""

    row: int  # of the variable's inbox
    table: FloatArray  # (row classes, column classes)
    order: IntArray  # the variable's candidates by row class
    starts: IntArray  # (row classes,), where each begins in `order`
    columns: IntArray  # column class of each of the neighbour's candidates
    target: slice  # of the flat message array
    neighbour: int


@dataclass(frozen=True, slots=True, eq=False)
class _Stop:
    """What a sweep needs at one variable."""

    variable: int
    unary: FloatArray  # view, (candidates,)
    inbox: FloatArray  # view, (neighbours, candidates)
    share: float
    left: float
    ahead: _Ahead | None
    classed: tuple[_Classed, ...]
    forced: FloatArray  # view, (candidates,)


class MessagePassing:
    """Messages over the edges of one network; `unary` may change between sweeps, the edges may not.

    Attributes:
        bound: best lower bound since `unary` was last set.
        forced: (candidates of all variables,), lower bound on every choice that takes this candidate.
    """

    def __init__(self, network: Network, order: IntArray | None = None) -> None:
        self.network = network
        self._order = np.arange(network.num_variables) if order is None else order
        self._place = np.empty(len(self._order), dtype=np.int64)
        self._place[self._order] = np.arange(len(self._order))
        self._unary = network.unary.copy()
        self.forced = np.full(len(network.unary), -np.inf)
        self._neighbours = _list_neighbours(network, self._order)
        degrees = np.array([len(n) for n in self._neighbours], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(degrees * network.sizes)]).astype(np.int64)
        self._messages = np.zeros(int(self._starts[-1]))
        self._rows = [{w: i for i, (w, _) in enumerate(n)} for n in self._neighbours]
        self._inboxes = [
            self._messages[self._starts[v] : self._starts[v + 1]].reshape(len(self._neighbours[v]), size)
            for v, size in enumerate(network.sizes)
        ]
        joined = [int(v) for v in self._order if self._neighbours[v]]
        self._alone = np.array([v for v in range(network.num_variables) if not self._neighbours[v]], dtype=np.int64)
        self._stops = {
            True: [self._make_stop(v, is_forward=True) for v in joined],
            False: [self._make_stop(v, is_forward=False) for v in reversed(joined)],
        }
        self._parts = np.zeros(network.num_variables)
        self._last_forward: bool | None = None
        self.bound = -np.inf

    def set_unary(self, unary: FloatArray) -> None:
        """Change the unary costs; messages stay, bounds start again."""
        self._unary[:] = unary
        self._last_forward = None
        self.bound = -np.inf
        self.forced[:] = -np.inf

    def copy_messages(self, other: MessagePassing) -> None:
        """Take the messages of a network of the same variables of which this one keeps a part."""
        for v, neighbours in enumerate(self._neighbours):
            if neighbours:
                kept = np.searchsorted(other._kept_of(v), self._kept_of(v))
                for i, (w, _) in enumerate(neighbours):
                    self._inboxes[v][i] = other._inboxes[v][other._rows[v][w], kept]

    def set_message(self, u: int, v: int, message: FloatArray) -> None:
        """What `u` tells its neighbour `v`: (candidates of `v`,). Bounds hold whatever the messages are."""
        self._inboxes[v][self._rows[v][u]] = message

    def load_messages(self, start: MessageTable) -> None:
        """Begin with the messages of `start`, which are over the problem's candidates; others stay as they are."""
        for v, neighbours in enumerate(self._neighbours):
            kept = self._kept_of(v)
            for i, (w, _) in enumerate(neighbours):
                message = start.get((w, v))
                if message is not None:
                    self._inboxes[v][i] = message[kept]

    def save_messages(self, table: dict[tuple[int, int], FloatArray], sizes: Sequence[int]) -> None:
        """Write the messages to `table`; candidates that this network has dropped keep what they have there, or 0."""
        for v, neighbours in enumerate(self._neighbours):
            kept = self._kept_of(v)
            for i, (w, _) in enumerate(neighbours):
                if (w, v) not in table:
                    table[w, v] = np.zeros(sizes[v])
                table[w, v][kept] = self._inboxes[v][i]

    def run(self, sweeps: int) -> float:
        """Sweep to and fro `sweeps` times; returns the best bound."""
        for _ in range(sweeps):
            self.sweep(is_forward=True)
            self.sweep(is_forward=False)
        return self.bound

    def sweep(self, *, is_forward: bool) -> float:
        """One sweep; returns the best bound since `unary` was set."""
        messages, parts = self._messages, self._parts
        alone = self._settle_alone()
        is_return = self._last_forward is not None and self._last_forward != is_forward
        behind, beyond = alone, float(parts.sum()) if is_return else 0.0
        # What edges carry from a variable passed to one not reached yet, in total and per variable that it goes to.
        in_flight, due = 0.0, np.zeros(len(parts))
        for stop in self._stops[is_forward]:
            belief = stop.unary + np.add.reduce(stop.inbox, axis=0)
            least = float(belief.min())
            if is_return:
                # Here every adjacent edge has been gathered, so the belief is a bound for each candidate.
                beyond -= parts[stop.variable]
                in_flight -= due[stop.variable]
                np.maximum(stop.forced, belief + (behind + in_flight + beyond), out=stop.forced)
            ahead = stop.ahead
            if ahead is not None:
                spread = (stop.share * belief - stop.inbox).T
                due[ahead.variables] += stop.share * least
                in_flight += len(ahead.variables) * stop.share * least
                messages[ahead.target] = np.minimum.reduce(spread.take(ahead.sender, axis=1) + ahead.cost, axis=0)
            for edge in stop.classed:
                line = (stop.share * belief - stop.inbox[edge.row])[edge.order]
                due[edge.neighbour] += stop.share * least
                in_flight += stop.share * least
                of_class = np.minimum.reduceat(line, edge.starts)
                messages[edge.target] = np.minimum.reduce(of_class[:, None] + edge.table, axis=0)[edge.columns]
            part = stop.left * least
            parts[stop.variable] = part
            behind += part
        self._last_forward = is_forward
        if is_return and len(self._alone):
            self._force_alone(behind)
        self.bound = max(self.bound, behind)
        return self.bound

    def reparametrise(self) -> tuple[Network, float]:
        """The network with the messages moved into its costs, all of them at least 0, and the constant that is left.

        The cost of each choice is its cost there plus the constant, the bound of the last backward sweep.
        """
        if self._last_forward is not False:
            self.sweep(is_forward=False)
        network, offsets = self.network, self.network.offsets
        unary, edges, constant = self._unary.copy(), [], 0.0
        for v in self._alone:
            part = unary[offsets[v] : offsets[v + 1]]
            constant += float(part.min())
            part -= part.min()
        for stop in self._stops[False]:
            v = stop.variable
            belief = stop.unary + np.add.reduce(stop.inbox, axis=0)
            least = float(belief.min()) * stop.left
            constant += least
            unary[offsets[v] : offsets[v + 1]] = np.maximum(stop.left * belief - least, 0.0)
            for i, (w, costs) in enumerate(self._neighbours[v]):
                if self._place[w] < self._place[v]:
                    sent = self._inboxes[w][self._rows[w][v]]
                    left = costs.expand().T + (stop.share * belief - stop.inbox[i])[:, None] - sent
                    edges.append(Edge(v, w, np.maximum(left, 0.0)))
        return replace(network, unary=unary, edges=tuple(edges)), constant

    def pick(self, *, is_forward: bool) -> IntArray:
        """A choice, each variable given those before it and the messages of those after it."""
        choice = np.zeros(self.network.num_variables, dtype=np.int64)
        offsets = self.network.offsets
        done = [False] * len(choice)
        for v in self._alone:
            choice[v] = int(self._unary[offsets[v] : offsets[v + 1]].argmin())
        for stop in self._stops[is_forward]:
            v = stop.variable
            cost = stop.unary.copy()
            for (w, costs), message in zip(self._neighbours[v], stop.inbox, strict=True):
                cost += costs.row(int(choice[w])) if done[w] else message
            choice[v] = int(cost.argmin())
            done[v] = True
        return choice

    def _make_stop(self, v: int, *, is_forward: bool) -> _Stop:
        network, neighbours = self.network, self._neighbours[v]
        place = self._place
        ahead = [i for i, (w, _) in enumerate(neighbours) if (place[w] > place[v]) == is_forward]
        share = 1.0 / max(len(ahead), len(neighbours) - len(ahead))
        candidates = slice(int(network.offsets[v]), int(network.offsets[v + 1]))
        whole = [i for i in ahead if neighbours[i][1].rows is None and neighbours[i][1].columns is None]
        return _Stop(
            variable=v,
            unary=self._unary[candidates],
            inbox=self._inboxes[v],
            share=share,
            # Rounding must not leave a crumb (of either sign) where everything is handed on.
            left=0.0 if len(ahead) * 2 >= len(neighbours) else 1.0 - len(ahead) * share,
            ahead=self._gather_ahead(v, whole) if whole else None,
            classed=tuple(self._gather_classed(v, i) for i in ahead if i not in whole),
            forced=self.forced[candidates],
        )

    def _gather_ahead(self, v: int, rows: list[int]) -> _Ahead:
        sizes = self.network.sizes
        targets = [self._neighbours[v][i][0] for i in rows]
        if len(rows) == 1:  # most often
            w = targets[0]
            start = int(self._starts[w] + self._rows[w][v] * sizes[w])
            return _Ahead(
                cost=np.ascontiguousarray(self._neighbours[v][rows[0]][1].table.T),
                sender=np.full(int(sizes[w]), rows[0]),
                target=np.arange(start, start + int(sizes[w])),
                variables=np.array(targets, dtype=np.int64),
            )
        return _Ahead(
            cost=np.ascontiguousarray(np.concatenate([self._neighbours[v][i][1].table.T for i in rows], axis=1)),
            sender=np.repeat(np.array(rows), [int(sizes[w]) for w in targets]),
            target=np.concatenate(
                [self._starts[w] + self._rows[w][v] * sizes[w] + np.arange(sizes[w]) for w in targets]
            ).astype(np.int64),
            variables=np.array(targets, dtype=np.int64),
        )

    def _gather_classed(self, v: int, i: int) -> _Classed:
        w, costs = self._neighbours[v][i]
        columns, rows = costs.rows, costs.columns  # kept with the neighbour's candidates first
        height = costs.table.shape[1]
        if rows is None:
            rows = np.arange(height)
        order = np.argsort(rows, kind="stable")
        start = int(self._starts[w] + self._rows[w][v] * self.network.sizes[w])
        return _Classed(
            row=i,
            table=np.ascontiguousarray(costs.table.T),
            order=order,
            starts=np.searchsorted(rows[order], np.arange(height)),
            columns=np.arange(costs.table.shape[0]) if columns is None else columns,
            target=slice(start, start + int(self.network.sizes[w])),
            neighbour=w,
        )

    def _settle_alone(self) -> float:
        offsets = self.network.offsets
        return float(sum(self._unary[offsets[v] : offsets[v + 1]].min() for v in self._alone))

    def _force_alone(self, bound: float) -> None:
        offsets = self.network.offsets
        for v in self._alone:
            part = slice(int(offsets[v]), int(offsets[v + 1]))
            self.forced[part] = bound + self._unary[part] - self._unary[part].min()

    def _kept_of(self, v: int) -> IntArray:
        return self.network.kept[self.network.offsets[v] : self.network.offsets[v + 1]]


def _list_neighbours(network: Network, order: IntArray) -> list[list[tuple[int, PairCosts]]]:
    """Per variable its (neighbour, costs with the neighbour's candidates first), in sweep order."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    neighbours: list[list[tuple[int, PairCosts]]] = [[] for _ in range(network.num_variables)]
    for e in network.edges:
        neighbours[e.u].append((e.v, e.costs.transposed()))
        neighbours[e.v].append((e.u, e.costs))
    for found in neighbours:
        found.sort(key=lambda item: int(place[item[0]]))
    return neighbours
