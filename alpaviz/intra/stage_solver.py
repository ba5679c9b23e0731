"""Solves stages on one logical mesh, each structurally distinct one once.

In: ranges of layers. Out: `SolvedStage`: times, memory and choices. A stage whose unlimited optimum fits needs no
memory limit; only where it does not is the limited problem solved. Along a family of stages that differ only in how
often one group of layers repeats, the optimum is a concave function of that number (a minimum of linear functions), so
a choice that is best at both ends is best between.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from alpaviz.errors import SolveCancelledError
from alpaviz.intra.layer_messages import LayerMessages
from alpaviz.intra.layer_problem import LayerProblem, build_layer_problem
from alpaviz.intra.op_cost import MeshCosts
from alpaviz.intra.problem import MemoryRow, ShardingProblem, ShardingSolution, SolveStatus
from alpaviz.intra.restrict import restrict_layers
from alpaviz.intra.solvers import SolveProgress, solve_problem
from alpaviz.intra.solvers.messages import MessageMemo, MessagePassing
from alpaviz.intra.solvers.network import build_network
from alpaviz.intra.stage_problem import (
    GroupKey,
    Restriction,
    StagePrice,
    StageProblem,
    StageShape,
    build_stage_problem,
)
from alpaviz.intra.stage_records import SolvedStage, StageRecords, name_group, name_stage
from alpaviz.intra.structure import ProgramStructure
from alpaviz.pins import Pin, PinKind
from alpaviz.program.program import Program

__all__ = ["TOLERANCE", "SolvedStage", "StageSolver"]

TOLERANCE = 1e-6
"""Relative gap at which a stage's solution counts as the optimum."""

_SWEEPS = 8
"""Sweeps each way for a bound of one layer: within 1% of the optimum inside a host, and half a solve's bound, at a
tenth of its time, where links are slow; such meshes are then beaten by far."""


class _LayerProblems(dict[int, LayerProblem]):
    """The problem of every layer class, worked out when it is first asked for by `[]`."""

    def __init__(self, program: Program, structure: ProgramStructure, costs: MeshCosts) -> None:
        super().__init__()
        self._program, self._structure, self._costs = program, structure, costs

    def __missing__(self, layer_class: int) -> LayerProblem:
        instance = self._structure.instances[self._structure.representatives[layer_class]]
        found = self[layer_class] = build_layer_problem(self._program, self._structure, instance, self._costs)
        return found


