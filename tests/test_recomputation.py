"""Stages that recompute layers: only where memory asks for it, as few as will do, and the launched step is the same."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from alpaviz.cluster import Cluster, parse_cluster
from alpaviz.errors import AlpaVizError, InfeasibleError
from alpaviz.plan import Plan
from alpaviz.planner import Planner
from alpaviz.stage_candidates import USABLE_MEMORY
from tests.program.small_models import adam_step, init_gpt_state

NUM_LAYERS = 4
IDS = np.asarray(jax.random.randint(jax.random.key(1), (16, 33), 0, 64))


@functools.cache
def make_state() -> Any:
    return init_gpt_state(NUM_LAYERS, length=32)


def make_cluster(memory_bytes: float) -> Cluster:
    """Four virtual devices of so much memory."""
    cluster = parse_cluster("virtual:4")
    host = cluster.hosts[0]
    device_type = replace(host.device_type, memory_bytes=memory_bytes)
    return replace(cluster, hosts=(replace(host, device_type=device_type),))


def make_planner(memory_bytes: float, recompute: str = "auto", num_stages: int = 4) -> Planner:
    planner = Planner(
        adam_step, make_state(), IDS, cluster=make_cluster(memory_bytes), num_microbatches=4, num_layers=NUM_LAYERS,
        recompute=recompute, cache=None,
    )  # fmt: skip
    planner.pin_num_stages(num_stages)
    return planner


def solve(planner: Planner) -> Plan:
    return planner.solve(on_progress=lambda _: None)


@functools.cache
def find_most_bytes() -> float:
    """Bytes of the fullest device of a plan that keeps everything, with four stages, without its working set."""
    plan = solve(make_planner(1e9))
    memory = plan.stages[0].memory
    return memory.total_bytes - memory.temporary_bytes


def limit_to(share: float) -> float:
    """Bytes of a device of which a plan may use this share of what keeping everything takes."""
    return share * find_most_bytes() / USABLE_MEMORY


def test_what_fits_keeps_all_activations() -> None:
    assert solve(make_planner(limit_to(1.01))).program.recomputed_layers == ()


def test_a_model_that_does_not_fit_recomputes_layers() -> None:
    with pytest.raises(AlpaVizError, match="No plan keeps the pin 'there are 4 stages'"):
        solve(make_planner(limit_to(0.9), "never"))

    plan = solve(make_planner(limit_to(0.9)))

    assert plan.program.recomputed_layers == (0,)  # the first stage holds the most microbatches in flight
    assert all(stage.memory.total_bytes <= stage.memory.capacity_bytes for stage in plan.stages)


def test_less_memory_recomputes_more_layers_and_takes_longer() -> None:
    plans = [solve(make_planner(limit_to(share))) for share in (1.01, 0.9, 0.75)]

    assert [len(plan.program.recomputed_layers) for plan in plans] == sorted(
        {len(plan.program.recomputed_layers) for plan in plans}
    )
    steps = [plan.estimate.step_s for plan in plans]
    assert steps == sorted(steps)


def test_always_recomputes_every_layer() -> None:
    assert solve(make_planner(1e9, "always")).program.recomputed_layers == tuple(range(NUM_LAYERS))


def test_a_stage_recomputes_only_as_many_of_its_layers_as_it_must() -> None:
    everything = solve(make_planner(1e9, num_stages=1)).stages[0].memory
    needed = everything.total_bytes - everything.temporary_bytes
    layers = [
        len(solve(make_planner(share * needed / USABLE_MEMORY, num_stages=1)).program.recomputed_layers)
        for share in (1.01, 0.85, 0.7)
    ]

    assert layers[0] == 0
    assert layers == sorted(layers)
    assert 0 < layers[1] < NUM_LAYERS


@pytest.mark.parametrize("num_stages", [1, 4])
def test_a_launched_plan_that_recomputes_gives_the_same_numbers(num_stages: int) -> None:
    planner = make_planner(1e9, "always", num_stages)
    solve(planner)

    with planner.launch() as executable:
        state, loss = executable(executable.place(make_state()), IDS)
        found = executable.fetch(state)

    expected, expected_loss = jax.jit(adam_step)(make_state(), IDS)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
    for one, other in zip(jax.tree.leaves(found["params"]), jax.tree.leaves(expected["params"]), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_a_saved_plan_opens_in_a_planner_that_has_not_solved(tmp_path: Path) -> None:
    planner = make_planner(limit_to(0.9))
    solve(planner)
    planner.save(tmp_path / "plan.json")
    other = make_planner(limit_to(0.9))

    other.load(tmp_path / "plan.json")

    assert other.program.recomputed_layers == planner.program.recomputed_layers != ()
    assert other.program.fingerprint == planner.program.fingerprint


def test_ops_that_are_done_again_can_be_pinned() -> None:
    planner = make_planner(1e9, "always", num_stages=2)
    plan = solve(planner)
    name = next(op.name for op in plan.ops if op.name.startswith("recompute/") and op.is_decision)
    wanted = planner.alternatives(name)[1].strategy

    planner.pin_strategy(name, wanted)

    assert next(op.strategy for op in solve(planner).ops if op.name == name) == wanted


def test_the_plan_says_what_it_recomputes() -> None:
    plan = solve(make_planner(limit_to(0.9)))

    assert any(note.startswith("layer 0 recomputed in the backward pass") for note in plan.solver.notes)


def test_what_recomputation_cannot_mend_is_infeasible() -> None:
    planner = make_planner(1e5)
    planner.clear_pins()

    with pytest.raises(InfeasibleError, match="does not fit"):
        solve(planner)


def test_an_unknown_way_to_recompute_is_refused() -> None:
    with pytest.raises(AlpaVizError, match="recompute must be 'auto', 'never', 'always', not 'some'"):
        make_planner(1e9, "some")


def test_memory_while_a_layer_is_recomputed_counts_as_working_set() -> None:
    kept, again = (solve(make_planner(1e9, recompute)).stages[0].memory for recompute in ("never", "always"))

    freed = kept.activations_bytes - again.activations_bytes
    assert freed > 0
    assert again.temporary_bytes > kept.temporary_bytes
    # Four microbatches are in flight, one of them is being worked on.
    assert again.temporary_bytes == pytest.approx(freed / 4, rel=0.35)
