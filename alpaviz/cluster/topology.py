"""How the devices of one host are joined, and what groups of them get when all communicate at once.

All figures are shares of `Host.link.bandwidth`, so that a host with quicker links has the same topology.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

from alpaviz.cluster.description import Link

Group = tuple[int, ...]
"""Devices of one host, by number, in the order of their ring."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Every device has one port of the host's link bandwidth to a switch that never blocks, such as NVSwitch."""


@dataclass(frozen=True, slots=True)
class DirectLinks:
    """Devices joined pair by pair: the hybrid cube mesh of V100, the full mesh of MI300X.

    Attributes:
        links_per_device: the host's link bandwidth is that of so many links.
        pairs: (device, device, links between them); each link carries its bandwidth both ways at once.
        detour: what a pair without a link gets, as a share of the host's link bandwidth (over PCIe and the processors).
    """

    links_per_device: int
    pairs: tuple[tuple[int, int, int], ...]
    detour: float


@dataclass(frozen=True, slots=True)
class Bridges:
    """PCIe: devices on bridges (sockets), each device with its own port, and a slower way from bridge to bridge.

    Attributes:
        devices_per_bridge: devices 0 .. n-1 are on the first, and so on.
        across: what one bridge has to the others, one way, as a share of the host's link bandwidth.
    """

    devices_per_bridge: int
    across: float


@dataclass(frozen=True, slots=True)
class Torus:
    """A grid of chips, each joined to its neighbours; device numbers are row-major.

    Attributes:
        dims: chips along each dimension.
        wraps: whether the last chip of a dimension is joined to its first.
    """

    dims: tuple[int, ...]
    wraps: tuple[bool, ...]


_MOST_STEPS = 50_000
"""Steps of the search for rings: hosts of eight devices need a few hundred."""

Topology = Switch | DirectLinks | Bridges | Torus


@dataclass(frozen=True, slots=True)
class Flow:
    """What one group of devices of one host gets while all groups like it communicate.

    Attributes:
        ring: bytes/s at which data goes round in a ring collective: an all-gather of S bytes takes (n-1)/n S/ring.
        exchange: bytes/s at which each device sends to all others at once: an all-to-all takes (n-1)/n S/exchange.
        permute: bytes/s of the slowest device of a collective-permute, whichever device sends to whichever.
        hops: links that data passes one after another in a ring collective; n-1 unless it goes several ways at once.
        latency: seconds of a hop.
    """

    ring: float
    exchange: float
    permute: float
    hops: int
    latency: float


def measure_flow(topology: Topology, groups: Sequence[Group], link: Link) -> Flow:
    """The flow of the worst of `groups`, disjoint sets of devices of one host that communicate at once."""
    return worst_flow([_measure_group(topology, group, groups, link) for group in groups])


def worst_flow(flows: Sequence[Flow]) -> Flow:
    """The least bandwidths and the most hops of `flows`."""
    least = {f.name: min(getattr(flow, f.name) for flow in flows) for f in fields(Flow)}
    return Flow(least["ring"], least["exchange"], least["permute"], max(f.hops for f in flows), flows[0].latency)


def _measure_group(topology: Topology, group: Group, groups: Sequence[Group], link: Link) -> Flow:
    n, full = len(group), link.bandwidth
    match topology:
        case DirectLinks() if n > 1:
            ring, exchange, permute = _measure_direct(topology, group)
        case Bridges() if n > 1:
            ring, exchange, permute = _measure_bridges(topology, groups, n)
        case Torus() if n > 1:
            ring, exchange, permute, hops = _measure_torus(topology, group)
            return Flow(ring * full, exchange * full, permute * full, hops, link.latency)
        case _:
            ring = exchange = permute = 1.0
    return Flow(ring * full, exchange * full, permute * full, n - 1, link.latency)


# Direct links


@lru_cache(maxsize=4096)
def _measure_direct(topology: DirectLinks, group: Group) -> tuple[float, float, float]:
    """(ring, exchange, permute) as shares of the link bandwidth.

    Rings are as many as links allow, each run in both directions, as NCCL lays its channels.
    """
    n, one = len(group), 1 / topology.links_per_device
    links = {frozenset((a, b)): count for a, b, count in topology.pairs}
    between = {(a, b): links.get(frozenset((a, b)), 0) for a in group for b in group if a != b}
    slowest = min(between.values()) * one or topology.detour
    if n == 2:
        return slowest, slowest, slowest
    rings = _count_rings(group, {pair: count for pair, count in between.items() if pair[0] < pair[1]})
    return 2 * rings * one or topology.detour, (n - 1) * slowest, slowest


