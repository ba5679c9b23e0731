"""Which state a step may overwrite, and how state is handed to such a step without touching the user's arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax

from alpaviz.program.program import Program
from alpaviz.runtime.meshes import StageLayouts
from alpaviz.runtime.partition import ChunkKey, Partition
from alpaviz.runtime.pieces import copy_array, move_array


def list_replacements(program: Program) -> dict[int, int]:
    """State value -> the new state that replaces it, where a step may write the one over the other.

    Left out is state that is also a result of the step, that changes its shape or dtype, or whose replacement replaces
    other state too.
    """
    returned = {v for v in program.outputs if v is not None}
    found: dict[int, int] = {}
    taken: set[int] = set()
    for o, i in program.state_outputs:
        made, stored = program.outputs[o], program.inputs[i]
        if made is None or made in taken or stored in returned:
            continue
        new, old = program.values[made], program.values[stored]
        if (new.shape, new.dtype) == (old.shape, old.dtype):
            taken.add(made)
            found[stored] = made
    return found


def find_donated(program: Program, partition: Partition, stage: int, layouts: StageLayouts) -> dict[int, ChunkKey]:
    """State that `stage` may overwrite -> the update chunk that does: the last that reads it, if it makes the new."""
    made_by = {v: key for key, chunk in partition.chunks.items() for v in chunk.finals}
    last_reader: dict[int, ChunkKey] = {}
    for key in partition.list_update_keys(stage):
        last_reader.update(dict.fromkeys(partition.chunks[key].inputs, key))
    return {
        stored: last_reader[stored]
        for stored, made in list_replacements(program).items()
        if stored in last_reader
        and made_by.get(made) == last_reader[stored]
        and has_equal_layouts(layouts, stored, made)
    }


def has_equal_layouts(layouts: StageLayouts, value: int, other: int) -> bool:
    """Whether a stage holds two values of equal shape in the same layout."""
    return layouts.specs.get(value, ()) == layouts.specs.get(other, ())


class StateMover:
    """Hands arrays to one step. An array that the step consumes goes in only once, and only if it is in place."""

    def __init__(self) -> None:
        self._handed: set[int] = set()

    def move(self, leaf: Any, sharding: Any, dtype: str, *, is_given: bool) -> Any:
        """`leaf` in `sharding`; if `is_given`, in memory that the step may overwrite."""
        if not is_given:
            return move_array(leaf, sharding, dtype)
        if isinstance(leaf, jax.Array) and leaf.sharding == sharding and id(leaf) not in self._handed:
            self._handed.add(id(leaf))
            return leaf
        return move_array(leaf, sharding, dtype, is_own=True)


def copy_given(leaves: Sequence[Any], given: Collection[int]) -> list[Any]:
    """`leaves` with copies of the arrays at the positions `given`, for a step that is run more than once."""
    return [copy_array(leaf) if k in given and isinstance(leaf, jax.Array) else leaf for k, leaf in enumerate(leaves)]
