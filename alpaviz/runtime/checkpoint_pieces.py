"""What one host writes of a checkpoint, and reads of one that any hosts wrote: pieces of leaves, in Orbax's format."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from alpaviz.errors import CheckpointError
from alpaviz.program.jax_internals import is_extended
from alpaviz.program.program import Program
from alpaviz.runtime.checkpoint_index import CheckpointIndex, StoredLeaf, StoredPiece
from alpaviz.runtime.chunk_runner import find_aval
from alpaviz.runtime.orbax_process import import_orbax, make_checkpointer
from alpaviz.runtime.pieces import Bounds, find_bounds, find_key_implementation, list_pieces, spread_words, wrap_words
from alpaviz.runtime.state_leaves import StateLeaf

READ_BYTES = 256 * 2**20
"""About how much of a checkpoint a host holds while it reads it; a single leaf may be more."""

WIDEST_ITEM_BYTES = 8
"""The most that an element of a piece is counted as."""

Data = dict[tuple[int, str], np.ndarray]
"""Pieces by host and key."""


def name_host_folder(host: int) -> str:
    """Name, in a checkpoint, of the folder that a host writes."""
    return f"host_{host:04d}"


# Writing.


def write_pieces(folder: Path, host: int, arrays: Mapping[StateLeaf, Any]) -> dict[str, list[StoredPiece]]:
    """Write what this process owns of `arrays` into its folder in `folder`; the pieces by the user's leaves.

    Raises:
        CheckpointError: `folder` is not there, or the data could not be written.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"Host {host} does not see the folder {folder}: checkpoints of several hosts need a file system that all "
            "of them share."
        )
    data: dict[str, np.ndarray] = {}
    found: dict[str, list[StoredPiece]] = defaultdict(list)
    for number, (leaf, array) in enumerate(arrays.items()):
        for part, (bounds, piece) in enumerate(list_pieces(array)):
            if piece.size == 0:
                continue  # Orbax refuses empty arrays, and there is nothing to keep.
            key = f"{number}.{part}"
            data[key] = piece
            whole = bounds if leaf.layer is None else ((leaf.layer, leaf.layer + 1), *bounds)
            found[leaf.name].append(StoredPiece(host, key, whole, compute_checksum(piece)))
    if data:
        _write(folder / name_host_folder(host), host, data)
    return dict(found)


def _write(folder: Path, host: int, data: Mapping[str, np.ndarray]) -> None:
    orbax = import_orbax()
    try:
        with make_checkpointer(orbax) as checkpointer:
            checkpointer.save(folder, args=orbax.args.PyTreeSave(dict(data)))
    except Exception as error:
        raise CheckpointError(
            f"Host {host} could not write its part of the checkpoint {folder.parent.parent}: {describe_cause(error)}."
        ) from error


def compute_checksum(data: np.ndarray) -> int:
    """CRC-32 of an array's bytes."""
    return zlib.crc32(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)


def describe_cause(error: BaseException) -> str:
    """The first line of what went wrong; a full disk in words."""
    if "No space left on device" in str(error):
        return "no space is left on the disk"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.'):.300}" if lines else type(error).__name__


# Reading.


@dataclass(frozen=True, slots=True)
class _Reading:
    """A leaf to be read.

    Attributes:
        shape: of its data; PRNG keys have their words as a last dimension.
        sharding: of the data.
        pieces: those that this process's devices need a part of.
    """

    leaf: StateLeaf
    stored: StoredLeaf
    shape: tuple[int, ...]
    sharding: Any
    pieces: tuple[StoredPiece, ...]

    def locate(self, index: Sequence[slice]) -> Bounds:
        """Where a part of the data is in the user's leaf."""
        bounds = find_bounds(index, self.shape)
        layer = self.leaf.layer
        return bounds if layer is None else ((layer, layer + 1), *bounds)


def read_leaves(
    program: Program, folder: Path, index: CheckpointIndex, shardings: Mapping[StateLeaf, Any]
) -> dict[int, Any]:
    """The leaves in `shardings`, by value. Reads only the pieces that this process's devices need a part of.

    Raises:
        CheckpointError: pieces are missing or damaged; the message names the leaf.
    """
    stored = {leaf.name: leaf for leaf in index.leaves}
    readings = [_plan_reading(program, stored[leaf.name], leaf, sharding) for leaf, sharding in shardings.items()]
    arrays: dict[int, Any] = {}
    for group in _group_readings(readings):
        data = _read_group(folder, group)
        for reading in group:
            array = _make_array(reading, data)
            aval = find_aval(program, reading.leaf.value)
            if is_extended(aval.dtype):
                array = wrap_words(array, find_key_implementation(aval.dtype), shardings[reading.leaf])
            arrays[reading.leaf.value] = array
    return arrays


