"""Gather, scatter and dynamic slices."""

from __future__ import annotations

from alpaviz.program.rule import FactorKind, RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, register_rule

Dims = list[int | tuple[int, ...]]


@register_rule("gather")
def make_gather_rule(signature: OpSignature) -> ShardingRule:
    """A table look-up `v d, b s 1 -> b s d`: indexed dimensions of slice size 1 are reductions (each device looks up
    what it holds and zeros else), slices taken whole are parallel, index dimensions are parallel.

    Source: XLA's operation semantics, Gather.
    """
    numbers = signature.params["dimension_numbers"]
    sizes = tuple(signature.params["slice_sizes"])
    operand_shape, index_shape = signature.operand_shapes[:2]
    result_shape = signature.result_shapes[0]
    builder = RuleBuilder()
    result: Dims = [()] * len(result_shape)
    batch_positions = [d for d in range(len(result_shape)) if d not in numbers.offset_dims]
    index: Dims = [()] * len(index_shape)
    for d, position in enumerate(batch_positions):
        index[d] = result[position] = builder.add(index_shape[d])
    operand: Dims = [()] * len(operand_shape)
    batching = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    windows = iter(numbers.offset_dims)
    for d, size in enumerate(operand_shape):
        if d in batching:
            operand[d] = index[batching[d]]
        elif d in numbers.collapsed_slice_dims:
            operand[d] = builder.add(size, FactorKind.REDUCTION) if d in numbers.start_index_map else ()
        else:
            position = next(windows)
            if sizes[d] == size:
                operand[d] = result[position] = builder.add(size)
    # XLA would reshard the result of a gather from a split table twice where it is also scattered.
    return builder.finish([operand, index], [result], can_scatter=False)


@register_rule("scatter-add", "scatter_add", "scatter-sub", "scatter", "scatter-mul", "scatter-min", "scatter-max")
def make_scatter_rule(signature: OpSignature) -> ShardingRule:
    """The gradient of a look-up, `v d, b s 1, b s d -> v d`: updates are summed, so their index dimensions are
    reductions; an indexed dimension is parallel (each device keeps what falls into its rows).

    Only sums can be split over the updates: other scatters keep the index dimensions whole.
    Source: XLA's operation semantics, Scatter.
    """
    numbers = signature.params["dimension_numbers"]
    operand_shape, index_shape, update_shape = signature.operand_shapes[:3]
    is_sum = signature.primitive in ("scatter-add", "scatter_add", "scatter-sub")
    builder = RuleBuilder()
    update: Dims = [()] * len(update_shape)
    index: Dims = [()] * len(index_shape)
    operand: Dims = [()] * len(operand_shape)
    batching = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    scattered = [d for d in range(len(update_shape)) if d not in numbers.update_window_dims]
    shared = set(batching.values())
    for d, position in enumerate(scattered):
        kind = FactorKind.PARALLEL if d in shared else FactorKind.REDUCTION if is_sum else FactorKind.WHOLE
        index[d] = update[position] = builder.add(index_shape[d], kind)
    windows = iter(numbers.update_window_dims)
    for d, size in enumerate(operand_shape):
        if d in batching:
            operand[d] = index[batching[d]]
        elif d in numbers.inserted_window_dims:
            operand[d] = builder.add(size)
        else:
            position = next(windows)
            if update_shape[position] == size:
                operand[d] = update[position] = builder.add(size)
    return builder.finish([operand, index, update], [operand])


@register_rule("dynamic_slice")
def make_dynamic_slice_rule(signature: OpSignature) -> ShardingRule:
    """Dimensions taken whole are parallel; start indices are scalars."""
    shape, result_shape = signature.operand_shapes[0], signature.result_shapes[0]
    builder = RuleBuilder()
    factors: Dims = [
        builder.add(size) if size == taken else () for size, taken in zip(shape, result_shape, strict=True)
    ]
    return builder.finish([factors, *([[]] * (len(signature.operand_shapes) - 1))], [factors])


@register_rule("dynamic_update_slice")
def make_dynamic_update_slice_rule(signature: OpSignature) -> ShardingRule:
    """Dimensions that the update covers are parallel; start indices are scalars."""
    shape, update_shape = signature.operand_shapes[:2]
    builder = RuleBuilder()
    factors: Dims = [
        builder.add(size) if size == taken else () for size, taken in zip(shape, update_shape, strict=True)
    ]
    return builder.finish([factors, factors, *([[]] * (len(signature.operand_shapes) - 2))], [factors])
