"""What-if tables: each row is the plan of a planner of its own, better conditions never cost, errors name the input."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import numpy as np
import pytest

from alpaviz.cluster import Cluster, parse_cluster
from alpaviz.errors import AlpaVizError, SolveCancelledError
from alpaviz.plan_sweep import INPUTS, SweepTable
from alpaviz.planner import Planner
from tests.program.small_models import adam_step, init_gpt_state, sgd_step_without_marker

STATE = jax.eval_shape(lambda: init_gpt_state(2))
IDS = jax.ShapeDtypeStruct((8, 17), np.int32)
CLUSTER = parse_cluster("virtual:2x2")
VALUES: dict[str, tuple[float, ...]] = {
    "link_bandwidth": (1e8, 1e9, 1e11),
    "network_bandwidth": (1e7, 1e10),
    "device_memory": (1e5, 4e5, 4e9),
    "flops": (1e10, 1e13),
    "num_hosts": (1, 2),
    "num_microbatches": (1, 2, 8),
}


def make_planner(cluster: Cluster = CLUSTER, num_microbatches: Any = 2, **options: Any) -> Planner:
    return Planner(adam_step, STATE, IDS, cluster=cluster, num_microbatches=num_microbatches, **options)


def sweep(planner: Planner, **inputs: Any) -> SweepTable:
    return planner.sweep(on_progress=lambda _: None, **inputs)


def change(name: str, value: float) -> tuple[Cluster, int]:
    """The cluster and number of microbatches of one point, written out."""
    host, device = CLUSTER.hosts[0], CLUSTER.device_type
    if name == "num_microbatches":
        return CLUSTER, int(value)
    if name == "num_hosts":
        return dataclasses.replace(CLUSTER, hosts=(host,) * int(value)), 2
    if name == "network_bandwidth":
        return dataclasses.replace(CLUSTER, network=dataclasses.replace(CLUSTER.network, bandwidth=value)), 2
    if name == "link_bandwidth":
        host = dataclasses.replace(host, link=dataclasses.replace(host.link, bandwidth=value))
    elif name == "device_memory":
        host = dataclasses.replace(host, device_type=dataclasses.replace(device, memory_bytes=value))
    else:
        rates = tuple((dtype, rate * value / device.peak_flops("float32")) for dtype, rate in device.flops)
        host = dataclasses.replace(host, device_type=dataclasses.replace(device, flops=rates))
    return dataclasses.replace(CLUSTER, hosts=(host,) * 2), 2


@pytest.fixture(scope="module")
def planner() -> Planner:
    return make_planner()


@pytest.fixture(scope="module")
def tables(planner: Planner) -> dict[str, SweepTable]:
    return {name: sweep(planner, **{name: values}) for name, values in VALUES.items()}


@pytest.mark.parametrize("name", sorted(VALUES))
def test_each_row_is_the_plan_of_a_planner_for_that_cluster(tables: dict[str, SweepTable], name: str) -> None:
    for value, row in zip(VALUES[name], tables[name].rows, strict=True):
        assert getattr(row, name) == pytest.approx(value)
        cluster, microbatches = change(name, value)
        alone = make_planner(cluster, microbatches)
        if row.step_s is None:
            with pytest.raises(AlpaVizError) as error:
                alone.solve(on_progress=lambda _: None)
            assert row.reason
            assert row.reason in str(error.value)
            continue
        plan = alone.solve(on_progress=lambda _: None)
        assert row.objective_s == pytest.approx(plan.solver.objective)
        assert row.step_s == pytest.approx(plan.estimate.step_s)
        assert (row.num_stages, row.num_microbatches, row.schedule) == (plan.num_stages, microbatches, "1f1b")
        assert row.memory_bytes == pytest.approx(max(stage.memory.total_bytes for stage in plan.stages))
        assert row.utilisation == pytest.approx(plan.estimate.model_flops_utilisation)


@pytest.mark.parametrize("name", ["link_bandwidth", "network_bandwidth", "device_memory", "flops"])
def test_better_conditions_never_raise_the_optimum(tables: dict[str, SweepTable], name: str) -> None:
    optima = [np.inf if row.objective_s is None else row.objective_s for row in tables[name].rows]
    for before, after in itertools.pairwise(optima):
        assert after <= before * (1 + 1e-5)


def test_too_little_memory_is_a_row_that_says_so(tables: dict[str, SweepTable]) -> None:
    table = tables["device_memory"]
    assert table.rows[0].step_s is None
    assert "does not fit" in table.rows[0].reason
    assert "none: The model does not fit" in str(table)
    assert table.best is not None
    assert table.best.step_s == min(row.step_s for row in table.rows if row.step_s is not None)


def test_several_inputs_are_combined_with_the_last_running_fastest(planner: Planner) -> None:
    table = sweep(planner, flops=[1e11, 1e12], num_microbatches=[4, 1])
    assert table.varied == ("flops", "num_microbatches")
    assert [(row.flops, row.num_microbatches) for row in table.rows] == [
        (pytest.approx(1e11), 4), (pytest.approx(1e11), 1), (pytest.approx(1e12), 4), (pytest.approx(1e12), 1),
    ]  # fmt: skip
    lines = table.figure.data
    assert [line.name for line in lines] == ["num_microbatches 4", "num_microbatches 1"]
    for line, count in zip(lines, (4, 1), strict=True):
        own = [row for row in table.rows if row.num_microbatches == count]
        assert list(line.x) == pytest.approx([row.flops for row in own])
        assert list(line.y) == pytest.approx([(row.step_s or 0.0) * 1e3 for row in own])
    assert len(str(table).splitlines()) == 1 + len(table.rows)


def test_the_present_plan_and_its_pins_stay_and_pins_hold_in_every_row() -> None:
    planner = make_planner()
    planner.pin_num_stages(2)
    plan = planner.solve(on_progress=lambda _: None)
    before = planner.state, planner.pins, planner.history
    table = sweep(planner, link_bandwidth=[1e9, 1e10])
    assert {row.num_stages for row in table.rows} == {2}
    assert planner.plan is plan
    assert (planner.state, planner.pins, planner.history) == before


def test_a_sweep_and_a_solve_at_the_same_time_take_turns() -> None:
    planner = make_planner()
    handle = planner.start()
    table = sweep(planner, link_bandwidth=[CLUSTER.hosts[0].link.bandwidth])
    assert table.rows[0].step_s == pytest.approx(handle.wait().estimate.step_s)


def test_a_searched_number_of_microbatches_is_searched_in_every_row() -> None:
    planner = make_planner(num_microbatches="auto", schedule="auto")
    plan = planner.solve(on_progress=lambda _: None)
    table = sweep(planner, device_memory=[CLUSTER.device_type.memory_bytes])
    assert table.rows[0].step_s == plan.estimate.step_s
    assert (table.rows[0].num_microbatches, table.rows[0].schedule) == (plan.num_microbatches, plan.schedule)


def test_points_that_differ_in_memory_alone_solve_their_stages_once(planner: Planner) -> None:
    memory = CLUSTER.device_type.memory_bytes
    sweep(planner, device_memory=[memory])
    solvers = [option.solver for option in planner._search.find_session(2, "1f1b").candidates.options_by_mesh]
    before = sum(solver.num_solved for solver in solvers)
    sweep(planner, device_memory=[memory * 2, memory * 3])
    assert sum(solver.num_solved for solver in solvers) == before > 0


def test_cancelling_stops_a_sweep() -> None:
    planner = make_planner()
    seen: list[str] = []

    def stop(progress: Any) -> None:
        seen.append(progress.phase)
        planner.cancel()

    with pytest.raises(SolveCancelledError):
        planner.sweep(on_progress=stop, num_microbatches=[1, 2, 4])
    assert seen == ["num_microbatches 1"]


@pytest.mark.parametrize("name", sorted(INPUTS))
@pytest.mark.parametrize("values", [[], 3, "12", [0], [-1.0], [float("nan")], ["many"], [None], [True]])
def test_values_that_are_none_are_refused_with_the_name_of_the_input(planner: Planner, name: str, values: Any) -> None:
    with pytest.raises(AlpaVizError, match=rf"^sweep: {name} "):
        sweep(planner, **{name: values})


def test_other_inputs_are_refused(planner: Planner) -> None:
    with pytest.raises(AlpaVizError, match="sweep: give at least one list of values, of link_bandwidth"):
        sweep(planner)
    with pytest.raises(AlpaVizError, match=r"no input is called 'colour'\. Inputs: link_bandwidth"):
        sweep(planner, colour=[1])
    with pytest.raises(AlpaVizError, match="num_microbatches holds 3, which does not divide the 8 rows"):
        sweep(planner, num_microbatches=[2, 3])
    with pytest.raises(AlpaVizError, match=r"num_hosts holds 1\.5; give whole numbers"):
        sweep(planner, num_hosts=[1.5])
    unmarked = Planner(sgd_step_without_marker, STATE, IDS, cluster=CLUSTER)
    with pytest.raises(AlpaVizError, match="num_microbatches cannot be varied for a step that does not use"):
        sweep(unmarked, num_microbatches=[2])
