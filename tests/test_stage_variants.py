"""What else a stage could be: runners-up, time against memory, and regrets that are those of a pinned re-solve."""

from __future__ import annotations

import functools
import itertools

import pytest

from alpaviz import Planner
from alpaviz.errors import AlpaVizError, PinError
from alpaviz.models import get_model
from alpaviz.pins import Pin, PinKind
from alpaviz.stage_variants import StageVariants

OP = "block_1/mlp/dot_general.0"


def make_planner() -> Planner:
    """A small GPT, kept to one stage on a 4x2 mesh, so that a stage's optimum is the plan's."""
    step, state, batch = get_model("gpt-tiny", 8)
    planner = Planner(step, state, batch, cluster="p3.16xlarge:1", num_layers=3)
    planner.pin_num_stages(1)
    planner.pin_logical_mesh("4x2")
    return planner


@functools.cache
def find_variants() -> tuple[Planner, StageVariants]:
    planner = make_planner()
    planner.solve(on_progress=lambda _: None)
    return planner, planner.variants()


def test_the_cheapest_plan_is_the_plan_and_others_follow_in_order() -> None:
    planner, variants = find_variants()
    assert planner.plan is not None
    plans = variants.cheapest(4)
    costs = [plan.solver.objective for plan in plans]
    assert costs[0] == pytest.approx(planner.plan.solver.objective, rel=1e-6)
    assert costs == sorted(costs)


def test_cheapest_plans_decide_differently() -> None:
    _, variants = find_variants()
    plans = variants.cheapest(4)
    decisions = [(tuple(op.strategy for op in plan.ops), tuple(value.spec for value in plan.values)) for plan in plans]
    assert all(a != b for a, b in itertools.combinations(decisions, 2))


def test_along_the_front_memory_buys_time() -> None:
    planner, variants = find_variants()
    assert planner.plan is not None
    front = variants.front(8)
    assert len(front) >= 2
    assert all(a.stage_bytes < b.stage_bytes and a.stage_s > b.stage_s for a, b in itertools.pairwise(front))
    assert front[-1].stage_s == pytest.approx(variants.stage.solved.objective, rel=1e-6)


def test_plans_on_the_front_take_the_memory_that_is_said() -> None:
    _, variants = find_variants()
    for point in variants.front(4):
        memory = point.plan.stages[0].memory
        stored = memory.parameters_bytes + memory.optimizer_bytes + memory.gradients_bytes
        assert stored + memory.activations_bytes == pytest.approx(point.stage_bytes, rel=1e-9)


def test_a_regret_is_what_a_pin_and_a_new_solve_cost() -> None:
    _, variants = find_variants()
    regrets = variants.regrets(OP)
    assert regrets[0].is_chosen
    assert all(regret.is_exact for regret in regrets)
    worst = max(regrets, key=lambda regret: regret.stage_s)
    pinned = make_planner()
    pinned.pin(Pin(PinKind.STRATEGY, OP, worst.strategy))
    pinned.solve(on_progress=lambda _: None)
    assert worst.stage_s == pytest.approx(pinned.variants().stage.solved.objective, rel=1e-6)


def test_no_regret_is_below_zero() -> None:
    _, variants = find_variants()
    assert all(regret.share >= -1e-6 for regret in variants.regrets(OP))


def test_variants_need_a_plan() -> None:
    with pytest.raises(PinError, match=r"call planner\.solve"):
        make_planner().variants()


def test_a_stage_that_is_not_there_is_named() -> None:
    planner, _ = find_variants()
    with pytest.raises(AlpaVizError, match="stages 0 to 0, not 3"):
        planner.variants(3)
