"""A scheme of parallelism as a restriction of the solver's candidates.

In: a `Scheme` (which classes of dimensions may be split, and what is stored in pieces), the program, and the mesh of a
`StageSolver`. Out: for every layer the candidates that the scheme leaves. Prices are the solver's own, so a plan of a
scheme and a plan of the full search are told apart by their decisions alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from alpaviz.baselines.dimensions import DimClass, DimensionClasses
from alpaviz.intra.layer_problem import LayerProblem, LayerVariable, VariableKind
from alpaviz.intra.stage_problem import Restriction
from alpaviz.intra.stage_solver import StageSolver
from alpaviz.intra.structure import LayerInstance, ProgramStructure
from alpaviz.program.program import Op, Program, Role, ValueKind
from alpaviz.program.rule import FactorKind
from alpaviz.program.strategy import Strategy
from alpaviz.types import MeshAxis, count_shards

_Placed = tuple[MeshAxis, DimClass | None]
"""A mesh axis and the class of the dimension that it splits."""
_Rank = tuple[int, ...]
"""How much of what a scheme wants to split is split; larger is better, compared from the left."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to divide the work that is the same on every mesh.

    Attributes:
        classes: of the program's dimensions; those of the batch are split over the data axes.
        tensor: classes that the tensor axes split.
        sequence: classes that the tensor axes split where there is none of `tensor`; partial sums end in a
            reduce-scatter onto them.
        experts: classes of experts; `expert_ops` and `expert_values` are split by these first.
        scatter_gradients: gradients end in a reduce-scatter, each device keeps its part.
        split_optimizer, split_parameters: stored in as many pieces as there are devices.
    """

    classes: DimensionClasses
    tensor: frozenset[DimClass] = frozenset()
    sequence: frozenset[DimClass] = frozenset()
    experts: frozenset[DimClass] = frozenset()
    expert_ops: frozenset[int] = frozenset()
    expert_values: frozenset[int] = frozenset()
    scatter_gradients: bool = False
    split_optimizer: bool = False
    split_parameters: bool = False


def restrict_to_scheme(
    program: Program,
    structure: ProgramStructure,
    solver: StageSolver,
    scheme: Scheme,
    tensor_axes: Sequence[MeshAxis] = (),
) -> dict[int, Restriction] | None:
    """What `scheme` leaves of each layer on the mesh of `solver`; None where the batch cannot be split so far.

    Args:
        tensor_axes: axes of the mesh that belong to tensor parallelism; all others are data axes.
    """
    return _Restrictor(program, structure, solver, scheme, tensor_axes).restrict()


class _Restrictor:
    def __init__(
        self,
        program: Program,
        structure: ProgramStructure,
        solver: StageSolver,
        scheme: Scheme,
        tensor_axes: Sequence[MeshAxis],
    ) -> None:
        self.program, self.structure, self.solver, self.scheme = program, structure, solver, scheme
        self.sizes: Mapping[MeshAxis, int] = solver.costs.axis_sizes
        self.tensor_axes = frozenset(tensor_axes)
        self.data_axes = frozenset(self.sizes) - self.tensor_axes
        self.read_in_pass = {v for op in program.ops if op.role is not Role.UPDATE for v in op.inputs}

    def restrict(self) -> dict[int, Restriction] | None:
        shards = 1
        for axis in self.data_axes:
            shards *= self.sizes[axis]
        for v, dim in zip(self.program.inputs, self.program.batch_axes, strict=True):
            if dim is not None and self.program.values[v].shape[dim] % shards:
                return None
        return {
            instance.layer: self._restrict_layer(instance, self.solver.problems[instance.layer_class])
            for instance in self.structure.instances
        }

    def _restrict_layer(self, instance: LayerInstance, problem: LayerProblem) -> Restriction:
        kept = []
        for position, variable in enumerate(problem.variables):
            ranks = self._rank_candidates(instance, variable)
            best = max(rank for rank in ranks if rank is not None)  # what splits nothing is always among them
            kept.append((position, tuple(k for k, rank in enumerate(ranks) if rank == best)))
        return tuple(kept)

    def _rank_candidates(self, instance: LayerInstance, variable: LayerVariable) -> list[_Rank | None]:
        """A rank per candidate, None for those that the scheme forbids; only the best are kept."""
        if variable.kind is VariableKind.OP:
            op = self.program.ops[instance.ops[variable.target]]
            classes = self.scheme.classes.of_factors(op)
            return [self._rank_strategy(op, classes, strategy) for strategy in variable.strategies]
        v = instance.values[variable.target]
        if self._is_stored_in_pieces(v, variable.kind):
            return [(count_shards(spec, self.sizes),) for spec in variable.specs]
        if variable.kind is VariableKind.BOUNDARY and self.scheme.scatter_gradients and self._is_gradient(v):
            return [()] * len(variable.specs)
        of_dims = self.scheme.classes.of_values[v]
        wanted = self._list_wanted(v in self.scheme.expert_values)
        return [
            self._rank([(axis, of_dims[d]) for d, axes in enumerate(spec) for axis in axes], wanted)
            for spec in variable.specs
        ]

    def _is_stored_in_pieces(self, v: int, kind: VariableKind) -> bool:
        if kind is not VariableKind.INPUT or self.program.values[v].kind is not ValueKind.STATE:
            return False
        return self.scheme.split_parameters if v in self.read_in_pass else self.scheme.split_optimizer

    def _is_gradient(self, v: int) -> bool:
        return v in self.structure.accumulated and not self.scheme.classes.has_batch(v)

    def _list_wanted(self, is_expert: bool) -> tuple[tuple[frozenset[MeshAxis], frozenset[DimClass]], ...]:
        """Pairs of mesh axes and the classes that they should split, the most important first."""
        scheme = self.scheme
        wanted = [
            (self.data_axes, scheme.classes.batch), (self.tensor_axes, scheme.tensor),
            (self.tensor_axes, scheme.sequence),
        ]  # fmt: skip
        return ((self.data_axes, scheme.experts), *wanted) if is_expert else tuple(wanted)

    def _rank(
        self, placed: Iterable[_Placed], wanted: Sequence[tuple[frozenset[MeshAxis], frozenset[DimClass]]]
    ) -> _Rank | None:
        shards = [1] * len(wanted)
        for axis, dim_class in placed:
            fitting = (i for i, (axes, classes) in enumerate(wanted) if axis in axes and dim_class in classes)
            position = next(fitting, None)
            if position is None:
                return None
            shards[position] *= self.sizes[axis]
        return tuple(shards)

    def _rank_strategy(self, op: Op, classes: Sequence[DimClass | None], strategy: Strategy) -> _Rank | None:
        placed = [(axis, classes[f]) for f, axes in enumerate(strategy.factor_axes) for axis in axes]
        rank = self._rank(placed, self._list_wanted(op.id in self.scheme.expert_ops))
        if rank is None:
            return None
        scattered = dict(strategy.scatter)
        shards = 1
        for f, axes in enumerate(strategy.factor_axes):
            if op.rule.factors[f].kind is not FactorKind.REDUCTION:
                continue
            for axis in set(axes) & set(scattered):
                if not self._may_scatter(op, axis, classes[f], scattered[axis], strategy.is_deferred):
                    return None
                shards *= self.sizes[axis]
        return (*rank, shards)

    def _may_scatter(self, op: Op, axis: MeshAxis, summed: DimClass | None, dim: int, is_deferred: bool) -> bool:
        """Whether partial sums over a dimension of class `summed` may end in pieces of the result's dimension `dim`.

        ZeRO-2 scatters gradients in every microbatch, so that no device keeps a whole one; ZeRO-1 once a step.
        """
        scheme, made = self.scheme, op.outputs[0]
        if made is None:
            return False
        if axis in self.tensor_axes:
            return summed in scheme.tensor and scheme.classes.of_values[made][dim] in scheme.sequence
        at_end = scheme.split_optimizer and not scheme.scatter_gradients
        is_wanted = at_end if is_deferred else scheme.scatter_gradients
        return is_wanted and op.role is Role.BACKWARD and not scheme.classes.has_batch(made)
