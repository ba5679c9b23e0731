"""Stacks of layers whose slices lie on several meshes: one leaf to the user, one array per layer to the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


class StackedArray:
    """Layers of a parameter that was stacked for a `scan`, each where its stage is.

    Passing it to the next step moves nothing. `stack[3]` is a layer; `np.asarray(stack)`, `jnp.asarray(stack)` and
    `executable.fetch` bring all of it to one place.
    """

    __slots__ = ("lanes",)

    def __init__(self, lanes: Sequence[Any]) -> None:
        self.lanes = tuple(lanes)

    @property
    def shape(self) -> tuple[int, ...]:
        """With the number of layers first."""
        return (len(self.lanes), *self.lanes[0].shape)

    @property
    def dtype(self) -> Any:
        """Of each layer."""
        return self.lanes[0].dtype

    @property
    def ndim(self) -> int:
        """Dimensions, the one of the layers included."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.lanes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, (int, np.integer)):
            return self.lanes[index]
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = np.stack([np.asarray(lane) for lane in self.lanes])
        return whole if dtype is None else whole.astype(dtype)

    def __jax_array__(self) -> jax.Array:
        return jax.numpy.asarray(np.asarray(self))

    def __repr__(self) -> str:
        return f"StackedArray({self.dtype}{list(self.shape)}, one array per layer)"


def split_lanes(leaves: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Leaves with each stack replaced by its layers; `counts` as in `Program.input_lanes`."""
    if not counts:
        return list(leaves)
    found: list[Any] = []
    for leaf, count in zip(leaves, counts[: len(leaves)], strict=True):
        if not count:
            found.append(leaf)
        elif isinstance(leaf, StackedArray):
            found += leaf.lanes
        else:
            found += [leaf[i] for i in range(count)]
    return found


def join_lanes(arrays: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """The reverse of `split_lanes`: layers become one `StackedArray`."""
    if not counts:
        return list(arrays)
    remaining = iter(arrays)
    return [StackedArray([next(remaining) for _ in range(n)]) if n else next(remaining) for n in counts]
