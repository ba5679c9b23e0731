"""`plan.verify` holds a plan against XLA in a process of its own, and says clearly when it cannot."""

from __future__ import annotations

import dataclasses
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import alpaviz
from alpaviz.errors import PlanMismatchError, SolveCancelledError, VerificationError
from alpaviz.planner import Planner
from alpaviz.verify import Verification, process, verify_plan


def train_step(weights: Any, batch: Any) -> Any:
    def loss(w: Any, x: Any) -> Any:
        return jnp.mean((jax.nn.relu(x @ w["up"]) @ w["down"] - x) ** 2)

    value, gradient = alpaviz.value_and_grad(loss)(weights, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, weights, gradient), value


def make_planner(num_stages: int = 1, num_microbatches: int = 1) -> Planner:
    shape = jax.ShapeDtypeStruct
    weights = {"up": shape((128, 256), jnp.float32), "down": shape((256, 128), jnp.float32)}
    planner = Planner(
        train_step, weights, shape((256, 128), jnp.float32), cluster="virtual:4", num_microbatches=num_microbatches,
        num_layers=2, cache=None,
    )  # fmt: skip
    planner.pin_num_stages(num_stages)
    planner.solve(on_progress=lambda _: None)
    return planner


@pytest.fixture(scope="module")
def planner() -> Planner:
    return make_planner()


@pytest.fixture(scope="module")
def verification(planner: Planner) -> Verification:
    assert planner.plan is not None
    return planner.plan.verify(planner.program)


def test_the_bytes_of_collectives_are_those_compiled(verification: Verification) -> None:
    assert verification.stages[0].compiled_bytes > 0
    assert abs(verification.collectives_error) < 0.01


def test_nothing_is_added_where_the_plan_is_what_xla_makes(verification: Verification) -> None:
    assert verification.stages[0].added == ()


def test_state_is_counted_as_the_plan_stores_it(planner: Planner, verification: Verification) -> None:
    assert planner.plan is not None
    assert verification.stages[0].memory.state_bytes == planner.plan.stages[0].memory.parameters_bytes


def test_the_peak_includes_state_and_working_memory(verification: Verification) -> None:
    memory = verification.stages[0].memory
    assert memory.compiled_bytes >= memory.state_bytes + memory.batch_bytes + memory.temporary_bytes


def test_the_report_prints_as_a_table(verification: Verification) -> None:
    text = str(verification)
    assert "Stage 0 on 4 devices" in text
    assert "all-reduce" in text or "all-gather" in text
    assert "peak memory" in text


def test_the_report_is_a_table_in_a_notebook(verification: Verification) -> None:
    assert "<td>peak memory</td>" in verification._repr_html_()


def test_every_stage_of_a_pipeline_is_compiled() -> None:
    planner = make_planner(num_stages=2, num_microbatches=2)
    told: list[tuple[int, int]] = []
    assert planner.plan is not None
    found = verify_plan(planner.plan, planner.program, on_progress=lambda *at: told.append(at))
    assert [stage.stage for stage in found.stages] == [0, 1]
    assert abs(found.collectives_error) < 0.01
    assert told[-1] == (1, 2)


def test_a_collective_that_the_plan_does_not_have_is_named_with_its_op(planner: Planner) -> None:
    plan = planner.plan
    assert plan is not None
    index, op = next((i, o) for i, o in enumerate(plan.ops) if o.collectives)
    silent = dataclasses.replace(op, collectives=())
    found = dataclasses.replace(plan, ops=(*plan.ops[:index], silent, *plan.ops[index + 1 :])).verify(planner.program)
    assert op.name in [collective.op for collective in found.stages[0].added]


def test_without_a_plan_there_is_nothing_to_verify() -> None:
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    with pytest.raises(PlanMismatchError, match="solve"):
        Planner(train_step, {"up": shape, "down": shape}, shape, cluster="virtual:4", cache=None).verify()


def test_too_little_time_is_a_clear_error_and_keeps_the_plan(planner: Planner) -> None:
    before = planner.plan
    with pytest.raises(VerificationError, match=r"longer than 0\.1 s"):
        planner.verify(lambda _: None, timeout_s=0.1)
    assert planner.plan is before


def test_a_verification_can_be_cancelled(planner: Planner) -> None:
    began = threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            assert planner.plan is not None
            verify_plan(planner.plan, planner.program, should_stop=lambda: began.set() or True)  # type: ignore[func-returns-value]
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert began.is_set()
    assert [type(error) for error in raised] == [SolveCancelledError]


@pytest.mark.parametrize(
    ("code", "words"),
    [("import os; os.kill(os.getpid(), 9)", "SIGKILL"), ("raise SystemExit('no room')", "no room")],
    ids=["killed", "ended"],
)
def test_a_process_that_dies_is_a_clear_error(
    planner: Planner, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    def list_command(folder: Path) -> list[str]:
        return [sys.executable, "-c", code]

    monkeypatch.setattr(process, "list_child_command", list_command)
    with pytest.raises(VerificationError, match=words):
        planner.verify(lambda _: None)


def test_a_step_that_cannot_be_pickled_is_a_clear_error() -> None:
    lock = threading.Lock()

    def step(weights: Any, batch: Any) -> Any:
        with lock:
            return train_step(weights, batch)

    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    planner = Planner(step, {"up": shape, "down": shape}, shape, cluster="virtual:4", cache=None)
    planner.solve(on_progress=lambda _: None)
    with pytest.raises(VerificationError, match="pickled"):
        planner.verify(lambda _: None)


def test_a_step_that_traces_differently_elsewhere_is_refused(planner: Planner) -> None:
    assert planner.plan is not None
    other = dataclasses.replace(planner.program, recipe=dataclasses.replace(planner.program.recipe, num_layers=1))
    with pytest.raises(VerificationError, match="traced program"):
        planner.plan.verify(other)
