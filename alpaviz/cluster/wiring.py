"""The topology of a cluster's hosts, and what groups of devices get from it and from the network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

from alpaviz.cluster.catalogue import load_catalogue
from alpaviz.cluster.description import Cluster, Host, Link
from alpaviz.cluster.mesh import MESH_AXES, AxisGroup, SubmeshShape
from alpaviz.cluster.topology import Flow, Group, Switch, Topology, Torus, measure_flow, worst_flow
from alpaviz.types import MeshAxis

_REMEMBERED: dict[Host, Topology] = {}
"""Topologies of hosts that this process has read from a user's TOML. The last one read counts."""


def remember_topology(host: Host, topology: Topology) -> None:
    """From now on hosts equal to `host` have `topology`. A `Host` itself, as plans hold it, knows only its link."""
    _REMEMBERED[host] = topology
    list_axis_groups.cache_clear()


def find_topology(cluster: Cluster) -> Topology:
    """How the devices of each host are joined.

    That of the TOML that described the host; that of the catalogue's host by whose name the cluster is called, or that
    has the same devices and link; else a switch.
    """
    host = cluster.hosts[0]
    if host in _REMEMBERED:
        return _REMEMBERED[host]
    hosts = load_catalogue().hosts
    like = [p for p in hosts.values() if (p.device, p.num_devices) == (host.device_type.name, host.num_devices)]
    named = hosts.get(cluster.name.partition(":")[0].strip().lower())
    found = next((preset for preset in like if preset is named), None)
    found = found or next((preset for preset in like if preset.link == host.link), None)
    return found.topology if found else Switch()


@lru_cache(maxsize=4096)  # meshes of one shape then share their groups, which makes them quick to compare
def list_axis_groups(cluster: Cluster, shape: SubmeshShape, axes: tuple[int, ...]) -> tuple[AxisGroup, ...]:
    """For every set of axes of more than one device, what the worst of its groups gets while all of them communicate.

    Where `shape` is a part of a host, wherever in the host it may lie.
    """
    topology = find_topology(cluster)
    names = [name for name, n in zip(MESH_AXES, axes) if n > 1]
    found = []
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, count):
            groups = list(_list_groups(axes, chosen))
            found.append(_measure(cluster, topology, shape, chosen, groups))
    return tuple(found)


def _list_groups(shape: tuple[int, ...], chosen: tuple[MeshAxis, ...]) -> Iterator[Group]:
    """Devices, in row-major order, that differ only in their place on the chosen axes."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    steps: dict[bool, list[range]] = {True: [], False: []}
    for name, n, stride in zip(MESH_AXES, shape, strides):
        steps[name in chosen].append(range(0, n * stride, stride))
    for start in itertools.product(*steps[False]):
        yield tuple(sum(start) + sum(place) for place in itertools.product(*steps[True]))


def _measure(
    cluster: Cluster, topology: Topology, shape: SubmeshShape, axes: tuple[MeshAxis, ...], groups: Sequence[Group]
) -> AxisGroup:
    per_host, link = shape.devices_per_host, cluster.hosts[0].link
    parts: list[list[Group]] = [[] for _ in range(shape.num_hosts)]
    leaving = [0] * shape.num_hosts
    num_hosts, most, is_even = 1, 1, True
    for group in groups:
        by_host: dict[int, list[int]] = {}
        for device in group:
            by_host.setdefault(device // per_host, []).append(device % per_host)
        for host, devices in by_host.items():
            parts[host].append(tuple(devices))
            leaving[host] += len(by_host) > 1
        num_hosts, most = max(num_hosts, len(by_host)), max(most, *map(len, by_host.values()))
        is_even = is_even and len({len(devices) for devices in by_host.values()}) == 1
    # A ring in the order of devices leaves a host once and enters it once, and links carry both ways at once: each
    # group that leaves a host takes one share of its network cards.
    shares = max(leaving)
    across = Link(cluster.network.bandwidth / shares, cluster.network.latency) if shares else None
    inside = _measure_inside(cluster, topology, shape, parts)
    has_tree = not isinstance(topology, Torus)
    return AxisGroup(axes, len(groups[0]), num_hosts, most, inside, across, link.bandwidth, has_tree, is_even)


def _measure_inside(
    cluster: Cluster, topology: Topology, shape: SubmeshShape, parts: Sequence[Sequence[Group]]
) -> Flow:
    """The worst flow of the parts of groups on one host."""
    link, per_host = cluster.hosts[0].link, cluster.devices_per_host
    if isinstance(topology, Switch):
        largest = max((part for host in parts for part in host), key=len)
        return measure_flow(topology, (largest,), link)
    if isinstance(topology, Torus):
        # Groups of one set of axes are alike but for where they are.
        first = max(parts[0], key=len)
        return measure_flow(topology, (first,), link)
    offsets = range(0, per_host - shape.devices_per_host + 1, shape.devices_per_host)
    return worst_flow([
        measure_flow(topology, [tuple(d + offset for d in part) for part in host], link)
        for host in {tuple(host) for host in parts}
        for offset in offsets
    ])  # fmt: skip
