"""Which collectives a compiled module contains, as bytes by kind and mesh axes.

Bytes are counted as `PlannedCollective` counts them, so that a plan can be held against what XLA made of it. XLA
combines collectives, so bytes are compared and not numbers of ops.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from alpaviz.types import MeshAxis

CollectiveBytes = dict[tuple[str, tuple[MeshAxis, ...]], float]
"""(kind, mesh axes) -> bytes."""

_KINDS = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
_LINE = re.compile(rf"= (?P<result>\(?.*?) (?P<kind>{_KINDS})(?:-start)?\((?P<rest>.*)$")
_SHAPE = re.compile(r"(pred|[su]\d+|f\d+|bf16|f8\w*|c\d+)\[([\d,]*)\]")
_LISTS = re.compile(r"replica_groups=\{(\{[\d,{}\s]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}\s]*\})\}")
_BYTES = {"pred": 1, "bf16": 2}
_SCOPES = re.compile(r'op_name="([^"]*)"')
_PROMOTED = re.compile(r"to_apply=%?[\w.\-]*promoted")


@dataclass(frozen=True, slots=True)
class CompiledCollective:
    """One tensor that a compiled module communicates.

    `num_bytes` are those of one run; `runs` how often one call of the module runs it; `scope` the name stack of the op
    that it was compiled from, `jit(step)/block_0/mlp/dot_general`, or "".
    """

    kind: str
    axes: tuple[MeshAxis, ...]
    num_bytes: float
    runs: int
    scope: str


def count_collective_bytes(
    text: str, mesh_shape: Sequence[int], mesh_axes: Sequence[MeshAxis], repeats: Mapping[str, int] | None = None
) -> CollectiveBytes:
    """Bytes of the collectives in the HLO `text`, by kind and the mesh axes that their groups span.

    Args:
        mesh_shape, mesh_axes: of the mesh, whose devices the module numbers in row-major order.
        repeats: computation name -> how often it runs, for bodies of loops; 1 where it is not named.
    """
    found: CollectiveBytes = defaultdict(float)
    for collective in list_collectives(text, mesh_shape, mesh_axes, repeats):
        found[collective.kind, collective.axes] += collective.num_bytes * collective.runs
    return dict(found)


def list_collectives(
    text: str, mesh_shape: Sequence[int], mesh_axes: Sequence[MeshAxis], repeats: Mapping[str, int] | None = None
) -> tuple[CompiledCollective, ...]:
    """Every tensor that the HLO `text` communicates between devices; arguments as of `count_collective_bytes`.

    XLA combines collectives of several ops into one of a tuple: its parts are listed one by one.
    """
    found = []
    computation = ""
    for line in text.splitlines():
        if line and not line.startswith((" ", "}")):
            computation = line.split()[1 if line.startswith("ENTRY") else 0].lstrip("%")
        match = _LINE.search(line)
        if match is None:
            continue
        kind, rest = match["kind"], match["rest"]
        axes = _find_axes(rest, mesh_shape, mesh_axes)
        if not axes:
            continue
        factor = float(np.prod([mesh_shape[list(mesh_axes).index(a)] for a in axes])) if kind == "reduce-scatter" else 1
        # CPUs reduce 16-bit floats as 32-bit ones; other devices do not.
        factor = factor / 2 if _PROMOTED.search(rest) else factor
        sizes = _list_sizes(match["result"])
        if kind == "all-to-all":  # a tuple has one part for each device of a group
            sizes = [sum(sizes)]
        runs = (repeats or {}).get(computation, 1)
        scopes = _list_scopes(rest, len(sizes))
        found += [CompiledCollective(kind, axes, n * factor, runs, s) for n, s in zip(sizes, scopes, strict=True)]
    return tuple(found)


def _list_scopes(rest: str, count: int) -> list[str]:
    """Of each part of a combined collective, whose scopes XLA writes as `jit(f)/(first:second)`."""
    match = _SCOPES.search(rest)
    scope = match[1] if match else ""
    prefix, bracket, tail = scope.partition("/(")
    parts = [f"{prefix}/{part}" for part in tail[:-1].split(":")] if bracket and tail.endswith(")") else [scope]
    return parts if len(parts) == count else [scope] if count == 1 else [""] * count


def _list_sizes(result: str) -> list[float]:
    """Bytes of each tensor of a result."""
    sizes = []
    for dtype, dims in _SHAPE.findall(result):
        size = _BYTES.get(dtype) or int(re.sub(r"\D.*", "", dtype.lstrip("sufc")) or 8) / 8
        sizes.append(size * float(np.prod([int(n) for n in dims.split(",") if n], dtype=float)))
    return sizes


def _find_axes(rest: str, mesh_shape: Sequence[int], mesh_axes: Sequence[MeshAxis]) -> tuple[MeshAxis, ...]:
    """The mesh axes along which the devices of one group differ."""
    groups = _read_groups(rest)
    coordinates = list(itertools.product(*map(range, mesh_shape)))
    differing: set[int] = set()
    for group in groups:
        places = [coordinates[device] for device in group]
        differing.update(d for d in range(len(mesh_shape)) if len({place[d] for place in places}) > 1)
    return tuple(axis for d, axis in enumerate(mesh_axes) if d in differing)


def _read_groups(rest: str) -> list[list[int]]:
    if match := _LISTS.search(rest):
        return [[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,\s]+)\}", match[1])]
    if match := _PAIRS.search(rest):
        return [[int(n) for n in pair.split(",")] for pair in re.findall(r"\{([\d,\s]+)\}", match[1])]
    if match := _IOTA.search(rest):
        devices = _arrange(match[2], match[3]).reshape([int(n) for n in match[1].split(",")])
        return [list(map(int, group)) for group in devices]
    if match := _MESH.search(rest):
        return _read_mesh_groups(match)
    return []


def _arrange(dims: str, order: str | None) -> np.ndarray:
    shape = [int(n) for n in dims.split(",")]
    devices = np.arange(int(np.prod(shape))).reshape(shape)
    return devices.transpose([int(n) for n in order.split(",")]) if order else devices


def _read_mesh_groups(match: re.Match[str]) -> list[list[int]]:
    """Groups written as axes of a mesh: `mesh['axis_0'=4,'axis_1'=2] {'axis_0'}`."""
    names, sizes = zip(*[entry.split("=") for entry in match[1].split(",")], strict=True)
    names = tuple(name.strip("' ") for name in names)
    shape = [int(size) for size in sizes]
    devices = _arrange(match[2], match[3]) if match[2] else np.arange(int(np.prod(shape)))
    devices = devices.reshape(shape)
    parts = [entry.strip("' ") for entry in match[4].split(",") if entry.strip()]
    grouped = [names.index(part.split(":")[0].strip("'")) for part in parts]
    others = [d for d in range(len(shape)) if d not in grouped]
    return [
        list(map(int, group))
        for group in devices.transpose(others + grouped).reshape(-1, int(np.prod([shape[d] for d in grouped])))
    ]
