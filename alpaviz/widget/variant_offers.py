"""Variants that the page was shown, so that a click on one can take it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alpaviz.errors import PlanMismatchError
from alpaviz.plan import Plan, StagePlan
from alpaviz.plan_diff import DiffRow, compare_plans, format_bytes, format_seconds
from alpaviz.planner_state import PlannerState

if TYPE_CHECKING:
    from alpaviz.planner import Planner
    from alpaviz.stage_variants import StageVariants

FRONT_POINTS = 12
CHEAPEST_PLANS = 6
MOST_DIFFERENCES = 40


@dataclass(frozen=True, slots=True)
class OfferedVariant:
    """A variant as the page shows it.

    Attributes:
        key: names it in a `take` request.
        stage_s: seconds of the stage for each microbatch, its share of what is done once a step included.
        stage_bytes: on each device of the stage, without the working set.
        step_s: of the whole plan, played.
        is_optimal: proven: nothing is better in time and memory (front), or nothing cheaper is missing (cheapest).
        fits: within what a plan may use of a device.
        num_differences: decisions that differ from the plan that was asked about; `differences` are the first of them.
    """

    key: str
    stage_s: float
    stage_bytes: float
    step_s: float
    is_optimal: bool
    fits: bool
    num_differences: int
    differences: tuple[DiffRow, ...]


@dataclass(frozen=True, slots=True)
class OfferedVariants:
    """Variants of `stage` of `present`, the plan that was asked about; a plan may use `limit_bytes` of a device."""

    stage: int
    limit_bytes: float
    present: OfferedVariant
    variants: tuple[OfferedVariant, ...]


class VariantOffers:
    """Asks a planner for variants and keeps those that it has shown, until it is asked about another plan or stage."""

    PRESENT = "present"

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._stage = -1
        self._plans: dict[str, Plan] = {}

    def prepare(self, kind: str, stage: int) -> Callable[[Callable[[], bool]], OfferedVariants]:
        """The search for the `"front"` of time against memory of a stage of the present plan, or its `"cheapest"`.

        It stays a search about this plan when another one has taken its place by the time it runs: a person takes
        a point of the front while the cheapest choices are still looked for.
        """
        plan = self._planner.plan
        variants = self._planner.variants(stage)
        assert plan is not None, "only a plan has variants"
        return lambda should_stop: self._find(kind, stage, plan, variants, should_stop)

    def _find(
        self, kind: str, stage: int, plan: Plan, variants: StageVariants, should_stop: Callable[[], bool]
    ) -> OfferedVariants:
        if kind == "front":
            points = variants.front(FRONT_POINTS, should_stop)
            found = [(point.plan, point.is_optimal) for point in points]
        else:
            plans = variants.cheapest(CHEAPEST_PLANS, should_stop)
            found = [(each, _is_proven(plans, each, stage)) for each in plans]
        limit = variants.memory_limit
        if stage != self._stage or self._plans.get(self.PRESENT) is not plan:
            self._stage, self._plans = stage, {self.PRESENT: plan}
        offers = []
        for number, (variant, is_optimal) in enumerate(found):
            key = f"{kind} {number}"
            self._plans[key] = variant
            offers.append(_describe(key, plan, variant, stage, limit, is_optimal))
        now = _describe(self.PRESENT, plan, plan, stage, limit, False)
        return OfferedVariants(stage, limit, now, tuple(offers))

    def take(self, key: str) -> None:
        """Make an offered variant the planner's plan.

        Raises:
            PlanMismatchError: it is not on offer any more, or a solve runs that would take its place.
        """
        if self._planner.state == PlannerState.SOLVING:
            raise PlanMismatchError("A solve is running: take a variant when it has ended.")
        plan = self._plans.get(key)
        if plan is None:
            raise PlanMismatchError("This variant belongs to a plan that is no longer shown: ask for variants again.")
        stage = plan.stages[self._stage]
        self._planner.take(
            plan,
            f"take a variant of stage {self._stage}: {format_seconds(stage.objective)} a microbatch, "
            f"{format_bytes(_count_bytes(stage))} a device",
        )

    def find_key(self, plan: Plan | None) -> str | None:
        """Which of the offers `plan` is."""
        return next((key for key, offered in self._plans.items() if offered is plan), None)


def _is_proven(plans: Sequence[Plan], plan: Plan, stage: int) -> bool:
    """Whether `plan` is the first of `plans` and as cheap as its stage's bound."""
    found = plan.stages[stage]
    return plan is plans[0] and found.objective - found.bound <= 1e-5 * found.objective


def _count_bytes(stage: StagePlan) -> float:
    memory = stage.memory
    return memory.total_bytes - memory.temporary_bytes


def _describe(key: str, plan: Plan, variant: Plan, stage: int, limit_bytes: float, is_optimal: bool) -> OfferedVariant:
    rows = [row for row in compare_plans(plan, variant).rows if row.kind in ("op", "value")]
    found = variant.stages[stage]
    num_bytes = _count_bytes(found)
    return OfferedVariant(
        key, found.objective, num_bytes, variant.estimate.step_s, is_optimal, num_bytes <= limit_bytes, len(rows),
        tuple(rows[:MOST_DIFFERENCES]),
    )  # fmt: skip


def drop_infinities(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: None stands for it."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
