"""Reads the sharding problems of google/iopddl (ASPLOS/EuroSys 2025 contest): a public benchmark of our solvers.

Nodes have strategies with costs and usages, edges have cost matrices, and at every time the usages of the nodes alive
then sum to at most the limit. Half-open intervals; a cost of 1e18 forbids.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from alpaviz.intra.problem import Edge, FloatArray, MemoryProfile, ShardingProblem

FORBIDDEN = 1e18


def read_iopddl(path: Path) -> ShardingProblem:
    """The problem in a `.json` or `.json.gz` file."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    content: dict[str, Any] = json.loads(raw)["problem"]
    nodes = content["nodes"]
    unary = tuple(_forbid(np.array(costs, dtype=np.float64)) for costs in nodes["costs"])
    profile = _read_profile(nodes, content.get("usage_limit"))
    return ShardingProblem(unary, _read_edges(content["edges"], unary), profile=profile)


def _forbid(cost: FloatArray) -> FloatArray:
    cost[cost >= FORBIDDEN] = np.inf
    return cost


def _read_edges(edges: dict[str, Any], unary: tuple[FloatArray, ...]) -> tuple[Edge, ...]:
    """One edge per pair of nodes: parallel ones are added up."""
    merged: dict[tuple[int, int], FloatArray] = {}
    for (u, v), costs in zip(edges["nodes"], edges["costs"], strict=True):
        cost = _forbid(np.array(costs, dtype=np.float64)).reshape(len(unary[u]), len(unary[v]))
        key, cost = ((u, v), cost) if u < v else ((v, u), cost.T)
        merged[key] = merged[key] + cost if key in merged else cost
    return tuple(Edge(u, v, cost) for (u, v), cost in merged.items())


def _read_profile(nodes: dict[str, Any], limit: float | None) -> MemoryProfile | None:
    if limit is None:
        return None
    intervals = np.array(nodes["intervals"], dtype=np.int64).reshape(-1, 2)
    usage = tuple(np.array(u, dtype=np.float64) for u in nodes["usages"])
    return MemoryProfile(intervals[:, 0].copy(), intervals[:, 1].copy(), usage, float(limit))
