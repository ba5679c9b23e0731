"""From one sharding spec to another: the cheapest sequence of slices, all-gathers, all-to-alls and permutes.

Specs are states, and four kinds of step join them: a slice splits a dimension further and is free; an all-gather
undoes the last axes of a dimension; an all-to-all moves the last axes of one dimension to the end of another; a
collective-permute rearranges axes where every dimension keeps its number of shards. Each step is one that XLA makes as
exactly one collective. All cheapest paths are found at once (Floyd and Warshall) and kept.

Source: Zheng et al. 2022, table 2, extended to meshes of any rank.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.cost.collectives import Collective, list_lines
from alpaviz.errors import IndivisibleShardError
from alpaviz.types import CollectiveKind, MeshAxis, ShardingSpec, count_shards, format_spec, list_axes

_STEP_S = 1e-12
"""Added to every step when paths are compared, so that of two equally cheap paths the shorter is taken."""


@dataclass(frozen=True, slots=True)
class ReshardingStep:
    """`collective` (None: a free slice) leads to `spec_after`."""

    collective: Collective | None
    spec_after: ShardingSpec


def plan_resharding(
    shape: tuple[int, ...], itemsize: int, held: ShardingSpec, wanted: ShardingSpec, mesh: LogicalMesh
) -> tuple[ReshardingStep, ...]:
    """The cheapest steps from `held` to `wanted`; none where they are equal but for axes of one device.

    Raises:
        IndivisibleShardError: a spec splits a dimension that its axes do not divide.
    """
    graph, num_bytes = _find_graph(shape, mesh), float(math.prod(shape) * itemsize)
    at, end = (_find_state(graph, shape, spec, mesh) for spec in (held, wanted))
    paths = _find_paths(graph, num_bytes)
    steps = []
    while at != end:
        at_next = int(paths.following[at, end])
        edge = graph.edges[at, at_next]
        collective = None if edge.kind is None else Collective(edge.kind, edge.axes, num_bytes * edge.share)
        steps.append(ReshardingStep(collective, graph.states[at_next]))
        at = at_next
    return tuple(steps)


def price_resharding(
    shape: tuple[int, ...], itemsize: int, held: ShardingSpec, wanted: ShardingSpec, mesh: LogicalMesh
) -> float:
    """Seconds of the cheapest steps from `held` to `wanted`. Raises as `plan_resharding`."""
    return float(price_resharding_matrix(shape, itemsize, (held,), (wanted,), mesh)[0, 0])


def price_resharding_matrix(
    shape: tuple[int, ...],
    itemsize: int,
    held: Sequence[ShardingSpec],
    wanted: Sequence[ShardingSpec],
    mesh: LogicalMesh,
) -> npt.NDArray[np.float64]:
    """Seconds from each of `held` to each of `wanted`: (held, wanted). Raises as `plan_resharding`."""
    graph = _find_graph(shape, mesh)
    rows = [_find_state(graph, shape, spec, mesh) for spec in held]
    columns = [_find_state(graph, shape, spec, mesh) for spec in wanted]
    return _find_paths(graph, float(math.prod(shape) * itemsize)).seconds[np.ix_(rows, columns)]


def drop_single(spec: ShardingSpec, mesh: LogicalMesh) -> ShardingSpec:
    """`spec` without axes of one device."""
    sizes = mesh.axis_sizes
    return tuple(tuple(axis for axis in axes if sizes[axis] > 1) for axes in spec)


@dataclass(frozen=True, slots=True)
class _Edge:
    """One step: what it does (None: a slice), over which axes, on which share of the whole value's bytes."""

    kind: CollectiveKind | None
    axes: tuple[MeshAxis, ...]
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    """All specs of a value on a mesh and the single steps between them, whatever the value's size."""

    mesh: LogicalMesh
    states: tuple[ShardingSpec, ...]
    index: dict[ShardingSpec, int]
    edges: dict[tuple[int, int], _Edge]


@dataclass(frozen=True, slots=True, eq=False)
class _Paths:
    """Cheapest paths: (from, to) -> seconds, and the state that follows `from` on the way."""

    seconds: npt.NDArray[np.float64]
    following: npt.NDArray[np.int32]


def _find_state(graph: _Graph, shape: tuple[int, ...], spec: ShardingSpec, mesh: LogicalMesh) -> int:
    state = graph.index.get(spec)
    if state is None:
        state = graph.index.get(drop_single(spec, mesh))
    if state is None:
        raise IndivisibleShardError(
            f"spec {format_spec(spec)} does not split a value of shape {shape} over the mesh axes {mesh.axis_sizes} "
            "into equal shards. Split another dimension, or pad this one."
        )
    return state


