"""Costs of the pairs of two variables' candidates, equal rows and columns kept once.

Many candidates of an op want one and the same spec of an operand: on three mesh axes a product has over a thousand
strategies but some tens of operand specs, so a matrix of millions of pairs is a table of thousands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class PairCosts:
    """A matrix: entry (k, l) is `table[rows[k], columns[l]]`.

    Attributes:
        table: (row classes, column classes).
        rows: (candidates of the first variable,), each one's row class; None where each has a row of its own.
        columns: (candidates of the second variable,), likewise.
    """

    table: FloatArray
    rows: IndexArray | None = None
    columns: IndexArray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of candidates."""
        height, width = self.table.shape
        return height if self.rows is None else len(self.rows), width if self.columns is None else len(self.columns)

    @property
    def size(self) -> int:
        """Number of pairs."""
        height, width = self.shape
        return height * width

    def expand(self) -> FloatArray:
        """The whole matrix."""
        table = self.table if self.rows is None else self.table[self.rows]
        return table if self.columns is None else table[:, self.columns]

    def at(self, first: int, second: int) -> float:
        """One entry."""
        row = first if self.rows is None else self.rows[first]
        return float(self.table[row, second if self.columns is None else self.columns[second]])

    def row(self, first: int) -> FloatArray:
        """All pairs of one candidate of the first variable."""
        line: FloatArray = self.table[first if self.rows is None else self.rows[first]]
        return line if self.columns is None else line[self.columns]

    def column(self, second: int) -> FloatArray:
        """All pairs of one candidate of the second variable."""
        line: FloatArray = self.table[:, second if self.columns is None else self.columns[second]]
        return line if self.rows is None else line[self.rows]

    def transposed(self) -> PairCosts:
        """The same, second variable first."""
        return PairCosts(self.table.T, self.columns, self.rows)

    def times(self, factor: float) -> PairCosts:
        """Every entry times `factor`."""
        return PairCosts(self.table * factor, self.rows, self.columns)

    def replaced(self, table: FloatArray) -> PairCosts:
        """Other entries at the same places."""
        return PairCosts(table, self.rows, self.columns)

    def plus(self, other: PairCosts) -> PairCosts:
        """Entry by entry; the shapes are equal."""
        rows, ours, theirs = _cross(self.rows, other.rows, self.table.shape[0], other.table.shape[0])
        table, more = self.table[ours], other.table[theirs]
        columns, ours, theirs = _cross(self.columns, other.columns, self.table.shape[1], other.table.shape[1])
        return PairCosts(table[:, ours] + more[:, theirs], rows, columns)

    def take(self, first: IndexArray | None, second: IndexArray | None) -> PairCosts:
        """The candidates at these positions; None takes all. Classes stay, `tight` drops those that nobody has."""
        table, rows, columns = self.table, self.rows, self.columns
        if first is not None:
            table, rows = (table[first], None) if rows is None else (table, rows[first])
        if second is not None:
            table, columns = (table[:, second], None) if columns is None else (table, columns[second])
        return PairCosts(table, rows, columns)

    def tight(self) -> PairCosts:
        """The same without classes that no candidate has, and with the whole matrix where classes save little."""
        if self.rows is None and self.columns is None and self.table.flags.c_contiguous:
            return self
        if self.size <= _FEW:
            return PairCosts(np.ascontiguousarray(self.expand()))
        table, rows, columns = self.table, self.rows, self.columns
        if rows is not None:
            table, rows = _drop_unused(table, rows)
        if columns is not None:
            turned, columns = _drop_unused(table.T, columns)
            table = turned.T
        found = PairCosts(np.ascontiguousarray(table), rows, columns)
        return found if 2 * table.size <= found.size else PairCosts(found.expand())


_FEW = 1024
"""Up to this many pairs a matrix is quicker to use as a whole."""


def _drop_unused(table: FloatArray, rows: IndexArray) -> tuple[FloatArray, IndexArray]:
    used = np.zeros(len(table), dtype=np.bool_)
    used[rows] = True
    if used.all():
        return table, rows
    return table[used], (np.cumsum(used) - 1)[rows]


def _cross(
    ours: IndexArray | None, theirs: IndexArray | None, our_height: int, their_height: int
) -> tuple[IndexArray | None, IndexArray | slice, IndexArray | slice]:
    """Common classes of two classifications, and for each of them the class on either side."""
    everything = slice(None)
    is_same = ours is theirs or (ours is not None and theirs is not None and np.array_equal(ours, theirs))
    if is_same and our_height == their_height:
        return ours, everything, everything
    if ours is None or theirs is None:
        return None, everything if ours is None else ours, everything if theirs is None else theirs
    both, rows = np.unique(ours * their_height + theirs, return_inverse=True)
    return rows, both // their_height, both % their_height
