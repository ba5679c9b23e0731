"""The number of microbatches and the schedule are searched: the best of what can be asked for one by one."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpaviz.cluster import describe_cluster, parse_cluster
from alpaviz.errors import AlpaVizError, InfeasibleError
from alpaviz.microbatch_search import list_divisors
from alpaviz.plan import Plan
from alpaviz.plan_file import plan_from_json, plan_to_json
from alpaviz.plan_text import describe_plan
from alpaviz.planner import Planner
from tests.program.small_models import adam_step, init_gpt_state, sgd_step_without_marker

STATE = jax.eval_shape(lambda: init_gpt_state(2))
IDS = jax.ShapeDtypeStruct((4, 17), np.int32)
COUNTS = (1, 2, 4)
SCHEDULES = ("1f1b", "gpipe")


def solve(step: Any = adam_step, cluster: Any = "virtual:4", **options: Any) -> Plan:
    return Planner(step, STATE, IDS, cluster=cluster, **options).solve(on_progress=lambda _: None)


@pytest.fixture(scope="module")
def searched() -> Plan:
    return solve(num_microbatches="auto", schedule="auto")


@pytest.fixture(scope="module")
def single() -> dict[tuple[int, str], Plan]:
    return {
        (count, schedule): solve(num_microbatches=count, schedule=schedule)
        for count, schedule in itertools.product(COUNTS, SCHEDULES)
    }


def test_the_searched_plan_is_the_shortest_of_all_that_can_be_asked_for(
    searched: Plan, single: dict[tuple[int, str], Plan]
) -> None:
    assert searched.estimate.step_s == pytest.approx(min(p.estimate.step_s for p in single.values()))
    chosen = single[searched.num_microbatches, searched.schedule]
    assert chosen.program.fingerprint == searched.program.fingerprint
    assert chosen.stages == searched.stages


def test_every_try_is_told_with_the_step_that_its_own_planner_finds(
    searched: Plan, single: dict[tuple[int, str], Plan]
) -> None:
    assert [(t.num_microbatches, t.schedule) for t in searched.solver.tries] == list(single)
    for found in searched.solver.tries:
        alone = single[found.num_microbatches, found.schedule]
        assert found.step_s == pytest.approx(alone.estimate.step_s)
        assert found.memory_bytes == max(s.memory.total_bytes for s in alone.stages)
        assert found.num_stages == alone.num_stages


def test_the_text_says_why_this_number_and_a_saved_plan_keeps_it(searched: Plan) -> None:
    assert plan_from_json(plan_to_json(searched)) == searched
    text = describe_plan(searched)
    line = next(line for line in text.splitlines() if line.startswith("Microbatches and schedule: "))
    assert f"{searched.num_microbatches} microbatch" in line
    assert f"schedule {searched.schedule}" in line


def test_only_what_is_auto_is_searched() -> None:
    assert {t.schedule for t in solve(num_microbatches="auto", schedule="gpipe").solver.tries} == {"gpipe"}
    assert {t.num_microbatches for t in solve(num_microbatches=2, schedule="auto").solver.tries} == {2}
    assert solve(num_microbatches=2).solver.tries == ()


def test_numbers_that_do_not_fit_are_passed_over_with_the_reason(single: dict[tuple[int, str], Plan]) -> None:
    needed = min(max(s.memory.total_bytes for s in plan.stages) for plan in single.values())
    cluster = parse_cluster("virtual:4")
    device = cluster.device_type
    for share in (0.8, 0.6, 0.5, 0.4, 0.3, 0.2):
        little = dataclasses.replace(device, memory_bytes=share * needed)
        small = describe_cluster("small", 1, 4, little, link=cluster.hosts[0].link, network=cluster.network)
        plan = solve(cluster=small, num_microbatches="auto")
        failed = [t for t in plan.solver.tries if t.step_s is None]
        if failed:
            break
    assert failed
    assert all("does not fit" in t.reason for t in failed)
    assert all(t.reason in describe_plan(plan) for t in failed)
    with pytest.raises(InfeasibleError, match="does not fit"):
        solve(cluster=small, num_microbatches=failed[0].num_microbatches)


def test_a_step_whose_gradient_is_not_marked_has_one_microbatch() -> None:
    plan = solve(sgd_step_without_marker, num_microbatches="auto", schedule="auto")
    assert plan.num_microbatches == 1


def test_pins_files_and_alternatives_follow_the_number_that_was_found(tmp_path: Any) -> None:
    planner = Planner(adam_step, STATE, IDS, cluster="virtual:4", num_microbatches="auto", schedule="auto")
    planner.pin_num_stages(1)
    plan = planner.solve(on_progress=lambda _: None)
    assert planner.program.num_microbatches == plan.num_microbatches
    op, other = next(
        (o.name, a.strategy) for o in plan.ops if o.is_decision for a in planner.alternatives(o.name) if not a.is_chosen
    )
    planner.pin_strategy(op, other)
    pinned = planner.solve(on_progress=lambda _: None)
    assert next(o.strategy for o in pinned.ops if o.name == op) == other
    assert pinned.estimate.step_s >= plan.estimate.step_s * (1 - 1e-9)
    planner.save(tmp_path / "plan.alpaplan.json")
    fresh = Planner(adam_step, STATE, IDS, cluster="virtual:4", num_microbatches="auto")
    assert fresh.load(tmp_path / "plan.alpaplan.json") == pinned
    assert fresh.program.fingerprint == pinned.program.fingerprint


def test_a_word_that_is_no_number_is_refused() -> None:
    with pytest.raises(AlpaVizError, match="num_microbatches must be a whole number"):
        Planner(adam_step, STATE, IDS, cluster="virtual:4", num_microbatches="many")  # type: ignore[arg-type]


@given(st.integers(1, 4000))
def test_numbers_to_try_are_divisors_with_one_and_the_whole_batch_and_no_octave_missing(rows: int) -> None:
    counts = list_divisors(rows)
    assert list(counts) == sorted(set(counts))
    assert all(rows % count == 0 for count in counts)
    assert counts[0] == 1
    assert counts[-1] == rows
    octaves = {math.floor(math.log2(d)) for d in range(1, rows + 1) if rows % d == 0}
    assert {math.floor(math.log2(count)) for count in counts} == octaves
    assert len(counts) <= max(12, len(octaves))
