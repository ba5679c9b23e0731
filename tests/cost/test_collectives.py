"""Collectives against the ring formulas, worked out by hand."""

from __future__ import annotations

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpaviz.cluster import Link, LogicalMesh, SubmeshShape, describe_cluster, make_logical_mesh
from alpaviz.cost import price_collective
from alpaviz.types import CollectiveKind

KINDS: tuple[CollectiveKind, ...] = typing.get_args(CollectiveKind)
MB = 1e6
# 1 MB takes 10 us on a host's link, 1 ms through its network card.
LINK, NETWORK = Link(100e9, 1e-6), Link(1e9, 10e-6)


def make_mesh(hosts: int, devices: int, *axes: int) -> LogicalMesh:
    cluster = describe_cluster("test", hosts, devices, "A100-80GB", link=LINK, network=NETWORK)
    return make_logical_mesh(cluster, SubmeshShape(hosts, devices), axes)


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("all-gather", 3e-6 + 3 / 4 * 10e-6),
        ("reduce-scatter", 3e-6 + 3 / 4 * 10e-6),
        ("all-reduce", 2 * (3e-6 + 3 / 4 * 10e-6)),
        ("all-to-all", 3e-6 + 3 / 4 * 10e-6),
        ("collective-permute", 1e-6 + 10e-6),
    ],
)
def test_a_ring_of_four_inside_a_host_takes_what_the_formula_says(kind: CollectiveKind, seconds: float) -> None:
    assert price_collective(kind, MB, make_mesh(1, 4, 4), ("x",)) == pytest.approx(seconds)


@pytest.mark.parametrize("kind", KINDS)
def test_axes_of_one_device_cost_nothing(kind: CollectiveKind) -> None:
    assert price_collective(kind, MB, make_mesh(1, 1, 1), ("x",)) == 0
    thin = make_mesh(1, 4, 1, 4)
    assert price_collective(kind, MB, thin, ("x",)) == 0
    assert price_collective(kind, MB, thin, ("x", "y")) == price_collective(kind, MB, thin, ("y",))


def test_one_ring_over_two_hosts_has_the_whole_network_card_and_crosses_it_twice() -> None:
    mesh = make_mesh(2, 4, 8)
    assert price_collective("all-gather", MB, mesh, ("x",)) == pytest.approx(2 * 10e-6 + 5 * 1e-6 + 7 / 8 * 1e-3)


def test_four_rings_over_two_hosts_share_the_network_card() -> None:
    mesh = make_mesh(2, 4, 2, 4)
    assert price_collective("all-gather", MB, mesh, ("x",)) == pytest.approx(10e-6 + 1 / 2 * 4e-3)


def test_an_all_to_all_over_two_hosts_sends_half_of_every_device_through_the_card() -> None:
    # Four devices of a host each send half of their 1 MB to the other host, and both ways run at once.
    mesh = make_mesh(2, 4, 8)
    assert price_collective("all-to-all", MB, mesh, ("x",)) == pytest.approx(4 * 10e-6 + 3 * 1e-6 + 4 / 2 * 1e-3)


def test_an_all_to_all_between_partners_on_two_hosts_sends_as_much() -> None:
    # Four pairs side by side: again half of 1 MB from each of four devices.
    mesh = make_mesh(2, 4, 2, 4)
    assert price_collective("all-to-all", MB, mesh, ("x",)) == pytest.approx(10e-6 + 4 / 2 * 1e-3)


def test_a_permute_over_hosts_may_send_all_that_a_host_holds() -> None:
    for axes in ((8,), (2, 4)):
        seconds = price_collective("collective-permute", MB, make_mesh(2, 4, *axes), ("x",))
        assert seconds == pytest.approx(10e-6 + 4e-3)


def test_an_all_reduce_over_four_hosts_and_their_devices_reduces_inside_first() -> None:
    # Inside: 3/4 of 1 MB on fast links; between: 3/4 of a quarter on each of four shares of the card. Twice both.
    mesh = make_mesh(4, 4, 4, 4)
    inside, between = 3e-6 + 3 / 4 * 10e-6, 3 * 10e-6 + 3 / 4 * 1 / 4 * 4e-3
    assert price_collective("all-reduce", MB, mesh, ("x", "y")) == pytest.approx(2 * (inside + between))


def test_an_all_reduce_over_two_hosts_sends_its_bytes_once_each_way_in_two_trees() -> None:
    assert price_collective("all-reduce", MB, make_mesh(2, 4, 8), ("x",)) == pytest.approx(2 * (10e-6 + 3e-6) + 1e-3)


def test_a_flat_ring_over_all_axes_costs_no_more_than_the_same_devices_as_one_axis() -> None:
    for kind in KINDS:
        flat = price_collective(kind, MB, make_mesh(2, 4, 8), ("x",))
        assert price_collective(kind, MB, make_mesh(2, 4, 2, 4), ("x", "y")) <= flat * (1 + 1e-12)


meshes = st.sampled_from([make_mesh(1, 8, 8), make_mesh(1, 8, 4, 2), make_mesh(2, 4, 2, 4), make_mesh(4, 2, 2, 4)])


@given(st.sampled_from(KINDS), meshes, st.floats(1, 1e10), st.floats(1, 4))
def test_more_bytes_never_cost_less_and_never_more_than_in_proportion(
    kind: CollectiveKind, mesh: LogicalMesh, num_bytes: float, factor: float
) -> None:
    axes = mesh.axis_names
    little = price_collective(kind, num_bytes, mesh, axes)
    much = price_collective(kind, num_bytes * factor, mesh, axes)
    assert little <= much * (1 + 1e-12)
    assert much <= little * factor * (1 + 1e-12)


@given(meshes, st.floats(1, 1e10))
def test_an_all_reduce_costs_no_more_than_a_reduce_scatter_and_an_all_gather(
    mesh: LogicalMesh, num_bytes: float
) -> None:
    axes = mesh.axis_names
    halves = sum(price_collective(kind, num_bytes, mesh, axes) for kind in ("reduce-scatter", "all-gather"))
    assert price_collective("all-reduce", num_bytes, mesh, axes) <= halves * (1 + 1e-12)
