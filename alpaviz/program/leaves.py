"""Leaves of pytrees that are no arrays (activation functions, names), and comparison of pytrees' structures.

A leaf that is a function, a string or the like is part of what was planned: it is moved from the leaves into the
structure while a step is traced and launched, and given back in the results.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class NonArray:
    """A leaf that is no array, as a node without children."""

    value: Hashable


def is_number(leaf: Any) -> bool:
    """Whether a leaf is a Python number, which JAX traces like an array."""
    return isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, enum.Enum)


def is_non_array(leaf: Any) -> bool:
    """Whether a leaf is known to hold no array: a string, a function, a class, a dtype or an enumeration's member."""
    if isinstance(leaf, (str, bytes, type, np.dtype, enum.Enum)):
        return True
    if hasattr(leaf, "shape") or not callable(leaf):
        return False
    held = [*getattr(leaf, "__dict__", {}).values()]
    return not any(isinstance(value, (jax.Array, np.ndarray)) for value in held)


def mark_non_arrays(tree: Any) -> Any:
    """`tree` with each leaf that is no array in a `NonArray`."""
    leaves, structure = jax.tree.flatten(tree)
    if not any(map(is_non_array, leaves)):
        return tree
    return jax.tree.unflatten(structure, [NonArray(leaf) if is_non_array(leaf) else leaf for leaf in leaves])


def mark_arguments(arguments: Sequence[Any], planned: Any) -> tuple[Any, ...]:
    """The step's arguments with leaves that are no arrays marked; whole arguments where `planned` says so (those that
    `jax.jit` was told are static).
    """
    nodes = [child.node_data() for child in planned.children()]
    static = [i for i, node in enumerate(nodes) if node is not None and node[0] is NonArray]
    return tuple(NonArray(a) if i in static else mark_non_arrays(a) for i, a in enumerate(arguments))


def restore_non_arrays(tree: Any) -> Any:
    """The inverse of `mark_non_arrays`."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=_is_marked)
    if not any(map(_is_marked, leaves)):
        return tree
    return jax.tree.unflatten(structure, [leaf.value if _is_marked(leaf) else leaf for leaf in leaves])


def _is_marked(node: Any) -> bool:
    return isinstance(node, NonArray)


def have_equal_structures(one: Any, other: Any) -> bool:
    """Whether two tree structures are equal; static fields that hold NumPy arrays are compared by their numbers."""
    try:
        return bool(one == other)
    except ValueError:  # the truth value of an array is ambiguous
        return _compare_nodes(one, other)


def _compare_nodes(one: Any, other: Any) -> bool:
    mine, theirs = one.node_data(), other.node_data()
    if not _are_equal(mine, theirs):
        return False
    ours, others = one.children(), other.children()
    return len(ours) == len(others) and all(_compare_nodes(a, b) for a, b in zip(ours, others, strict=True))


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(_are_equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, (np.ndarray, jax.Array)) or isinstance(other, (np.ndarray, jax.Array)):
        a, b = np.asarray(one), np.asarray(other)
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.all(a == b))
    return bool(one == other)


def describe_difference(planned: Any, given: Any) -> str:
    """The first leaf in which two tree structures differ, in words; "" where the leaves are the same."""
    expected, found = _name_all_leaves(planned), _name_all_leaves(given)
    for name in {**expected, **found}:
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is new"
        if not _are_equal(expected[name], found[name]):
            return f"{name} was {expected[name]!r:.100} and is {found[name]!r:.100}"
    return ""


def _name_all_leaves(structure: Any) -> dict[str, Any]:
    """Path -> None of the arrays, path -> value of other leaves."""
    tree = jax.tree.unflatten(structure, [NonArray(None)] * structure.num_leaves)
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_marked)
    return {jax.tree_util.keystr(path): leaf.value for path, leaf in leaves}


def name_argument(path: str) -> str:
    """`[0]['w']` becomes `state['w']`; a leaf of the first batch argument is `batch...`, of the second `batch1...`."""
    number, rest = path[1:].split("]", 1)
    return ("state" if number == "0" else "batch" if number == "1" else f"batch{int(number) - 1}") + rest
