"""From a solved stage back to its ops: the strategy, specs, collectives and reshardings of each.

In: the choices of a stage's variables. Out: an `OpPlan` per op and the spec of every value, as the runtime applies
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from alpaviz.intra.deferral import Deferrals
from alpaviz.intra.layer_problem import LayerProblem, VariableKind
from alpaviz.intra.leaders import LeaderKind
from alpaviz.intra.op_cost import MeshCosts
from alpaviz.intra.structure import LayerInstance
from alpaviz.plan import OpPlan, PlannedCollective, PlannedResharding
from alpaviz.program.program import Op, Program, Role
from alpaviz.program.strategy import Strategy, defer
from alpaviz.types import MeshAxis, ShardingSpec, replicated_spec


@dataclass(slots=True, eq=False)
class StageRealization:
    """What is known of one stage while its layers are worked through in order.

    Attributes:
        specs: value id -> spec in which this stage has it (made here, owned here, or as it arrives).
        arrivals: value id -> spec in which a value of another stage arrives.
        deferrals: ops whose results may stay partial sums.
        state_pairs: new state value id -> input value id that it replaces.
        ops: plans of the ops so far.
        is_alone: no other stage is in the plan.
        partial: value id -> axes over which it is a partial sum.
    """

    program: Program
    costs: MeshCosts
    stage: int
    deferrals: Deferrals
    state_pairs: Mapping[int, int] = field(default_factory=dict)
    specs: dict[int, ShardingSpec] = field(default_factory=dict)
    arrivals: dict[int, ShardingSpec] = field(default_factory=dict)
    ops: list[OpPlan] = field(default_factory=list)
    is_alone: bool = False
    partial: dict[int, tuple[MeshAxis, ...]] = field(default_factory=dict)
    _converted: set[tuple[int, tuple[ShardingSpec, ...], str]] = field(default_factory=set)
    _walks: list[_LayerWalk] = field(default_factory=list)

    def add_inputs(self, instance: LayerInstance, problem: LayerProblem, choice: Sequence[int]) -> None:
        """Note the specs of a layer's own inputs. Call it for all layers before the first `add_layer`."""
        for number in instance.owned_inputs:
            track = problem.tracks[number]
            if track is not None:
                self.specs[instance.values[number]] = track.specs[track.index[choice[track.variable]]]

    def add_layer(self, instance: LayerInstance, problem: LayerProblem, choice: Sequence[int]) -> None:
        """Work out the strategies and specs of one layer; `choice` is per variable of `problem`."""
        walk = _LayerWalk(self, instance, problem, choice)
        walk.find_strategies()
        self._walks.append(walk)

    def finish(self) -> None:
        """Work out the reshardings of all layers, now that every value of the stage has its spec."""
        for walk in self._walks:
            walk.enter_externals()
        order = sorted(
            ((i, walk, p) for walk in self._walks for p, i in enumerate(walk.instance.ops)), key=lambda x: x[0]
        )
        self.ops = [walk.plan_op(position) for _, walk, position in order]

    def plan_chain(
        self, op: Op, operand: int, value: int, via: Sequence[ShardingSpec], wanted: ShardingSpec
    ) -> PlannedResharding | None:
        """How `value` gets from the spec it has, through `via`, to `wanted`; None where nothing changes."""
        held = self.specs[value]
        specs: list[ShardingSpec] = []
        collectives: list[PlannedCollective] = []
        current = held
        # A stage that is alone runs both passes as one function: what forward has resharded is there for backward.
        role = "pass" if self.is_alone and op.role is not Role.UPDATE else op.role.value
        for target in (*via, wanted):
            if target == current:
                continue
            for step in self.costs.plan_resharding(self.program.values[value], current, target)[0] or (target,):
                specs.append(step)
                if (value, tuple(specs), role) not in self._converted:
                    self._converted.add((value, tuple(specs), role))
                    collectives.extend(self.costs.plan_resharding(self.program.values[value], current, step)[1])
                current = step
            current = target
        if not specs:
            return None
        return PlannedResharding(operand, held, wanted, tuple(specs), tuple(collectives))


