"""From one sharding spec to another: the cheapest sequence of slices, all-gathers, all-to-alls and permutes.

Specs are states, and four kinds of step join them: a slice splits a dimension further and is free; an all-gather
undoes the last axes of a dimension; an all-to-all moves the last axis of one dimension to the end of another; a
collective-permute rearranges axes where every dimension keeps its number of shards. Each step is one that XLA makes as
exactly one collective. The cheapest path is found by Dijkstra's algorithm.

Source: Zheng et al. 2022, table 2, extended to meshes of any rank.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.cost.collectives import Collective, price_collective
from alpaviz.types import MeshAxis, ShardingSpec, count_shards

_STEP_S = 1e-12
"""Cost of a free step, so that of two free paths the shorter is taken."""


@dataclass(frozen=True, slots=True)
class ReshardingStep:
    """`collective` (None: a free slice) leads to `spec_after`."""

    collective: Collective | None
    spec_after: ShardingSpec


_Paths = dict[ShardingSpec, tuple[float, tuple[ReshardingStep, ...]]]


def plan_resharding(
    shape: tuple[int, ...], itemsize: int, held: ShardingSpec, wanted: ShardingSpec, mesh: LogicalMesh
) -> tuple[ReshardingStep, ...]:
    """The cheapest steps from `held` to `wanted`; none where they are equal but for axes of one device.

    Raises:
        KeyError: `wanted` splits a dimension that its axes do not divide.
    """
    held, wanted = drop_single(held, mesh), drop_single(wanted, mesh)
    return () if held == wanted else _find_paths(shape, itemsize, held, mesh)[wanted][1]


def price_resharding(
    shape: tuple[int, ...], itemsize: int, held: ShardingSpec, wanted: ShardingSpec, mesh: LogicalMesh
) -> float:
    """Seconds of the cheapest steps from `held` to `wanted`."""
    held, wanted = drop_single(held, mesh), drop_single(wanted, mesh)
    return 0.0 if held == wanted else _charge(_find_paths(shape, itemsize, held, mesh)[wanted][0])


def price_resharding_matrix(
    shape: tuple[int, ...],
    itemsize: int,
    held: Sequence[ShardingSpec],
    wanted: Sequence[ShardingSpec],
    mesh: LogicalMesh,
) -> npt.NDArray[np.float64]:
    """Seconds from each of `held` to each of `wanted`: (held, wanted)."""
    result = np.zeros((len(held), len(wanted)))
    targets = [drop_single(spec, mesh) for spec in wanted]
    for i, spec in enumerate(held):
        source = drop_single(spec, mesh)
        paths = _find_paths(shape, itemsize, source, mesh)
        for j, target in enumerate(targets):
            if target != source:
                result[i, j] = _charge(paths[target][0])
    return result


def _charge(cost: float) -> float:
    return cost if cost > 1e-9 else 0.0


def drop_single(spec: ShardingSpec, mesh: LogicalMesh) -> ShardingSpec:
    """`spec` without axes of one device."""
    sizes = mesh.axis_sizes
    return tuple(tuple(axis for axis in axes if sizes[axis] > 1) for axes in spec)


@lru_cache(maxsize=50_000)
def _find_paths(shape: tuple[int, ...], itemsize: int, held: ShardingSpec, mesh: LogicalMesh) -> _Paths:
    """The cheapest path from `held` to every spec."""
    full = float(itemsize)
    for size in shape:
        full *= size
    done: _Paths = {}
    counter = itertools.count()
    queue: list[tuple[float, int, ShardingSpec, tuple[ReshardingStep, ...]]] = [(0.0, next(counter), held, ())]
    while queue:
        cost, _, spec, path = heapq.heappop(queue)
        if spec in done:
            continue
        done[spec] = (cost, path)
        for step in _list_steps(shape, full, spec, mesh):
            if step.spec_after not in done:
                price = _STEP_S
                if step.collective is not None:
                    c = step.collective
                    price += price_collective(c.kind, c.num_bytes, mesh, c.axes)
                heapq.heappush(queue, (cost + price, next(counter), step.spec_after, (*path, step)))
    return done


def _list_steps(shape: tuple[int, ...], full: float, spec: ShardingSpec, mesh: LogicalMesh) -> Iterator[ReshardingStep]:
    sizes = mesh.axis_sizes
    local = full / count_shards(spec, sizes)
    used = {axis for axes in spec for axis in axes}
    for axis in mesh.axis_names:
        if axis in used or sizes[axis] == 1:
            continue
        for d in range(len(shape)):
            split = _append(spec, d, axis)
            if shape[d] % count_shards((split[d],), sizes) == 0:
                yield ReshardingStep(None, split)
    for d, axes in enumerate(spec):
        for start in range(len(axes)):
            gathered = (*spec[:d], axes[:start], *spec[d + 1 :])
            size = full / count_shards(gathered, sizes)
            yield ReshardingStep(Collective("all-gather", axes[start:], size), gathered)
        if axes:
            shorter = (*spec[:d], axes[:-1], *spec[d + 1 :])
            for e in range(len(shape)):
                moved = _append(shorter, e, axes[-1])
                if e != d and shape[e] % count_shards((moved[e],), sizes) == 0:
                    yield ReshardingStep(Collective("all-to-all", (axes[-1],), local), moved)
    yield from _list_permutes(spec, local, mesh)


def _append(spec: ShardingSpec, dim: int, axis: MeshAxis) -> ShardingSpec:
    return (*spec[:dim], (*spec[dim], axis), *spec[dim + 1 :])


def _list_permutes(spec: ShardingSpec, local: float, mesh: LogicalMesh) -> Iterator[ReshardingStep]:
    """Other arrangements of axes under which every dimension has as many shards, so every device holds one shard."""
    sizes = mesh.axis_sizes
    flat = [axis for axes in spec for axis in axes]
    if len(flat) < 1:
        return
    counts = [count_shards((axes,), sizes) for axes in spec]
    pool = [axis for axis in mesh.axis_names if sizes[axis] > 1]
    for arrangement in itertools.permutations(pool, len(flat)):
        if list(arrangement) == flat:
            continue
        axes_left = iter(arrangement)
        candidate = tuple(tuple(next(axes_left) for _ in axes) for axes in spec)
        if [count_shards((axes,), sizes) for axes in candidate] == counts:
            involved = tuple(axis for axis in mesh.axis_names if axis in set(flat) | set(arrangement))
            yield ReshardingStep(Collective("collective-permute", involved, local), candidate)