def _plan_reading(program: Program, stored: StoredLeaf, leaf: StateLeaf, sharding: Any) -> _Reading:
    shape = stored.shape if leaf.layer is None else stored.shape[1:]
    if is_extended(find_aval(program, leaf.value).dtype):
        sharding = spread_words(sharding, len(shape))
    reading = _Reading(leaf, stored, shape, sharding, ())
    indices = sharding.addressable_devices_indices_map(shape).values()
    regions = {reading.locate(index) for index in indices}
    return replace(reading, pieces=tuple(p for p in stored.pieces if any(_overlap(p.bounds, r) for r in regions)))


def _overlap(one: Bounds, other: Bounds) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))


def _group_readings(readings: Sequence[_Reading]) -> Iterator[list[_Reading]]:
    """Readings that are done together: few calls of Orbax, and little held at a time. Layers of a leaf, which may share
    pieces, stay together.
    """
    group: list[_Reading] = []
    held = 0
    for reading in readings:
        if group and held > READ_BYTES and reading.stored is not group[-1].stored:
            yield group
            group, held = [], 0
        group.append(reading)
        held += sum(_count_bytes(piece) for piece in reading.pieces)
    if group:
        yield group


def _count_bytes(piece: StoredPiece) -> int:
    return math.prod(b - a for a, b in piece.bounds) * WIDEST_ITEM_BYTES


def _read_group(folder: Path, group: Sequence[_Reading]) -> Data:
    """The pieces of a group, checked."""
    names = {(p.host, p.key): reading.stored.name for reading in group for p in reading.pieces}
    data: Data = {}
    for host in sorted({host for host, _ in names}):
        part = folder / name_host_folder(host)
        try:
            data |= _read_keys(part, host, [key for h, key in names if h == host])
        except Exception as error:
            broken = _find_broken(part, host, [key for h, key in names if h == host])
            raise CheckpointError(
                f"The checkpoint {folder} is damaged: {names[host, broken]} cannot be read from {part.name} "
                f"({describe_cause(error)})."
            ) from error
    for reading in group:
        for piece in reading.pieces:
            found = data[piece.host, piece.key]
            if found.size != math.prod(b - a for a, b in piece.bounds) or compute_checksum(found) != piece.checksum:
                raise CheckpointError(
                    f"The checkpoint {folder} is damaged: {reading.stored.name} has other bytes in "
                    f"{name_host_folder(piece.host)} than were written."
                )
    return data


def _read_keys(part: Path, host: int, keys: Sequence[str]) -> Data:
    orbax = import_orbax()
    arguments = orbax.args.PyTreeRestore(
        item=dict.fromkeys(keys, 0),
        restore_args={key: orbax.RestoreArgs(restore_type=np.ndarray) for key in keys},
        partial_restore=True,
    )
    with make_checkpointer(orbax) as checkpointer:
        found = checkpointer.restore(part, args=arguments)
    return {(host, key): np.asarray(found[key]) for key in keys}


def _find_broken(part: Path, host: int, keys: Sequence[str]) -> str:
    """The first key that cannot be read by itself."""
    for key in keys:
        try:
            _read_keys(part, host, [key])
        except Exception:
            return key
    return keys[0]


def _make_array(reading: _Reading, data: Data) -> Any:
    dtype = next((data[p.host, p.key].dtype for p in reading.pieces), None) or np.dtype(reading.stored.dtype)

    def assemble(index: tuple[slice, ...] | None) -> np.ndarray:
        region = reading.locate(index or ())
        whole = np.empty([b - a for a, b in region], dtype)
        for piece in reading.pieces:
            if not _overlap(piece.bounds, region):
                continue
            held = data[piece.host, piece.key].reshape([b - a for a, b in piece.bounds])
            common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(piece.bounds, region, strict=True)]
            source = tuple(slice(a - p, b - p) for (a, b), (p, _) in zip(common, piece.bounds, strict=True))
            target = tuple(slice(a - r, b - r) for (a, b), (r, _) in zip(common, region, strict=True))
            whole[target] = held[source]
        return whole if reading.leaf.layer is None else whole[0]

    return jax.make_array_from_callback(reading.shape, reading.sharding, assemble)
