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

from alpaviz.intra.problem import Edge, FloatArray, MemoryRow, ShardingProblem

FORBIDDEN = 1e18


def read_iopddl(path: Path) -> ShardingProblem:
    """The problem in a `.json` or `.json.gz` file; one memory row per time at which a larger set of nodes is alive."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    content: dict[str, Any] = json.loads(raw)["problem"]
    nodes = content["nodes"]
    unary = tuple(_forbid(np.array(costs, dtype=np.float64)) for costs in nodes["costs"])
    return ShardingProblem(unary, _read_edges(content["edges"], unary), _read_rows(nodes, content.get("usage_limit")))


def _forbid(cost: FloatArray) -> FloatArray:
    return np.where(cost >= FORBIDDEN, np.inf, cost)


def _read_edges(edges: dict[str, Any], unary: tuple[FloatArray, ...]) -> tuple[Edge, ...]:
    """One edge per pair of nodes: parallel ones are added up."""
    merged: dict[tuple[int, int], FloatArray] = {}
    for (u, v), costs in zip(edges["nodes"], edges["costs"], strict=True):
        cost = _forbid(np.array(costs, dtype=np.float64)).reshape(len(unary[u]), len(unary[v]))
        key, cost = ((u, v), cost) if u < v else ((v, u), cost.T)
        merged[key] = merged[key] + cost if key in merged else cost
    return tuple(Edge(u, v, cost) for (u, v), cost in merged.items())


def _read_rows(nodes: dict[str, Any], limit: float | None) -> tuple[MemoryRow, ...]:
    """Rows at the starts of intervals, those left out whose nodes are all alive at a kept neighbour too."""
    if limit is None:
        return ()
    intervals = nodes["intervals"]
    usage = [np.array(u, dtype=np.float64) for u in nodes["usages"]]
    counted = [i for i, (start, end) in enumerate(intervals) if end > start and usage[i].any()]
    starting: dict[int, list[int]] = {}
    for i in counted:
        starting.setdefault(intervals[i][0], []).append(i)
    alive: list[int] = []
    rows: list[MemoryRow] = []
    times = sorted(starting)
    for time, following in zip(times, [*times[1:], None], strict=True):
        alive = [i for i in alive if intervals[i][1] > time] + starting[time]
        # Where nobody has left by the next start, the next row holds all of this one.
        if following is not None and all(intervals[i][1] > following for i in alive):
            continue
        members = tuple(sorted(alive))
        rows.append(MemoryRow(f"time {time}", members, tuple(usage[i] for i in members), float(limit)))
    return tuple(rows)
