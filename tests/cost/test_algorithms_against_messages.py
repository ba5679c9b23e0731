"""Formulas of collectives against a simulation of each message of the same algorithm."""

from __future__ import annotations

import math

import pytest

from alpaviz.cluster import AxisGroup, Cluster, Link, SubmeshShape, describe_cluster, make_logical_mesh
from alpaviz.cluster.topology import Torus, measure_flow
from alpaviz.cost.algorithms import Line, hierarchical, pairwise_exchange, permute, ring, tree
from tests.cost.message_simulation import (
    add_hierarchical,
    add_pairwise_exchange,
    add_ring,
    add_tree,
    build_switched,
    build_torus,
)

LARGE, SMALL = 64e6, 1e-3
"""Bytes whose time is nearly all bandwidth, and all latency."""
HOSTS = [(1, 4), (1, 8), (2, 1), (2, 4), (3, 4), (4, 1), (4, 2), (8, 1)]
SIZES = pytest.mark.parametrize("num_bytes", [SMALL, LARGE], ids=["latency", "bandwidth"])


def make_cluster(hosts: int, devices: int) -> Cluster:
    link, network = Link(100e9, 2e-6), Link(2e9, 10e-6)
    return describe_cluster("test", hosts, devices, "A100-80GB", link=link, network=network)


def find_group(cluster: Cluster, *axes: int, over: str = "x") -> AxisGroup:
    shape = SubmeshShape(cluster.num_hosts, cluster.devices_per_host)
    return make_logical_mesh(cluster, shape, axes).group(tuple(over))


def price(line: Line, num_bytes: float) -> float:
    return line[0] + num_bytes * line[1]


def list_hosts(cluster: Cluster) -> list[list[int]]:
    per_host = cluster.devices_per_host
    return [list(range(h * per_host, (h + 1) * per_host)) for h in range(cluster.num_hosts)]


@SIZES
@pytest.mark.parametrize("rounds", [1, 2], ids=["all-gather", "all-reduce"])
@pytest.mark.parametrize("shape", HOSTS, ids=str)
def test_a_ring_takes_as_long_as_its_messages(shape: tuple[int, int], rounds: int, num_bytes: float) -> None:
    cluster = make_cluster(*shape)
    simulation, route = build_switched(cluster)
    add_ring(simulation, route, range(cluster.num_devices), num_bytes, rounds, pieces=8)
    line = ring("all-reduce" if rounds == 2 else "all-gather", find_group(cluster, cluster.num_devices))
    assert price(line, num_bytes) == pytest.approx(simulation.run(), rel=0.1)


@SIZES
@pytest.mark.parametrize("shape", [(2, 1), (2, 4), (4, 1), (4, 2), (8, 1)], ids=str)
def test_two_trees_take_as_long_as_their_messages(shape: tuple[int, int], num_bytes: float) -> None:
    cluster = make_cluster(*shape)
    simulation, route = build_switched(cluster)
    add_tree(simulation, route, list_hosts(cluster), num_bytes, pieces=64)
    line = tree(find_group(cluster, cluster.num_devices))
    assert price(line, num_bytes) == pytest.approx(simulation.run(), rel=0.1)


def test_two_trees_over_three_hosts_take_no_longer_than_the_formula_and_a_fifth_less_at_most() -> None:
    cluster = make_cluster(3, 4)
    simulation, route = build_switched(cluster)
    add_tree(simulation, route, list_hosts(cluster), LARGE, pieces=64)
    expected = price(tree(find_group(cluster, 12)), LARGE)
    assert 0.8 * expected <= simulation.run() <= expected


@SIZES
@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (3, 4), (4, 2)], ids=str)
def test_a_hierarchical_all_reduce_takes_as_long_as_its_messages(shape: tuple[int, int], num_bytes: float) -> None:
    cluster = make_cluster(*shape)
    simulation, route = build_switched(cluster)
    add_hierarchical(simulation, route, list_hosts(cluster), num_bytes)
    line = hierarchical(find_group(cluster, cluster.num_devices))
    assert price(line, num_bytes) == pytest.approx(simulation.run(), rel=0.1)


