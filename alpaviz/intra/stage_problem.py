"""The sharding problem of a stage: the problems of its layers put together.

Layers of one class that carry the same pins form a group and take the same decisions, so a stage of a hundred equal
layers is as large a problem as one of three. In: layer problems of one mesh and a range of layers. Out: a
`StageProblem`, from whose solution the stage's times and memory follow.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from alpaviz.intra.layer_problem import LayerProblem, LayerVariable, VariableKind
from alpaviz.intra.op_cost import MeshCosts
from alpaviz.intra.pair_costs import PairCosts
from alpaviz.intra.problem import Edge, FloatArray, MemoryRow, ShardingProblem
from alpaviz.intra.structure import ProgramStructure
from alpaviz.program.program import Program, ValueKind

Restriction = tuple[tuple[int, tuple[int, ...]], ...]
"""What pins leave of a layer's variables: (variable, allowed candidates) pairs, sorted."""
GroupKey = tuple[int, Restriction]
"""(layer class, restriction): layers with one key take the same decisions."""
_APART = (-1, (0,))
"""In a restriction, of no variable: it allows everything, but makes a group of its own."""


@dataclass(frozen=True, slots=True)
class StageShape:
    """What a stage's problem depends on; stages of one shape have one solution.

    Attributes:
        groups: (group, number of its layers), in order of the first layer of each.
        links: ((producing group, its value, reading group, its value), how often); values are local numbers.
        copies: ((group, value), how often) inputs that another stage owns and that are kept here as well.
    """

    groups: tuple[tuple[GroupKey, int], ...]
    links: tuple[tuple[tuple[GroupKey, int, GroupKey, int], int], ...]
    copies: tuple[tuple[tuple[GroupKey, int], int], ...]
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.groups, self.links, self.copies)))

    def __hash__(self) -> int:
        # Shapes are keys of several tables, and large: the hash is worked out once.
        return self._hash


class StageShapes:
    """Finds the shape of any range of layers."""

    def __init__(self, program: Program, structure: ProgramStructure, restrictions: Mapping[int, Restriction]) -> None:
        self._program = program
        self._structure = structure
        self.keys: list[GroupKey] = [
            (instance.layer_class, restrictions.get(instance.layer, ()))
            for instance in structure.instances[: program.num_layers]
        ]
        self._local: dict[int, dict[int, int]] = {}  # by instance; instances live as long as the structure
        self._instances = list(structure.instances[: program.num_layers])
        self._found: dict[tuple[int, int], StageShape] = {}

    def recompute(self, layers: Iterable[int], restrictions: Mapping[int, Restriction]) -> StageShapes:
        """The same but for `layers`, which are recomputed; the structure is that of a `TwofoldProgram`.

        Args:
            restrictions: what pins leave of the recomputed forms, by layer.
        """
        shapes = copy.copy(self)
        shapes.keys, shapes._instances, shapes._found = list(self.keys), list(self._instances), {}
        for layer in layers:
            again = self._structure.instances[self._program.num_layers + layer]
            shapes._instances[layer] = again
            shapes.keys[layer] = again.layer_class, restrictions.get(layer, ())
        return shapes

    def set_apart(self, layer: int, restriction: Restriction) -> StageShapes:
        """The same but for `layer`, which takes its decisions alone, within `restriction`."""
        shapes = copy.copy(self)
        shapes.keys = list(self.keys)
        shapes._found = {}
        shapes.keys[layer] = (self.keys[layer][0], (_APART, *restriction))
        return shapes

    def find(self, first: int, last: int) -> StageShape:
        """The shape of layers `first` .. `last`."""
        if (first, last) not in self._found:
            self._found[first, last] = self._find(first, last)
        return self._found[first, last]

    def _find(self, first: int, last: int) -> StageShape:
        counts: Counter[GroupKey] = Counter()
        links: Counter[tuple[GroupKey, int, GroupKey, int]] = Counter()
        copies: Counter[tuple[GroupKey, int]] = Counter()
        for layer in range(first, last + 1):
            instance, key = self._instances[layer], self.keys[layer]
            counts[key] += 1
            for number in instance.externals:
                v = instance.values[number]
                producer = self._structure.producer_layer[v]
                if first <= producer <= last:
                    links[self.keys[producer], self._number(producer, v), key, number] += 1
                elif self._program.values[v].kind in (ValueKind.STATE, ValueKind.BATCH):
                    copies[key, number] += 1
        return StageShape(tuple(counts.items()), tuple(links.items()), tuple(copies.items()))

    def _number(self, layer: int, value: int) -> int:
        """The local number of `value` in `layer`."""
        instance = self._instances[layer]
        if id(instance) not in self._local:
            self._local[id(instance)] = {v: n for n, v in enumerate(instance.values)}
        return self._local[id(instance)][value]


