"""Arrays on their way between hosts, processes and layouts: pieces, portable keys, copies that may be given up."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from alpaviz.program.jax_internals import is_extended

Bounds = tuple[tuple[int, int], ...]
"""(start, stop) per dimension."""

Piece = tuple[Bounds, np.ndarray]
"""A part of an array: where it is, and the data there."""


@dataclass(frozen=True, slots=True)
class PortableKey:
    """A typed PRNG key, which cannot be pickled, as the words that it is made of."""

    words: np.ndarray
    implementation: str


def find_key_implementation(dtype: Any) -> str:
    """The name under which JAX knows the generator of keys of `dtype`."""
    return str(dtype._impl.name)  # JAX tells it only of arrays, and we have abstract values too.


def to_portable(leaf: Any, dtype: str) -> Any:
    """A leaf of the step's arguments as something that can be pickled; Python numbers get `dtype`."""
    if isinstance(leaf, jax.Array) and is_extended(leaf.dtype):
        return PortableKey(np.asarray(jax.random.key_data(leaf)), find_key_implementation(leaf.dtype))
    return np.asarray(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else np.asarray(leaf, dtype=dtype)


def from_portable(leaf: Any) -> Any:
    """The array that `to_portable` was given, on the host or, for keys, on the first device."""
    if isinstance(leaf, PortableKey):
        return jax.random.wrap_key_data(jnp.asarray(leaf.words), impl=leaf.implementation)
    return leaf


def list_pieces(array: Any) -> list[Piece]:
    """What of `array` this process holds, each part once over all processes; of keys, their words."""
    if is_extended(array.dtype):
        array = jax.random.key_data(array)
    return [
        (find_bounds(shard.index, array.shape), np.asarray(shard.data))
        for shard in array.addressable_shards
        if shard.replica_id == 0
    ]


def find_bounds(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    """What slices without steps cover of an array of `shape`."""
    return tuple((s.start or 0, s.stop if s.stop is not None else size) for s, size in zip(index, shape, strict=True))


def join_pieces(aval: Any, pieces: Sequence[Piece]) -> Any:
    """The whole array from the pieces of all processes, as a host array of its own or a `PortableKey`."""
    if is_extended(aval.dtype):
        shape: tuple[int, ...] = jax.eval_shape(jax.random.key_data, aval).shape
        return PortableKey(_join(shape, np.uint32, pieces), find_key_implementation(aval.dtype))
    return _join(tuple(aval.shape), aval.dtype, pieces)


def _join(shape: tuple[int, ...], dtype: Any, pieces: Sequence[Piece]) -> np.ndarray:
    whole = np.empty(shape, dtype)
    for bounds, data in pieces:
        whole[tuple(slice(a, b) for a, b in bounds)] = data
    return whole


def place_array(array: Any, sharding: Any) -> Any:
    """`array` in `sharding`, whose devices may belong to several processes (each calls this with the same array)."""
    if isinstance(array, PortableKey):
        words = place_array(array.words, spread_words(sharding, array.words.ndim))
        return wrap_words(words, array.implementation, sharding)
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def spread_words(sharding: Any, rank: int) -> NamedSharding:
    """The sharding of the words, of `rank` dimensions, of keys in `sharding`."""
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec, *([None] * (rank - len(sharding.spec)))))


def wrap_words(words: Any, implementation: str, sharding: Any) -> Any:
    """Typed PRNG keys in `sharding` from their words, which lie as `spread_words` says."""
    return _make_key_wrapper(implementation, sharding)(words)


@functools.cache
def _make_key_wrapper(implementation: str, sharding: Any) -> Any:
    return jax.jit(functools.partial(jax.random.wrap_key_data, impl=implementation), out_shardings=sharding)


def move_array(leaf: Any, sharding: Any, dtype: str, *, is_own: bool = False) -> Any:
    """`leaf` in `sharding`; arrays that are there already are left alone.

    Args:
        is_own: the result will be given up (donated), so it must not share memory with `leaf`. `device_put` shares
            what is on the right device already, also with `may_alias=False` where there are several devices.
    """
    if not isinstance(leaf, jax.Array):
        array = np.array(leaf, dtype=dtype) if is_own else np.asarray(leaf, dtype=dtype)
        return jax.device_put(array, sharding)
    if is_own:
        return jax.device_put(copy_array(leaf), sharding)
    return leaf if leaf.sharding == sharding else jax.device_put(leaf, sharding)


def copy_array(array: Any) -> Any:
    """A copy on the same devices that shares nothing with `array`."""
    if is_extended(array.dtype):
        words = jnp.array(jax.random.key_data(array), copy=True)
        return jax.random.wrap_key_data(words, impl=find_key_implementation(array.dtype))
    return jnp.array(array, copy=True)
