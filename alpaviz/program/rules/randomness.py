"""Random numbers: keys, and the bits that are made from them."""

from __future__ import annotations

from alpaviz.program.rule import RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, register_rule

Dims = list[int | tuple[int, ...]]


@register_rule("random_bits")
def make_random_bits_rule(signature: OpSignature) -> ShardingRule:
    """`a -> a b c`: counter-based generators make any slice of their bits from the key alone."""
    keys, result_shape = signature.operand_shapes[0], signature.result_shapes[0]
    builder = RuleBuilder()
    result = builder.add_all(result_shape)
    return builder.finish([result[: len(keys)]], [result])


@register_rule(
    "random_seed", "random_split", "random_fold_in", "random_wrap", "random_unwrap", "random_clone", "to_edtype",
    "from_edtype",
)  # fmt: skip
def make_key_rule(signature: OpSignature) -> ShardingRule:
    """`a -> a 1`: dimensions of a batch of keys are parallel; keys that are split off one key, and the words that a
    key is made of, stay whole."""
    shapes = (*signature.operand_shapes, *signature.result_shapes)
    batch = min(shapes, key=len)
    builder = RuleBuilder()
    factors = builder.add_all(batch)

    def term(shape: tuple[int, ...]) -> Dims:
        return [*factors, *([()] * (len(shape) - len(batch)))]

    return builder.finish(map(term, signature.operand_shapes), map(term, signature.result_shapes))


@register_rule("random_gamma", "rng_bit_generator", "rng_uniform", "random_key_data")
def make_whole_generator_rule(signature: OpSignature) -> ShardingRule:
    """Whole: a loop until all numbers are accepted, or a generator with a state, which XLA does not split."""
    operands: list[Dims] = [[()] * len(shape) for shape in signature.operand_shapes]
    results: list[Dims] = [[()] * len(shape) for shape in signature.result_shapes]
    return RuleBuilder().finish(operands, results)
