"""What else a stage of a plan could be: its cheapest choices, time against memory, and what each strategy really costs.

In: the stages of the last solve. Out: plans in which one stage takes other choices and all others stay, and for an op
the optimum of its stage under each of its strategies, everything else in the stage free to follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alpaviz.alternatives import count_passes, find_decision
from alpaviz.cluster import Cluster
from alpaviz.errors import AlpaVizError, PinError
from alpaviz.intra.problem import FloatArray, ShardingSolution, SolveStatus
from alpaviz.intra.restrict import find_pinned_layer
from alpaviz.intra.solvers import find_best_choices, find_forced_optima, find_pareto_front, solve_problem
from alpaviz.intra.solvers.network import BoolArray
from alpaviz.intra.stage_problem import StageProblem
from alpaviz.intra.stage_solver import TOLERANCE, SolvedStage
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.plan_builder import ChosenStage, build_plan
from alpaviz.program.program import Program

_SECONDS = 60.0
"""A search for variants ends after this, with what it has by then."""


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """A point of time against memory.

    Attributes:
        stage_s: seconds of the stage for each microbatch, its share of what is done once a step included.
        stage_bytes: on each of its devices.
        is_optimal: proven that no choice is both as fast and as small, and better in one of the two.
    """

    plan: Plan
    stage_s: float
    stage_bytes: float
    is_optimal: bool


@dataclass(frozen=True, slots=True)
class Regret:
    """An op's strategy, and the best that its stage can do with it.

    Attributes:
        stage_s: seconds of the stage for each microbatch, once everything else has adapted; inf where nothing fits.
        delta_s: seconds that a step takes longer, by the stage's times.
        share: how much longer the stage takes, as a share of its time.
        is_exact: whether `stage_s` is proven to be the optimum; else it is the best that was found in time.
    """

    strategy: str
    stage_s: float
    delta_s: float
    share: float
    is_chosen: bool
    is_exact: bool


@dataclass(frozen=True, slots=True, eq=False)
class StageVariants:
    """Variants of stage `index` of a plan; made by `Planner.variants`.

    Args:
        chosen: all stages of the solve that found `plan`.
        memory_limit: bytes of a device that a stage may use.
    """

    program: Program
    cluster: Cluster
    plan: Plan
    chosen: tuple[ChosenStage, ...]
    index: int
    memory_limit: float

    @property
    def stage(self) -> ChosenStage:
        """The stage that varies."""
        return self.chosen[self.index]

    def cheapest(self, count: int = 5, should_stop: Callable[[], bool] | None = None) -> tuple[Plan, ...]:
        """Up to `count` plans that differ in the decisions of this stage, cheapest first; the first is an optimum.

        Decisions that cost nothing either way make plans of their own.
        """
        if count < 1:
            raise AlpaVizError(f"count must be at least 1, not {count}.")
        problem = self._build()
        found = find_best_choices(
            problem.problem, count, best=self._known(problem), time_limit=_SECONDS, should_stop=should_stop
        )
        return tuple(self._make_plan(problem, s.choice, s.objective, s.bound) for s in found)

    def front(self, count: int = 12, should_stop: Callable[[], bool] | None = None) -> tuple[FrontPlan, ...]:
        """Up to `count` plans from the least memory of this stage to its least time, none of them beaten in both."""
        if count < 2:
            raise AlpaVizError(f"count must be at least 2, not {count}: a front has two ends.")
        problem = self._build()
        front = find_pareto_front(problem.problem, 0, count=count, time_limit=_SECONDS, should_stop=should_stop)
        return tuple(
            FrontPlan(
                self._make_plan(problem, point.choice, point.objective, point.bound), point.objective, point.usage,
                point.status is SolveStatus.OPTIMAL,
            )
            for point in front.points
        )  # fmt: skip

    def regrets(self, op: str, should_stop: Callable[[], bool] | None = None) -> tuple[Regret, ...]:
        """Each strategy of `op` with the optimum of its stage if it were forced in this layer, cheapest first.

        Raises:
            PinError: no such op in this stage, or nothing is decided about it.
        """
        stage, program = self.stage, self.program
        layer = find_pinned_layer(program, Pin(PinKind.STRATEGY, op, ""))
        if not stage.first <= layer <= stage.last:
            raise PinError(
                f"op {op} is in layer {layer}; stage {self.index} holds layers {stage.first} to {stage.last}."
            )
        decision = find_decision(program, stage, layer, op)
        labels = decision.labels
        restriction = stage.shapes.keys[layer][1]
        shapes = stage.shapes.set_apart(layer, restriction)
        problem = stage.solver.build(shapes.find(stage.first, stage.last), stage.in_flight, self.memory_limit)
        solution = solve_problem(problem.problem, tolerance=TOLERANCE, should_stop=should_stop)
        variable = problem.offsets[shapes.keys[layer]] + decision.variable
        (forced,) = find_forced_optima(
            problem.problem, solution, [variable], time_limit=_SECONDS, should_stop=should_stop
        )
        exact, now = forced.is_exact.copy(), ""
        if solution.choice:
            now = labels[solution.choice[variable]]
            exact[solution.choice[variable]] |= solution.status is SolveStatus.OPTIMAL
        passes = count_passes(self.chosen, stage, program.num_microbatches)
        return _rank(labels, forced.objective, exact, solution.objective, now, passes)

    def _build(self) -> StageProblem:
        stage = self.stage
        return stage.solver.build(stage.shapes.find(stage.first, stage.last), stage.in_flight, self.memory_limit)

    def _known(self, problem: StageProblem) -> ShardingSolution | None:
        """The plan's own choice, as a solution of `problem` to start from."""
        solved = self.stage.solved
        if not solved.choice or len(solved.choice) != problem.problem.num_variables:
            return None
        objective = problem.problem.price(solved.choice)
        if not np.isclose(objective, solved.objective, rtol=1e-9):
            return None
        status = SolveStatus.OPTIMAL if objective - solved.bound <= TOLERANCE * objective else SolveStatus.FEASIBLE
        return ShardingSolution(status, solved.choice, objective, min(solved.bound, objective), solved.solver, 0.0)

    def _make_plan(self, problem: StageProblem, choice: tuple[int, ...], objective: float, bound: float) -> Plan:
        solved = SolvedStage(choice, problem.price(choice), objective, bound, "variants")
        stages = list(self.chosen)
        stages[self.index] = replace(self.stage, solved=solved)
        passes = count_passes(self.chosen, self.stage, self.program.num_microbatches)
        more = passes * (objective - self.stage.solved.objective)
        note = f"a variant of stage {self.index}, all other stages as they were"
        report = replace(
            self.plan.solver, objective=self.plan.solver.objective + more, notes=(*self.plan.solver.notes, note)
        )
        return build_plan(
            self.program, self.stage.solver.structure, self.cluster, stages, schedule=self.plan.schedule,
            pins=self.plan.pins, report=report,
        )  # fmt: skip


def _rank(
    labels: Sequence[str], costs: FloatArray, exact: BoolArray, optimum: float, now: str, passes: int
) -> tuple[Regret, ...]:
    """One regret per label, the cheapest of its candidates."""
    best: dict[str, int] = {}
    for k, label in enumerate(labels):
        if label not in best or costs[k] < costs[best[label]]:
            best[label] = k
    found = []
    for label, k in best.items():
        more = float(costs[k] - optimum)
        share = more / optimum if optimum else 0.0
        found.append(Regret(label, float(costs[k]), passes * more, share, label == now, bool(exact[k])))
    return tuple(sorted(found, key=lambda r: (not r.is_chosen, r.stage_s, r.strategy)))
