"""Linear algebra and Fourier transforms: at most batch dimensions can be split."""

from __future__ import annotations

from alpaviz.program.rule import RuleBuilder, ShardingRule
from alpaviz.program.rules.registry import OpSignature, register_rule

Dims = list[int | tuple[int, ...]]

_VECTORS = frozenset({"lu_pivots_to_permutation", "tridiagonal_solve"})
"""Primitives whose first operand is a batch of vectors, not of matrices."""


@register_rule(
    "cholesky", "triangular_solve", "lu", "lu_pivots_to_permutation", "qr", "geqrf", "geqp3", "householder_product",
    "ormqr", "eigh", "eig", "svd", "schur", "hessenberg", "tridiagonal", "tridiagonal_solve", "symmetric_product",
    "cholesky_update",
)  # fmt: skip
def make_batched_rule(signature: OpSignature) -> ShardingRule:
    """`a 1 1 -> a 1 1`: batch dimensions are parallel, those that are worked on stay whole."""
    worked = 1 if signature.primitive in _VECTORS else 2
    builder = RuleBuilder()
    batch = signature.operand_shapes[0][: max(0, len(signature.operand_shapes[0]) - worked)]
    factors = builder.add_all(batch)

    def term(shape: tuple[int, ...]) -> Dims:
        is_batched = shape[: len(batch)] == batch
        return [*factors, *([()] * (len(shape) - len(batch)))] if is_batched else [()] * len(shape)

    return builder.finish(map(term, signature.operand_shapes), map(term, signature.result_shapes))


@register_rule("fft")
def make_fourier_rule(signature: OpSignature) -> ShardingRule:
    """Whole: XLA's partitioner gathers the operand, whatever dimension of it is split."""
    operands: list[Dims] = [[()] * len(shape) for shape in signature.operand_shapes]
    return RuleBuilder().finish(operands, [[()] * len(shape) for shape in signature.result_shapes])
