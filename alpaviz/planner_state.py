"""What a planner shows while it works: its state, its progress, its alternatives."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

from alpaviz.plan import Plan
from alpaviz.plan_diff import format_seconds
from alpaviz.types import ShardingSpec


class PlannerState(enum.StrEnum):
    """Where a planner is."""

    IDLE = "idle"
    """Nothing solved yet."""
    SOLVING = "solving"
    SOLVED = "solved"
    STALE = "stale"
    """Pins or options changed since the plan was found."""
    INFEASIBLE = "infeasible"
    """No plan fits; the last plan is kept."""
    FAILED = "failed"
    """An error; the last plan is kept."""
    CANCELLED = "cancelled"
    """Stopped by the user; the last plan is kept."""


@dataclass(frozen=True, slots=True)
class SolveProgress:
    """How far a solve is.

    Attributes:
        phase: for people: `"tracing"`, `"pricing"`, `"solving stages"`, `"choosing stages"`, `"writing the plan"`.
        done, total: units of the phase.
        objective, bound: seconds a step, where known.
        elapsed_s: since the solve began.
        stage_objective, stage_bound: of the intra-operator solve that runs, seconds of its stage for a whole step: the
            best choice so far and the proven bound; None before there is one, and between solves.
    """

    phase: str
    done: int
    total: int
    objective: float | None
    bound: float | None
    elapsed_s: float
    stage_objective: float | None = None
    stage_bound: float | None = None

    def with_stage(self, objective: float, bound: float, elapsed_s: float) -> SolveProgress:
        """The same phase with what the solve of a stage reports; infinite values are not known yet."""
        return replace(
            self,
            elapsed_s=elapsed_s,
            stage_objective=objective if math.isfinite(objective) else None,
            stage_bound=bound if math.isfinite(bound) else None,
        )


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to run an op, as the solver priced it.

    Attributes:
        strategy: its label, what a pin takes.
        compute_s, communication_s: of the op itself, once.
        memory_bytes: of the whole stage on each device with this choice.
        delta_s: change of the step time if only this decision (and what follows it) changed.
        is_chosen, is_pinned: in the present plan.
        input_specs, output_specs: under this strategy.
    """

    strategy: str
    compute_s: float
    communication_s: float
    memory_bytes: float
    delta_s: float
    is_chosen: bool
    is_pinned: bool
    input_specs: tuple[ShardingSpec, ...]
    output_specs: tuple[ShardingSpec, ...]


class PhasePrinter:
    """Prints a line when a phase begins."""

    def __init__(self) -> None:
        self._phase = ""

    def __call__(self, progress: SolveProgress) -> None:
        if progress.phase != self._phase:
            self._phase = progress.phase
            print(f"[{progress.elapsed_s:6.1f} s] {progress.phase}", flush=True)


def describe_solved(plan: Plan) -> str:
    """How many stages, how long a step, how good."""
    gap = 0.0 if plan.solver.objective <= 0 else 1 - plan.solver.bound / plan.solver.objective
    quality = "proven best for the cost model" if gap < 1e-5 else f"within {gap:.1%} of the bound"
    stages = f"{plan.num_stages} stage{'s' if plan.num_stages > 1 else ''}"
    return f"{stages}, step {format_seconds(plan.estimate.step_s)}, {quality}."
