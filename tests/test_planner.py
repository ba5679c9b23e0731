"""The planner: states, pins, history, and that nothing bad input does loses the last plan."""

from __future__ import annotations

import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import alpaviz
from alpaviz.cluster import Link, describe_cluster
from alpaviz.errors import (
    AlpaVizError,
    InfeasibleError,
    InvalidClusterError,
    InvalidStepError,
    PinConflictError,
    PinError,
    PlanMismatchError,
    SolveCancelledError,
)
from alpaviz.pins import Pin, PinKind
from alpaviz.planner import Planner
from alpaviz.planner_state import PlannerState, SolveProgress
from tests.program.small_models import adam_step, init_gpt_state

IDS = jax.ShapeDtypeStruct((8, 17), np.int32)
STATE = jax.eval_shape(lambda: init_gpt_state(3))


def make_planner(cluster: Any = "virtual:4", **options: Any) -> Planner:
    return Planner(adam_step, STATE, IDS, cluster=cluster, num_microbatches=2, **options)


def solve(planner: Planner) -> Any:
    return planner.solve(on_progress=lambda _: None)


def find_decision(planner: Planner, scope: str = "block_1/mlp") -> str:
    return next(op.name for op in planner.plan.ops if op.is_decision and op.scope == scope)  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def one_stage() -> Planner:
    planner = make_planner()
    planner.pin_num_stages(1)
    solve(planner)
    return planner


def test_a_solve_goes_from_idle_to_solved() -> None:
    planner = make_planner()
    assert planner.state is PlannerState.IDLE
    seen = []
    planner.subscribe(lambda: seen.append(planner.state))
    plan = solve(planner)
    assert planner.state is PlannerState.SOLVED
    assert seen[0] is PlannerState.SOLVING
    assert planner.plan is plan
    assert plan.solver.bound <= plan.solver.objective * (1 + 1e-9)


@pytest.mark.parametrize("solver", ["exact", "ilp"])
def test_progress_tells_incumbent_and_bound_of_the_stage_solve_that_runs(solver: str) -> None:
    planner = make_planner(solver=solver, max_mesh_axes=1)
    planner.pin_num_stages(1)
    heard: list[SolveProgress] = []
    planner.solve(on_progress=heard.append)
    told = [(p.stage_bound, p.stage_objective) for p in heard if p.stage_objective and p.stage_bound]
    assert told
    assert all(bound <= objective * (1 + 1e-9) for bound, objective in told)


def test_stage_solves_are_told_of_at_a_bearable_rate() -> None:
    heard: list[SolveProgress] = []
    make_planner().solve(on_progress=heard.append)
    told = [p.elapsed_s for p in heard if p.stage_bound is not None or p.stage_objective is not None]
    assert len(told) <= 1 + 10 * heard[-1].elapsed_s


def test_progress_names_its_phases_in_order() -> None:
    phases: list[str] = []
    make_planner().solve(on_progress=lambda p: phases.append(p.phase))
    assert list(dict.fromkeys(phases)) == ["tracing", "solving stages", "choosing stages", "writing the plan"]


def test_a_pinned_strategy_is_kept_and_the_step_is_no_shorter(one_stage: Planner) -> None:
    planner = make_planner()
    planner.pin_num_stages(1)
    before = solve(planner)
    op = find_decision(planner)
    choice = planner.alternatives(op)[1]
    planner.pin_strategy(op, choice.strategy)
    assert planner.state is PlannerState.STALE
    after = solve(planner)
    assert next(o.strategy for o in after.ops if o.name == op) == choice.strategy
    assert after.solver.objective >= before.solver.objective * (1 - 1e-9)
    diff = planner.compare()
    assert diff is not None
    assert any(row.subject == op and row.after == choice.strategy for row in diff.rows)


