"""Which dimensions of a program's arrays are one and the same, as the rules of its ops say.

In: a `Program`. Out: a class for every dimension of every value. `x @ w` makes the rows of `x` and of the product one
class, and so does each op for the dimensions that share a factor. What people call "the batch dimension" or "the hidden
dimension" is such a class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from alpaviz.intra.structure import UnionFind
from alpaviz.program.program import Op, Program
from alpaviz.program.rule import DimFactors

DimClass = int
"""Number of a class of dimensions."""


@dataclass(frozen=True, slots=True, eq=False)
class DimensionClasses:
    """Classes of all dimensions.

    Attributes:
        of_values: per value id the class of each dimension; None where nothing may split the dimension (size 1).
        batch: classes that come from a sliced dimension of the batch.
    """

    of_values: tuple[tuple[DimClass | None, ...], ...]
    batch: frozenset[DimClass]

    def of_factor(self, op: Op, factor: int) -> DimClass | None:
        """The class of a factor of `op`'s rule; None where no dimension begins with it."""
        for v, term in _pair_terms(op):
            for d, dim in enumerate(term):
                if dim and dim[0] == factor and v is not None:
                    return self.of_values[v][d]
        return None

    def of_factors(self, op: Op) -> tuple[DimClass | None, ...]:
        """The class of every factor of `op`'s rule."""
        return tuple(self.of_factor(op, f) for f in range(len(op.rule.factors)))

    def has_batch(self, v: int) -> bool:
        """Whether value `v` has a dimension that comes from the batch."""
        return not self.batch.isdisjoint(self.of_values[v])


def find_dimension_classes(program: Program) -> DimensionClasses:
    """Join the dimensions that begin with one factor of an op. Inner factors of merged dimensions are not followed."""
    start = [0]
    for value in program.values:
        start.append(start[-1] + len(value.shape))
    classes = UnionFind()
    for op in program.ops:
        first: dict[int, int] = {}
        for v, term in _pair_terms(op):
            if v is None:
                continue
            for d, dim in enumerate(term):
                if dim and op.rule.factors[dim[0]].size > 1:
                    classes.union(first.setdefault(dim[0], start[v] + d), start[v] + d)
    of_values = tuple(
        tuple(classes.find(start[value.id] + d) if size > 1 else None for d, size in enumerate(value.shape))
        for value in program.values
    )
    sliced = {
        of_values[v][axis] for v, axis in zip(program.inputs, program.batch_axes, strict=True) if axis is not None
    }
    return DimensionClasses(of_values, frozenset(c for c in sliced if c is not None))


def _pair_terms(op: Op) -> Iterable[tuple[int | None, tuple[DimFactors, ...]]]:
    """Each operand and result of `op` with its term of the rule."""
    yield from zip(op.inputs, op.rule.operands, strict=True)
    yield from zip(op.outputs, op.rule.results, strict=True)
