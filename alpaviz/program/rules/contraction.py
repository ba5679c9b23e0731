"""Contractions: `dot_general` (batched matrix products of any form)."""

from __future__ import annotations

from alpaviz.program.rule import FactorKind, RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, register_rule


@register_rule("dot_general")
def make_dot_general_rule(signature: OpSignature) -> ShardingRule:
    """Batch dimensions are shared, contracting ones are reductions; results are (batch, left free, right free).

    Source: XLA's operation semantics, DotGeneral.
    """
    (left_contract, right_contract), (left_batch, right_batch) = signature.params["dimension_numbers"]
    left_shape, right_shape = signature.operand_shapes[:2]
    builder = RuleBuilder()
    left: list[int] = [-1] * len(left_shape)
    right: list[int] = [-1] * len(right_shape)
    for i, j in zip(left_batch, right_batch, strict=True):
        left[i] = right[j] = builder.add(left_shape[i])
    for i in range(len(left_shape)):
        if left[i] < 0 and i not in left_contract:
            left[i] = builder.add(left_shape[i])
    for j in range(len(right_shape)):
        if right[j] < 0 and j not in right_contract:
            right[j] = builder.add(right_shape[j])
    for i, j in zip(left_contract, right_contract, strict=True):
        left[i] = right[j] = builder.add(left_shape[i], FactorKind.REDUCTION)
    result = (
        [left[i] for i in left_batch]
        + [f for i, f in enumerate(left) if i not in left_contract and i not in left_batch]
        + [f for j, f in enumerate(right) if j not in right_contract and j not in right_batch]
    )
    return builder.finish([left, right], [result])
