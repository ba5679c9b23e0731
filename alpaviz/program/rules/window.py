"""Convolutions and windowed reductions. Windows slide over spatial dimensions, which stay whole here."""

from __future__ import annotations

from alpaviz.program.rule import FactorKind, RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, register_rule

Dims = list[int | tuple[int, ...]]


@register_rule("conv_general_dilated")
def make_convolution_rule(signature: OpSignature) -> ShardingRule:
    """`b c 1 1, o c 1 1 -> b o 1 1`: batch and output features are parallel, input features a reduction.

    With feature or batch groups the grouped dimensions stay whole; with groups of several features the batch as well,
    which XLA's partitioner would gather. Spatial dimensions stay whole: splitting them needs
    an exchange of halos.
    Source: XLA's operation semantics, ConvWithGeneralPadding.
    """
    numbers = signature.params["dimension_numbers"]
    left_shape, right_shape = signature.operand_shapes[:2]
    result_shape = signature.result_shapes[0]
    is_grouped = signature.params.get("feature_group_count", 1) != 1
    is_batch_grouped = signature.params.get("batch_group_count", 1) != 1
    left: Dims = [()] * len(left_shape)
    right: Dims = [()] * len(right_shape)
    result: Dims = [()] * len(result_shape)
    builder = RuleBuilder()
    has_wide_groups = is_grouped and right_shape[numbers.rhs_spec[1]] > 1
    if not (is_batch_grouped or has_wide_groups):
        left[numbers.lhs_spec[0]] = result[numbers.out_spec[0]] = builder.add(left_shape[numbers.lhs_spec[0]])
    if not (is_grouped or is_batch_grouped):
        right[numbers.rhs_spec[0]] = result[numbers.out_spec[1]] = builder.add(right_shape[numbers.rhs_spec[0]])
        features = builder.add(left_shape[numbers.lhs_spec[1]], FactorKind.REDUCTION)
        left[numbers.lhs_spec[1]] = right[numbers.rhs_spec[1]] = features
    return builder.finish([left, right], [result])


@register_rule(
    "reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window", "cumred_reduce_window_impl"
)
def make_reduce_window_rule(signature: OpSignature) -> ShardingRule:
    """Dimensions with a window of size 1 that keep their size are parallel; the others stay whole."""
    window = signature.params["window_dimensions"]
    shape, result_shape = signature.operand_shapes[0], signature.result_shapes[0]
    builder = RuleBuilder()
    factors: Dims = [
        builder.add(size) if w == 1 and size == made else ()
        for size, made, w in zip(shape, result_shape, window, strict=True)
    ]
    scalars: list[Dims] = [[()] * len(other) for other in signature.operand_shapes[1:]]
    return builder.finish([factors, *scalars], [factors] * len(signature.result_shapes))


@register_rule("select_and_scatter_add", "select_and_gather_add", "select_and_scatter")
def make_select_and_scatter_rule(signature: OpSignature) -> ShardingRule:
    """The gradient of a windowed maximum: dimensions with a window of size 1 are parallel."""
    window = signature.params["window_dimensions"]
    builder = RuleBuilder()
    shapes = (*signature.operand_shapes[:2], signature.result_shapes[0])
    factors: Dims = [
        builder.add(shapes[0][d]) if w == 1 and len({shape[d] for shape in shapes}) == 1 else ()
        for d, w in enumerate(window)
    ]
    scalars: list[Dims] = [[()] * len(other) for other in signature.operand_shapes[2:]]
    return builder.finish([factors, factors, *scalars], [factors])
