"""Ops that move or rename dimensions: transpose, reshape, broadcast, slice, pad, concatenate, iota."""

from __future__ import annotations

import itertools
import operator

from alpaviz.program.rule import RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, register_rule

Dims = list[int | tuple[int, ...]]


@register_rule("transpose")
def make_transpose_rule(signature: OpSignature) -> ShardingRule:
    """`a b c -> c a b`."""
    builder = RuleBuilder()
    factors = builder.add_all(signature.operand_shapes[0])
    return builder.finish([factors], [[factors[d] for d in signature.params["permutation"]]])


@register_rule("broadcast_in_dim")
def make_broadcast_rule(signature: OpSignature) -> ShardingRule:
    """`a -> b a`: new dimensions are parallel factors that the operand does not have."""
    shape = signature.operand_shapes[0]
    result_shape = signature.result_shapes[0]
    builder = RuleBuilder()
    result = builder.add_all(result_shape)
    operand: Dims = [
        result[target] if shape[d] == result_shape[target] else ()
        for d, target in enumerate(signature.params["broadcast_dimensions"])
    ]
    extra: list[Dims] = [[()] * len(other) for other in signature.operand_shapes[1:]]
    return builder.finish([operand, *extra], [result])


@register_rule("iota", "iota_2x32_shape", "broadcast", "empty", "empty2")
def make_source_rule(signature: OpSignature) -> ShardingRule:
    """`-> a b`: every device can make its own slice of a counter."""
    builder = RuleBuilder()
    result = builder.add_all(signature.result_shapes[0])
    operands: list[Dims] = [[()] * len(shape) for shape in signature.operand_shapes]
    return builder.finish(operands, [result] * len(signature.result_shapes))


@register_rule("squeeze", "expand_dims", "reshape", "bitcast_convert_type")
def make_reshape_rule(signature: OpSignature) -> ShardingRule:
    """`(a b) c -> a b c`: runs of dimensions with equal products are split or merged; others stay whole."""
    operand_shape, result_shape = signature.operand_shapes[0], signature.result_shapes[0]
    builder = RuleBuilder()
    if signature.params.get("dimensions") is not None and signature.primitive == "reshape":
        return builder.finish([[()] * len(operand_shape)], [[()] * len(result_shape)])
    operand: Dims = [()] * len(operand_shape)
    result: Dims = [()] * len(result_shape)
    for left, right in _match_runs(operand_shape, result_shape):
        _fill_run(builder, operand_shape, result_shape, left, right, operand, result)
    extra: list[Dims] = [[()] * len(other) for other in signature.operand_shapes[1:]]
    return builder.finish([operand, *extra], [result])


