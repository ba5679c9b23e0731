"""What else a stage could be: runners-up, time against memory, and regrets that are those of a pinned re-solve."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import pytest

from alpaviz import Planner
from alpaviz.errors import AlpaVizError, PinError
from alpaviz.models import get_model
from alpaviz.pins import Pin, PinKind
from alpaviz.stage_variants import FrontPlan, StageVariants

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
        stored = memory.parameters_bytes + memory.optimizer_bytes + memory.gradients_bytes + memory.batch_bytes
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


def test_a_regret_says_the_memory_of_a_choice_that_takes_its_time() -> None:
    _, variants = find_variants()
    worst = max(variants.regrets(OP), key=lambda regret: regret.stage_s)
    pinned = make_planner()
    pinned.pin(Pin(PinKind.STRATEGY, OP, worst.strategy))
    pinned.solve(on_progress=lambda _: None)
    stage = pinned.variants().stage
    assert stage.solved.price is not None
    assert worst.stage_bytes == pytest.approx(stage.solved.price.count_bytes(stage.in_flight), rel=1e-9)


def test_exact_regrets_have_no_gap() -> None:
    _, variants = find_variants()
    assert all(regret.gap == 0 for regret in variants.regrets(OP) if regret.is_exact)


def take_the_smallest() -> tuple[Planner, FrontPlan]:
    """A planner of its own, whose present plan is the one of least memory."""
    planner = make_planner()
    planner.solve(on_progress=lambda _: None)
    smallest = planner.variants().front(2)[0]
    planner.take(smallest.plan, "least memory")
    return planner, smallest


def test_a_variant_that_is_taken_is_the_plan_and_undo_goes_back() -> None:
    planner = make_planner()
    solved = planner.solve(on_progress=lambda _: None)
    variant = planner.variants().cheapest(2)[1]
    planner.take(variant, "second best")
    taken = planner.plan
    planner.undo()
    assert (taken, planner.plan) == (variant, solved)


def test_history_says_which_variant_was_taken() -> None:
    planner, _ = take_the_smallest()
    assert planner.last_change == planner.history[-1] == "least memory"


def test_a_variant_that_is_taken_is_compared_with_the_plan_before() -> None:
    planner, smallest = take_the_smallest()
    difference = planner.compare()
    assert difference is not None
    assert difference.step_after_s == smallest.plan.estimate.step_s


def test_alternatives_of_a_variant_mark_its_own_choice() -> None:
    planner, smallest = take_the_smallest()
    decided = {op.name: op.strategy for op in smallest.plan.ops if op.is_decision and op.primitive == "dot_general"}
    found = {name: planner.alternatives(name)[0] for name in decided}
    assert all(first.is_chosen for first in found.values())
    assert {name: first.strategy for name, first in found.items()} == decided


def test_variants_of_a_variant_begin_with_the_optimum_again() -> None:
    planner, smallest = take_the_smallest()
    best = planner.variants().cheapest(1)[0]
    assert best.solver.objective < smallest.plan.solver.objective
    assert best.stages[0].objective == pytest.approx(best.stages[0].bound, rel=1e-5)


def test_a_variant_says_how_far_it_is_from_the_optimum() -> None:
    planner, smallest = take_the_smallest()
    stage = smallest.plan.stages[0]
    assert stage.bound < stage.objective
    assert "of the bound" in planner.message


def test_a_plan_from_a_file_has_no_variants_until_it_is_solved(tmp_path: Path) -> None:
    planner = make_planner()
    planner.solve(on_progress=lambda _: None)
    planner.save(tmp_path / "saved.alpaplan.json")
    planner.load(tmp_path / "saved.alpaplan.json")
    with pytest.raises(PinError, match="solve this one again"):
        planner.variants()


def test_a_step_waits_for_the_slowest_stage() -> None:
    step, state, batch = get_model("gpt-tiny", 8)
    planner = Planner(step, state, batch, cluster="p3.16xlarge:1", num_layers=3, num_microbatches=4)
    planner.pin_num_stages(2)
    planner.solve(on_progress=lambda _: None)
    variants = planner.variants(0)
    times = [stage.solved.objective for stage in variants.chosen]
    regrets = variants.regrets("block_0/mlp/dot_general.0")
    for regret in regrets[1:]:
        slower = regret.stage_s + times[1] + 3 * max(regret.stage_s, times[1])
        assert regret.delta_s == pytest.approx(slower - (sum(times) + 3 * max(times)), rel=1e-6, abs=1e-12)


def test_a_variant_leaves_the_other_stages_as_they_are() -> None:
    step, state, batch = get_model("gpt-tiny", 8)
    planner = Planner(step, state, batch, cluster="p3.16xlarge:1", num_layers=3, num_microbatches=4)
    planner.pin_num_stages(2)
    plan = planner.solve(on_progress=lambda _: None)
    smallest = planner.variants(1).front(2)[0].plan
    assert smallest.stages[0] == plan.stages[0]
    assert [op for op in smallest.ops if op.stage == 0] == [op for op in plan.ops if op.stage == 0]
