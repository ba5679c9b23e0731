"""Convolutions and windowed reductions: windows slide over spatial dimensions, whose parts exchange halos."""

from __future__ import annotations

from dataclasses import dataclass

from alpaviz.program.rule import DimFactors, FactorKind, Halo, RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, register_rule

Dims = list[int | tuple[int, ...]]


@register_rule("conv_general_dilated")
def make_convolution_rule(signature: OpSignature) -> ShardingRule:
    """`b c h w, o c 1 1 -> b o h w`: batch and output features are parallel, input features a reduction; a spatial
    dimension is split with an exchange of halos where its length is a multiple of the result's, or the reverse.

    XLA's partitioner has been seen to give wrong results where a spatial dimension and the kernel are both split: one
    of them is. With feature or batch groups the grouped dimensions stay whole; with groups of several features the
    batch as well, which XLA's partitioner would gather. The window of a kernel's gradient slides over whole images, so
    these stay whole, unless the kernel has one pixel: then the gradient is a product that sums over pixels.
    Source: XLA's operation semantics, ConvWithGeneralPadding.
    """
    params = signature.params
    numbers = params["dimension_numbers"]
    left_shape, right_shape = signature.operand_shapes[:2]
    result_shape = signature.result_shapes[0]
    is_grouped = params.get("feature_group_count", 1) != 1
    is_batch_grouped = params.get("batch_group_count", 1) != 1
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
    features_of_kernel = {dim for dim in right if isinstance(dim, int)}
    halos: list[Halo] = []
    exclusive: list[tuple[int, int]] = []
    for i, (d, k, out) in enumerate(zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)):
        if is_grouped or is_batch_grouped:
            continue
        window = _Window(
            right_shape[k], params["window_strides"][i], tuple(params["padding"][i]), params["lhs_dilation"][i],
            params["rhs_dilation"][i],
        )  # fmt: skip
        if window.is_whole(left_shape[d]):
            left[d] = right[k] = builder.add(left_shape[d], FactorKind.REDUCTION)
        else:
            left[d], result[out] = _split_space(builder, window, left_shape[d], result_shape[out], d, halos)
            space = result[out]
            if isinstance(space, tuple) and space:
                exclusive += [(space[0], feature) for feature in sorted(features_of_kernel)]
    return builder.finish([left, right], [result], halos=halos, exclusive=exclusive)


@dataclass(frozen=True, slots=True)
class _Window:
    """How a window slides over one dimension."""

    size: int
    stride: int
    padding: tuple[int, int]
    base_dilation: int
    dilation: int

    def is_whole(self, length: int) -> bool:
        """Whether the window covers the dimension exactly, once: a sum over it."""
        plain = self.stride == self.base_dilation == self.dilation == 1
        return plain and self.size == length and self.padding == (0, 0) and length > 1


def _split_space(
    builder: RuleBuilder, window: _Window, length: int, made: int, dim: int, halos: list[Halo]
) -> tuple[int | DimFactors, int | DimFactors]:
    """Factors of a spatial dimension of the operand and of the result; () where it stays whole."""
    low, reach = window.padding[0], (window.size - 1) * window.dilation
    stride, base = window.stride, window.base_dilation
    if low < 0 or reach >= length * base:
        return (), ()
    if base == 1 and length == made * stride:
        before, after = low, max(0, reach + 1 - stride - low)
        factor = builder.add(made)
        inner = (builder.add(stride),) if stride > 1 else ()
        sides: tuple[DimFactors, DimFactors] = (factor, *inner), (factor,)
    elif stride == 1 and base > 1 and made == length * base:
        before, after = low // base, max(0, (reach - 1 - low) // base + 1)
        factor = builder.add(length)
        sides = (factor,), (factor, builder.add(base))
    else:
        return (), ()
    if before or after:
        halos.append(Halo(factor, 0, dim, length, before, after))
    return sides


@register_rule(
    "reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window", "cumred_reduce_window_impl"
)
def make_reduce_window_rule(signature: OpSignature) -> ShardingRule:
    """`h w -> h w`: a dimension is split with an exchange of halos where windows are wider than their stride, without
    one where they are not. Dimensions whose length is no multiple of the result's stay whole."""
    params = signature.params
    shape, result_shape = signature.operand_shapes[0], signature.result_shapes[0]
    builder = RuleBuilder()
    operand: Dims = [()] * len(shape)
    result: Dims = [()] * len(result_shape)
    halos: list[Halo] = []
    for d, size in enumerate(params["window_dimensions"]):
        window = _Window(
            size, params["window_strides"][d], tuple(params["padding"][d]), params["base_dilation"][d],
            params["window_dilation"][d],
        )  # fmt: skip
        operand[d], result[d] = _split_space(builder, window, shape[d], result_shape[d], d, halos)
    scalars: list[Dims] = [[()] * len(other) for other in signature.operand_shapes[1:]]
    return builder.finish([operand, *scalars], [result] * len(signature.result_shapes), halos=halos)


@register_rule("select_and_scatter_add", "select_and_scatter")
def make_select_and_scatter_rule(signature: OpSignature) -> ShardingRule:
    """The gradient of a windowed maximum, `b h, b (h w) -> b (h w)`: dimensions with a window of size 1 are parallel,
    and so are those whose windows lie side by side; where windows overlap or are padded the dimension stays whole.

    XLA's partitioner has been seen to give wrong results where windows overlap.
    """
    return _make_selection_rule(signature, windowed=0, full=1)


@register_rule("select_and_gather_add")
def make_select_and_gather_rule(signature: OpSignature) -> ShardingRule:
    """The tangent of a windowed maximum, `b (h w), b (h w) -> b h`: as the gradient, in the other direction."""
    return _make_selection_rule(signature, windowed=None, full=0)


def _make_selection_rule(signature: OpSignature, *, windowed: int | None, full: int) -> ShardingRule:
    """Operand `windowed` (None: the result) has an entry for each window over the arrays of operand `full`'s shape."""
    params = signature.params
    shape = signature.operand_shapes[full]
    made = signature.result_shapes[0] if windowed is None else signature.operand_shapes[windowed]
    builder = RuleBuilder()
    short: Dims = [()] * len(shape)
    long: Dims = [()] * len(shape)
    for d, size in enumerate(params["window_dimensions"]):
        dilated = any(d < len(params.get(key, ())) and params[key][d] != 1 for key in _DILATIONS)
        is_tiled = params["window_strides"][d] == size and tuple(params["padding"][d]) == (0, 0) and not dilated
        if is_tiled and shape[d] == made[d] * size:
            window = short[d] = builder.add(made[d])
            long[d] = (window, builder.add(size)) if size > 1 else window
    both = (short, long) if windowed == 0 else (long, long)
    scalars: list[Dims] = [[()] * len(other) for other in signature.operand_shapes[2:]]
    return builder.finish([*both, *scalars], [long if windowed == 0 else short])


_DILATIONS = ("base_dilation", "window_dilation")
