"""What else a stage of a plan could be: its cheapest choices, time against memory, and what each strategy really costs.

In: the stages of the last solve. Out: plans in which one stage takes other choices and all others stay, and for an op
the optimum of its stage under each of its strategies, everything else in the stage free to follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from alpaviz.alternatives import find_decision
from alpaviz.cluster import Cluster
from alpaviz.errors import AlpaVizError, PinError
from alpaviz.intra.problem import FloatArray, ShardingProblem, ShardingSolution, SolveStatus
from alpaviz.intra.realize import StageRealization
from alpaviz.intra.restrict import find_pinned_layer
from alpaviz.intra.solvers import find_best_choices, find_forced_optima, find_pareto_front, solve_problem
from alpaviz.intra.stage_problem import StageProblem
from alpaviz.intra.stage_solver import TOLERANCE, SolvedStage
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.plan_builder import ChosenStage, build_plan, realize_stage
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
        delta_s: seconds that a step takes longer than with the stage's optimum, by the stages' times.
        share: how much longer the stage takes, as a share of its time.
        is_chosen: in the plan.
        is_exact: whether `stage_s` is proven to be the optimum; else it is the best that was found in time.
        gap: how far, at most, `stage_s` is above the optimum, as a share of it; 0 where it is exact.
        stage_bytes: on each device of the stage, under a choice that takes `stage_s`; None where nothing fits.
    """

    strategy: str
    stage_s: float
    delta_s: float
    share: float
    is_chosen: bool
    is_exact: bool
    gap: float = 0.0
    stage_bytes: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StageVariants:
    """Variants of stage `index` of a plan; made by `Planner.variants`.

    Args:
        chosen: all stages of the solve that found `plan`.
        memory_limit: bytes of a device that a stage may use.
        remember: told of each plan that is made, with its stages.
    """

    program: Program
    cluster: Cluster
    plan: Plan
    chosen: tuple[ChosenStage, ...]
    index: int
    memory_limit: float
    remember: Callable[[Plan, tuple[ChosenStage, ...]], None]
    _others: dict[int, StageRealization] = field(default_factory=dict, init=False, repr=False)

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
        return tuple(self._make_plan(problem, s.choice, s.objective) for s in found)

    def front(self, count: int = 12, should_stop: Callable[[], bool] | None = None) -> tuple[FrontPlan, ...]:
        """Up to `count` plans from the least memory of this stage to its least time, none of them beaten in both.

        Some may need more than `memory_limit`: they show what more memory would bring.
        """
        if count < 2:
            raise AlpaVizError(f"count must be at least 2, not {count}: a front has two ends.")
        problem = self._build()
        front = find_pareto_front(problem.problem, 0, count=count, time_limit=_SECONDS, should_stop=should_stop)
        return tuple(
            FrontPlan(
                self._make_plan(problem, point.choice, point.objective), point.objective, point.usage,
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
        now = labels[stage.solved.choice[self._build().offsets[stage.shapes.keys[layer]] + decision.variable]]
        rows = []
        for k in _find_cheapest(labels, forced.objective).values():
            choice = forced.choices[k]
            if not choice and np.isfinite(forced.objective[k]):
                choice = _solve_forced(problem.problem, solution.choice, variable, k, should_stop)
            size = problem.price(choice).count_bytes(stage.in_flight) if choice else None
            cost, bound = float(forced.objective[k]), float(forced.bound[k])
            is_exact = cost - bound <= 2 * TOLERANCE * cost if np.isfinite(cost) else bound == cost
            more = cost - solution.objective
            share = more / solution.objective if solution.objective else 0.0
            gap = 0.0 if is_exact else 1 - bound / cost
            delta = self._time_step(cost) - self._time_step(solution.objective)
            rows.append(Regret(labels[k], cost, delta, share, labels[k] == now, is_exact, gap, size))
        return tuple(sorted(rows, key=lambda r: (not r.is_chosen, r.stage_s, r.strategy)))

    def _time_step(self, stage_s: float) -> float:
        """Seconds of a step by the stages' times, where this stage takes `stage_s` for each microbatch.

        One microbatch passes all stages, each further one waits for the slowest (paper, section 5.1).
        """
        times = [stage.solved.objective for stage in self.chosen]
        times[self.index] = stage_s
        return sum(times) + (self.program.num_microbatches - 1) * max(times)

    def _build(self) -> StageProblem:
        stage = self.stage
        return stage.solver.build(stage.shapes.find(stage.first, stage.last), stage.in_flight, self.memory_limit)

    def _known(self, problem: StageProblem) -> ShardingSolution | None:
        """The plan's own choice, as a solution of `problem` to start from."""
        solved = self.stage.solved
        if not solved.choice or len(solved.choice) != problem.problem.num_variables:
            return None
        objective = problem.problem.price(solved.choice)
        is_legal = all(used <= self.memory_limit for used in problem.problem.measure_memory(solved.choice))
        if not is_legal or not np.isclose(objective, solved.objective, rtol=1e-9):
            return None
        status = SolveStatus.OPTIMAL if objective - solved.bound <= TOLERANCE * objective else SolveStatus.FEASIBLE
        return ShardingSolution(status, solved.choice, objective, min(solved.bound, objective), solved.solver, 0.0)

    def _realize_others(self) -> dict[int, StageRealization]:
        """All stages but this one: they are the same in every variant."""
        for index, stage in enumerate(self.chosen):
            if index != self.index and index not in self._others:
                self._others[index] = realize_stage(self.program, stage.solver.structure, index, stage, is_alone=False)
        return self._others

    def _make_plan(self, problem: StageProblem, choice: tuple[int, ...], objective: float) -> Plan:
        # The bound stays that of the stage's optimum: a variant is as far from it as it costs more.
        bound = min(self.stage.solved.bound, objective)
        solved = SolvedStage(choice, problem.price(choice), objective, bound, "variants")
        stages = list(self.chosen)
        stages[self.index] = replace(self.stage, solved=solved)
        more = self._time_step(objective) - self._time_step(self.stage.solved.objective)
        note = f"a variant of stage {self.index}, all other stages as they were"
        notes = tuple(dict.fromkeys((*self.plan.solver.notes, note)))
        report = replace(self.plan.solver, objective=self.plan.solver.objective + more, notes=notes)
        plan = build_plan(
            self.program, self.stage.solver.structure, self.cluster, stages, schedule=self.plan.schedule,
            pins=self.plan.pins, report=report, known=self._realize_others(),
        )  # fmt: skip
        self.remember(plan, tuple(stages))
        return plan


def _find_cheapest(labels: Sequence[str], costs: FloatArray) -> dict[str, int]:
    """Per label the cheapest of its candidates."""
    best: dict[str, int] = {}
    for k, label in enumerate(labels):
        if label not in best or costs[k] < costs[best[label]]:
            best[label] = k
    return best


def _solve_forced(
    problem: ShardingProblem, start: tuple[int, ...], variable: int, k: int, should_stop: Callable[[], bool] | None
) -> tuple[int, ...]:
    """An optimum of `problem` that takes candidate `k` of `variable`; empty where there is none."""
    costs = np.full(len(problem.unary[variable]), np.inf)
    costs[k] = problem.unary[variable][k]
    held = replace(problem, unary=(*problem.unary[:variable], costs, *problem.unary[variable + 1 :]))
    first = (*start[:variable], k, *start[variable + 1 :])
    return solve_problem(
        held, tolerance=TOLERANCE, time_limit=_SECONDS, warm_start=first, should_stop=should_stop
    ).choice