def test_an_alternatives_delta_is_never_below_the_change_of_a_resolve(one_stage: Planner) -> None:
    # The rest of the plan is fixed in an alternative's price and free in a new solve.
    before = one_stage.plan
    assert before is not None
    op = find_decision(one_stage)
    for choice in one_stage.alternatives(op)[1:8:3]:
        planner = make_planner()
        planner.pin_num_stages(1)
        planner.pin_logical_mesh("x".join(map(str, before.stages[0].mesh_shape)))
        planner.pin_strategy(op, choice.strategy)
        after = solve(planner)
        assert after.solver.objective <= before.solver.objective + choice.delta_s + 1e-9


def test_a_pin_for_all_equal_layers_is_kept_in_each() -> None:
    planner = make_planner()
    planner.pin_num_stages(1)
    planner.pin_logical_mesh("2x2")
    solve(planner)
    op = find_decision(planner, "block_1/mlp")
    planner.pin_strategy(op, "a:x c:y", same_in_all_layers=True)
    plan = solve(planner)
    pinned = {p.subject for p in planner.pins if p.kind is PinKind.STRATEGY}
    assert len(pinned) >= 2
    assert {o.strategy for o in plan.ops if o.name in pinned} == {"a:x c:y"}


def test_a_pinned_spec_of_a_parameter_is_where_it_is_stored() -> None:
    planner = make_planner()
    planner.pin_num_stages(1)
    planner.pin_logical_mesh("4")
    planner.pin_spec("state['params']['block_1']['up']", "[-, x]")
    plan = solve(planner)
    assert next(v.spec for v in plan.values if v.name == "state['params']['block_1']['up']") == ((), ("x",))


def test_layers_submeshes_and_mesh_shapes_are_pinned() -> None:
    planner = make_planner("virtual:8")
    planner.pin_layer(1, 0)
    planner.pin_layer(2, 1)
    planner.pin_submesh(0, "1x4")
    planner.pin_logical_mesh("2x2", stage=0)
    plan = solve(planner)
    first = plan.stages[0]
    assert (first.first_layer, first.last_layer, first.submesh, first.mesh_shape) == (0, 1, "1x4", (2, 2))


def test_undo_brings_back_pins_and_plan_and_redo_takes_it_back() -> None:
    planner = make_planner()
    first = solve(planner)
    planner.pin_num_stages(2)
    second = solve(planner)
    planner.undo()
    assert (planner.pins, planner.plan, planner.state) == ((), first, PlannerState.SOLVED)
    planner.redo()
    assert planner.plan is second
    assert [str(pin) for pin in planner.pins] == ["there are 2 stages"]
    planner.undo()
    planner.pin_num_stages(1)
    assert not planner.can_redo


def test_a_cancelled_solve_keeps_the_last_plan() -> None:
    planner = make_planner()
    plan = solve(planner)
    planner.pin_num_stages(2)
    planner.subscribe(lambda: planner.cancel() if planner.progress and planner.progress.phase != "tracing" else None)
    with pytest.raises(SolveCancelledError):
        solve(planner)
    assert planner.state is PlannerState.CANCELLED
    assert planner.plan is plan


def test_a_cold_solve_is_cancelled_within_a_second() -> None:
    planner = make_planner("virtual:8")
    handle = planner.start()
    while planner.progress is None or planner.progress.phase == "tracing":
        time.sleep(0.01)
    handle.cancel()
    began = time.monotonic()
    with pytest.raises(SolveCancelledError):
        handle.wait(10)
    assert time.monotonic() - began < 5
    assert planner.plan is None


def test_a_second_start_joins_the_running_solve() -> None:
    planner = make_planner()
    handle = planner.start()
    assert planner.start() is handle
    handle.wait(60)


