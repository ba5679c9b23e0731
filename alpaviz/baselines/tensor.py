"""What Megatron-LM and GShard split, found in the graph of ops: no name of a parameter plays a part.

In: a program and its classes of dimensions. Out: the classes that tensor parallelism splits (features between a product
that makes them and the next that sums over them), those that sequence parallelism splits beside it, and what belongs to
experts.

Sources: Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2; Lepikhin et al. 2021, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from alpaviz.baselines.dimensions import DimClass, DimensionClasses
from alpaviz.intra.structure import UnionFind
from alpaviz.program.program import Op, Program, Role
from alpaviz.program.rule import FactorKind

_PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})


@dataclass(frozen=True, slots=True)
class _Layer:
    """A forward product of activations and parameters: the classes that it sums over, and those that it makes."""

    op: Op
    summed: frozenset[DimClass]
    made: tuple[DimClass, ...]


def find_tensor_classes(program: Program, classes: DimensionClasses) -> frozenset[DimClass]:
    """Classes of features that Megatron-LM splits.

    Products of activations and parameters are taken in order. One that sums over split features is split by rows: its
    result is whole after an all-reduce. Any other is split by columns: the features that it makes are split, unless
    they are the stream that residual connections add to, or count experts. Rows of a table that is looked up are split.
    """
    kept = _find_stream_classes(program, classes) | find_experts(program, classes).classes
    layers = list(_list_layers(program, classes))
    summed_later = {c for layer in layers for c in layer.summed}
    summed_inside = set(_list_sums_of_activations(program, classes))
    tensor: set[DimClass] = set()
    for layer in layers:
        if layer.op.primitive == "gather":
            tensor |= layer.summed - kept
        elif not layer.summed & tensor:
            # Of heads and their size the heads are split: sums over the size inside of attention would be partial.
            candidates = [c for c in layer.made if c not in kept]
            if candidates:
                tensor.add(min(candidates, key=lambda c: (c in summed_inside, c not in summed_later)))
    return frozenset(tensor)


def find_sequence_classes(
    program: Program, classes: DimensionClasses, tensor: frozenset[DimClass]
) -> frozenset[DimClass]:
    """Classes of positions: dimensions of activations, other than the batch, of the results of products by rows."""
    found: set[DimClass] = set()
    for op in _list_products(program):
        operand = _find_activation(op, classes)
        if operand is None or not {c for c in _list_summed(op, classes) if c in tensor}:
            continue
        kept = {dim[0] for term in op.rule.results for dim in term if dim}
        of_factors = classes.of_factors(op)
        rows = {of_factors[dim[0]] for dim in op.rule.operands[operand] if dim and dim[0] in kept}
        found |= {c for c in rows if c is not None and c not in classes.batch and c not in tensor}
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Experts:
    """What belongs to experts: classes of the dimension that counts them, ids of products, ids of values.

    `values` are parameters, their gradients and their optimizer state, and what lies between these.
    """

    classes: frozenset[DimClass]
    ops: frozenset[int]
    values: frozenset[int]


def find_experts(program: Program, classes: DimensionClasses) -> Experts:
    """Products that multiply each expert's tokens with its own parameters, and their gradients."""
    found: set[DimClass] = set()
    for op in _list_products(program):
        if op.primitive in _PRODUCTS and _find_activation(op, classes) is not None:
            found |= {c for c in _list_shared(op, classes) if c not in classes.batch}
    ops = [op for op in program.ops if op.primitive in _PRODUCTS and found & set(_list_shared(op, classes))]
    starts = {v for op in ops for v in (*op.inputs, *op.outputs) if v is not None and not classes.has_batch(v)}
    return Experts(frozenset(found), frozenset(op.id for op in ops), _find_companions(program, classes, starts))


def _list_shared(op: Op, classes: DimensionClasses) -> Iterator[DimClass]:
    """Classes of factors that all operands and results of a product have."""
    terms = [{dim[0] for dim in term if dim} for term in (*op.rule.operands[:2], *op.rule.results)]
    for factor, dim_class in enumerate(classes.of_factors(op)):
        if dim_class is not None and all(factor in term for term in terms):
            yield dim_class


def _find_companions(program: Program, classes: DimensionClasses, starts: set[int]) -> frozenset[int]:
    """`starts` and what ops connect to them: casts, transposes, gradients and optimizer state, all of one size."""
    groups = UnionFind()
    for op in program.ops:
        first: dict[int, int] = {}
        for v in (*op.inputs, *op.outputs):
            if v is not None and program.values[v].shape and not classes.has_batch(v):
                groups.union(first.setdefault(program.values[v].num_elements, v), v)
    roots = {groups.find(v) for v in starts}
    return frozenset(v for v in range(len(program.values)) if v in starts or groups.find(v) in roots)


def _list_products(program: Program) -> Iterator[Op]:
    """Forward products of an activation and a value that does not depend on the batch; look-ups in such a value."""
    for op in program.ops:
        if op.role is Role.FORWARD and op.primitive in _PRODUCTS | {"gather"}:
            yield op


def _find_activation(op: Op, classes: DimensionClasses) -> int | None:
    """The operand that depends on the batch where the other does not; None for products of two activations."""
    of_batch = [v is not None and classes.has_batch(v) for v in op.inputs[:2]]
    return of_batch.index(True) if len(of_batch) == 2 and of_batch.count(True) == 1 else None


def _list_summed(op: Op, classes: DimensionClasses) -> Iterator[DimClass]:
    for factor, dim_class in zip(op.rule.factors, classes.of_factors(op), strict=True):
        if factor.kind is FactorKind.REDUCTION and dim_class is not None:
            yield dim_class


def _list_layers(program: Program, classes: DimensionClasses) -> Iterator[_Layer]:
    for op in _list_products(program):
        activation = _find_activation(op, classes)
        if activation is None or (op.primitive == "gather" and activation == 0):
            continue
        of_factors = classes.of_factors(op)
        read = {dim[0] for dim in op.rule.operands[activation] if dim}
        kept = [dim[0] for term in op.rule.results for dim in term if dim]
        made = [of_factors[f] for f in kept if f not in read]
        yield _Layer(op, frozenset(_list_summed(op, classes)), tuple(c for c in made if c is not None))


def _list_sums_of_activations(program: Program, classes: DimensionClasses) -> Iterator[DimClass]:
    """Classes that products of two activations sum over."""
    for op in _list_products(program):
        if op.primitive in _PRODUCTS and _find_activation(op, classes) is None:
            yield from _list_summed(op, classes)


def _find_stream_classes(program: Program, classes: DimensionClasses) -> frozenset[DimClass]:
    """Feature classes of residual sums: sums of two activations that come out of different products."""
    features = {c for layer in _list_layers(program, classes) for c in layer.made}
    stream: set[DimClass] = set()
    products: dict[int, frozenset[int]] = {}  # of an activation, the products and inputs that it directly comes from
    for op in program.ops:
        if op.role is not Role.FORWARD:
            continue
        operands = [v for v in op.inputs if v is not None and classes.has_batch(v)]
        sources = [products.get(v, frozenset({-1 - v})) for v in operands]
        if op.primitive in ("add", "add_any") and len(sources) == 2 and sources[0] != sources[1]:
            stream.update(c for c in classes.of_values[operands[0]] if c in features)
        is_product = op.primitive in _PRODUCTS or op.primitive == "gather"
        found = frozenset({op.id}) if is_product else frozenset().union(*sources)
        products.update((v, found) for v in op.outputs if v is not None)
    return frozenset(c for c in stream if c is not None)
