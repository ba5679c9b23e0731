"""A model that does not fit: the error names what takes the memory, what is short, and what would help.

Kind of fault: alpa-projects/alpa#701, a net at a huge batch whose reason was only in a log.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from alpaviz.cluster import parse_cluster
from alpaviz.errors import InfeasibleError
from alpaviz.models import get_model
from alpaviz.planner import Planner

BATCH = 4096


def make_planner(
    memory_bytes: float, num_microbatches: int = 1, recompute: str = "auto", cluster_name: str = "virtual:2x2"
) -> Planner:
    model = get_model("mlp-4", BATCH)
    cluster = parse_cluster(cluster_name)
    hosts = tuple(
        replace(host, device_type=replace(host.device_type, memory_bytes=memory_bytes)) for host in cluster.hosts
    )
    return Planner(
        model.step, model.state, model.batch, cluster=replace(cluster, hosts=hosts), num_layers=2,
        num_microbatches=num_microbatches, recompute=recompute, cache=None,
    )  # fmt: skip


def solve(planner: Planner) -> None:
    planner.solve(on_progress=lambda _: None)


def explain(planner: Planner) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as caught:
        solve(planner)
    return caught.value


def test_the_error_names_layers_bytes_short_and_what_the_memory_is_for() -> None:
    error = explain(make_planner(3.5e6))

    assert re.search(r"layers? \d+ .*needs? at least [\d.]+ [kMG]B more on each device", str(error))
    assert re.search(r"[\d.]+ [kMG]B of activations for each of 1 microbatch; \d+% of it is in layers? \d", str(error))
    assert error.bytes_short > 0


def test_more_microbatches_are_advised_with_a_number_below_which_nothing_fits() -> None:
    advised = int(re.search(r"num_microbatches=(\d+)", str(explain(make_planner(3.5e6))))[1])  # type: ignore[index]

    assert advised > 2
    explain(make_planner(3.5e6, num_microbatches=advised // 2))


def test_a_few_more_microbatches_than_advised_are_enough() -> None:
    advised = int(re.search(r"num_microbatches=(\d+)", str(explain(make_planner(3.5e6))))[1])  # type: ignore[index]

    solve(make_planner(3.5e6, num_microbatches=4 * advised))


def test_recomputation_is_advised_where_it_was_not_allowed() -> None:
    assert "recompute='auto', which leaves at least" in str(explain(make_planner(3.5e6, recompute="never")))
    assert "recompute='auto'" not in str(explain(make_planner(3.5e6)))


def test_more_hosts_are_advised_with_a_number_below_which_nothing_fits() -> None:
    advised = int(re.search(r"at least (\d+) hosts", str(explain(make_planner(3.5e6))))[1])  # type: ignore[index]

    assert advised > 2
    explain(make_planner(3.5e6, cluster_name=f"virtual:{advised - 1}x2"))


def test_a_state_that_is_too_large_is_not_helped_by_microbatches() -> None:
    text = str(explain(make_planner(2e5)))

    assert "num_microbatches=" not in text
    assert re.search(r"at least \d+ hosts and more microbatches instead of 2|devices of at least", text)