class StageSolver:
    """All stages of one program on one logical mesh. Remembers what it has solved; use from one thread at a time.

    Args:
        records: what is known from before; what is found is added.
        on_progress: hears incumbent and bound of each solve while it runs, from the solving thread.
    """

    def __init__(
        self,
        program: Program,
        structure: ProgramStructure,
        costs: MeshCosts,
        solver: str = "auto",
        records: StageRecords | None = None,
        on_progress: Callable[[SolveProgress], None] | None = None,
    ) -> None:
        self.program, self.structure, self.costs = program, structure, costs
        self.solver = solver
        self._on_progress = on_progress
        self.records = records or StageRecords()
        self.num_solved = 0
        self.problems: Mapping[int, LayerProblem] = _LayerProblems(program, structure, costs)
        self._solved: dict[tuple[StageShape, int | None, float], SolvedStage] = {}
        self._least_bytes: dict[tuple[GroupKey, int], float] = {}
        self._messages = LayerMessages()

    def restrict(self, pins: Sequence[Pin], *, recomputed: bool = False) -> dict[int, Restriction]:
        """What the pins leave of each layer's candidates on this mesh; of a twofold program's second form if asked."""
        if not any(pin.kind in (PinKind.STRATEGY, PinKind.SPEC) for pin in pins):
            return {}  # without working out the problems
        return restrict_layers(self.program, self.structure, self.problems, self.costs, pins, recomputed=recomputed)

    def build(self, shape: StageShape, in_flight: int = 1, memory_limit: float = np.inf) -> StageProblem:
        """The problem of a stage."""
        return build_stage_problem(
            self.program, self.structure, self.problems, shape, self.costs, in_flight=in_flight,
            memory_limit=memory_limit,
        )  # fmt: skip

    def solve_unlimited(self, shapes: Sequence[StageShape], should_stop: Callable[[], bool]) -> None:
        """Solve all `shapes` without a memory limit, families at once."""
        families: dict[object, list[StageShape]] = defaultdict(list)
        for shape in dict.fromkeys(shapes):
            if not _is_impossible(shape) and self._look_up(shape, None, np.inf) is None:
                families[name_family(shape)].append(shape)
        for family in families.values():
            for line in _split_into_lines(family):
                self._solve_line(line, should_stop)

    def _solve_line(self, line: Sequence[StageShape], should_stop: Callable[[], bool]) -> None:
        """Solve shapes whose counts lie on one line, in order; ends first, the middle only where they differ."""
        first = self.find(line[0], None, np.inf, should_stop)
        if len(line) == 1:
            return
        last = self.find(line[-1], None, np.inf, should_stop)
        if len(line) == 2 or first.price is None or last.price is None:
            return
        at_end = self.build(line[-1])
        if at_end.problem.price(first.choice) <= last.objective * (1 + TOLERANCE):
            far = at_end.price(first.choice)
            begin, end = _counts(line[0]), _counts(line[-1])
            for shape in line[1:-1]:
                share = float((_counts(shape) - begin) @ (end - begin) / ((end - begin) @ (end - begin)))
                self._keep(shape, None, np.inf, _interpolate(first, last, far, share))
            return
        middle = len(line) // 2
        self._solve_line(line[: middle + 1], should_stop)
        self._solve_line(line[middle:], should_stop)

    def bound_unlimited(self, shape: StageShape) -> float:
        """Seconds that no choice for `shape` can go below, with or without a memory limit, found quickly.

        The sum over its layers of a bound for each alone, in which values from other layers arrive as it likes best.
        """
        if _is_impossible(shape):
            return float("inf")
        return sum(count * self._bound_group(key) for key, count in shape.groups)

    def _bound_group(self, key: GroupKey) -> float:
        name = name_group(key, None)
        known = self.records.least_s.get(name)
        if known is None:
            network = build_network(self.build(StageShape(((key, 1),), (), ())).problem)
            known = float("inf") if network is None else MessagePassing(network).run(_SWEEPS)
            self.records.keep_least_s(name, known)
        return known

    def count_least_bytes(self, shape: StageShape, in_flight: int) -> float:
        """Bytes on each device that no choice for `shape` can go below; inf where pins leave nothing.

        Copies of parameters that another stage owns are not counted.
        """
        if _is_impossible(shape):
            return float("inf")
        return sum(count * self._count_least_group_bytes(key, in_flight) for key, count in shape.groups)

    def _count_least_group_bytes(self, key: GroupKey, in_flight: int) -> float:
        if (key, in_flight) not in self._least_bytes:
            name = name_group(key, in_flight)
            known = self.records.least_bytes.get(name)
            if known is None:
                known = self._sum_least_bytes(key, in_flight)
                self.records.keep_least_bytes(name, known)
            self._least_bytes[key, in_flight] = known
        return self._least_bytes[key, in_flight]

    def _sum_least_bytes(self, key: GroupKey, in_flight: int) -> float:
        layer_class, restriction = key
        allowed = dict(restriction)
        total = 0.0
        for position, variable in enumerate(self.problems[layer_class].variables):
            usage = variable.parameter_bytes + variable.optimizer_bytes + variable.gradient_bytes + variable.batch_bytes
            usage = usage + in_flight * variable.activation_bytes
            if position in allowed:
                usage = usage[list(allowed[position])]
            total += float(usage.min())
        return total

    def find(
        self, shape: StageShape, in_flight: int | None, memory_limit: float, should_stop: Callable[[], bool]
    ) -> SolvedStage:
        """The best stage of `shape`; `in_flight` None is without memory limit."""
        if _is_impossible(shape):
            return SolvedStage((), None, np.inf, np.inf, "pins")
        if in_flight is not None:
            free = self.find(shape, None, np.inf, should_stop)
            if free.price is None or free.price.count_bytes(in_flight) <= memory_limit:
                return free
            least = self.count_least_bytes(shape, in_flight)
            if least > memory_limit:
                return SolvedStage((), None, np.inf, np.inf, "memory", least - memory_limit)
        found = self._look_up(shape, in_flight, memory_limit)
        if found is None:
            found = self._solve(shape, in_flight, memory_limit, should_stop)
            self._keep(shape, in_flight, memory_limit, found)
        return found

    def _look_up(self, shape: StageShape, in_flight: int | None, memory_limit: float) -> SolvedStage | None:
        """What is known of a stage, from this process or from the records."""
        key = (shape, in_flight, memory_limit)
        if key not in self._solved:
            known = self.records.stages.get(name_stage(*key))
            if known is None:
                return None
            self._solved[key] = known
        return self._solved[key]

    def _keep(self, shape: StageShape, in_flight: int | None, memory_limit: float, stage: SolvedStage) -> None:
        self._solved[shape, in_flight, memory_limit] = stage
        self.records.keep_stage(name_stage(shape, in_flight, memory_limit), stage)

    def _solve(
        self, shape: StageShape, in_flight: int | None, memory_limit: float, should_stop: Callable[[], bool]
    ) -> SolvedStage:
        if should_stop():
            raise SolveCancelledError("The solve was cancelled.")
        problem = self.build(shape, in_flight or 1, memory_limit if in_flight is not None else np.inf)
        is_pinned = any(restriction for (_, restriction), _ in shape.groups)
        # Only pinned stages start from another's messages: what the others find must not depend on their order.
        memo = MessageMemo(self._messages.spread(problem) if is_pinned else None)
        solution = self._solve_by_rows(problem.problem, should_stop, memo)
        if not is_pinned and not problem.problem.memory:
            self._messages.keep(problem, memo)
        self.num_solved += 1
        if should_stop() or solution.status is SolveStatus.CANCELLED:
            raise SolveCancelledError("The solve was cancelled.")
        return _read_solution(problem, solution)

    def _solve_by_rows(
        self, problem: ShardingProblem, should_stop: Callable[[], bool], memo: MessageMemo
    ) -> ShardingSolution:
        """The best choice within all memory rows, of which only those that matter are looked at.

        Rows of one stage differ in the layer that is at work. A choice that is best within some of them and keeps all
        is the best; one row is far easier than several.
        """
        left = sorted(problem.memory, key=_weigh_row)
        rows = [left.pop()] if left else []
        while True:
            part = replace(problem, memory=tuple(rows))
            solution = solve_problem(
                part, solver=self.solver, tolerance=TOLERANCE, on_progress=self._on_progress, should_stop=should_stop,
                memo=memo,
            )  # fmt: skip
            worst = max(left, key=lambda row: _measure_excess(row, solution.choice), default=None)
            if worst is None or _measure_excess(worst, solution.choice) <= 0:
                return solution
            rows.append(worst)
            left.remove(worst)