def _match_runs(left_shape: tuple[int, ...], right_shape: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Smallest runs of dimensions (size 1 left out) of equal product, in order."""
    left = [d for d, size in enumerate(left_shape) if size != 1]
    right = [d for d, size in enumerate(right_shape) if size != 1]
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        run_left, run_right = [left[i]], [right[j]]
        product_left, product_right = left_shape[left[i]], right_shape[right[j]]
        i, j = i + 1, j + 1
        while product_left != product_right:
            if product_left < product_right and i < len(left):
                product_left *= left_shape[left[i]]
                run_left.append(left[i])
                i += 1
            elif j < len(right):
                product_right *= right_shape[right[j]]
                run_right.append(right[j])
                j += 1
            else:
                return runs
        runs.append((run_left, run_right))
    return runs


def _fill_run(
    builder: RuleBuilder,
    left_shape: tuple[int, ...],
    right_shape: tuple[int, ...],
    left: list[int],
    right: list[int],
    operand: Dims,
    result: Dims,
) -> None:
    if len(left) == 1 and len(right) == 1:
        operand[left[0]] = result[right[0]] = builder.add(left_shape[left[0]])
    elif len(left) == 1:
        parts = [builder.add(right_shape[d]) for d in right]
        operand[left[0]] = tuple(parts)
        for d, part in zip(right, parts, strict=True):
            result[d] = part
    elif len(right) == 1:
        parts = [builder.add(left_shape[d]) for d in left]
        result[right[0]] = tuple(parts)
        for d, part in zip(left, parts, strict=True):
            operand[d] = part
    else:
        _fill_regrouping(builder, left_shape, right_shape, left, right, operand, result)


def _fill_regrouping(
    builder: RuleBuilder,
    left_shape: tuple[int, ...],
    right_shape: tuple[int, ...],
    left: list[int],
    right: list[int],
    operand: Dims,
    result: Dims,
) -> None:
    """`(a b) c -> a (b c)`, as (16, 32) to (8, 64); dimensions whose edges do not divide each other stay whole."""

    def list_edges(shape: tuple[int, ...], dims: list[int]) -> list[int]:
        return list(itertools.accumulate((shape[d] for d in dims), operator.mul, initial=1))

    left_edges, right_edges = list_edges(left_shape, left), list_edges(right_shape, right)
    edges = sorted({*left_edges, *right_edges})
    if any(fine % coarse for coarse, fine in itertools.pairwise(edges)):
        return
    parts = [builder.add(fine // coarse) for coarse, fine in itertools.pairwise(edges)]
    for dims, own, term in ((left, left_edges, operand), (right, right_edges, result)):
        for d, (begin, end) in zip(dims, itertools.pairwise(own), strict=True):
            term[d] = tuple(parts[edges.index(begin) : edges.index(end)])


@register_rule("slice")
def make_slice_rule(signature: OpSignature) -> ShardingRule:
    """Dimensions that are kept whole are parallel; those that are cut stay whole."""
    return _make_same_size_rule(signature, operands=1)


@register_rule("pad")
def make_pad_rule(signature: OpSignature) -> ShardingRule:
    """Dimensions without padding are parallel; the padding value is a scalar."""
    builder = RuleBuilder()
    padding = signature.params["padding_config"]
    factors: Dims = [
        builder.add(size) if tuple(amounts) == (0, 0, 0) else ()
        for size, amounts in zip(signature.operand_shapes[0], padding, strict=True)
    ]
    return builder.finish([factors, []], [factors])


@register_rule("tile")
def make_tile_rule(signature: OpSignature) -> ShardingRule:
    """Dimensions that are not repeated are parallel."""
    return _make_same_size_rule(signature, operands=1)


def _make_same_size_rule(signature: OpSignature, operands: int) -> ShardingRule:
    """Dimension d of the first `operands` operands and the result is one factor where sizes are equal."""
    result_shape = signature.result_shapes[0]
    builder = RuleBuilder()
    shapes = signature.operand_shapes[:operands]
    factors: Dims = [
        builder.add(size) if all(shape[d] == size for shape in shapes) else () for d, size in enumerate(result_shape)
    ]
    others: list[Dims] = [[()] * len(shape) for shape in signature.operand_shapes[operands:]]
    return builder.finish([factors] * operands + others, [factors])


@register_rule("concatenate")
def make_concatenate_rule(signature: OpSignature) -> ShardingRule:
    """Every dimension but the one that is joined is parallel."""
    joined = signature.params["dimension"]
    builder = RuleBuilder()
    factors: Dims = [() if d == joined else builder.add(size) for d, size in enumerate(signature.result_shapes[0])]
    return builder.finish([factors] * len(signature.operand_shapes), [factors])


@register_rule("split")
def make_split_rule(signature: OpSignature) -> ShardingRule:
    """Every dimension but the one that is cut up is parallel."""
    cut = signature.params["axis"]
    builder = RuleBuilder()
    factors: Dims = [() if d == cut else builder.add(size) for d, size in enumerate(signature.operand_shapes[0])]
    return builder.finish([factors], [factors] * len(signature.result_shapes))


@register_rule("stack")
def make_stack_rule(signature: OpSignature) -> ShardingRule:
    """`a b, a b -> a 1 b`: the new dimension stays whole."""
    axis = signature.params["axis"]
    builder = RuleBuilder()
    factors: Dims = list(builder.add_all(signature.operand_shapes[0]))
    return builder.finish([factors] * len(signature.operand_shapes), [[*factors[:axis], (), *factors[axis:]]])


@register_rule("unstack")
def make_unstack_rule(signature: OpSignature) -> ShardingRule:
    """`a 1 b -> a b, a b`: the dimension that is taken apart stays whole."""
    axis = signature.params["axis"]
    builder = RuleBuilder()
    factors: Dims = list(builder.add_all(signature.result_shapes[0]))
    return builder.finish([[*factors[:axis], (), *factors[axis:]]], [factors] * len(signature.result_shapes))