@lru_cache(maxsize=16384)
def _find_graph(shape: tuple[int, ...], mesh: LogicalMesh) -> _Graph:
    """Shapes that the same products of axis sizes divide have one graph."""
    sizes = [n for n in mesh.shape if n > 1]
    products = {math.prod(some) for k in range(len(sizes) + 1) for some in itertools.combinations(sizes, k)}
    return _build_graph(mesh, tuple(frozenset(p for p in products if size % p == 0) for size in shape))


@lru_cache(maxsize=1024)
def _build_graph(mesh: LogicalMesh, divisors: tuple[frozenset[int], ...]) -> _Graph:
    """All specs that split dimension d into one of `divisors[d]` shards, and the steps between them."""
    states: list[ShardingSpec] = [((),) * len(divisors)]
    index = {states[0]: 0}
    edges: dict[tuple[int, int], _Edge] = {}
    # Every spec is reached by slices from the one that splits nothing, so the list grows while it is walked.
    for number, spec in enumerate(states):
        for edge, after in _list_steps(spec, divisors, mesh):
            if after not in index:
                index[after] = len(states)
                states.append(after)
            edges.setdefault((number, index[after]), edge)
    return _Graph(mesh, tuple(states), index, edges)


@lru_cache(maxsize=2048)
def _find_paths(graph: _Graph, num_bytes: float) -> _Paths:
    """Cheapest paths between all specs of a value of `num_bytes`."""
    n = len(graph.states)
    seconds = np.where(np.eye(n, dtype=bool), 0.0, np.inf)
    compared = seconds.copy()
    following = np.tile(np.arange(n, dtype=np.int32), (n, 1))
    for (a, b), edge in graph.edges.items():
        lines = () if edge.kind is None else list_lines(edge.kind, graph.mesh, edge.axes)
        seconds[a, b] = min((fixed + num_bytes * edge.share * slope for fixed, slope in lines), default=0.0)
        compared[a, b] = seconds[a, b] + _STEP_S
    for middle in range(n):
        through = compared[:, middle, None] + compared[None, middle, :]
        better = through < compared
        compared[better] = through[better]
        seconds[better] = (seconds[:, middle, None] + seconds[None, middle, :])[better]
        following[better] = np.broadcast_to(following[:, middle, None], (n, n))[better]
    seconds.flags.writeable = False
    return _Paths(seconds, following)


def _list_steps(
    spec: ShardingSpec, divisors: tuple[frozenset[int], ...], mesh: LogicalMesh
) -> Iterator[tuple[_Edge, ShardingSpec]]:
    """Everything that one collective, or one slice, makes of `spec`."""
    sizes = mesh.axis_sizes
    local = 1 / count_shards(spec, sizes)
    used = list_axes(spec)
    rank = range(len(spec))

    def append(to: ShardingSpec, d: int, axes: tuple[MeshAxis, ...]) -> Iterator[ShardingSpec]:
        longer = to[d] + axes
        if count_shards((longer,), sizes) in divisors[d]:
            yield _replace(to, d, longer)

    for axis, d in itertools.product(mesh.axis_names, rank):
        if axis not in used and sizes[axis] > 1:
            for after in append(spec, d, (axis,)):
                yield _Edge(None, (), 0.0), after
    for d, axes in enumerate(spec):
        for start in range(len(axes)):
            shorter, last = _replace(spec, d, axes[:start]), axes[start:]
            yield _Edge("all-gather", last, local * count_shards((last,), sizes)), shorter
            for e in rank:
                for after in append(shorter, e, last) if e != d else ():
                    yield _Edge("all-to-all", last, local), after
    yield from _list_permutes(spec, local, mesh)


def _replace(spec: ShardingSpec, d: int, axes: tuple[MeshAxis, ...]) -> ShardingSpec:
    return (*spec[:d], axes, *spec[d + 1 :])


def _list_permutes(spec: ShardingSpec, local: float, mesh: LogicalMesh) -> Iterator[tuple[_Edge, ShardingSpec]]:
    """Other arrangements of axes under which every dimension has as many shards, so every device holds one shard."""
    sizes = mesh.axis_sizes
    flat = list_axes(spec)
    counts = [count_shards((axes,), sizes) for axes in spec]
    pool = [axis for axis in mesh.axis_names if sizes[axis] > 1]
    for arrangement in itertools.permutations(pool, len(flat)):
        axes_left = iter(arrangement)
        after = tuple(tuple(next(axes_left) for _ in axes) for axes in spec)
        if after != spec and [count_shards((axes,), sizes) for axes in after] == counts:
            involved = tuple(axis for axis in mesh.axis_names if axis in flat or axis in arrangement)
            yield _Edge("collective-permute", involved, local), after