@dataclass(frozen=True, slots=True, eq=False)
class StageProblem:
    """A stage's problem with what is needed to read its solution.

    Attributes:
        problem: the numbers; memory is limited for the in-flight count that it was built for.
        offsets: per group, the position of its first variable in `problem`.
        micro, once: like `problem` but per microbatch and per step alone: unary and edge costs.
        parameter_bytes, optimizer_bytes, gradient_bytes, activation_bytes: per variable (candidates,), counts in.
        batch_bytes: the same for the batch.
        transient_bytes: the same for what a layer's backward pass makes again; of one layer of each group.
        places: per variable, its layer class and its position in the layer's problem.
        repeats: per edge (u < v), in how many layers or between how many it occurs.
    """

    problem: ShardingProblem
    offsets: dict[GroupKey, int]
    micro: ShardingProblem
    once: ShardingProblem
    parameter_bytes: tuple[FloatArray, ...]
    optimizer_bytes: tuple[FloatArray, ...]
    gradient_bytes: tuple[FloatArray, ...]
    activation_bytes: tuple[FloatArray, ...]
    batch_bytes: tuple[FloatArray, ...]
    transient_bytes: tuple[FloatArray, ...]
    places: tuple[tuple[int, int], ...]
    repeats: dict[tuple[int, int], int]

    def price(self, choice: tuple[int, ...]) -> StagePrice:
        """Times and memory of `choice`."""

        def add(arrays: tuple[FloatArray, ...]) -> float:
            return sum(float(a[k]) for a, k in zip(arrays, choice, strict=True))

        return StagePrice(
            self.micro.price(choice), self.once.price(choice), add(self.parameter_bytes), add(self.optimizer_bytes),
            add(self.gradient_bytes), add(self.activation_bytes), self._find_most_transient(choice),
            add(self.batch_bytes),
        )  # fmt: skip

    def _find_most_transient(self, choice: tuple[int, ...]) -> float:
        """Bytes that the layer with the most to make again holds meanwhile."""
        return max(
            sum(float(self.transient_bytes[i][choice[i]]) for i in group)
            for group in _list_groups(self.offsets, len(choice))
        )


@dataclass(frozen=True, slots=True)
class StagePrice:
    """Seconds per microbatch and per step, and bytes on each device (activations of one microbatch).

    `transient_bytes` are what the layer with the most to make again holds while its backward pass runs.
    """

    micro_s: float
    once_s: float
    parameter_bytes: float
    optimizer_bytes: float
    gradient_bytes: float
    activation_bytes: float
    transient_bytes: float = 0.0
    batch_bytes: float = 0.0

    @property
    def lasting_bytes(self) -> float:
        """Bytes that do not depend on the microbatches in flight."""
        return self.parameter_bytes + self.optimizer_bytes + self.gradient_bytes + self.batch_bytes

    def count_bytes(self, in_flight: int) -> float:
        return self.lasting_bytes + in_flight * self.activation_bytes + self.transient_bytes


def build_stage_problem(
    program: Program,
    structure: ProgramStructure,
    problems: Mapping[int, LayerProblem],
    shape: StageShape,
    costs: MeshCosts,
    *,
    in_flight: int,
    memory_limit: float,
) -> StageProblem:
    """The sharding problem of a stage of `shape`.

    Args:
        problems: per layer class, on the mesh of `costs`.
        in_flight: microbatches whose activations are kept.
        memory_limit: bytes of a device that a plan may use; inf for no limit.
    """
    builder = _StageBuilder(program, structure, problems, costs)
    for key, count in shape.groups:
        builder.add_group(key, count)
    for (producer, made, reader, number), count in shape.links:
        builder.add_link(producer, made, reader, number, count)
    for (key, number), count in shape.copies:
        builder.add_copy(key, number, count)
    return builder.finish(program.num_microbatches, in_flight, memory_limit)