def test_subscribers_may_ask_for_anything_from_another_thread() -> None:
    planner = make_planner()
    threads: set[str] = set()

    def look() -> None:
        threads.add(threading.current_thread().name)
        repr(planner), planner.plan, planner.pins, planner.progress

    planner.subscribe(look)
    solve(planner)
    assert "alpaviz-solve" in threads


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ([Pin(PinKind.STRATEGY, "no/such/op.7", "whole")], "has no op of that name"),
        ([Pin(PinKind.SPEC, "state['nothing']", "[x]")], "has no input of that name"),
        ([Pin(PinKind.LAYER_STAGE, 99, 0)], "has layers 0 to 3"),
        ([Pin(PinKind.NUM_STAGES, None, 9)], "at most 4 stages are possible"),
        ([Pin(PinKind.STAGE_SUBMESH, 0, "1x3")], "no such shape on 'virtual:4'. Possible: 1x1, 1x2, 1x4"),
        ([Pin(PinKind.LOGICAL_MESH, None, "3x3")], "no such shape"),
        ([Pin(PinKind.LOGICAL_MESH, "2x2", "0")], "a stage's number is wanted, such as 0 or 1, not '2x2'"),
    ],
    ids=["op", "value", "layer", "stages", "submesh", "mesh", "stage"],
)
def test_a_pin_of_what_does_not_exist_is_refused(one_stage: Planner, pins: list[Pin], message: str) -> None:
    plan, before = one_stage.plan, one_stage.pins
    with pytest.raises(PinError, match=message):
        one_stage.pin(pins[0])
    assert (one_stage.plan, one_stage.pins) == (plan, before)


def test_pins_that_contradict_each_other_are_refused_at_once() -> None:
    planner = make_planner()
    planner.pin_layer(2, 0)
    with pytest.raises(PinConflictError, match="layer 1 is pinned to stage 1 and layer 2 to stage 0"):
        planner.pin_layer(1, 1)
    planner.clear_pins()
    planner.pin_num_stages(1)
    with pytest.raises(PinConflictError, match="names stage 1, but 'there is 1 stage'"):
        planner.pin_layer(3, 1)
    assert [str(pin) for pin in planner.pins] == ["there is 1 stage"]


def test_pins_that_no_plan_keeps_are_named_and_the_plan_is_kept() -> None:
    planner = make_planner()
    plan = solve(planner)
    op = find_decision(planner)
    planner.pin_num_stages(1)
    planner.pin_logical_mesh("4")
    planner.pin_strategy(op, "a:x c:y")
    with pytest.raises(PinConflictError) as error:
        solve(planner)
    assert {str(p) for p in error.value.pins} == {f"op {op} runs as a:x c:y", "every stage has logical mesh 4"}
    assert planner.state is PlannerState.INFEASIBLE
    assert planner.plan is plan


def test_a_split_that_does_not_divide_is_refused_at_once_with_both_numbers() -> None:
    planner = make_planner("virtual:8")
    planner.pin_logical_mesh("8")
    with pytest.raises(PinError, match="has 4 elements, which do not divide into 8 parts"):
        planner.pin_spec("state['params']['block_1']['out']", "[x, -, -]")
    assert len(planner.pins) == 1


def test_a_model_that_fits_on_no_device_says_what_is_short_and_by_how_much() -> None:
    tiny = alpaviz.DeviceType("tiny", 50e3, 1e9, (("float32", 1e9),))
    cluster = describe_cluster("tiny", 1, 2, tiny, link=Link(1e9, 1e-6), network=Link(1e9, 1e-6))
    planner = make_planner(cluster)
    with pytest.raises(InfeasibleError, match=r"layers? \d.* needs? at least [\d.]+ kB more on each device") as error:
        solve(planner)
    assert error.value.bytes_short > 0
    assert planner.state is PlannerState.INFEASIBLE
    assert planner.plan is None


def test_a_plan_file_of_another_program_is_refused_and_the_plan_kept(tmp_path: Any) -> None:
    planner = make_planner()
    plan = solve(planner)
    other = Planner(adam_step, jax.eval_shape(lambda: init_gpt_state(2)), IDS, cluster="virtual:4")
    solve(other)
    other.save(tmp_path / "other.alpaplan.json")
    with pytest.raises(PlanMismatchError, match="was made for program"):
        planner.load(tmp_path / "other.alpaplan.json")
    assert planner.plan is plan
    assert planner.state is PlannerState.SOLVED


