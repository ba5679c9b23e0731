"""Elementwise ops: every dimension is one parallel factor, the same in all operands and results."""

from __future__ import annotations

from alpaviz.program.rule import RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, register_rule

ELEMENTWISE = (
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "clamp", "complex", "conj", "convert_element_type", "copy", "copy_p", "cos", "cosh",
    "digamma", "div", "eq", "eq_to", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma",
    "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne",
    "neg", "nextafter", "not", "or", "population_count", "clz", "pow", "real",
    "reduce_precision",
    "rem", "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor", "zeta", "polygamma", "random_gamma_grad",
    "one_minus_square", "pvary", "name", "le_to", "lt_to", "mulhi", "igamma_grad_a", "igammac",
    "regularized_incomplete_beta", "log2", "zeros_like", "layout_constraint", "reshard", "relayout", "tie",
    "sharding_constraint", "threefry2x32", "threefry4x32", "philox2x32", "philox4x32", "polynomial",
    "xla_metadata_value",
    "shard_alike",
)  # fmt: skip


@register_rule(*ELEMENTWISE)
def make_elementwise_rule(signature: OpSignature) -> ShardingRule:
    """`a b, a b -> a b`. Operands of rank 0 (`select_n`'s predicate, `clamp`'s limits) and dimensions of size 1 that
    are stretched have no factor."""
    shape = signature.result_shapes[0]
    builder = RuleBuilder()
    factors = builder.add_all(shape)

    def term(operand: tuple[int, ...]) -> list[int | tuple[int, ...]]:
        if len(operand) != len(shape):
            return [()] * len(operand)
        return [f if size == full else () for f, size, full in zip(factors, operand, shape, strict=True)]

    return builder.finish(map(term, signature.operand_shapes), map(term, signature.result_shapes))


@register_rule("optimization_barrier", "device_put")
def make_identity_rule(signature: OpSignature) -> ShardingRule:
    """`a b, c -> a b, c`: each operand is passed on as it is."""
    builder = RuleBuilder()
    terms = [builder.add_all(shape) for shape in signature.operand_shapes]
    return builder.finish(terms, terms)
