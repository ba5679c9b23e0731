"""Sharding rules: which dimensions of an op's operands and results are the same factor, and of what kind each is.

A rule is written like an einsum, `"b m k, b k n -> b m n"`: one term per operand and result, one factor per
dimension. `(h d)` is a dimension made of two factors, the first varying slowest; `1` is a dimension that nothing may
split. A factor that operands have and no result has is a reduction. Everything else about an op's parallel forms
(strategies, collectives, propagation of specs) follows from its rule; there is no code per primitive beyond it.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from alpaviz.errors import ShardingRuleError

DimFactors = tuple[int, ...]
"""Factors that one dimension is made of, slowest first; empty for a dimension that nothing may split."""


class FactorKind(enum.StrEnum):
    """What splitting a factor means."""

    PARALLEL = "parallel"
    """Every device works on its own slice of the result."""
    REDUCTION = "reduction"
    """Every device holds a partial result: an all-reduce or reduce-scatter follows."""
    WHOLE = "whole"
    """Never split."""


@dataclass(frozen=True, slots=True)
class Factor:
    """An iteration dimension of an op: its letter or word, its size, its kind."""

    name: str
    size: int
    kind: FactorKind


@dataclass(frozen=True, slots=True)
class BodyWork:
    """What ops inside a loop's body do, by the positions of the factors that the loop's rule knows.

    Attributes:
        times: how often the body runs.
        flops: of one run.
        split: factors that divide these FLOPs.
        summed: factors over which partial results are summed by an all-reduce in each run.
        num_bytes: of the array that is summed, whole.
        result: factors that divide that array.
    """

    times: float
    flops: float
    split: tuple[int, ...]
    summed: tuple[int, ...]
    num_bytes: float
    result: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Halo:
    """Rows that a device needs of its neighbours where `factor` is split: windows reach over the edge of its part.

    Attributes:
        operand, dim: what is exchanged, and the dimension whose rows are.
        length: rows of that dimension in all.
        before, after: rows that are needed of the neighbour before and of the one after.
    """

    factor: int
    operand: int
    dim: int
    length: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class ShardingRule:
    """Factors of one op, and for each dimension of each operand and result the factors that it is made of.

    `operands[i][d]` are positions in `factors`. `is_opaque` marks the safe rule of an op that has no rule of its own.
    `body` is what a loop or branch does inside; empty for other ops. `can_scatter` is false where XLA does not end a
    reduction in a reduce-scatter. `halos` are what neighbours exchange where windows slide over a split dimension.
    `exclusive` are pairs of factors of which at most one may be split.
    """

    factors: tuple[Factor, ...]
    operands: tuple[tuple[DimFactors, ...], ...]
    results: tuple[tuple[DimFactors, ...], ...]
    is_opaque: bool = False
    body: tuple[BodyWork, ...] = ()
    can_scatter: bool = True
    halos: tuple[Halo, ...] = ()
    exclusive: tuple[tuple[int, int], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        parts = (
            self.factors, self.operands, self.results, self.is_opaque, self.body, self.can_scatter, self.halos,
            self.exclusive,
        )  # fmt: skip
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        # Rules are keys of many caches, and large: the hash is worked out once.
        return self._hash

    def __str__(self) -> str:
        return _format_rule(self)

    def can_split(self, factor: int, axes: Sequence[str], axis_sizes: Mapping[str, int]) -> bool:
        """Whether `factor` may be split over `axes`: its size divides, and a halo comes from direct neighbours.

        A halo factor takes one axis, and a device's part must be as long as what its neighbour needs of it.
        """
        shards = 1
        for axis in axes:
            shards *= axis_sizes[axis]
        if self.factors[factor].size % shards:
            return False
        reaches = [(h.length, max(h.before, h.after)) for h in self.halos if h.factor == factor]
        return shards == 1 or all(len(axes) == 1 and length // shards >= reach for length, reach in reaches)

    def minor_factors(self) -> frozenset[int]:
        """Factors that are not the slowest part of some dimension: splitting them would scatter that dimension."""
        terms = self.operands + self.results
        return frozenset(f for term in terms for dim in term for f in dim[1:])


@functools.lru_cache(maxsize=4096)
def _format_rule(rule: ShardingRule) -> str:
    def format_term(term: tuple[DimFactors, ...]) -> str:
        words = []
        for dim in term:
            names = [rule.factors[f].name for f in dim]
            words.append("1" if not names else names[0] if len(names) == 1 else "(" + " ".join(names) + ")")
        return " ".join(words) if words else "·"

    return f"{', '.join(map(format_term, rule.operands))} -> {', '.join(map(format_term, rule.results))}"


class RuleBuilder:
    """Builds a `ShardingRule` factor by factor. Factor names are given in order: a, b, c, ..."""

    def __init__(self) -> None:
        self._factors: list[Factor] = []

    def add(self, size: int, kind: FactorKind = FactorKind.PARALLEL, name: str | None = None) -> int:
        """A new factor; its position."""
        position = len(self._factors)
        letter = name if name is not None else _letter(position)
        self._factors.append(Factor(letter, size, kind if size > 1 else FactorKind.WHOLE))
        return position

    def add_all(self, shape: Sequence[int], kind: FactorKind = FactorKind.PARALLEL) -> list[int]:
        """One new factor per dimension of `shape`."""
        return [self.add(size, kind) for size in shape]

    def finish(
        self,
        operands: Iterable[Iterable[int | DimFactors]],
        results: Iterable[Iterable[int | DimFactors]],
        *,
        is_opaque: bool = False,
        can_scatter: bool = True,
        halos: Iterable[Halo] = (),
        exclusive: Iterable[tuple[int, int]] = (),
    ) -> ShardingRule:
        """The rule; a dimension is a factor's position or a tuple of positions."""

        def term(dims: Iterable[int | DimFactors]) -> tuple[DimFactors, ...]:
            return tuple((d,) if isinstance(d, int) else tuple(d) for d in dims)

        return ShardingRule(
            tuple(self._factors),
            tuple(map(term, operands)),
            tuple(map(term, results)),
            is_opaque=is_opaque,
            can_scatter=can_scatter,
            halos=tuple(halos),
            exclusive=tuple(exclusive),
        )


