"""Ragged matrix products: `lax.ragged_dot` and its gradients, in which runs of rows belong to different experts."""

from __future__ import annotations

from alpaviz.program.rule import FactorKind, RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, register_rule

Dims = list[int | tuple[int, ...]]


@register_rule("ragged_dot_general")
def make_ragged_dot_rule(signature: OpSignature) -> ShardingRule:
    """`m k, 1 k n, 1 -> m n`, or for the weights' gradient `m k, m n, 1 -> 1 k n`, where m is summed over.

    The dimension of groups stays whole: which rows belong to a group is known only when the step runs.
    Source: documentation of jax.lax.ragged_dot_general, modes 1 (rows are ragged) and 2 (the sum is ragged).
    """
    numbers = signature.params["ragged_dot_dimension_numbers"]
    (left_contract, right_contract), (left_batch, right_batch) = numbers.dot_dimension_numbers
    left_shape, right_shape, sizes_shape = signature.operand_shapes[:3]
    ragged = tuple(numbers.lhs_ragged_dimensions)
    builder = RuleBuilder()
    left: Dims = [()] * len(left_shape)
    right: Dims = [()] * len(right_shape)
    for i, j in zip(left_batch, right_batch, strict=True):
        if i not in ragged:
            left[i] = right[j] = builder.add(left_shape[i])
    free_left = [i for i in range(len(left_shape)) if i not in left_contract and i not in left_batch]
    groups = tuple(numbers.rhs_group_dimensions)
    free_right = [
        j for j in range(len(right_shape)) if j not in right_contract and j not in right_batch and j not in groups
    ]
    for i in free_left:
        left[i] = builder.add(left_shape[i])
    for j in free_right:
        right[j] = builder.add(right_shape[j])
    for i, j in zip(left_contract, right_contract, strict=True):
        left[i] = right[j] = builder.add(left_shape[i], FactorKind.REDUCTION)
    result: Dims = [left[i] for i in left_batch] + [left[i] for i in free_left] + [right[j] for j in free_right]
    if set(ragged) & set(left_contract) or set(ragged) & set(left_batch):
        result = [(), *result]
    extra: list[Dims] = [[()] * len(shape) for shape in signature.operand_shapes[3:]]
    return builder.finish([left, right, [()] * len(sizes_shape), *extra], [result])