class _LayerWalk:
    def __init__(
        self,
        stage: StageRealization,
        instance: LayerInstance,
        problem: LayerProblem,
        choice: Sequence[int],
    ) -> None:
        self.stage, self.instance, self.problem, self.choice = stage, instance, problem, choice
        self.program, self.costs = stage.program, stage.costs
        self.local = {v: n for n, v in enumerate(instance.values)}
        self.layer_specs = self._read_tracks()
        self.strategies: dict[int, Strategy] = {}
        self.decisions = {
            variable.target: position
            for position, variable in enumerate(problem.variables)
            if variable.kind is VariableKind.OP
        }

    def _read_tracks(self) -> dict[int, ShardingSpec]:
        """Value id -> the spec that this layer's problem gives it; free values are missing."""
        found = {}
        for v, track in zip(self.instance.values, self.problem.tracks, strict=True):
            if track is not None:
                found[v] = track.specs[track.index[self.choice[track.variable]]]
        return found

    def enter_externals(self) -> None:
        """Values that no layer of this stage makes arrive as this layer wants them, unless another was first."""
        for number in self.instance.externals:
            v = self.instance.values[number]
            if v not in self.stage.specs:
                spec = self.layer_specs.get(v, replicated_spec(len(self.program.values[v].shape)))
                self.stage.specs[v] = self.stage.arrivals[v] = spec

    def find_strategies(self) -> None:
        """Strategies of all ops of the layer, and the specs of all values that it makes."""
        strategies = self.strategies
        demands: dict[int, ShardingSpec] = {}
        free: list[int] = []
        for position, leader in enumerate(self.problem.leaders.ops):
            op = self.program.ops[self.instance.ops[position]]
            if leader.kind is LeaderKind.FREE:
                free.append(position)
                continue
            strategies[position] = self._find_strategy(position, op)
            self._note_demands(op, strategies[position], demands)
        for position in reversed(free):
            op = self.program.ops[self.instance.ops[position]]
            result = next((k for k, v in enumerate(op.outputs) if v in demands), 0)
            made = op.outputs[result] if op.outputs else None
            rank = len(op.rule.results[result]) if op.rule.results else 0
            wanted = demands.get(made, replicated_spec(rank)) if made is not None else replicated_spec(rank)
            strategies[position] = self.costs.follow_result(op.rule, result, wanted)
            self._note_demands(op, strategies[position], demands)
        for position in free:
            op = self.program.ops[self.instance.ops[position]]
            for v, spec in zip(op.outputs, strategies[position].output_specs, strict=True):
                if v is not None:
                    self.layer_specs[v] = spec
        for position, op_id in enumerate(self.instance.ops):
            for v, spec in zip(self.program.ops[op_id].outputs, strategies[position].output_specs, strict=True):
                if v is not None:
                    self.stage.specs[v] = spec

    def _find_strategy(self, position: int, op: Op) -> Strategy:
        leader = self.problem.leaders.ops[position]
        if leader.kind is LeaderKind.DECISION:
            variable = self.decisions[position]
            return self.problem.variables[variable].strategies[self.choice[variable]]
        if leader.kind is LeaderKind.RESULT:
            return self.costs.follow_result(op.rule, 0, self.layer_specs[self.instance.values[leader.index]])
        operand = op.inputs[leader.index]
        assert operand is not None, "a followed operand is a value"
        found = self.costs.follow(op.rule, leader.index, self.layer_specs[operand])
        return defer(found) if op.id in self.stage.deferrals.sums else found

    def _note_demands(self, op: Op, strategy: Strategy, demands: dict[int, ShardingSpec]) -> None:
        for v, spec in zip(op.inputs, strategy.input_specs, strict=True):
            if v is not None and v in self.local and v not in self.layer_specs:
                demands.setdefault(v, spec)

    def plan_op(self, position: int) -> OpPlan:
        """The plan of the op at `position`, with the reshardings of its operands."""
        op, strategy = self.program.ops[self.instance.ops[position]], self.strategies[position]
        cost = self.costs.price_op(self.program, op, strategy)
        reshardings = []
        for k, (v, wanted) in enumerate(zip(op.inputs, strategy.input_specs, strict=True)):
            if v is None or v not in self.local:
                continue
            via = (self.layer_specs[v],) if self.local[v] in self.problem.boundaries else ()
            found = self.stage.plan_chain(op, k, v, via, wanted)
            if found is not None:
                reshardings.append(found)
        reshardings.extend(self._plan_state_returns(op))
        partial_axes = strategy.partial_axes
        if op.id in self.stage.deferrals.followers and op.inputs[0] is not None:
            partial_axes = self.stage.partial.get(op.inputs[0], ())
        if partial_axes:
            self.stage.partial.update({v: partial_axes for v in op.outputs if v is not None})
        return make_op_plan(
            op, self.stage.stage, strategy, position in self.decisions, tuple(reshardings), cost.collectives,
            cost.compute_s, partial_axes,
        )  # fmt: skip

    def _plan_state_returns(self, op: Op) -> list[PlannedResharding]:
        """New state that goes back to the layout in which the state is stored."""
        found = []
        for k, v in enumerate(op.outputs):
            stored = self.stage.state_pairs.get(v) if v is not None else None
            if v is not None and stored is not None and stored in self.stage.specs:
                resharding = self.stage.plan_chain(op, -1 - k, v, (), self.stage.specs[stored])
                if resharding is not None:
                    found.append(resharding)
        return found


def make_op_plan(
    op: Op,
    stage: int,
    strategy: Strategy,
    is_decision: bool,
    reshardings: tuple[PlannedResharding, ...] = (),
    collectives: tuple[PlannedCollective, ...] = (),
    compute_s: float = 0.0,
    partial_axes: tuple[MeshAxis, ...] = (),
) -> OpPlan:
    """The plan of one op."""
    return OpPlan(
        id=op.id, name=op.name, primitive=op.primitive, role=op.role.value, layer=op.layer, stage=stage,
        scope=op.scope, source=op.source, rule=str(op.rule), inputs=op.inputs, outputs=op.outputs,
        strategy=strategy.label, is_decision=is_decision, input_specs=strategy.input_specs,
        output_specs=strategy.output_specs, collectives=collectives, reshardings=reshardings, compute_s=compute_s,
        partial_axes=partial_axes,
    )  # fmt: skip


def sum_times(ops: Sequence[OpPlan]) -> Mapping[str, float]:
    """Seconds of `ops`, once each: `compute`, `resharding`, and one entry per kind of collective.

    What happens once a step though its op runs in every microbatch is left out: see `sum_deferred`.
    """
    total: dict[str, float] = {"compute": 0.0, "resharding": 0.0}
    for op in ops:
        total["compute"] += op.compute_s
        for collective in op.collectives:
            if not collective.once:
                total[collective.kind] = total.get(collective.kind, 0.0) + collective.time_s
        for resharding in op.reshardings:
            total["resharding"] += sum(c.time_s for c in resharding.collectives)
    return total


def sum_deferred(ops: Sequence[OpPlan]) -> Mapping[str, float]:
    """Seconds once a step of what `ops` leave for its end, by kind of collective."""
    total: dict[str, float] = {}
    for op in ops:
        for collective in op.collectives:
            if collective.once:
                total[collective.kind] = total.get(collective.kind, 0.0) + collective.time_s
    return total
