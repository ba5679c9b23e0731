"""Searches the number of microbatches and the schedule, one two-level solve for each.

In: a step, a cluster and options. Out: the plan whose simulated step is shortest, with what else was tried. A step has
the same layers for every number of microbatches, only with other batch sizes, so the solves share what does not depend
on it (`SolverPool`); the schedules of one number share all but what memory limits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from alpaviz.cluster import Cluster
from alpaviz.errors import AlpaVizError, InfeasibleError, InvalidStepError, PinConflictError
from alpaviz.intra.solvers import SolveProgress
from alpaviz.pins import Pin
from alpaviz.plan import Plan, PlanTry
from alpaviz.plan_diff import format_bytes
from alpaviz.planner_options import PlannerOptions
from alpaviz.planning import PlanningSession
from alpaviz.program import Program, retrace
from alpaviz.program.recompute import fit_to_layers, list_recomputable_layers, recompute_layers
from alpaviz.program.trace import TraceRecipe, count_rows
from alpaviz.schedule import RUNNABLE_SCHEDULES
from alpaviz.solver_pool import SolverPool
from alpaviz.stage_candidates import Report

AUTO: Final = "auto"
"""In place of a number of microbatches or a schedule: search it."""

MOST_COUNTS = 12
"""With more divisors than this, one for each doubling is tried."""

Counts = tuple[int, ...]


class PlanSearch:
    """Everything that is known about planning one step on one cluster. Use from one thread at a time.

    Args:
        is_searched: try the divisors of the batch; otherwise the recipe's number of microbatches.
        pool, programs: of another search for the same step, to share.
    """

    def __init__(
        self,
        recipe: TraceRecipe,
        cluster: Cluster,
        options: PlannerOptions,
        *,
        is_searched: bool = False,
        pool: SolverPool | None = None,
        programs: dict[int, Program] | None = None,
    ) -> None:
        self.recipe, self.cluster, self.options, self.is_searched = recipe, cluster, options, is_searched
        self.pool = pool or SolverPool(options.solver)
        self.programs: dict[int, Program] = {} if programs is None else programs
        self._sessions: dict[tuple[int, str], PlanningSession] = {}
        self._recomputed: dict[tuple[int, tuple[int, ...]], Program] = {}

    def find_program(self, num_microbatches: int | None = None) -> Program:
        """The step, traced with this many microbatches; by default those of the recipe."""
        count = num_microbatches or self.recipe.num_microbatches
        if count not in self.programs:
            program = retrace(replace(self.recipe, num_microbatches=count))
            if self.options.recompute == "always":
                program = recompute_layers(program, list_recomputable_layers(program))
            self.programs[count] = program
        return self.programs[count]

    def find_program_of(self, plan: Plan) -> Program:
        """The step as `plan` has it: with its microbatches where they are searched, and its recomputed layers."""
        program = self.find_program(plan.num_microbatches if self.is_searched else None)
        key = program.num_microbatches, plan.program.recomputed_layers
        if key not in self._recomputed:
            self._recomputed[key] = fit_to_layers(program, plan.program.recomputed_layers)
        return self._recomputed[key]

    def find_session(self, num_microbatches: int, schedule: str) -> PlanningSession:
        """The session for one number of microbatches and one schedule."""
        key = num_microbatches, schedule
        if key not in self._sessions:
            program = self.find_program(num_microbatches)
            options = replace(self.options, schedule=schedule)
            self._sessions[key] = PlanningSession(program, self.cluster, options, self.pool)
        return self._sessions[key]

    def list_counts(self) -> Counts:
        """Numbers of microbatches to try, in ascending order."""
        if not self.is_searched:
            return (self.recipe.num_microbatches,)
        return list_divisors(count_rows(self.recipe)) if self.find_program(1).has_gradient_marker else (1,)

    def list_schedules(self) -> tuple[str, ...]:
        """Schedules to try: those that can run."""
        return RUNNABLE_SCHEDULES if self.options.schedule == AUTO else (self.options.schedule,)

    def solve(
        self,
        pins: tuple[Pin, ...],
        report: Report,
        should_stop: Callable[[], bool],
        on_stage_progress: Callable[[SolveProgress], None] | None = None,
    ) -> Plan:
        """The plan of the shortest step that keeps `pins`.

        Args:
            on_stage_progress: hears incumbent and bound of the stage solve that runs, at most ten times a second.

        Raises:
            InfeasibleError, PinConflictError: nothing fits; of what was tried, the case that lacks least.
            SolveCancelledError: `should_stop` became true.
        """
        with self.pool.take_turn(should_stop, on_stage_progress):
            return self._solve(pins, report, should_stop)

    def _solve(self, pins: tuple[Pin, ...], report: Report, should_stop: Callable[[], bool]) -> Plan:
        cases = [(count, schedule) for count in self.list_counts() for schedule in self.list_schedules()]
        if len(cases) == 1:
            return self.find_session(*cases[0]).solve(pins, report, should_stop)
        began = time.monotonic()
        best: Plan | None = None
        tries: list[PlanTry] = []
        errors: list[AlpaVizError] = []
        for number, (count, schedule) in enumerate(cases):
            label = _label(count, schedule, number, len(cases))

            def report_case(phase: str, *rest: object, label: str = label) -> None:
                report(f"{label}: {phase}", *rest)

            try:
                plan = self.find_session(count, schedule).solve(pins, report_case, should_stop)
            except (InfeasibleError, PinConflictError, InvalidStepError) as error:
                errors.append(error)
                tries.append(PlanTry(count, schedule, None, None, 0, str(error).split(". ")[0]))
                continue
            tries.append(describe_try(plan))
            if best is None or _rank(plan) < _rank(best):
                best = plan
        if best is None:
            raise min(errors, key=_rank_error)
        return replace(best, solver=replace(best.solver, seconds=time.monotonic() - began, tries=tuple(tries)))


def list_divisors(rows: int) -> Counts:
    """Divisors of `rows` to try as numbers of microbatches: all, or where they are many one for each doubling."""
    divisors = sorted({d for k in range(1, math.isqrt(rows) + 1) if rows % k == 0 for d in (k, rows // k)})
    if len(divisors) <= MOST_COUNTS:
        return tuple(divisors)
    return tuple({d.bit_length(): d for d in divisors}.values())


def describe_try(plan: Plan) -> PlanTry:
    """What `plan` brings."""
    fullest = max((stage.memory for stage in plan.stages), key=lambda memory: memory.total_bytes)
    reason = ""
    if fullest.total_bytes > fullest.capacity_bytes:
        reason = f"with the working set it needs more than the {format_bytes(fullest.capacity_bytes)} of a device"
    count, step = plan.num_microbatches, plan.estimate.step_s
    return PlanTry(count, plan.schedule, step, fullest.total_bytes, plan.num_stages, reason)


def _rank(plan: Plan) -> tuple[bool, float, float, int]:
    """What fits with its working set is better, then a shorter step, less memory, fewer microbatches."""
    found = describe_try(plan)
    return bool(found.reason), plan.estimate.step_s, found.memory_bytes or 0.0, plan.num_microbatches


def _rank_error(error: AlpaVizError) -> tuple[int, float]:
    """Conflicts of pins are the user's to solve and come first, then what lacks least memory."""
    if isinstance(error, PinConflictError):
        return 0, 0.0
    return (1, error.bytes_short) if isinstance(error, InfeasibleError) else (2, 0.0)


def _label(count: int, schedule: str, number: int, total: int) -> str:
    return f"{count} microbatches, {schedule} ({number + 1} of {total})"
