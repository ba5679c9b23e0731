"""Pins on ops and values as restrictions of a layer's candidates.

In: pins and the layer problems of one mesh. Out: per layer what is left of its variables. A pin of an op that follows
a neighbour restricts the neighbour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from alpaviz.errors import PinError
from alpaviz.intra.layer_problem import LayerProblem, VariableKind
from alpaviz.intra.leaders import LeaderKind
from alpaviz.intra.op_cost import MeshCosts
from alpaviz.intra.stage_problem import Restriction
from alpaviz.intra.structure import LayerInstance, ProgramStructure
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import RECOMPUTE
from alpaviz.program.program import Op, Program
from alpaviz.types import format_spec


def find_pinned_layer(program: Program, pin: Pin) -> int:
    """The layer that a STRATEGY or SPEC pin is about.

    Raises:
        PinError: no op or input has the pin's subject as its name, or it belongs to no layer.
    """
    if pin.kind is PinKind.STRATEGY:
        # What a layer does again can be pinned whether or not the present plan recomputes it.
        name = str(pin.subject).removeprefix(RECOMPUTE)
        op = next((op for op in program.ops if op.name == name), None)
        if op is None:
            raise PinError(f"Pin '{pin}': the program has no op of that name. Names are listed by planner.program.ops.")
        layer = op.layer
    else:
        position = next((i for i, v in enumerate(program.inputs) if program.values[v].name == pin.subject), None)
        if position is None:
            raise PinError(f"Pin '{pin}': the step has no input of that name; inputs are named like state['w'].")
        layer = program.input_layers[position]
    if layer < 0:
        raise PinError(f"Pin '{pin}': it is a scalar that every stage holds whole, so there is nothing to pin.")
    return layer


def restrict_layers(
    program: Program,
    structure: ProgramStructure,
    problems: Mapping[int, LayerProblem],
    costs: MeshCosts,
    pins: Sequence[Pin],
    *,
    recomputed: bool = False,
) -> dict[int, Restriction]:
    """Per pinned layer the candidates that its pins leave; an empty set of candidates where a pin cannot be kept.

    Args:
        recomputed: of the recomputed form of each layer; the structure is then that of a `TwofoldProgram`.
    """
    allowed: dict[int, dict[int, set[int]]] = defaultdict(dict)
    for pin in pins:
        if pin.kind not in (PinKind.STRATEGY, PinKind.SPEC):
            continue
        if str(pin.subject).startswith(RECOMPUTE) and not any(op.name == pin.subject for op in program.ops):
            continue  # only recomputed layers have such ops
        layer = find_pinned_layer(program, pin)
        instance = structure.instances[layer + (program.num_layers if recomputed else 0)]
        if pin.kind is PinKind.STRATEGY and all(program.ops[i].name != pin.subject for i in instance.ops):
            continue  # an op of the form that this is not
        problem = problems[instance.layer_class]
        variable, candidates = _find_candidates(program, instance, problem, costs, pin)
        left = allowed[layer].get(variable)
        allowed[layer][variable] = candidates if left is None else left & candidates
    return {
        layer: tuple(sorted((variable, tuple(sorted(left))) for variable, left in variables.items()))
        for layer, variables in allowed.items()
    }


def _find_candidates(
    program: Program, instance: LayerInstance, problem: LayerProblem, costs: MeshCosts, pin: Pin
) -> tuple[int, set[int]]:
    if pin.kind is PinKind.SPEC:
        number = next(n for n, v in enumerate(instance.values) if program.values[v].name == pin.subject)
        track = problem.tracks[number]
        if track is None:
            raise PinError(f"Pin '{pin}': no op of the layer reads this input.")
        return track.variable, {k for k, i in enumerate(track.index) if format_spec(track.specs[i]) == pin.choice}
    position = next(p for p, i in enumerate(instance.ops) if program.ops[i].name == pin.subject)
    labels = list_labels(program.ops[instance.ops[position]], position, instance, problem, costs)
    if labels is None:
        raise PinError(f"Pin '{pin}': this op is made from scalars alone and costs nothing, so it cannot be pinned.")
    variable, per_candidate = labels
    return variable, {k for k, label in enumerate(per_candidate) if label == pin.choice}


def list_labels(
    op: Op, position: int, instance: LayerInstance, problem: LayerProblem, costs: MeshCosts
) -> tuple[int, list[str]] | None:
    """The variable that decides an op, and the op's strategy label under each candidate; None for free ops."""
    leader = problem.leaders.ops[position]
    if leader.kind is LeaderKind.FREE:
        return None
    if leader.kind is LeaderKind.DECISION:
        variable = next(
            i for i, v in enumerate(problem.variables) if v.kind is VariableKind.OP and v.target == position
        )
        return variable, [s.label for s in problem.variables[variable].strategies]
    if leader.kind is LeaderKind.RESULT:
        track = problem.tracks[leader.index]
        assert track is not None, "an update follows an input"
        labels = [costs.follow_result(op.rule, 0, spec).label for spec in track.specs]
    else:
        operand = op.inputs[leader.index]
        track = problem.tracks[instance.values.index(operand)] if operand is not None else None
        assert track is not None, "a followed operand is not free"
        labels = [costs.follow(op.rule, leader.index, spec).label for spec in track.specs]  # deferred: of equal name
    return track.variable, [labels[i] for i in track.index]
