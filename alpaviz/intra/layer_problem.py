"""The sharding problem of one layer on one logical mesh: candidates of each decision with their costs.

In: a program, one `LayerInstance` and the costs of a mesh. Out: a `LayerProblem`: variables, edges between them, and
for every value of the layer which variable decides its spec. Stage problems are put together from these
(`stage_problem.py`), so a layer class is worked out once per mesh.

Variables are the decisions of `leaders.py`, the layer's inputs (parameters, optimizer state, batch), and the values
that come from other layers (`BOUNDARY`), which may arrive in any spec.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from alpaviz.intra.leaders import LayerLeaders, Leader, LeaderKind, find_leaders
from alpaviz.intra.op_cost import MeshCosts
from alpaviz.intra.pair_costs import PairCosts
from alpaviz.intra.problem import FloatArray
from alpaviz.intra.strategy_table import IndexArray, Specs, StrategyTable
from alpaviz.intra.structure import LayerInstance, ProgramStructure
from alpaviz.program.program import Op, Program, Role, Value, ValueKind
from alpaviz.program.strategy import Strategy
from alpaviz.types import ShardingSpec


class VariableKind(enum.StrEnum):
    """What a variable decides."""

    OP = "op"
    INPUT = "input"
    BOUNDARY = "boundary"


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """A value's spec as a function of variable `variable`: candidate k gives `specs[index[k]]`."""

    variable: int
    specs: Specs
    index: IndexArray


@dataclass(slots=True, eq=False)
class LayerVariable:
    """One decision of a layer. Arrays are (candidates,).

    Attributes:
        target: position in `LayerInstance.ops` (OP), else a local value number.
        strategies: of an op; `specs`: of an input or boundary value.
        micro_s, once_s: seconds per microbatch and per step.
        parameter_bytes, optimizer_bytes, gradient_bytes: on each device, for good.
        batch_bytes: on each device, the slices of all microbatches.
        activation_bytes: on each device, for each microbatch in flight.
        transient_bytes: on each device, while the layer's backward pass runs: what it makes again.
    """

    kind: VariableKind
    target: int
    strategies: tuple[Strategy, ...]
    specs: tuple[ShardingSpec, ...]
    micro_s: FloatArray
    once_s: FloatArray
    parameter_bytes: FloatArray
    optimizer_bytes: FloatArray
    gradient_bytes: FloatArray
    activation_bytes: FloatArray
    transient_bytes: FloatArray
    batch_bytes: FloatArray

    @property
    def num_candidates(self) -> int:
        return len(self.micro_s)


@dataclass(slots=True, eq=False)
class LayerEdge:
    """Resharding seconds between two variables of a layer, u < v, per microbatch and per step; None is nothing."""

    micro_s: PairCosts | None = None
    once_s: PairCosts | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayerProblem:
    """The problem of one layer class on one mesh, in terms of local value numbers and positions of ops.

    `boundaries` maps an external's local number to its variable; `boundary_once` tells those that are read once per
    step. `tracks` is per local value; None for free ones.
    """

    variables: tuple[LayerVariable, ...]
    edges: dict[tuple[int, int], LayerEdge]
    tracks: tuple[Track | None, ...]
    leaders: LayerLeaders
    boundaries: dict[int, int]
    boundary_once: frozenset[int]


