"""Plans of built-in models on virtual devices, solved once."""

from __future__ import annotations

from typing import Any

import pytest

from alpaviz.models import get_model
from alpaviz.plan import Plan
from alpaviz.planner import Planner


def make_planner(name: str, num_stages: int | None = None, **options: Any) -> Planner:
    """A planner of a small model on four devices, batch of 16."""
    step, state, batch = get_model(name, 16)
    planner = Planner(step, state, batch, cluster="virtual:4", name=name, **options)
    if num_stages is not None:
        planner.pin_num_stages(num_stages)
    return planner


@pytest.fixture(scope="session")
def gpt_planner() -> Planner:
    """`gpt-tiny` in two pinned stages and four microbatches, solved. Do not change it."""
    planner = make_planner("gpt-tiny", 2, num_microbatches=4)
    planner.solve(on_progress=lambda _: None)
    return planner


@pytest.fixture(scope="session")
def gpt_plan(gpt_planner: Planner) -> Plan:
    assert gpt_planner.plan is not None
    return gpt_planner.plan


@pytest.fixture(scope="session")
def mlp_plan() -> Plan:
    """`mlp-2` in one pinned stage, one microbatch."""
    return make_planner("mlp-2", 1).solve(on_progress=lambda _: None)
