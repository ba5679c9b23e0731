"""Algorithms of collectives as lines: (seconds, seconds/byte), for a group of devices all of whose likes communicate.

Throughout, n is the number of devices, h that of hosts, p = n/h that of a group's devices on one host; a and B are
latency in seconds and bandwidth in bytes/s, inside a host and of the group's share of the network cards. Bytes are
those of `alpaviz.cost.Collective`. Data goes on in pieces that are small against the whole, so a collective takes as
long as its busiest link, and the latencies of one piece's way.
"""

from __future__ import annotations

from alpaviz.cluster.mesh import AxisGroup
from alpaviz.types import CollectiveKind

Line = tuple[float, float]
"""Seconds, and seconds/byte."""


def ring(kind: CollectiveKind, group: AxisGroup) -> Line:
    """All-gather, reduce-scatter or all-reduce in a ring through the devices in order, which enters each host once.

    In a host: (n-1) a + (n-1)/n S/B; an all-reduce is a reduce-scatter and an all-gather, twice that. Over hosts the
    piece that goes furthest leaves out one link only, one inside a host if there is any: h of its links are network.

    Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, 2005,
    sections 4.1 and 4.4 (ring); latencies of mixed links as in NVIDIA/nccl, src/graph/tuning.cc. On a torus: jax-ml
    scaling-book, sharding.md.
    """
    n, rounds = group.size, 2 if kind == "all-reduce" else 1
    if group.across is None:
        latency = group.inside.hops * group.inside.latency
    else:
        crossing = min(group.num_hosts, n - 1)
        latency = crossing * group.across.latency + (n - 1 - crossing) * group.inside.latency
    return rounds * latency, rounds * (n - 1) / n / group.link.bandwidth


def tree(group: AxisGroup) -> Line:
    """All-reduce over hosts in two binary trees, each with half of the data; in a host, along a chain.

    Up and down at once: 2 (ceil(log2 h) a_network + (p-1) a_host). A host that is an inner node of one tree is a leaf
    of the other, so it sends 2 S: two halves up, two halves down. Of two hosts each is the other's root: S.
    (An odd number of hosts sends less than 2 S: of three, 1.7.)

    Source: Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009;
    NVIDIA, Massively scale your deep learning training with NCCL 2.4, 2019.
    """
    assert group.across is not None, "in one host a tree is a chain, which a ring beats"
    levels = (group.num_hosts - 1).bit_length()
    latency = 2 * (levels * group.across.latency + (group.per_host - 1) * group.inside.latency)
    network = min(group.across.bandwidth, group.port)
    per_byte = (1 if group.num_hosts == 2 else 2) / network
    return latency, max(per_byte, 1 / group.inside.ring) if group.per_host > 1 else per_byte


def hierarchical(group: AxisGroup) -> Line:
    """All-reduce over hosts: reduce-scatter in each, all-reduce of each device's part between them, all-gather in each.

    2 (p-1) a_host + 2 (h-1) a_network + 2 (p-1)/p S/B_host + 2 (h-1)/h S/B_network: p rings, each of S/p, share what
    the group has of the network.

    Source: Cho et al., BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy, 2019.
    """
    assert group.across is not None, "there are no hosts to go between"
    p, h = group.per_host, group.num_hosts
    network = min(group.across.bandwidth, p * group.port)
    latency = 2 * (group.inside.hops * group.inside.latency + (h - 1) * group.across.latency)
    return latency, 2 * (p - 1) / p / group.inside.ring + 2 * (h - 1) / h / network


def pairwise_exchange(group: AxisGroup) -> Line:
    """All-to-all: each device sends 1/n of its S bytes to each other device, in n-1 rounds.

    In a host (n-1) a + (n-1)/n S/B. Over hosts the cards carry what all p devices of a host send off it, p (n-p)/n S.

    Source: Thakur, Rabenseifner and Gropp 2005, section 4.2 (pairwise exchange); on a torus, what passes its middle.
    """
    n, p = group.size, group.per_host
    if group.across is None:
        return group.inside.hops * group.inside.latency, (n - 1) / n / group.inside.exchange
    latency = (n - p) * group.across.latency + (p - 1) * group.inside.latency
    staying = (p - 1) / n / group.inside.exchange
    return latency, max(staying, p * (n - p) / n / group.across.bandwidth, (n - p) / n / group.port)


def permute(group: AxisGroup) -> Line:
    """Collective-permute: each device sends its S bytes to one other, at worst all of a host's to other hosts.

    a + S/B, and over hosts a + p S/B of the network. On a torus the data passes up to all hops of the group's box.

    Source: the alpha-beta model, Hockney, The communication challenge for MPP, 1994.
    """
    if group.across is None:
        hops = 1 if group.has_tree else group.inside.hops
        return hops * group.inside.latency, 1 / group.inside.permute
    return group.across.latency, max(group.per_host / group.across.bandwidth, 1 / group.port)
