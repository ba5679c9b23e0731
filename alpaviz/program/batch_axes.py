"""Which dimension of each leaf of the batch the microbatches slice.

In: the batch and what the user said (`batch_axes`). Out: per leaf a dimension or None, and the shapes of a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from alpaviz.errors import InvalidStepError
from alpaviz.program.leaves import NonArray

NOT_SLICED = -1
"""What a user writes for a leaf that every microbatch gets whole; None does too."""


def list_batch_axes(batch: Sequence[Any], batch_axes: Any, names: Sequence[str]) -> list[int | None]:
    """Per leaf of `batch` the sliced dimension; None for scalars and where the user says so.

    Args:
        batch_axes: one number for all leaves, or one entry for each argument: a number, or a tree prefix of numbers.
        names: of the leaves, for messages.

    Raises:
        InvalidStepError: `batch_axes` does not fit the batch, or is not made of numbers; the message names the leaf.
    """
    if isinstance(batch_axes, int) or batch_axes is None:
        per_argument = [batch_axes] * len(batch)
    elif isinstance(batch_axes, (tuple, list)):
        per_argument = list(batch_axes)
    else:
        raise InvalidStepError(
            f"batch_axes is a {type(batch_axes).__name__}: give one number, or a tuple with an entry for each of the "
            f"step's {len(batch)} batch arguments."
        )
    if len(per_argument) != len(batch):
        raise InvalidStepError(
            f"batch_axes has {len(per_argument)} entries, the step takes {len(batch)} batch arguments."
        )
    wanted: list[Any] = []
    for argument, prefix in zip(batch, per_argument, strict=True):
        count = len(jax.tree.leaves(argument))
        wanted += _broadcast(prefix, argument, names[len(wanted) : len(wanted) + count])
    leaves = jax.tree.leaves(tuple(batch))
    return [_check_axis(leaf, axis, name) for leaf, axis, name in zip(leaves, wanted, names, strict=True)]


def _broadcast(prefix: Any, argument: Any, names: Sequence[str]) -> list[Any]:
    """The entry of `prefix` for each leaf of `argument`: the one at its path, or at a node above it."""
    entries = dict(jax.tree_util.tree_leaves_with_path(prefix, is_leaf=lambda node: node is None))
    found, used = [], {()}
    remaining = iter(names)
    for path, leaf in jax.tree_util.tree_leaves_with_path(argument, is_leaf=_has_no_array):
        above = next((path[:n] for n in range(len(path), -1, -1) if path[:n] in entries), None)
        used.add(() if above is None else above)
        if _has_no_array(leaf):
            continue
        name = next(remaining)
        if above is None:
            raise InvalidStepError(f"batch_axes does not fit the batch: it has no entry for {name}.")
        found.append(entries[above])
    for path in entries:
        if path not in used and entries[path] is not None:
            raise InvalidStepError(
                f"batch_axes does not fit the batch: it has an entry at {jax.tree_util.keystr(path)}, where the batch "
                "has no leaf."
            )
    return found


def _has_no_array(node: Any) -> bool:
    return node is None or isinstance(node, NonArray)


def _check_axis(leaf: Any, axis: Any, name: str) -> int | None:
    if axis is not None and (not isinstance(axis, int) or axis < NOT_SLICED):
        raise InvalidStepError(
            f"batch_axes has {axis!r} for {name}: give the number of a dimension, counted from 0, or {NOT_SLICED} for "
            "a leaf that is not sliced."
        )
    rank = len(getattr(leaf, "shape", ()))
    if axis is None or axis == NOT_SLICED or rank == 0:
        return None
    if axis >= rank:
        raise InvalidStepError(f"{name} of shape {tuple(leaf.shape)} has no dimension {axis}: set batch_axes.")
    return int(axis)


def slice_shapes(
    leaves: Sequence[Any], axes: Sequence[int | None], num_microbatches: int, names: Sequence[str], *, is_default: bool
) -> list[Any]:
    """`leaves` with the shapes of one microbatch.

    Args:
        is_default: the user gave no axis for single leaves, so a leaf with another number of rows than the first is
            taken for one that was not meant to be sliced.

    Raises:
        InvalidStepError: the microbatches do not divide a leaf, or the leaves have different numbers of rows.
    """
    sliced = []
    first: tuple[str, int] | None = None
    for leaf, axis, name in zip(leaves, axes, names, strict=True):
        if axis is None:
            sliced.append(leaf)
            continue
        size = leaf.shape[axis]
        first = first or (name, size)
        if is_default and num_microbatches > 1 and size != first[1]:
            raise InvalidStepError(
                f"{name} has {size} rows in dimension {axis}, {first[0]} has {first[1]}. Microbatches slice both: set "
                f"batch_axes, with {NOT_SLICED} for what every microbatch needs whole."
            )
        if size % num_microbatches:
            raise InvalidStepError(
                f"{name} has {size} rows in dimension {axis}, which {num_microbatches} microbatches do not "
                f"divide. Choose a num_microbatches that divides {size}, or set batch_axes."
            )
        shape = (*leaf.shape[:axis], size // num_microbatches, *leaf.shape[axis + 1 :])
        sliced.append(jax.ShapeDtypeStruct(shape, leaf.dtype))
    return sliced