def _weigh_row(row: MemoryRow) -> float:
    """Bytes that any choice needs of a row."""
    return sum(float(usage.min()) for usage in row.usage)


def _measure_excess(row: MemoryRow, choice: Sequence[int]) -> float:
    """Bytes by which `choice` is over the limit of `row`; nothing is over none."""
    if not choice:
        return 0.0
    used = sum(float(usage[choice[v]]) for v, usage in zip(row.variables, row.usage, strict=True))
    return max(0.0, used - row.limit * (1 + 1e-12))


def _read_solution(problem: StageProblem, solution: ShardingSolution) -> SolvedStage:
    if not solution.choice:
        return SolvedStage((), None, np.inf, np.inf, solution.solver, solution.bytes_short)
    return SolvedStage(
        solution.choice, problem.price(solution.choice), solution.objective, solution.bound, solution.solver
    )


def _interpolate(first: SolvedStage, last: SolvedStage, far: StagePrice, share: float) -> SolvedStage:
    """`first`'s choice between its own stage and the far end, where it costs `far`: everything is linear between.

    The optimum is concave along the line, so it is at least the interpolated bound of the two ends.
    """
    assert first.price is not None, "a solved end has a price"

    def between(a: float, b: float) -> float:
        return (1 - share) * a + share * b

    near = first.price
    price = StagePrice(
        between(near.micro_s, far.micro_s), between(near.once_s, far.once_s),
        between(near.parameter_bytes, far.parameter_bytes), between(near.optimizer_bytes, far.optimizer_bytes),
        between(near.gradient_bytes, far.gradient_bytes), between(near.activation_bytes, far.activation_bytes),
        near.transient_bytes,
        between(near.batch_bytes, far.batch_bytes),
    )  # fmt: skip
    return SolvedStage(
        first.choice, price, between(first.objective, last.objective), between(first.bound, last.bound), first.solver
    )


def _is_impossible(shape: StageShape) -> bool:
    return any(not allowed for (_, restriction), _ in shape.groups for _, allowed in restriction)


def name_family(shape: StageShape) -> object:
    """What shapes share that differ only in how often each part of them repeats."""
    return (
        tuple(key for key, _ in shape.groups),
        tuple(key for key, _ in shape.links),
        tuple(key for key, _ in shape.copies),
    )


def _counts(shape: StageShape) -> np.ndarray:
    return np.array([n for part in (shape.groups, shape.links, shape.copies) for _, n in part], dtype=float)


def _split_into_lines(family: Sequence[StageShape]) -> list[list[StageShape]]:
    """Shapes of one family as runs whose count vectors lie on one line, in order along it."""
    ordered = sorted(family, key=lambda shape: tuple(_counts(shape)))
    if len(ordered) < 3:
        return [ordered]
    vectors = np.array([_counts(shape) for shape in ordered])
    direction = vectors[-1] - vectors[0]
    offsets = vectors - vectors[0]
    length = float(direction @ direction)
    along = offsets @ direction / length
    if np.allclose(offsets, along[:, None] * direction[None, :]):
        return [ordered]
    return [[shape] for shape in ordered]
