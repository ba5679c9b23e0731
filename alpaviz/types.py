"""Aliases that carry meaning, used by every package.

A sharding spec is plain data here, so that plans open without JAX: one entry per dimension of the value, each the
mesh axes that split this dimension, major first. `()` for a dimension means whole. `alpaviz.runtime` turns it into a
`jax.sharding.PartitionSpec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

MeshAxis = str
"""Name of one axis of a logical mesh, for instance `"x"`."""

ShardingSpec = tuple[tuple[MeshAxis, ...], ...]
"""Mesh axes that split each dimension, one tuple per dimension, major axis first."""

DeviceId = tuple[int, int]
"""(host, device within the host), both from 0."""

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"]


def replicated_spec(rank: int) -> ShardingSpec:
    """The spec of a value of `rank` dimensions that every device holds whole."""
    return ((),) * rank


def count_shards(spec: ShardingSpec, axis_sizes: Mapping[MeshAxis, int]) -> int:
    """Number of distinct pieces that `spec` cuts a value into."""
    shards = 1
    for axes in spec:
        for axis in axes:
            shards *= axis_sizes[axis]
    return shards


def list_axes(spec: ShardingSpec) -> tuple[MeshAxis, ...]:
    """All mesh axes that `spec` uses, in order of dimensions."""
    return tuple(axis for axes in spec for axis in axes)


def format_spec(spec: ShardingSpec) -> str:
    """`spec` for people: `[x, -, y]`, with `xy` where two axes split one dimension and `-` where none does."""
    return "[" + ", ".join("".join(axes) or "-" for axes in spec) + "]"


def to_spec(entries: Iterable[str | Iterable[str] | None]) -> ShardingSpec:
    """A spec from what people write: `("x", None, ("x", "y"))`, as in `jax.sharding.PartitionSpec`."""
    return tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)