@pytest.mark.parametrize("step", [None, 3, {"a": 1}])
def test_what_is_no_function_is_no_step(step: Any) -> None:
    with pytest.raises(InvalidStepError, match="must be a function"):
        Planner(step, STATE, IDS, cluster="virtual:4")


@pytest.mark.parametrize("option", [{"solver": "oracle"}, {"schedule": "zigzag"}])
def test_an_unknown_solver_or_schedule_is_refused_at_once(option: dict[str, str]) -> None:
    (name,) = option.values()
    with pytest.raises(AlpaVizError, match=f"is called '{name}'. Known: "):
        make_planner(**option)


def test_an_unknown_cluster_lists_the_presets() -> None:
    with pytest.raises(InvalidClusterError, match=r"'abacus'\. Presets: p3\.16xlarge"):
        make_planner("abacus:3")


def test_a_step_that_cannot_be_traced_fails_with_the_users_line() -> None:
    def broken(state: Any, ids: Any) -> Any:
        return state, jnp.dot(ids, jnp.ones(3))

    planner = Planner(broken, STATE, IDS, cluster="virtual:4")
    with pytest.raises(InvalidStepError, match=r"test_planner.py:\d+: the training step cannot be traced"):
        solve(planner)
    assert planner.state is PlannerState.FAILED
    assert "cannot be traced" in planner.message


def test_nothing_is_saved_or_launched_before_a_solve(tmp_path: Any) -> None:
    planner = make_planner()
    with pytest.raises(PlanMismatchError, match="no plan to save yet"):
        planner.save(tmp_path / "x.json")
    with pytest.raises(PlanMismatchError, match="no plan to launch yet"):
        planner.launch()


@pytest.mark.parametrize("solver", ["ilp", "exact"])
def test_solvers_agree_on_the_whole_plan(solver: str) -> None:
    planner = make_planner("virtual:2", solver=solver, num_layers=2)
    assert solve(planner).solver.objective == pytest.approx(
        solve(make_planner("virtual:2", num_layers=2)).solver.objective, rel=1e-5
    )


class PlannerMachine(RuleBasedStateMachine):
    """Whatever a person does in whatever order, the plan shown is of the pins or marked stale, and undo goes back."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = make_planner("virtual:2")
        self.expected: list[tuple[Pin, ...]] = [()]
        self.position = 0

    def _changed(self) -> None:
        del self.expected[self.position + 1 :]
        self.expected.append(self.planner.pins)
        self.position += 1

    @rule(count=st.integers(1, 2))
    def pin_stages(self, count: int) -> None:
        self.planner.pin_num_stages(count)
        self._changed()

    @rule(mesh=st.sampled_from(["1", "2"]))
    def pin_mesh(self, mesh: str) -> None:
        self.planner.pin_logical_mesh(mesh)
        self._changed()

    @precondition(lambda self: self.planner.pins)
    @rule()
    def unpin(self) -> None:
        self.planner.unpin(self.planner.pins[0])
        self._changed()

    @rule()
    def solve(self) -> None:
        try:
            solve(self.planner)
        except PinConflictError:
            assert self.planner.state is PlannerState.INFEASIBLE
        else:
            assert self.planner.state is PlannerState.SOLVED
            assert self.planner.plan is not None
            assert self.planner.plan.pins == self.planner.pins

    @rule()
    def undo(self) -> None:
        self.planner.undo()
        self.position = max(0, self.position - 1)

    @rule()
    def redo(self) -> None:
        self.planner.redo()
        self.position = min(len(self.expected) - 1, self.position + 1)

    @invariant()
    def pins_are_those_of_the_history(self) -> None:
        assert self.planner.pins == self.expected[self.position]

    @invariant()
    def a_solved_planner_shows_a_plan_of_its_pins(self) -> None:
        if self.planner.state is PlannerState.SOLVED:
            assert self.planner.plan is not None
            assert self.planner.plan.pins == self.planner.pins


TestPlannerMachine = PlannerMachine.TestCase
TestPlannerMachine.settings = settings(max_examples=6, stateful_step_count=8, deadline=None)