def build_layer_problem(
    program: Program, structure: ProgramStructure, instance: LayerInstance, costs: MeshCosts
) -> LayerProblem:
    """The sharding problem of the layer `instance` on the mesh of `costs`."""
    builder = _Builder(program, structure, instance, costs)
    builder.add_inputs()
    for position, leader in enumerate(builder.leaders.ops):
        builder.add_op(position, leader)
    builder.add_state_returns()
    builder.add_memory()
    builder.tighten()
    return LayerProblem(
        tuple(builder.variables), builder.edges, tuple(builder.tracks), builder.leaders, builder.boundaries,
        frozenset(builder.boundary_once),
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class _Builder:
    """Collects one layer's variables and edges, op by op."""

    program: Program
    structure: ProgramStructure
    instance: LayerInstance
    costs: MeshCosts
    leaders: LayerLeaders = field(init=False)
    variables: list[LayerVariable] = field(default_factory=list)
    edges: dict[tuple[int, int], LayerEdge] = field(default_factory=dict)
    tracks: list[Track | None] = field(init=False)
    boundaries: dict[int, int] = field(default_factory=dict)
    boundary_once: set[int] = field(default_factory=set)
    local: dict[int, int] = field(init=False)
    seen: set[object] = field(default_factory=set)
    unscattered: dict[int, npt.NDArray[np.intp] | FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leaders = find_leaders(self.program, self.instance)
        self.tracks = [None] * len(self.instance.values)
        self.local = {v: i for i, v in enumerate(self.instance.values)}

    def value(self, number: int) -> Value:
        return self.program.values[self.instance.values[number]]

    def add_variable(
        self, kind: VariableKind, target: int, strategies: tuple[Strategy, ...], specs: tuple[ShardingSpec, ...]
    ) -> int:
        count = len(strategies) or len(specs)
        zeros = [np.zeros(count) for _ in range(8)]
        self.variables.append(LayerVariable(kind, target, strategies, specs, *zeros))
        return len(self.variables) - 1

    def add_inputs(self) -> None:
        """A variable for each input that does not share another's layout."""
        for number in self.instance.owned_inputs:
            leader = self.leaders.shared_inputs[number]
            if leader == number:
                self._add_spec_variable(VariableKind.INPUT, number)
        for number in self.instance.owned_inputs:
            self.tracks[number] = self.tracks[self.leaders.shared_inputs[number]]
        for number in self.instance.externals:
            self.boundaries[number] = self._add_spec_variable(VariableKind.BOUNDARY, number)
        # A boundary value is read once per step where no forward or backward op reads it.
        read_in_pass = {
            self.local.get(v)
            for i in self.instance.ops
            if self.program.ops[i].role is not Role.UPDATE
            for v in self.program.ops[i].inputs
            if v is not None
        }
        self.boundary_once = {n for n in self.instance.externals if n not in read_in_pass}

    def _add_spec_variable(self, kind: VariableKind, number: int) -> int:
        specs = self.costs.list_specs(self.value(number).shape)
        variable = self.add_variable(kind, number, (), specs)
        self.tracks[number] = Track(variable, specs, np.arange(len(specs)))
        return variable

    def add_op(self, position: int, leader: Leader) -> None:
        op = self.program.ops[self.instance.ops[position]]
        if leader.kind is LeaderKind.FREE:
            return
        may_defer = op.id in self.structure.deferrals.sums
        if leader.kind is LeaderKind.DECISION:
            table = self.costs.tabulate(op.rule, may_defer=may_defer)
            variable = self.add_variable(VariableKind.OP, position, table.strategies, ())
            self._apply(op, variable, np.arange(len(table)), table)
            if may_defer:
                self._note_unscattered(op, table)
            return
        of_result = leader.kind is LeaderKind.RESULT
        followed = leader.index if of_result else self._find_operand(op, leader.index)
        track = self.tracks[followed]
        assert track is not None, "what an op follows has a layout"
        position = 0 if of_result else leader.index
        table = self.costs.tabulate_followers(op.rule, position, track.specs, of_result=of_result, may_defer=may_defer)
        self._apply(op, track.variable, track.index, table)
        if op.id in self.structure.deferrals.followers and op.outputs[0] is not None:
            self.unscattered[self.local[op.outputs[0]]] = self.unscattered.get(followed, np.ones(1))

    def _note_unscattered(self, op: Op, table: StrategyTable) -> None:
        """Note how much larger a result is as long as its reduce-scatter waits for the end of the step."""
        made = op.outputs[0]
        if made is not None:
            self.unscattered[self.local[made]] = np.array(
                [
                    math.prod(self.costs.axis_sizes[axis] for axis, _ in s.scatter) if s.is_deferred else 1
                    for s in table.strategies
                ]
            )

    def _find_operand(self, op: Op, operand: int) -> int:
        v = op.inputs[operand]
        assert v is not None, "a followed operand is a value"
        return self.local[v]

    def _apply(self, op: Op, variable: int, index: IndexArray, table: StrategyTable) -> None:
        """Charge `op` to `variable`, whose candidate k runs it as strategy `index[k]` of `table`."""
        micro, once = self.costs.price_all(self.program, op, table)
        self._charge(op, variable, micro[index])
        if once.any():
            target = self.variables[variable]
            target.once_s = target.once_s + once[index]
        for k, v in enumerate(op.inputs):
            if v is None or v not in self.local:
                continue
            held = self.tracks[self.local[v]]
            if held is not None:
                distinct, positions = table.operand_specs(k)
                self._add_resharding(op, self.local[v], held, variable, distinct, positions[index])
        for k, v in enumerate(op.outputs):
            if v is not None and v in self.local:
                specs, positions = table.result_specs(k)
                self.tracks[self.local[v]] = Track(variable, specs, positions[index])

    def _charge(self, op: Op, variable: int, prices: FloatArray) -> None:
        target = self.variables[variable]
        if op.role is Role.UPDATE:
            target.once_s = target.once_s + prices
        else:
            target.micro_s = target.micro_s + prices

    def _add_resharding(
        self, op: Op, number: int, held: Track, variable: int, wanted: Specs, per_candidate: IndexArray
    ) -> None:
        """Charge the resharding of a value to what candidates of `variable` want, once for all ops that want it."""
        key = (number, variable, id(wanted), per_candidate.tobytes(), op.role)
        if key in self.seen:
            return
        self.seen.add(key)
        matrix = self.costs.price_reshardings(self.value(number), held.specs, wanted)
        if not matrix.any():
            return
        if held.variable == variable:
            self._charge(op, variable, matrix[held.index, per_candidate])
            return
        pairs = PairCosts(matrix, held.index, per_candidate)
        self._add_edge(held.variable, variable, pairs, once=op.role is Role.UPDATE)

    def _add_edge(self, u: int, v: int, costs: PairCosts, *, once: bool) -> None:
        if u > v:
            u, v, costs = v, u, costs.transposed()
        edge = self.edges.setdefault((u, v), LayerEdge())
        if once:
            edge.once_s = costs if edge.once_s is None else edge.once_s.plus(costs)
        else:
            edge.micro_s = costs if edge.micro_s is None else edge.micro_s.plus(costs)

    def tighten(self) -> None:
        """Bring the edges into the form that solvers use, once for all stages and pins."""
        for edge in self.edges.values():
            edge.micro_s = None if edge.micro_s is None else edge.micro_s.tight()
            edge.once_s = None if edge.once_s is None else edge.once_s.tight()

    def add_state_returns(self) -> None:
        """The new state goes back to the layout that the state is stored in, once per step."""
        for made, stored in self.structure.state_pairs:
            if made not in self.local or stored not in self.local:
                continue
            held, wanted = self.tracks[self.local[made]], self.tracks[self.local[stored]]
            if held is None or wanted is None:
                continue
            matrix = self.costs.price_reshardings(self.program.values[made], held.specs, wanted.specs)
            if held.variable == wanted.variable:
                target = self.variables[held.variable]
                target.once_s = target.once_s + matrix[held.index, wanted.index]
            elif matrix.any():
                pairs = PairCosts(matrix, held.index, wanted.index)
                self._add_edge(held.variable, wanted.variable, pairs, once=True)

    def add_memory(self) -> None:
        """Bytes of inputs, gradient accumulators and activations, kept or made again, charged to what splits them."""
        read_in_pass = {
            v for i in self.instance.ops if self.program.ops[i].role is not Role.UPDATE
            for v in self.program.ops[i].inputs
        }  # fmt: skip
        owned = set(self.instance.owned_inputs)
        read_after = {
            v for i in self.instance.ops
            if self.program.ops[i].role is Role.BACKWARD and not self.program.ops[i].is_recomputed
            for v in self.program.ops[i].inputs
        }  # fmt: skip
        read_backward = {
            v for i in self.instance.ops if self.program.ops[i].role is Role.BACKWARD
            for v in self.program.ops[i].inputs
        }  # fmt: skip
        made_here = {v for i in self.instance.ops for v in self.program.ops[i].outputs}
        made_again = {
            v for i in self.instance.ops if self.program.ops[i].is_recomputed for v in self.program.ops[i].outputs
        }  # fmt: skip
        for number, track in enumerate(self.tracks):
            if track is None:
                continue
            v = self.instance.values[number]
            value = self.program.values[v]
            variable = self.variables[track.variable]
            sizes = np.array([self.costs.local_bytes(value, spec) for spec in track.specs])[track.index]
            if number in owned and value.kind is ValueKind.BATCH:
                variable.batch_bytes = variable.batch_bytes + sizes * self.program.count_slices(v)
            elif number in owned:
                if v in read_in_pass:
                    variable.parameter_bytes = variable.parameter_bytes + sizes
                else:
                    variable.optimizer_bytes = variable.optimizer_bytes + sizes
            elif v in self.structure.accumulated and v in made_here:
                variable.gradient_bytes = variable.gradient_bytes + sizes * self.unscattered.get(number, 1)
            elif v in self.structure.saved and v in read_backward:
                variable.activation_bytes = variable.activation_bytes + sizes
            elif v in made_again and v in read_after:
                variable.transient_bytes = variable.transient_bytes + sizes
