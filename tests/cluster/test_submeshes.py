"""Which blocks and meshes there are, what their links are, and that blocks can be laid out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpaviz.cluster import (
    Cluster,
    Link,
    SubmeshShape,
    describe_cluster,
    enumerate_logical_meshes,
    enumerate_submeshes,
    make_logical_mesh,
    place_submeshes,
)
from alpaviz.errors import InvalidClusterError

LINK, NETWORK = Link(100e9, 5e-6), Link(8e9, 20e-6)


def make_cluster(hosts: int, devices: int) -> Cluster:
    return describe_cluster("test", hosts, devices, "A100-80GB", link=LINK, network=NETWORK)


def list_shapes(hosts: int, devices: int) -> list[str]:
    return [str(shape) for shape in enumerate_submeshes(make_cluster(hosts, devices))]


def test_submeshes_are_powers_of_two_inside_a_host_and_whole_hosts() -> None:
    assert list_shapes(3, 8) == ["1x1", "1x2", "1x4", "1x8", "2x8", "3x8"]


def test_a_whole_host_counts_where_its_size_is_no_power_of_two() -> None:
    assert list_shapes(1, 6) == ["1x1", "1x2", "1x4", "1x6"]


def test_on_several_hosts_of_six_no_block_of_four_is_offered_as_three_of_them_do_not_fit_on_two_hosts() -> None:
    assert list_shapes(2, 6) == ["1x1", "1x2", "1x6", "2x6"]


@given(st.integers(1, 4), st.sampled_from([1, 2, 3, 4, 6, 8, 12]), st.data())
def test_whatever_adds_up_to_the_cluster_can_be_laid_out(hosts: int, devices: int, data: st.DataObject) -> None:
    """Theorem 1 of the paper."""
    cluster = make_cluster(hosts, devices)
    left, shapes = cluster.num_devices, []
    while left:
        fitting = [shape for shape in enumerate_submeshes(cluster) if shape.num_devices <= left]
        shapes.append(data.draw(st.sampled_from(fitting)))
        left -= shapes[-1].num_devices
    placed = place_submeshes(cluster, shapes)
    assert [submesh.shape for submesh in placed] == shapes
    used = [device for submesh in placed for device in submesh.devices]
    assert sorted(used) == [(h, d) for h in range(hosts) for d in range(devices)]
    for submesh in placed:
        assert len(submesh.devices) == submesh.shape.num_devices
        assert len({host for host, _ in submesh.devices}) == submesh.shape.num_hosts
        # Aligned: a block of 2^k devices begins at a multiple of its size.
        assert all(d % submesh.shape.devices_per_host == 0 for _, d in submesh.devices[:1])


def test_fewer_devices_than_there_are_leave_the_last_free() -> None:
    (first, second) = place_submeshes(make_cluster(2, 4), [SubmeshShape(1, 2), SubmeshShape(1, 4)])
    assert second.devices == ((0, 0), (0, 1), (0, 2), (0, 3))
    assert first.devices == ((1, 0), (1, 1))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([SubmeshShape(2, 4), SubmeshShape(1, 1)], "stages need 9 devices, cluster 'test' has 8"),
        ([SubmeshShape(1, 8)], "submesh 1x8 does not fit beside the others on 2 hosts of 4 devices"),
        ([SubmeshShape(2, 2)], "submesh 2x2 does not fit"),
        ([SubmeshShape(1, 3), SubmeshShape(1, 3), SubmeshShape(1, 2)], "submesh 1x2 does not fit"),
    ],
)
def test_what_does_not_fit_is_named(shapes: list[SubmeshShape], message: str) -> None:
    with pytest.raises(InvalidClusterError, match=message):
        place_submeshes(make_cluster(2, 4), shapes)


def test_one_device_has_one_mesh() -> None:
    meshes = enumerate_logical_meshes(make_cluster(1, 8), SubmeshShape(1, 1))
    assert [mesh.shape for mesh in meshes] == [(1,)]


def test_inside_a_host_a_mesh_and_its_transpose_are_the_same() -> None:
    meshes = enumerate_logical_meshes(make_cluster(1, 8), SubmeshShape(1, 8))
    assert [mesh.shape for mesh in meshes] == [(8,), (4, 2)]
    assert all(link == LINK for mesh in meshes for link in mesh.links)


def test_across_hosts_every_factorization_is_kept_as_its_axes_differ() -> None:
    meshes = enumerate_logical_meshes(make_cluster(2, 8), SubmeshShape(2, 8))
    assert [mesh.shape for mesh in meshes] == [(16,), (8, 2), (4, 4), (2, 8)]


def test_meshes_of_three_axes_are_there_for_the_asking() -> None:
    inside = enumerate_logical_meshes(make_cluster(1, 8), SubmeshShape(1, 8), max_axes=3)
    assert [mesh.shape for mesh in inside] == [(8,), (4, 2), (2, 2, 2)]
    across = enumerate_logical_meshes(make_cluster(2, 4), SubmeshShape(2, 4), max_axes=3)
    assert {mesh.shape for mesh in across} >= {(2, 2, 2), (4, 2), (2, 4)}


@pytest.mark.parametrize(
    ("hosts", "devices", "axes", "shares"),
    [
        (2, 8, (16,), (1,)),  # one ring over both hosts
        (2, 8, (2, 8), (8, 0)),  # all eight devices of a host send to their partner at once
        (2, 8, (4, 4), (4, 0)),
        (2, 8, (8, 2), (2, 0)),  # x straddles hosts: two rings of four devices on each
        (4, 4, (2, 8), (4, 1)),  # y straddles two hosts, x leaves with every device
        (3, 4, (2, 6), (4, 2)),  # rings of six over hosts of four: the middle host holds parts of two
        (3, 1, (3,), (1,)),
    ],
)
def test_an_axis_that_leaves_its_host_gets_a_share_of_the_network_card(
    hosts: int, devices: int, axes: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    mesh = make_logical_mesh(make_cluster(hosts, devices), SubmeshShape(hosts, devices), axes)
    expected = [LINK if share == 0 else Link(NETWORK.bandwidth / share, NETWORK.latency) for share in shares]
    assert list(mesh.links) == expected


def test_a_network_faster_than_the_hosts_links_is_limited_by_them() -> None:
    cluster = describe_cluster("fast", 2, 2, "A100-80GB", link=Link(10e9, 1e-6), network=Link(400e9, 2e-6))
    assert make_logical_mesh(cluster, SubmeshShape(2, 2), (4,)).links == (Link(10e9, 2e-6),)


def test_a_mesh_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(InvalidClusterError, match="logical mesh 3x2 has 6 devices, the submesh 1x8 has 8"):
        make_logical_mesh(make_cluster(1, 8), SubmeshShape(1, 8), (3, 2))
