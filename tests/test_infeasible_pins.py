"""Pins that do not fit into memory: the error names them and the memory, in whatever order they came.

Kind of fault: meta-pytorch/autoparallel#475.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from alpaviz import Planner
from alpaviz.cluster import Cluster, parse_cluster
from alpaviz.errors import InfeasibleError, PinConflictError, PinError
from alpaviz.models import GPTConfig
from alpaviz.models.training import make_training_step
from alpaviz.pins import Pin, PinKind
from alpaviz.planner_state import PlannerState
from alpaviz.stage_candidates import USABLE_MEMORY

WHOLE = Pin(PinKind.SPEC, "state['params']['wte']", "[-, -]")
SMALL_GPT = GPTConfig(hidden=64, num_layers=2, num_heads=4, vocab=8192, seq=16, dtype="float32")
"""Most of its bytes are those of the embedding."""
MESH = Pin(PinKind.LOGICAL_MESH, None, "4x2")


def make_cluster(memory_bytes: float) -> Cluster:
    """One host of eight devices of so much memory."""
    cluster = parse_cluster("p3.16xlarge:1")
    host = cluster.hosts[0]
    device_type = replace(host.device_type, memory_bytes=memory_bytes / USABLE_MEMORY)
    return replace(cluster, hosts=(replace(host, device_type=device_type),))


def make_planner(memory_bytes: float, *pins: Pin) -> Planner:
    step, state, batch = make_training_step(SMALL_GPT, 8)
    planner = Planner(step, state, batch, cluster=make_cluster(memory_bytes), num_layers=1)
    for pin in (MESH, *pins):
        planner.pin(pin)
    return planner


@functools.cache
def find_least_bytes() -> float:
    """Bytes on each device that no plan can go below without the pin."""
    with pytest.raises(InfeasibleError) as caught:
        make_planner(1.0).solve(on_progress=lambda _: None)
    return caught.value.bytes_short + 1.0


def test_a_tenth_more_than_the_least_memory_is_enough_without_the_pin() -> None:
    planner = make_planner(1.1 * find_least_bytes())
    assert planner.solve(on_progress=lambda _: None).num_stages == 1


@pytest.mark.parametrize("order", [(MESH, WHOLE), (WHOLE, MESH)], ids=["last", "first"])
def test_a_pin_that_does_not_fit_is_named_with_the_memory(order: tuple[Pin, ...]) -> None:
    planner = make_planner(1.1 * find_least_bytes())
    planner.clear_pins()
    for pin in order:
        planner.pin(pin)
    with pytest.raises(PinConflictError, match=r"within the .* of each device") as caught:
        planner.solve(on_progress=lambda _: None)
    assert WHOLE in caught.value.pins
    assert planner.state is PlannerState.INFEASIBLE


def test_without_the_pin_the_old_plan_comes_back() -> None:
    planner = make_planner(1.1 * find_least_bytes())
    before = planner.solve(on_progress=lambda _: None)
    planner.pin(WHOLE)
    with pytest.raises(PinError):
        planner.solve(on_progress=lambda _: None)
    planner.unpin(WHOLE)
    after = planner.solve(on_progress=lambda _: None)
    assert (after.ops, after.values) == (before.ops, before.values)


def test_too_little_memory_without_pins_gives_the_bytes_that_are_short() -> None:
    short = 0.2 * find_least_bytes()
    with pytest.raises(InfeasibleError) as caught:
        make_planner(find_least_bytes() - short).solve(on_progress=lambda _: None)
    assert caught.value.bytes_short == pytest.approx(short, rel=1e-6)
