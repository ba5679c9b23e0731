"""Plans over hosts of several kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from alpaviz.cluster import (
    Cluster,
    Host,
    Link,
    SubmeshShape,
    enumerate_submeshes,
    parse_cluster,
    place_submeshes,
)  # fmt: skip
from alpaviz.cluster.presets import find_device
from alpaviz.errors import InvalidClusterError
from alpaviz.models import get_model
from alpaviz.plan import Plan
from alpaviz.plan_file import load_plan, save_plan
from alpaviz.plan_text import describe_plan
from alpaviz.planner import Planner

FAST, SLOW = find_device("A100-40GB"), find_device("V100-16GB")


def make_cluster(*hosts: tuple[str, int]) -> Cluster:
    types = {"fast": FAST, "slow": SLOW}
    link = Link(1e11, 1e-6)
    return Cluster("mixed", tuple(Host(types[kind], count, link) for kind, count in hosts), Link(1e10, 1e-5))


def find_plan(cluster: Cluster, *pins: tuple[int, str]) -> Plan:
    model = get_model("gpt-tiny", 16, num_layers=8, hidden=512, seq=512)
    planner = Planner(*model, cluster=cluster, num_microbatches=4, num_layers=4, cache=None)
    for stage, submesh in pins:
        planner.pin_submesh(stage, submesh)
    return planner.solve(on_progress=lambda _: None)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return find_plan(make_cluster(("slow", 2), ("fast", 2), ("slow", 2)))


def test_text_joins_hosts_of_two_kinds_by_the_slower_network() -> None:
    old, new = parse_cluster("p3.16xlarge:2"), parse_cluster("p4d.24xlarge:1")
    cluster = parse_cluster("p3.16xlarge:2 + p4d.24xlarge:1")
    assert cluster.hosts == (*old.hosts, *new.hosts)
    assert cluster.network.bandwidth == min(old.network.bandwidth, new.network.bandwidth)


def test_hosts_of_one_device_type_but_unequal_links_are_two_kinds() -> None:
    host = Host(FAST, 4, Link(1e11, 1e-6))
    cluster = Cluster("mixed", (host, replace(host, link=Link(2e10, 1e-6))), Link(1e10, 1e-5))
    assert list(cluster.kinds) == ["A100-40GB", "A100-40GB-2"]


def test_submeshes_are_blocks_of_one_kind() -> None:
    found = [str(shape) for shape in enumerate_submeshes(make_cluster(("slow", 2), ("fast", 1), ("slow", 2)))]
    assert found == ["1x1 V100-16GB", "1x2 V100-16GB", "2x2 V100-16GB", "1x1 A100-40GB"]


def test_blocks_are_placed_on_hosts_of_their_kind() -> None:
    cluster = make_cluster(("slow", 2), ("fast", 2), ("slow", 2))
    shapes = [SubmeshShape(1, 2, "A100-40GB"), SubmeshShape(2, 2, "V100-16GB")]
    fast, slow = place_submeshes(cluster, shapes)
    assert fast.devices == ((1, 0), (1, 1))
    assert slow.devices == ((0, 0), (0, 1), (2, 0), (2, 1))


def test_a_kind_has_no_more_devices_than_its_hosts() -> None:
    shapes = [SubmeshShape(1, 2, "A100-40GB")] * 2
    with pytest.raises(InvalidClusterError, match="stages need 4 devices"):
        place_submeshes(make_cluster(("slow", 2), ("fast", 2)), shapes)


def test_a_plan_uses_every_device_of_every_kind_once(plan: Plan) -> None:
    used = sorted(device for stage in plan.stages for device in stage.devices)
    assert used == [(host, device) for host in range(3) for device in range(2)]


def test_no_stage_mixes_kinds(plan: Plan) -> None:
    types = [{plan.cluster.hosts[host].device_type.name for host, _ in stage.devices} for stage in plan.stages]
    assert all(len(names) == 1 for names in types)


def test_a_stage_has_the_memory_of_its_own_devices(plan: Plan) -> None:
    for stage in plan.stages:
        assert stage.memory.capacity_bytes == plan.cluster.hosts[stage.devices[0][0]].device_type.memory_bytes


def test_the_quicker_devices_get_more_layers() -> None:
    found = find_plan(make_cluster(("slow", 1), ("fast", 1)))
    layers = {stage.devices[0][0]: stage.last_layer - stage.first_layer + 1 for stage in found.stages}
    assert layers[1] > layers[0]


def test_a_pin_names_the_kind() -> None:
    found = find_plan(make_cluster(("slow", 1), ("fast", 1)), (0, "1x1 A100-40GB"))
    assert found.stages[0].devices == ((1, 0),)


def test_equal_hosts_of_a_mixed_cluster_plan_as_if_they_were_of_one_kind() -> None:
    """Links inside hosts of one device carry nothing, so kinds that differ in them only cost the same."""
    host = Host(FAST, 1, Link(1e11, 1e-6))
    other = replace(host, link=Link(2e10, 1e-6))
    two = find_plan(Cluster("two", (host, other), Link(1e10, 1e-5)), (0, "1x1 A100-40GB-2"))
    one = find_plan(Cluster("one", (host, host), Link(1e10, 1e-5)), (0, "1x1"))
    assert two.estimate.step_s == pytest.approx(one.estimate.step_s)


def test_files_keep_the_kind_of_each_stage(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    assert load_plan(path) == plan


def test_a_plan_names_both_kinds(plan: Plan) -> None:
    assert "2 hosts of 2 x V100-16GB, 1 host of 2 x A100-40GB" in describe_plan(plan)


def test_schedules_that_share_devices_need_equal_hosts() -> None:
    model = get_model("gpt-tiny", 16)
    planner = Planner(
        *model, cluster=make_cluster(("slow", 1), ("fast", 1)), num_microbatches=4, schedule="interleaved-2", cache=None
    )
    with pytest.raises(InvalidClusterError, match="equal groups"):
        planner.solve(on_progress=lambda _: None)
