"""Figures: their bars are the plan's numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from alpaviz import plan_figures
from alpaviz.plan import Plan


def sum_columns(figure: Any) -> dict[str, float]:
    """Height of each stack, which must be without gaps."""
    heights: dict[str, float] = defaultdict(float)
    for trace in figure.data:
        if trace.type == "bar":
            for column, base, size in zip(trace.x, trace.base, trace.y, strict=True):
                assert base == pytest.approx(heights[column])
                heights[column] = base + size
    return heights


def compare_with_itself(plan: Plan) -> Any:
    return plan_figures.compare(plan, plan)


@pytest.mark.parametrize("draw", [plan_figures.timeline, plan_figures.costs, plan_figures.memory, compare_with_itself])
def test_a_figure_has_title_units_and_no_background(draw: Callable[[Plan], Any], gpt_plan: Plan) -> None:
    figure = draw(gpt_plan)
    assert "gpt-tiny" in figure.layout.title.text
    titles = (figure.layout.xaxis.title.text or "") + (figure.layout.yaxis.title.text or "")
    assert "(ms)" in titles or "(GB)" in titles
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert not figure.layout.shapes


def test_the_timeline_has_a_bar_for_each_piece_of_work(gpt_plan: Plan) -> None:
    bars = {trace.name: trace for trace in plan_figures.timeline(gpt_plan).data}
    once = {(t.source_stage, t.target_stage) for t in gpt_plan.transfers if t.once}
    assert {name: len(trace.x) for name, trace in bars.items()} == {
        "forward": 8, "backward": 8, "update": 2, "send": 8 + len(once),
    }  # fmt: skip
    first = gpt_plan.stages[0].forward_s * 1e3
    assert (bars["forward"].base[0], bars["forward"].x[0]) == (0.0, pytest.approx(first))


def test_bars_of_a_stage_do_not_overlap(gpt_plan: Plan) -> None:
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for trace in plan_figures.timeline(gpt_plan).data:
        for row, base, size in zip(trace.y, trace.base, trace.x, strict=True):
            if row in ("stage 0", "stage 1"):
                spans[row].append((base, base + size))
    for row in spans.values():
        ordered = sorted(row)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(ordered))


def test_a_stages_costs_add_up_to_the_step(gpt_plan: Plan) -> None:
    heights = sum_columns(plan_figures.costs(gpt_plan))
    step = gpt_plan.estimate.step_s * 1e3
    assert heights == {"stage 0": pytest.approx(step), "stage 1": pytest.approx(step)}


def test_memory_adds_up_and_shows_the_capacity(gpt_plan: Plan) -> None:
    figure = plan_figures.memory(gpt_plan)
    totals = {f"stage {s.index}": pytest.approx(s.memory.total_bytes / 1e9) for s in gpt_plan.stages}
    assert sum_columns(figure) == totals
    (capacity,) = (trace for trace in figure.data if trace.name == "capacity")
    assert list(capacity.y) == [4.0, 4.0]


def test_compared_stacks_are_as_high_as_the_steps(gpt_plan: Plan, mlp_plan: Plan) -> None:
    heights = sum_columns(plan_figures.compare(gpt_plan, mlp_plan))
    assert heights["before"] == pytest.approx(gpt_plan.estimate.step_s * 1e3)
    assert heights["after"] == pytest.approx(mlp_plan.estimate.step_s * 1e3)


def test_a_part_that_takes_no_time_is_left_out(gpt_plan: Plan) -> None:
    without = replace(gpt_plan, estimate=replace(gpt_plan.estimate, resharding_s=0.0))
    assert "resharding" not in [trace.name for trace in plan_figures.compare(without, without).data]


def test_every_collective_has_a_colour() -> None:
    kinds = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
    assert kinds <= set(plan_figures.COLOURS)
