"""A tiny event simulation of messages over links, and the messages of collective algorithms.

A link carries one message at a time in the order in which they come, each for bytes/bandwidth seconds; it arrives
`latency` later and may then go on over the next link of its way. A message starts when all that it waits for arrived.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from alpaviz.cluster import Cluster

LinkName = tuple[object, ...]


@dataclass
class Simulation:
    """Links by name as (bytes/s, seconds); messages as (way, bytes, numbers of the messages that it waits for)."""

    links: dict[LinkName, tuple[float, float]]
    messages: list[tuple[tuple[LinkName, ...], float, tuple[int, ...]]] = field(default_factory=list)

    def send(self, way: Iterable[LinkName], num_bytes: float, after: Iterable[int] = ()) -> int:
        """The number of a new message."""
        self.messages.append((tuple(way), num_bytes, tuple(after)))
        return len(self.messages) - 1

    def run(self) -> float:
        """Seconds until the last message has arrived."""
        waiting = [len(after) for _, _, after in self.messages]
        followers: list[list[int]] = [[] for _ in self.messages]
        for number, (_, _, after) in enumerate(self.messages):
            for other in after:
                followers[other].append(number)
        free = dict.fromkeys(self.links, 0.0)
        events = [(0.0, number, 0) for number, count in enumerate(waiting) if not count]
        heapq.heapify(events)
        end = 0.0
        while events:
            time, number, hop = heapq.heappop(events)
            way, num_bytes, _ = self.messages[number]
            if hop < len(way):
                bandwidth, latency = self.links[way[hop]]
                free[way[hop]] = max(time, free[way[hop]]) + num_bytes / bandwidth
                heapq.heappush(events, (free[way[hop]] + latency, number, hop + 1))
                continue
            end = max(end, time)
            for follower in followers[number]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(events, (time, follower, 0))
        assert not any(waiting), "messages wait for each other"
        return end


Route = Callable[[int, int], tuple[LinkName, ...]]
"""The links from one device to another."""


def build_switched(cluster: Cluster) -> tuple[Simulation, Route]:
    """Devices on a switch in each host, and one card for each host, both ways at once; numbers are row-major."""
    per_host, inside, network = cluster.devices_per_host, cluster.hosts[0].link, cluster.network
    links: dict[LinkName, tuple[float, float]] = {}
    for device in range(cluster.num_devices):
        links["out", device] = inside.bandwidth, inside.latency
    for host in range(cluster.num_hosts):
        links["card", host] = network.bandwidth, network.latency

    def route(source: int, target: int) -> tuple[LinkName, ...]:
        if source // per_host == target // per_host:
            return (("out", source),)
        return (("card", source // per_host),)

    return Simulation(links), route


def build_torus(
    dims: Sequence[int], wraps: Sequence[bool], bandwidth: float, latency: float
) -> tuple[Simulation, Route]:
    """Chips with a link each way to each neighbour; messages go along the first dimension first, the shorter way."""
    links: dict[LinkName, tuple[float, float]] = {}
    places: list[tuple[int, ...]] = [()]
    for size in dims:
        places = [(*place, at) for place in places for at in range(size)]

    def step(place: tuple[int, ...], d: int, by: int) -> tuple[int, ...]:
        return (*place[:d], (place[d] + by) % dims[d], *place[d + 1 :])

    for place in places:
        for d in range(len(dims)):
            for by in (1, -1):
                if wraps[d] or 0 <= place[d] + by < dims[d]:
                    links[place, d, by] = bandwidth, latency

    def route(source: int, target: int) -> tuple[LinkName, ...]:
        at, end = places[source], places[target]
        way: list[LinkName] = []
        for d, size in enumerate(dims):
            ahead = (end[d] - at[d]) % size
            # Halfway round either way is as short: every second chip takes the other.
            is_shorter = ahead < size - ahead or (2 * ahead == size and at[d] % 2 == 0)
            by = 1 if (is_shorter if wraps[d] else end[d] > at[d]) else -1
            while at[d] != end[d]:
                way.append((at, d, by))
                at = step(at, d, by)
        return tuple(way)

    return Simulation(links), route


def add_ring(
    simulation: Simulation, route: Route, devices: Sequence[int], num_bytes: float, rounds: int = 1, pieces: int = 1
) -> None:
    """All-gather or reduce-scatter (one round), or all-reduce (two): each device's part goes once or twice round."""
    n = len(devices)
    for start in range(n):
        for _ in range(pieces):
            after: tuple[int, ...] = ()
            for hop in range(rounds * (n - 1)):
                way = route(devices[(start + hop) % n], devices[(start + hop + 1) % n])
                after = (simulation.send(way, num_bytes / n / pieces, after),)


