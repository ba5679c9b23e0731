"""What groups of devices get of the links that they cross, worked out by hand."""

from __future__ import annotations

import pytest

from alpaviz.cluster import SubmeshShape, make_logical_mesh, parse_cluster
from alpaviz.cluster.description import Link
from alpaviz.cluster.topology import Bridges, DirectLinks, Switch, Torus, measure_flow

LINK = Link(60e9, 1e-6)


def find_ring(cluster: str, devices: int, *axes: int, axis: str = "x") -> float:
    """GB/s of one ring over `axis` of a mesh on `devices` devices of one host."""
    mesh = make_logical_mesh(parse_cluster(cluster), SubmeshShape(1, devices), axes)
    return mesh.link(axis).bandwidth / 1e9


def test_all_eight_v100_of_a_cube_mesh_have_three_rings_both_ways_which_is_all_six_links() -> None:
    assert find_ring("p3.16xlarge", 8, 8) == pytest.approx(128)


def test_four_v100_side_by_side_have_two_rings_both_ways() -> None:
    assert find_ring("p3.16xlarge", 4, 4) == pytest.approx(128 * 4 / 6)


def test_a_pair_of_v100_has_the_single_link_that_the_worst_pair_has() -> None:
    assert find_ring("p3.16xlarge", 2, 2) == pytest.approx(128 / 6)


def test_two_v100_without_a_link_take_the_detour() -> None:
    topology = DirectLinks(6, ((0, 1, 1), (1, 5, 2)), 0.08)
    assert measure_flow(topology, [(0, 5)], LINK).ring == pytest.approx(0.08 * 60e9)


def test_a_pair_in_a_full_mesh_of_eight_has_a_seventh_of_the_links() -> None:
    assert find_ring("8x-mi300x", 2, 2) == pytest.approx(381 / 7)


def test_on_a_switch_every_group_has_the_whole_link() -> None:
    assert measure_flow(Switch(), [(0, 3), (1, 2)], LINK).ring == 60e9


@pytest.mark.parametrize(
    ("groups", "gigabytes"),
    [
        ([(0, 1), (2, 3)], 60),  # each on its own bridge
        ([(0, 1, 2, 3)], 30),  # one ring crosses
        ([(0, 2), (1, 3)], 15),  # two rings share the way across
    ],
)
def test_rings_that_cross_pcie_bridges_share_the_way(groups: list[tuple[int, ...]], gigabytes: float) -> None:
    assert measure_flow(Bridges(2, 0.5), groups, LINK).ring == pytest.approx(gigabytes * 1e9)


def test_an_all_to_all_over_bridges_waits_for_what_crosses() -> None:
    # Each of two devices on a bridge sends half of its S to the other bridge: S over 30 GB/s.
    flow = measure_flow(Bridges(2, 0.5), [(0, 1, 2, 3)], LINK)
    assert 3 / 4 / flow.exchange == pytest.approx(1 / 30e9)


@pytest.mark.parametrize(
    ("topology", "group", "links", "hops"),
    [
        (Torus((4, 4), (False, False)), (0, 1, 2, 3), 1, 3),  # a row
        (Torus((4, 4), (True, True)), (0, 1, 2, 3), 2, 2),  # both ways round
        (Torus((4, 4), (True, True)), (0, 4, 8, 12), 2, 2),  # a column
        (Torus((4, 4), (True, True)), tuple(range(16)), 4, 4),  # both dimensions at once
        (Torus((16,), (True,)), (0, 1, 2, 3), 1, 3),  # a part of a ring is a line
        (Torus((16,), (True,)), (0, 4, 8, 12), 0.5, 8),  # four groups share each link
    ],
)
def test_a_box_of_a_torus_uses_all_its_dimensions_and_both_ways_where_they_wrap_around(
    topology: Torus, group: tuple[int, ...], links: float, hops: int
) -> None:
    flow = measure_flow(topology, [group], LINK)
    assert (flow.ring, flow.hops) == (pytest.approx(links * 60e9), hops)


@pytest.mark.parametrize(
    ("name", "wraps"),
    [
        ("tpu-v5e-16x16", True), ("tpu-v5e-8x8", False), ("tpu-v4-2x2x4", False), ("tpu-v4-4x4x4", True),
        ("tpu-v3-16x16", False), ("tpu-v3-32x32", True), ("tpu-v6e-16x16", True), ("tpu-v5p-8x8x8", True),
    ],
)  # fmt: skip
def test_a_slice_wraps_around_only_where_its_pods_links_do(name: str, wraps: bool) -> None:
    from alpaviz.cluster import find_topology

    topology = find_topology(parse_cluster(name))
    assert isinstance(topology, Torus)
    assert set(topology.wraps) == {wraps}