def _letter(position: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return letters[position] if position < 26 else f"{letters[position % 26]}{position // 26}"


_TOKEN = re.compile(r"\(([^()]*)\)|([A-Za-z_][A-Za-z_0-9]*)|(1)")


def parse_rule(
    text: str, operand_shapes: Sequence[Sequence[int]], result_shapes: Sequence[Sequence[int]]
) -> ShardingRule:
    """The rule that `text` writes, with the sizes of the given shapes.

    Raises:
        ShardingRuleError: the number of terms, a rank or a size does not fit, or a result's factor is in no operand.
    """
    if text.count("->") != 1:
        raise ShardingRuleError(f"rule {text!r}: write operands, '->', results, as in 'b m k, b k n -> b m n'.")
    left, right = text.split("->")
    operand_terms, result_terms = _parse_terms(text, left), _parse_terms(text, right)
    sizes: dict[str, int] = {}
    for side, terms, shapes in (("operand", operand_terms, operand_shapes), ("result", result_terms, result_shapes)):
        if len(terms) != len(shapes):
            raise ShardingRuleError(f"rule {text!r} has {len(terms)} {side}s, the op has {len(shapes)}.")
        for position, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
            _match_sizes(text, f"{side} {position}", term, shape, sizes)
    in_operands = {name for term in operand_terms for dim in term for name in dim}
    in_results = {name for term in result_terms for dim in term for name in dim}
    order = list(dict.fromkeys(name for term in operand_terms + result_terms for dim in term for name in dim))
    factors = tuple(
        Factor(name, sizes[name], FactorKind.REDUCTION if name not in in_results else FactorKind.PARALLEL)
        for name in order
    )
    unknown = sorted(in_results - in_operands)
    if unknown and operand_terms:
        raise ShardingRuleError(f"rule {text!r}: factor {unknown[0]!r} of a result is in no operand.")
    index = {name: position for position, name in enumerate(order)}

    def to_positions(terms: list[list[list[str]]]) -> tuple[tuple[DimFactors, ...], ...]:
        return tuple(tuple(tuple(index[name] for name in dim) for dim in term) for term in terms)

    return ShardingRule(factors, to_positions(operand_terms), to_positions(result_terms))


def _parse_terms(text: str, side: str) -> list[list[list[str]]]:
    if not side.strip():
        return []
    terms = []
    for term in side.split(","):
        leftover = _TOKEN.sub("", term).replace("·", "").strip()
        if leftover:
            raise ShardingRuleError(f"rule {text!r}: cannot read {leftover!r}; a factor is a word, '(a b)' or '1'.")
        dims: list[list[str]] = []
        for group, word, one in _TOKEN.findall(term):
            dims.append(group.split() if group else [] if one else [word])
        terms.append(dims)
    return terms


def _match_sizes(text: str, where: str, term: list[list[str]], shape: Sequence[int], sizes: dict[str, int]) -> None:
    if len(term) != len(shape):
        raise ShardingRuleError(f"rule {text!r}: {where} has {len(term)} dimensions in it, the array has {len(shape)}.")
    for position, (dim, size) in enumerate(zip(term, shape, strict=True)):
        unknown = [name for name in dim if name not in sizes]
        known = 1
        for name in dim:
            known *= sizes.get(name, 1)
        if len(unknown) > 1:
            raise ShardingRuleError(
                f"rule {text!r}: {where}, dimension {position}: the sizes of {unknown} cannot both be found; "
                "use each of them alone in an earlier term."
            )
        if unknown:
            if size % known:
                raise ShardingRuleError(f"rule {text!r}: {where}, dimension {position}: {size} / {known} is not whole.")
            sizes[unknown[0]] = size // known
        elif dim and known != size:
            raise ShardingRuleError(
                f"rule {text!r}: {where}, dimension {position}: {' '.join(dim)} is {known}, the array has {size}."
            )
