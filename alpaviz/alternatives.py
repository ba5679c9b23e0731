"""What else could have been decided for one op, and what each alternative costs with the rest of the plan fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alpaviz.errors import PinError
from alpaviz.intra.leaders import LeaderKind
from alpaviz.intra.problem import ShardingProblem
from alpaviz.intra.restrict import find_pinned_layer, list_labels
from alpaviz.pins import Pin, PinKind
from alpaviz.plan_builder import ChosenStage
from alpaviz.planner_state import Alternative
from alpaviz.program.program import Op, Program
from alpaviz.program.strategy import Strategy, defer


def list_alternatives(
    program: Program, chosen: Sequence[ChosenStage], pins: Sequence[Pin], op_name: str, num_microbatches: int
) -> tuple[Alternative, ...]:
    """Alternatives of an op, cheapest first; several candidates of the neighbour that an op follows are one.

    Raises:
        PinError: the program has no such op, or nothing is decided about it.
    """
    layer = find_pinned_layer(program, Pin(PinKind.STRATEGY, op_name, ""))
    stage = next(s for s in chosen if s.first <= layer <= s.last)
    key = stage.shapes.keys[layer]
    decision = find_decision(program, stage, layer, op_name)
    op, per_candidate = decision.op, decision.labels
    shape = stage.shapes.find(stage.first, stage.last)
    problem = stage.solver.build(shape)
    variable = problem.offsets[key] + decision.variable
    repeats = dict(shape.groups)[key]
    micro = _price_candidates(problem.micro, stage.solved.choice, variable) / repeats
    once = _price_candidates(problem.once, stage.solved.choice, variable) / repeats
    times_each = count_passes(chosen, stage, num_microbatches)
    delta = times_each * micro + once
    now = stage.solved.choice[variable]
    price = stage.solved.price
    assert price is not None, "a chosen stage is feasible"
    sizes = (
        problem.parameter_bytes[variable] + problem.optimizer_bytes[variable] + problem.gradient_bytes[variable]
        + problem.batch_bytes[variable]
        + stage.in_flight * problem.activation_bytes[variable]
    ) / repeats  # fmt: skip
    memory = price.count_bytes(stage.in_flight) + sizes - sizes[now]
    pinned = {pin.choice for pin in pins if pin.kind is PinKind.STRATEGY and pin.subject == op_name}
    best: dict[str, int] = {}
    for k, label in enumerate(per_candidate):
        if label not in best or k == now or (delta[k] < delta[best[label]] and best[label] != now):
            best[label] = k
    strategies = _list_strategies(stage, layer, decision.position, per_candidate)
    found = []
    for label, k in best.items():
        cost = stage.solver.costs.price_op(program, op, strategies[k])
        found.append(
            Alternative(
                label, cost.compute_s, cost.micro_s - cost.compute_s + cost.once_s / num_microbatches,
                float(memory[k]),
                float(delta[k] - delta[now]), k == now, label in pinned, strategies[k].input_specs,
                strategies[k].output_specs,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda a: (not a.is_chosen, a.delta_s, a.strategy)))


@dataclass(frozen=True, slots=True)
class OpDecision:
    """Where an op of a layer is decided: its place in the layer, the variable of the layer's problem, what each of its
    candidates makes of the op."""

    op: Op
    position: int
    variable: int
    labels: Sequence[str]


def find_decision(program: Program, stage: ChosenStage, layer: int, op_name: str) -> OpDecision:
    """What decides the op of this name in `layer`, which `stage` holds.

    Raises:
        PinError: nothing is decided about it.
    """
    instance = stage.solver.structure.instances[layer]
    position = next(p for p, i in enumerate(instance.ops) if program.ops[i].name == op_name)
    op = program.ops[instance.ops[position]]
    layer_problem = stage.solver.problems[stage.shapes.keys[layer][0]]
    labels = list_labels(op, position, instance, layer_problem, stage.solver.costs)
    if labels is None:
        raise PinError(f"op {op_name} is made from scalars alone and costs nothing: there is nothing to decide.")
    variable, per_candidate = labels
    return OpDecision(op, position, variable, per_candidate)


def count_passes(chosen: Sequence[ChosenStage], stage: ChosenStage, num_microbatches: int) -> int:
    """How often a microbatch's time in `stage` counts in a step: each time for the slowest stage, else once."""

    def latency(s: ChosenStage) -> float:
        return s.solved.price.micro_s if s.solved.price is not None else 0.0

    return num_microbatches if latency(stage) >= max(map(latency, chosen)) else 1


def _price_candidates(problem: ShardingProblem, choice: Sequence[int], variable: int) -> np.ndarray:
    """Cost of what touches `variable`, per candidate, all others as in `choice`."""
    total = problem.unary[variable].copy()
    for edge in problem.edges:
        if edge.u == variable:
            total = total + edge.costs.column(choice[edge.v])
        elif edge.v == variable:
            total = total + edge.costs.row(choice[edge.u])
    return total


def _list_strategies(stage: ChosenStage, layer: int, position: int, labels: Sequence[str]) -> list[Strategy]:
    """The op's strategy under each candidate of the variable that decides it."""
    solver = stage.solver
    instance = solver.structure.instances[layer]
    problem = solver.problems[stage.shapes.keys[layer][0]]
    op = solver.program.ops[instance.ops[position]]
    leader = problem.leaders.ops[position]
    may_defer = op.id in solver.structure.deferrals.sums
    if leader.kind is LeaderKind.DECISION:
        by_label = {s.label: s for s in solver.costs.list_strategies(op.rule, may_defer=may_defer)}
        return [by_label[label] for label in labels]
    if leader.kind is LeaderKind.RESULT:
        track = problem.tracks[leader.index]
        assert track is not None, "an update follows an input"
        return [solver.costs.follow_result(op.rule, 0, track.specs[i]) for i in track.index]
    operand = op.inputs[leader.index]
    assert operand is not None, "a followed operand is a value"
    track = problem.tracks[instance.values.index(operand)]
    assert track is not None, "a followed operand is not free"
    followers = [solver.costs.follow(op.rule, leader.index, track.specs[i]) for i in track.index]
    return [defer(s) for s in followers] if may_defer else followers
