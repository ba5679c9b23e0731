"""Which collectives a compiled module contains, as bytes by kind and mesh axes.

Bytes are counted as `PlannedCollective` counts them, so that a plan can be held against what XLA made of it. XLA
combines collectives, so bytes are compared and not numbers of ops.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

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


def count_collective_bytes(
    text: str, mesh_shape: Sequence[int], mesh_axes: Sequence[MeshAxis], repeats: Mapping[str, int] | None = None
) -> CollectiveBytes:
    """Bytes of the collectives in the HLO `text`, by kind and the mesh axes that their groups span.

    Args:
        mesh_shape, mesh_axes: of the mesh, whose devices the module numbers in row-major order.
        repeats: computation name -> how often it runs, for bodies of loops; 1 where it is not named.
    """
    found: CollectiveBytes = defaultdict(float)
    computation = ""
    for line in text.splitlines():
        if line and not line.startswith((" ", "}")):
            computation = line.split()[1 if line.startswith("ENTRY") else 0].lstrip("%")
        match = _LINE.search(line)
        if match is None:
            continue
        axes = _find_axes(match["rest"], mesh_shape, mesh_axes)
        if not axes:
            continue
        count = (repeats or {}).get(computation, 1)
        size = _count_bytes(match["result"])
        if match["kind"] == "reduce-scatter":
            for axis in axes:
                size *= mesh_shape[list(mesh_axes).index(axis)]
        found[match["kind"], axes] += size * count
    return dict(found)


def _count_bytes(result: str) -> float:
    total = 0.0
    for dtype, dims in _SHAPE.findall(result):
        size = _BYTES.get(dtype) or int(re.sub(r"\D.*", "", dtype.lstrip("sufc")) or 8) / 8
        total += size * float(np.prod([int(n) for n in dims.split(",") if n], dtype=float))
    return total


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
