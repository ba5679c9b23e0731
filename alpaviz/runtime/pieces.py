"""Arrays on their way between processes: the distinct pieces that a process holds, and arrays made from pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from alpaviz.program.jax_internals import is_extended

Piece = tuple[tuple[tuple[int, int], ...], np.ndarray]
"""((start, stop) per dimension, the data there)."""


def list_pieces(array: Any) -> list[Piece]:
    """What of `array` this process holds, each part once over all processes."""
    if is_extended(array.dtype):
        array = jax.random.key_data(array)
    pieces = []
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            bounds = tuple(
                (s.start or 0, s.stop if s.stop is not None else size)
                for s, size in zip(shard.index, array.shape, strict=True)
            )
            pieces.append((bounds, np.asarray(shard.data)))
    return pieces


def join_pieces(shape: Sequence[int], dtype: Any, pieces: Sequence[Piece]) -> np.ndarray:
    """The whole array from the pieces of all processes."""
    if len(pieces) == 1:
        return pieces[0][1].reshape(shape)
    whole = np.empty(tuple(shape), dtype)
    for bounds, data in pieces:
        whole[tuple(slice(a, b) for a, b in bounds)] = data
    return whole


def place_array(array: Any, sharding: Any) -> Any:
    """`array` in `sharding`, whose devices may belong to several processes (each calls this with the same array)."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
