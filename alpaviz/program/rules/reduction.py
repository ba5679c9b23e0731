"""Reductions, arg-reductions and scans along one dimension."""

from __future__ import annotations

from alpaviz.program.rule import FactorKind, RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, make_opaque_rule, register_rule


@register_rule(
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor", "argmax", "argmin"
)
def make_reduction_rule(signature: OpSignature) -> ShardingRule:
    """`a b -> a`: the dimensions in `axes` are reductions; those of `argmax` and `argmin` stay whole."""
    axes = signature.params["axes"]
    kind = FactorKind.WHOLE if signature.primitive.startswith("arg") else FactorKind.REDUCTION
    builder = RuleBuilder()
    shape = signature.operand_shapes[0]
    factors = [builder.add(size, kind if d in axes else FactorKind.PARALLEL) for d, size in enumerate(shape)]
    return builder.finish([factors], [[f for d, f in enumerate(factors) if d not in axes]])


@register_rule("psum", "pmax", "pmin")
def make_positional_psum_rule(signature: OpSignature) -> ShardingRule:
    """`lax.psum` over an axis that `jax.vmap` names: each operand is reduced over the dimensions in `axes`."""
    axes = signature.params["axes"]
    if not all(isinstance(axis, int) for axis in axes) or signature.params.get("axis_index_groups") is not None:
        return make_opaque_rule(signature)
    builder = RuleBuilder()
    operands = [
        [builder.add(size, FactorKind.REDUCTION if d in axes else FactorKind.PARALLEL) for d, size in enumerate(shape)]
        for shape in signature.operand_shapes
    ]
    return builder.finish(operands, [[f for d, f in enumerate(factors) if d not in axes] for factors in operands])


@register_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort", "rev")
def make_along_dimension_rule(signature: OpSignature) -> ShardingRule:
    """Every dimension but the one worked along is parallel; that one is whole (a scan, a sort or a reversal)."""
    params = signature.params
    shape = signature.operand_shapes[0]
    if "axis" in params:
        along: tuple[int, ...] = (params["axis"],)
    elif "dimensions" in params:
        along = tuple(params["dimensions"])
    else:
        along = (params.get("dimension", len(shape) - 1),)
    builder = RuleBuilder()
    factors: list[int | tuple[int, ...]] = [() if d in along else builder.add(size) for d, size in enumerate(shape)]
    return builder.finish([factors] * len(signature.operand_shapes), [factors] * len(signature.result_shapes))


@register_rule("reduce", "approx_top_k")
def make_general_reduction_rule(signature: OpSignature) -> ShardingRule:
    """`a 1 -> a`: what is reduced by a function of the user's (or searched through) stays whole."""
    params = signature.params
    axes = tuple(params["dimensions"]) if "dimensions" in params else (params["reduction_dimension"],)
    shape = signature.operand_shapes[0]
    axes = tuple(axis % len(shape) for axis in axes)
    builder = RuleBuilder()
    factors: list[int | tuple[int, ...]] = [() if d in axes else builder.add(size) for d, size in enumerate(shape)]
    kept = factors if signature.primitive == "approx_top_k" else [f for d, f in enumerate(factors) if d not in axes]
    operands = [factors if len(other) == len(shape) else [()] * len(other) for other in signature.operand_shapes]
    return builder.finish(operands, [kept] * len(signature.result_shapes))


@register_rule("top_k")
def make_top_k_rule(signature: OpSignature) -> ShardingRule:
    """Whole: XLA's partitioner gathers the operand, whatever dimension of it is split."""
    operands: list[list[tuple[int, ...]]] = [[()] * len(shape) for shape in signature.operand_shapes]
    return RuleBuilder().finish(operands, [[()] * len(shape) for shape in signature.result_shapes])