@SIZES
@pytest.mark.parametrize("shape", HOSTS, ids=str)
def test_an_all_to_all_takes_as_long_as_its_messages(shape: tuple[int, int], num_bytes: float) -> None:
    cluster = make_cluster(*shape)
    simulation, route = build_switched(cluster)
    add_pairwise_exchange(simulation, route, range(cluster.num_devices), num_bytes)
    line = pairwise_exchange(find_group(cluster, cluster.num_devices))
    assert price(line, num_bytes) == pytest.approx(simulation.run(), rel=0.1)


@SIZES
@pytest.mark.parametrize("shape", HOSTS, ids=str)
def test_a_permute_to_the_other_half_takes_as_long_as_its_messages(shape: tuple[int, int], num_bytes: float) -> None:
    cluster = make_cluster(*shape)
    n = cluster.num_devices
    simulation, route = build_switched(cluster)
    for device in range(n):
        simulation.send(route(device, (device + (n + 1) // 2) % n), num_bytes)
    expected = simulation.run()
    assert price(permute(find_group(cluster, n)), num_bytes) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("axes", [(2, 4), (4, 2)], ids=str)
def test_rings_of_several_groups_that_share_a_card_take_as_long_as_their_messages(axes: tuple[int, int]) -> None:
    cluster = make_cluster(2, 4)
    simulation, route = build_switched(cluster)
    for start in range(axes[1]):
        add_ring(simulation, route, range(start, 8, axes[1]), LARGE, pieces=8)
    line = ring("all-gather", find_group(cluster, *axes))
    assert price(line, LARGE) == pytest.approx(simulation.run(), rel=0.1)


@pytest.mark.parametrize(("size", "wraps"), [(4, False), (8, False), (4, True), (16, True)])
@SIZES
def test_a_dimension_of_a_torus_gathers_as_quickly_as_messages_sent_both_ways(
    size: int, wraps: bool, num_bytes: float
) -> None:
    simulation, route = build_torus((size,), (wraps,), 45e9, 1e-6)
    for start in range(size):  # each part goes both ways, half round where the dimension wraps around
        for by in (1, -1):
            far = size // 2 if wraps else (size - 1 - start if by == 1 else start)
            # Halfway round, the part comes from both sides: each brings a half.
            after: tuple[int, ...] = ()
            for hop in range(far):
                source, target = (start + by * hop) % size, (start + by * (hop + 1)) % size
                share = 0.5 if wraps and 2 * (hop + 1) == size else 1.0
                after = (simulation.send(route(source, target), share * num_bytes / size, after),)
    flow = measure_flow(Torus((size,), (wraps,)), (tuple(range(size)),), Link(45e9, 1e-6))
    expected = flow.hops * flow.latency + (size - 1) / size * num_bytes / flow.ring
    assert expected == pytest.approx(simulation.run(), rel=0.1)


@pytest.mark.parametrize(
    ("dims", "wraps"), [((8,), (False,)), ((8,), (True,)), ((4, 4), (False, False)), ((4, 4), (True, True))], ids=str
)
def test_an_all_to_all_on_a_torus_takes_as_long_as_what_passes_its_middle(
    dims: tuple[int, ...], wraps: tuple[bool, ...]
) -> None:
    simulation, route = build_torus(dims, wraps, 45e9, 1e-9)
    n, pieces = math.prod(dims), 8
    # A piece for every device before the next one: links then have work of every dimension at all times.
    for _ in range(pieces):
        for shift in range(1, n):
            for device in range(n):
                simulation.send(route(device, (device + shift) % n), LARGE / n / pieces)
    flow = measure_flow(Torus(dims, wraps), (tuple(range(n)),), Link(45e9, 1e-9))
    assert (n - 1) / n * LARGE / flow.exchange == pytest.approx(simulation.run(), rel=0.15)
