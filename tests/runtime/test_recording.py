"""What is seen of steps while they run: recordings, traces, throughput and memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from alpaviz.errors import LaunchError
from alpaviz.planner import Planner
from alpaviz.runtime.recording import estimate_offset
from alpaviz.schedule import TaskKind
from tests.program.small_models import adam_step, init_gpt_state

MICROBATCHES = 2
IDS = np.asarray(jax.random.randint(jax.random.key(1), (8, 17), 0, 64))


@pytest.fixture(scope="module")
def planner() -> Planner:
    """Two stages."""
    planner = Planner(adam_step, init_gpt_state(2), IDS, cluster="virtual:2", num_microbatches=MICROBATCHES)
    planner.pin_num_stages(2)
    planner.solve(on_progress=lambda _: None)
    return planner


@pytest.fixture(scope="module")
def executable(planner: Planner) -> Iterator[Any]:
    """Launched locally; every step is recorded, overwrites its state, and four have been made."""
    with planner.launch(backend="local", record_every=1, donate_state=True) as executable:
        state = executable.place(init_gpt_state(2))
        for _ in range(4):
            state, _ = executable(state, IDS)
        yield executable


def test_a_recorded_step_holds_every_chunk_of_every_microbatch(executable: Any) -> None:
    for stage, events in enumerate(executable.recording.stages):
        passes = sorted((e.task.kind, e.task.microbatch) for e in events if e.task.kind is not TaskKind.UPDATE)
        kinds = [TaskKind.BACKWARD, TaskKind.FORWARD]
        assert passes == [(kind, m) for kind in kinds for m in range(MICROBATCHES)], f"stage {stage}"


def test_chunks_of_a_stage_follow_each_other(executable: Any) -> None:
    for events in executable.recording.stages:
        ends = [0.0, *(event.end_s for event in events)]
        assert all(before <= event.start_s for before, event in zip(ends, events, strict=False))


def test_a_stage_begins_a_microbatch_after_the_stage_before_has_ended_it(executable: Any) -> None:
    first, second = (
        {e.task.microbatch: e for e in events if e.task.kind is TaskKind.FORWARD}
        for events in executable.recording.stages
    )
    # Threads look one after another: the earlier end may be seen a little later than what it made.
    assert all(second[m].end_s > first[m].start_s for m in range(MICROBATCHES))


def test_a_trace_shows_the_recorded_and_the_predicted_step(executable: Any, tmp_path: Path) -> None:
    events = json.loads(executable.export_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [name.split(": ")[1] for name in names if ": " in name] == ["measured", "predicted"]


def test_without_a_recorded_step_a_trace_is_refused(planner: Planner, tmp_path: Path) -> None:
    with planner.launch(backend="local") as executable:
        executable(init_gpt_state(2), IDS)
        with pytest.raises(LaunchError, match=r"call executable\.profile, or launch with record_every"):
            executable.export_trace(tmp_path / "trace.json")


def test_throughput_counts_the_samples_of_the_batch(executable: Any) -> None:
    found = executable.statistics()
    assert found.num_steps == 4
    assert found.samples_per_s == pytest.approx(len(IDS) * found.steps_per_s)


def test_utilisation_is_to_the_estimate_as_the_seconds(executable: Any) -> None:
    found, estimate = executable.statistics(), executable.plan.estimate
    expected = estimate.model_flops_utilisation * estimate.step_s / found.step_s
    assert found.model_flops_utilisation == pytest.approx(expected)


@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray)])
@pytest.mark.filterwarnings("ignore")
def test_profiling_records_a_step_and_tells_what_stages_held(planner: Planner, backend: str) -> None:
    with planner.launch(backend=backend) as executable:
        executable.profile(init_gpt_state(2), IDS)
        assert [len(events) > 2 * MICROBATCHES for events in executable.recording.stages] == [True, True]
        peaks = executable.statistics().peaks
        state = sum(leaf.nbytes for leaf in jax.tree.leaves(init_gpt_state(2)))
        assert [peak.stage for peak in peaks] == [0, 1]
        assert all(state / 4 < peak.peak_bytes < 4 * state for peak in peaks)


def test_a_clock_that_is_ahead_is_found_to_be_so() -> None:
    assert estimate_offset(lambda: time.perf_counter() + 100.0) == pytest.approx(100.0, abs=1.0)


def test_recording_no_steps_at_all_is_refused(planner: Planner) -> None:
    with pytest.raises(LaunchError, match="record_every is 0"):
        planner.launch(record_every=0)