def add_pairwise_exchange(simulation: Simulation, route: Route, devices: Sequence[int], num_bytes: float) -> None:
    """All-to-all: in round r device i sends to device i + r, once its message of the round before has arrived."""
    n = len(devices)
    for i in range(n):
        after: tuple[int, ...] = ()
        for r in range(1, n):
            after = (simulation.send(route(devices[i], devices[(i + r) % n]), num_bytes / n, after),)


def add_tree(
    simulation: Simulation, route: Route, hosts: Sequence[Sequence[int]], num_bytes: float, pieces: int
) -> None:
    """All-reduce in two binary trees of hosts, each with half of the bytes, and along a chain in each host."""
    count = len(hosts)
    for mirrored in (False, True):
        order = list(range(count))[:: -1 if mirrored else 1]
        parents = _build_tree(count)
        for _ in range(pieces):
            _add_tree_piece(simulation, route, [hosts[i] for i in order], parents, num_bytes / 2 / pieces)


def _build_tree(count: int) -> list[int | None]:
    """The parent of each: an in-order binary tree, in which every second one is a leaf.

    Turned round, a tree of an even number has inner nodes where this one has leaves.
    """
    parents: list[int | None] = []
    for i in range(count):
        bit = 1
        while i and not i & bit:
            bit <<= 1
        if i == 0:
            parents.append(None)
        else:
            up = (i ^ bit) | (bit << 1)
            parents.append(up if up < count else i ^ bit)
    return parents


def _add_tree_piece(
    simulation: Simulation, route: Route, hosts: list[Sequence[int]], parents: list[int | None], num_bytes: float
) -> None:
    children: list[list[int]] = [[i for i, p in enumerate(parents) if p == host] for host in range(len(hosts))]

    def go_up(host: int) -> list[int]:
        arrived = [send_up(child) for child in children[host]]
        chain: list[int] = []
        for far, near in itertools.pairwise(reversed(hosts[host])):
            chain = [simulation.send(route(far, near), num_bytes, chain)]
        return arrived + chain

    def send_up(host: int) -> int:
        ready = go_up(host)
        parent = parents[host]
        assert parent is not None
        return simulation.send(route(hosts[host][0], hosts[parent][0]), num_bytes, ready)

    def go_down(host: int, ready: list[int]) -> None:
        for child in children[host]:
            go_down(child, [simulation.send(route(hosts[host][0], hosts[child][0]), num_bytes, ready)])
        for near, far in itertools.pairwise(hosts[host]):
            ready = [simulation.send(route(near, far), num_bytes, ready)]

    root = parents.index(None)
    go_down(root, go_up(root))


def add_hierarchical(simulation: Simulation, route: Route, hosts: Sequence[Sequence[int]], num_bytes: float) -> None:
    """All-reduce: reduce-scatter in each host, all-reduce rings over hosts, all-gather in each host."""
    p, count = len(hosts[0]), len(hosts)
    arrived: dict[int, list[int]] = {}
    for devices in hosts:
        for start in range(p):
            after: list[int] = []
            for hop in range(p - 1):
                target = devices[(start + hop + 1) % p]
                after = [simulation.send(route(devices[(start + hop) % p], target), num_bytes / p, after)]
            arrived[devices[(start + p - 1) % p]] = after
    done: dict[int, list[int]] = {device: [] for device in arrived}
    for place in range(p):
        ring = [devices[place] for devices in hosts]
        for start in range(count):
            after = arrived[ring[start]]
            for hop in range(2 * (count - 1)):
                target = ring[(start + hop + 1) % count]
                way = route(ring[(start + hop) % count], target)
                after = [simulation.send(way, num_bytes / p / count, after + (arrived[target] if hop < count else []))]
                if hop >= count - 2:
                    done[target] += after
    for devices in hosts:
        for start in range(p):
            after = done[devices[start]]
            for hop in range(p - 1):
                way = route(devices[(start + hop) % p], devices[(start + hop + 1) % p])
                after = [simulation.send(way, num_bytes / p, after)]
