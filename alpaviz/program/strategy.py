"""Strategies: the ways to run one op on a logical mesh, all derived from its sharding rule.

A strategy assigns mesh axes to factors. A reduction that is split ends in an all-reduce, or in a reduce-scatter onto
a dimension of the result (paper section 4.1 and table 3; reduce-scatter inside the choice goes beyond it).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from alpaviz.program.rule import DimFactors, FactorKind, ShardingRule
from alpaviz.types import MeshAxis, ShardingSpec, count_shards


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run an op.

    Attributes:
        label: mesh axes by factor, `"m:x k:y"`; `"whole"` where no axis splits the op; `k:y>1` scatters the reduction
            over y onto dimension 1 of the result, and `k:y>1@step` does so once a step.
        factor_axes: per factor of the rule, the mesh axes that split it, major first.
        input_specs, output_specs: what operands must have and results get.
        reduce_axes: axes whose partial results are summed by an all-reduce.
        scatter: (axis, result dimension) of partial sums that end in a reduce-scatter.
        is_deferred: the partial sums are accumulated over the microbatches, and reduced once a step.
    """

    label: str
    factor_axes: tuple[tuple[MeshAxis, ...], ...]
    input_specs: tuple[ShardingSpec, ...]
    output_specs: tuple[ShardingSpec, ...]
    reduce_axes: tuple[MeshAxis, ...]
    scatter: tuple[tuple[MeshAxis, int], ...] = ()
    is_deferred: bool = False

    @property
    def partial_axes(self) -> tuple[MeshAxis, ...]:
        """Axes over which a deferred strategy's result is a partial sum until the end of the step."""
        return (*self.reduce_axes, *(axis for axis, _ in self.scatter)) if self.is_deferred else ()

    @property
    def split_axes(self) -> tuple[MeshAxis, ...]:
        """Axes over which the work is divided."""
        return tuple(axis for axes in self.factor_axes for axis in axes)


@dataclass(frozen=True, slots=True)
class _AxisOption:
    """One mesh axis goes to `factor` (None: replicated), its partial sums to result dimension `scatter` or nowhere."""

    factor: int | None
    scatter: int | None = None


def build_strategy(
    rule: ShardingRule,
    factor_axes: Sequence[tuple[MeshAxis, ...]],
    scatter: Sequence[tuple[MeshAxis, int]] = (),
) -> Strategy:
    """The strategy that splits each factor over the given axes. Divisibility is the caller's business."""
    scattered = dict(scatter)
    reduce_axes = tuple(
        axis
        for factor, axes in zip(rule.factors, factor_axes, strict=True)
        if factor.kind is FactorKind.REDUCTION
        for axis in axes
        if axis not in scattered
    )
    input_specs = tuple(_spec_of_term(term, factor_axes) for term in rule.operands)
    output_specs = tuple(
        tuple(
            axes + tuple(a for a, dim in scatter if dim == d)
            for d, axes in enumerate(_spec_of_term(term, factor_axes, skip_reductions=rule))
        )
        for term in rule.results
    )
    return Strategy(
        _label(rule, factor_axes, scattered), tuple(map(tuple, factor_axes)), input_specs, output_specs, reduce_axes,
        tuple(scatter),
    )  # fmt: skip


def _spec_of_term(
    term: tuple[DimFactors, ...],
    factor_axes: Sequence[tuple[MeshAxis, ...]],
    skip_reductions: ShardingRule | None = None,
) -> ShardingSpec:
    def axes_of(factor: int) -> tuple[MeshAxis, ...]:
        if skip_reductions is not None and skip_reductions.factors[factor].kind is FactorKind.REDUCTION:
            return ()
        return tuple(factor_axes[factor])

    return tuple(tuple(axis for f in dim for axis in axes_of(f)) for dim in term)


def _label(rule: ShardingRule, factor_axes: Sequence[tuple[MeshAxis, ...]], scattered: Mapping[MeshAxis, int]) -> str:
    words = []
    for factor, axes in zip(rule.factors, factor_axes, strict=True):
        plain = "".join(a for a in axes if a not in scattered)
        if plain:
            words.append(f"{factor.name}:{plain}")
        words.extend(f"{factor.name}:{a}>{scattered[a]}" for a in axes if a in scattered)
    return " ".join(words) or "whole"


def enumerate_strategies(
    rule: ShardingRule, axis_sizes: Mapping[MeshAxis, int], *, scatter: bool = True, replicate: bool = True
) -> tuple[Strategy, ...]:
    """Every strategy of an op with `rule` on a mesh with `axis_sizes`; at least the whole one.

    Axes of size 1 are left out. A factor is split only where its size divides, and a factor that is the inner part of
    a merged dimension is not split.

    Args:
        scatter: also offer a reduce-scatter onto each result dimension for each split reduction (one result only).
        replicate: also let an axis split nothing, so that its devices repeat the work.
    """
    axes = [axis for axis, size in axis_sizes.items() if size > 1]
    options = _list_axis_options(rule, scatter=scatter and rule.can_scatter and len(rule.results) == 1)
    found: dict[str, Strategy] = {}
    for assignment in itertools.product(options, repeat=len(axes)):
        if not replicate and any(option.factor is None for option in assignment) and len(options) > 1:
            continue
        strategy = _build_if_legal(rule, dict(zip(axes, assignment, strict=True)), axis_sizes)
        if strategy is not None:
            found.setdefault(strategy.label, strategy)
    if not found:
        whole = build_strategy(rule, ((),) * len(rule.factors))
        found[whole.label] = whole
    return tuple(found.values())