def _count_rings(group: Group, links: dict[tuple[int, int], int]) -> int:
    """The most rings through all devices of `group` that use no link twice."""
    degree = [sum(count for pair, count in links.items() if device in pair) for device in group]
    best, most, steps = 0, min(degree) // 2, 0

    def extend(path: list[int], found: int) -> None:
        nonlocal best, steps
        steps += 1
        if best == most or steps > _MOST_STEPS:
            return
        if len(path) == len(group):
            last = _pair(path[-1], path[0])
            if links[last] > 0:
                links[last] -= 1
                best = max(best, found + 1)
                extend([group[0]], found + 1)
                links[last] += 1
            return
        for device in group:
            if device not in path and links[pair := _pair(path[-1], device)] > 0:
                links[pair] -= 1
                extend([*path, device], found)
                links[pair] += 1

    extend([group[0]], 0)
    return best


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


# Bridges


def _measure_bridges(topology: Bridges, groups: Sequence[Group], n: int) -> tuple[float, float, float]:
    """(ring, exchange, permute) of a group of `n` as shares of the link bandwidth, the busiest bridge deciding."""
    crossing, leaving, sending = 0, 0.0, 0
    for bridge in {device // topology.devices_per_bridge for group in groups for device in group}:
        here = [sum(device // topology.devices_per_bridge == bridge for device in group) for group in groups]
        parts = [m for m in here if 0 < m < n]
        crossing = max(crossing, len(parts))  # a ring enters and leaves a bridge once
        leaving = max(leaving, sum(m * (n - m) / n for m in parts))
        sending = max(sending, sum(min(m, n - m) for m in parts))
    if not crossing:
        return 1.0, 1.0, 1.0
    across = topology.across
    return min(1.0, across / crossing), min(1.0, (n - 1) / n * across / leaving), min(1.0, across / sending)


# Torus


@lru_cache(maxsize=4096)
def _measure_torus(topology: Torus, group: Group) -> tuple[float, float, float, int]:
    """(ring, exchange, permute) as multiples of one link's bandwidth, and hops.

    A box of chips runs its collectives along all its dimensions at once, each with a part of the data, and both ways
    round where a dimension wraps around. Chips `s` apart share their links with s-1 groups like theirs.

    Source: jax-ml/scaling-book, sharding.md: an all-gather takes V/W over each dimension's bidirectional bandwidth W,
    twice that without wrap-around; an all-to-all a quarter of an all-gather.
    """
    n, box = len(group), _find_box(topology, group)
    if box is None:
        # No box: a ring in the order of the numbers, all through one link at worst.
        return 1 / n, 1 / n, 1 / n, (n - 1) * max(topology.dims)
    ring, exchange, permute, hops = 0.0, 0.0, 0.0, 0
    for extent, stride, wraps in box:
        ring += (2 if wraps else 1) / stride
        # What passes the middle of a line of chips that all hold S: from half of them to the other half S/2 each.
        middle = extent // 2 * ((extent + 1) // 2) / extent * stride / (2 if wraps else 1)
        exchange = max(exchange, middle)
        permute = max(permute, extent // 2 * stride / (2 if wraps else 1))
        hops += (extent // 2 if wraps else extent - 1) * stride
    return ring, (n - 1) / n / exchange, 1 / max(permute, 1.0), hops


def _find_box(topology: Torus, group: Group) -> list[tuple[int, int, bool]] | None:
    """(extent, stride, whether it wraps around) of each dimension that `group` extends in; None if it is no box."""
    places = [_locate(topology, device) for device in group]
    box, count = [], 1
    for d, (size, wraps) in enumerate(zip(topology.dims, topology.wraps)):
        along = sorted({place[d] for place in places})
        if len(along) == 1:
            continue
        strides = {b - a for a, b in itertools.pairwise(along)}
        if len(strides) > 1:
            return None
        stride = strides.pop()
        box.append((len(along), stride, wraps and len(along) * stride == size))
        count *= len(along)
    return box if count == len(group) else None


def _locate(topology: Torus, device: int) -> tuple[int, ...]:
    place = []
    for size in reversed(topology.dims):
        device, at = divmod(device, size)
        place.append(at)
    return tuple(reversed(place))


def check_topology(topology: Topology, num_devices: int) -> str:
    """What is wrong with `topology` for a host of `num_devices`; empty if nothing."""
    match topology:
        case DirectLinks():
            missing = [d for d in range(num_devices) if not any(d in pair[:2] for pair in topology.pairs)]
            wrong = [pair for pair in topology.pairs if not 0 <= min(pair[:2]) < max(pair[:2]) < num_devices]
            if wrong:
                return f"pairs names {list(wrong[0])}, but a pair is two of the devices 0 to {num_devices - 1}"
            if missing and num_devices > 1:
                return f"device {missing[0]} has no link: give it one in pairs"
        case Bridges():
            if topology.devices_per_bridge > num_devices:
                return f"devices_per_bridge is {topology.devices_per_bridge} devices, the host has {num_devices}"
        case Torus():
            if (count := math.prod(topology.dims)) != num_devices:
                return f"dims {'x'.join(map(str, topology.dims))} has {count} devices, not {num_devices}"
    return ""