class _StageBuilder:
    def __init__(
        self, program: Program, structure: ProgramStructure, problems: Mapping[int, LayerProblem], costs: MeshCosts
    ) -> None:
        self.program, self.structure, self.problems, self.costs = program, structure, problems, costs
        self.offsets: dict[GroupKey, int] = {}
        self.names: list[str] = []
        self.unary: list[list[FloatArray]] = [[], []]  # per microbatch, per step
        self.edges: list[dict[tuple[int, int], PairCosts]] = [{}, {}]
        # Parameters, optimizer, gradients, activations, batch.
        self.bytes: list[list[FloatArray]] = [[], [], [], [], []]
        self.transient: list[FloatArray] = []
        self.allowed: list[FloatArray | None] = []
        self.places: list[tuple[int, int]] = []
        self.repeats: Counter[tuple[int, int]] = Counter()

    def add_group(self, key: GroupKey, count: int) -> None:
        layer_class, restriction = key
        problem = self.problems[layer_class]
        offset = self.offsets[key] = len(self.names)
        allowed = dict(restriction)
        for position, variable in enumerate(problem.variables):
            self.names.append(self._name(layer_class, variable))
            self.places.append((layer_class, position))
            self.unary[0].append(variable.micro_s * count)
            self.unary[1].append(variable.once_s * count)
            parts = (
                variable.parameter_bytes, variable.optimizer_bytes, variable.gradient_bytes, variable.activation_bytes,
                variable.batch_bytes,
            )  # fmt: skip
            for total, part in zip(self.bytes, parts, strict=True):
                total.append(part * count)
            self.transient.append(variable.transient_bytes)
            mask = None
            if position in allowed:
                mask = np.full(variable.num_candidates, np.inf)
                mask[list(allowed[position])] = 0.0
            self.allowed.append(mask)
        for (u, v), edge in problem.edges.items():
            self.repeats[offset + u, offset + v] += count
            for step_part, costs in enumerate((edge.micro_s, edge.once_s)):
                if costs is not None:
                    self._add_edge(step_part, offset + u, offset + v, costs.times(count))

    def _name(self, layer_class: int, variable: LayerVariable) -> str:
        instance = self.structure.instances[self.structure.representatives[layer_class]]
        if variable.kind is VariableKind.OP:
            return self.program.ops[instance.ops[variable.target]].name
        return self.program.values[instance.values[variable.target]].name

    def _add_edge(self, part: int, u: int, v: int, costs: PairCosts) -> None:
        if u > v:
            u, v, costs = v, u, costs.transposed()
        edges = self.edges[part]
        edges[u, v] = edges[u, v].plus(costs) if (u, v) in edges else costs

    def add_link(self, producer: GroupKey, made: int, reader: GroupKey, number: int, count: int) -> None:
        held = self.problems[producer[0]].tracks[made]
        if held is None:
            return
        problem = self.problems[reader[0]]
        boundary = problem.boundaries[number]
        instance = self.structure.instances[self.structure.representatives[reader[0]]]
        value = self.program.values[instance.values[number]]
        wanted = problem.variables[boundary].specs
        matrix = self.costs.price_reshardings(value, held.specs, wanted) * count
        part = 1 if number in problem.boundary_once else 0
        u, v = self.offsets[producer] + held.variable, self.offsets[reader] + boundary
        if u == v:
            self.unary[part][u] = self.unary[part][u] + matrix[held.index, np.arange(len(wanted))]
        elif matrix.any():
            self.repeats[min(u, v), max(u, v)] += count
            self._add_edge(part, u, v, PairCosts(matrix, held.index))

    def add_copy(self, key: GroupKey, number: int, count: int) -> None:
        problem = self.problems[key[0]]
        boundary = problem.boundaries[number]
        instance = self.structure.instances[self.structure.representatives[key[0]]]
        value = self.program.values[instance.values[number]]
        sizes = np.array([self.costs.local_bytes(value, spec) for spec in problem.variables[boundary].specs])
        position = self.offsets[key] + boundary
        part = self.bytes[4 if value.kind is ValueKind.BATCH else 0]
        part[position] = part[position] + sizes * (count * self.program.count_slices(value.id))

    def finish(self, num_microbatches: int, in_flight: int, memory_limit: float) -> StageProblem:
        names = tuple(self.names)
        parts = []
        for part in (0, 1):
            edges = tuple(Edge(u, v, costs) for (u, v), costs in self.edges[part].items())
            parts.append(ShardingProblem(tuple(self.unary[part]), edges, (), names))
        unary = []
        for micro, once, mask in zip(*self.unary, self.allowed, strict=True):
            total = micro + once / num_microbatches
            unary.append(total if mask is None else total + mask)
        merged = dict(self.edges[0])
        for key, costs in self.edges[1].items():
            share = costs.times(1.0 / num_microbatches)
            merged[key] = merged[key].plus(share) if key in merged else share
        memory: tuple[MemoryRow, ...] = ()
        if np.isfinite(memory_limit):
            memory = self._limit_memory(in_flight, memory_limit)
        problem = ShardingProblem(
            tuple(unary), tuple(Edge(u, v, merged[u, v]) for u, v in sorted(merged)), memory, names
        )
        parameters, optimizer, gradients, activations, batch = (tuple(part) for part in self.bytes)
        return StageProblem(
            problem, self.offsets, parts[0], parts[1], parameters, optimizer, gradients, activations,
            batch, tuple(self.transient), tuple(self.places), dict(self.repeats),
        )  # fmt: skip

    def _limit_memory(self, in_flight: int, memory_limit: float) -> tuple[MemoryRow, ...]:
        """The limit while each group's backward pass runs; one row where none makes anything again."""
        lasting = [p + o + g + b + in_flight * a for p, o, g, a, b in zip(*self.bytes, strict=True)]
        rows = []
        for group in _list_groups(self.offsets, len(lasting)):
            if any(self.transient[i].any() for i in group):
                usage = [u + t if i in group else u for i, (u, t) in enumerate(zip(lasting, self.transient))]
                rows.append(_make_row(usage, memory_limit))
        return tuple(rows) or (_make_row(lasting, memory_limit),)


def _list_groups(offsets: Mapping[GroupKey, int], num_variables: int) -> list[range]:
    """The variables of each group of layers."""
    return [range(a, b) for a, b in itertools.pairwise((*offsets.values(), num_variables))]


def _make_row(usage: Sequence[FloatArray], limit: float) -> MemoryRow:
    used = tuple(i for i, u in enumerate(usage) if u.any())
    return MemoryRow("device memory", used, tuple(usage[i] for i in used), limit)