def defer(strategy: Strategy) -> Strategy:
    """`strategy` with its reduction once a step instead of once a microbatch; itself where nothing is reduced."""
    if not strategy.reduce_axes and not strategy.scatter:
        return strategy
    # An all-reduce is always deferred where it can be, so only a scatter needs another name for it.
    label = f"{strategy.label}@step" if strategy.scatter else strategy.label
    return replace(strategy, label=label, is_deferred=True)


def list_deferrals(strategies: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """The strategies of an op whose reduction may wait for the end of the step.

    Waiting costs an all-reduce nothing: the accumulator is as large. A reduce-scatter in every microbatch leaves a
    smaller accumulator (ZeRO-2), so it stays as a choice.
    """
    found = []
    for strategy in strategies:
        if strategy.scatter:
            found.append(strategy)
        found.append(defer(strategy))
    return tuple(found)


def _list_axis_options(rule: ShardingRule, *, scatter: bool) -> list[_AxisOption]:
    options = [_AxisOption(None)]
    minor = rule.minor_factors()
    exchanged = {halo.factor for halo in rule.halos}
    for position, factor in enumerate(rule.factors):
        if factor.kind is FactorKind.WHOLE or position in minor:
            continue
        options.append(_AxisOption(position))
        if scatter and factor.kind is FactorKind.REDUCTION:
            options.extend(
                _AxisOption(position, d)
                for d, dim in enumerate(rule.results[0])
                if dim and rule.factors[dim[0]].size > 1 and dim[0] not in exchanged
            )
    return options


def _build_if_legal(
    rule: ShardingRule, assignment: Mapping[MeshAxis, _AxisOption], axis_sizes: Mapping[MeshAxis, int]
) -> Strategy | None:
    factor_axes: list[tuple[MeshAxis, ...]] = [()] * len(rule.factors)
    for axis, option in assignment.items():
        if option.factor is not None:
            factor_axes[option.factor] += (axis,)
    if not all(rule.can_split(position, axes, axis_sizes) for position, axes in enumerate(factor_axes)):
        return None
    if any(factor_axes[a] and factor_axes[b] for a, b in rule.exclusive):
        return None
    scatter = tuple((axis, o.scatter) for axis, o in assignment.items() if o.scatter is not None)
    strategy = build_strategy(rule, factor_axes, scatter)
    for _, dim in scatter:
        # The result's dimension may already be split by its own factor: what is left must divide as well.
        size = rule.factors[rule.results[0][dim][0]].size
        if size % count_shards((strategy.output_specs[0][dim],), axis_sizes):
            return None
    return strategy


def follow_spec(rule: ShardingRule, operand: int, spec: ShardingSpec, axis_sizes: Mapping[MeshAxis, int]) -> Strategy:
    """The strategy that keeps as much of operand `operand`'s `spec` as the rule allows.

    Axes on a dimension that cannot be split are dropped, so `input_specs[operand]` may be less split than `spec`.
    """
    return build_strategy(rule, _factor_axes_from_term(rule, rule.operands[operand], spec, axis_sizes))


def follow_result_spec(
    rule: ShardingRule, result: int, spec: ShardingSpec, axis_sizes: Mapping[MeshAxis, int]
) -> Strategy:
    """The strategy that makes result `result` in `spec` as far as the rule allows."""
    return build_strategy(rule, _factor_axes_from_term(rule, rule.results[result], spec, axis_sizes))


def _factor_axes_from_term(
    rule: ShardingRule, term: tuple[DimFactors, ...], spec: ShardingSpec, axis_sizes: Mapping[MeshAxis, int]
) -> list[tuple[MeshAxis, ...]]:
    factor_axes: list[tuple[MeshAxis, ...]] = [()] * len(rule.factors)
    minor = rule.minor_factors()
    for dim, axes in zip(term, spec, strict=True):
        if not dim or not axes:
            continue
        factor = rule.factors[dim[0]]
        if factor.kind is FactorKind.WHOLE or dim[0] in minor or factor_axes[dim[0]]:
            continue
        if any(dim[0] in pair and any(factor_axes[f] for f in pair) for pair in rule.exclusive):
            continue
        kept: tuple[MeshAxis, ...] = ()
        for axis in axes:
            if not rule.can_split(dim[0], (*kept, axis), axis_sizes):
                break
            kept += (axis,)
        factor_axes[dim[0]] = kept
    return factor_axes


def iterate_specs(
    shape: Sequence[int], axis_sizes: Mapping[MeshAxis, int], splittable: Sequence[bool] | None = None
) -> Iterator[ShardingSpec]:
    """Every spec of an array of `shape`: each axis on one dimension or none, axes of one dimension in mesh order."""
    axes = [axis for axis, size in axis_sizes.items() if size > 1]
    allowed = [d for d, size in enumerate(shape) if size > 1 and (splittable is None or splittable[d])]
    for placement in itertools.product([None, *allowed], repeat=len(axes)):
        spec = tuple(
            tuple(axis for axis, d in zip(axes, placement, strict=True) if d == dim) for dim in range(len(shape))
        )
        if all(size % count_shards((dim_axes,), axis_sizes) == 0 for size, dim_axes in zip(shape, spec, strict=True)):
            yield spec
