"""A list of strategies with what its readers ask again and again: the distinct specs of each operand and result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from alpaviz.program.strategy import Strategy
from alpaviz.types import ShardingSpec

IndexArray = npt.NDArray[np.intp]
Specs = tuple[ShardingSpec, ...]


class StrategyTable:
    """Strategies of one op, in order. Compared by identity, so that it is a quick key.

    Args:
        intern: gives one and the same tuple for equal tuples of specs.
    """

    def __init__(self, strategies: Sequence[Strategy], intern: Callable[[Specs], Specs]) -> None:
        self.strategies = tuple(strategies)
        self._intern = intern
        self._operands: dict[int, tuple[Specs, IndexArray]] = {}
        self._results: dict[int, tuple[Specs, IndexArray]] = {}

    def __len__(self) -> int:
        return len(self.strategies)

    def operand_specs(self, operand: int) -> tuple[Specs, IndexArray]:
        """The distinct specs that operand `operand` must have, and for each strategy which of them."""
        if operand not in self._operands:
            self._operands[operand] = self._index([s.input_specs[operand] for s in self.strategies])
        return self._operands[operand]

    def result_specs(self, result: int) -> tuple[Specs, IndexArray]:
        """The distinct specs that result `result` gets, and for each strategy which of them."""
        if result not in self._results:
            self._results[result] = self._index([s.output_specs[result] for s in self.strategies])
        return self._results[result]

    def _index(self, specs: Sequence[ShardingSpec]) -> tuple[Specs, IndexArray]:
        distinct = self._intern(tuple(dict.fromkeys(specs)))
        where = {spec: i for i, spec in enumerate(distinct)}
        return distinct, np.array([where[spec] for spec in specs], dtype=np.intp)
