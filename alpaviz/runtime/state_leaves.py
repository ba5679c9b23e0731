"""The state among a program's inputs: its leaves, taken apart into layers where the program does, and put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from alpaviz.errors import LaunchError
from alpaviz.program.leaves import describe_difference, have_equal_structures, mark_non_arrays, restore_non_arrays
from alpaviz.program.program import Program
from alpaviz.runtime.stacked import join_lanes, split_lanes


@dataclass(frozen=True, slots=True)
class StateLeaf:
    """An input that is state.

    Attributes:
        value: its id.
        name: of the user's leaf that it is or belongs to.
        layer: which slice of that leaf it is along the first dimension; None where it is all of it.
        shape: of the input.
        num_layers: slices of the user's leaf; 0 where it is not taken apart.
    """

    value: int
    name: str
    layer: int | None
    shape: tuple[int, ...]
    dtype: str
    num_layers: int

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """Shape of the user's leaf."""
        return self.shape if self.layer is None else (self.num_layers, *self.shape)


def find_state_structure(program: Program) -> Any:
    """The tree structure of the step's first argument, with leaves that are no arrays in it."""
    return program.in_tree.children()[0]


def count_state_lanes(program: Program) -> tuple[int, ...]:
    """Per leaf of the state, as in `Program.input_lanes`; 0 for each where no leaf is taken apart."""
    count = find_state_structure(program).num_leaves
    return program.input_lanes[:count] if program.input_lanes else (0,) * count


def list_state_leaves(program: Program) -> tuple[StateLeaf, ...]:
    """The inputs that are state, in the order of the program's inputs."""
    found: list[StateLeaf] = []
    inputs = iter(program.inputs)
    for count in count_state_lanes(program):
        for layer in range(max(1, count)):
            value = program.values[next(inputs)]
            name = value.name.removesuffix(f"[{layer}]") if count else value.name
            found.append(
                StateLeaf(value.id, name, layer if count else None, tuple(value.shape), str(value.dtype), count)
            )
    return tuple(found)


def flatten_state(program: Program, state: Any) -> list[Any]:
    """One array for each of `list_state_leaves`.

    Raises:
        LaunchError: the state is of another structure than the step's, has a leaf of another shape, or one that was
            donated; the message names the leaf.
    """
    leaves, structure = jax.tree.flatten(mark_non_arrays(state))
    planned = find_state_structure(program)
    if not have_equal_structures(structure, planned):
        difference = describe_difference(planned, structure) or f"{structure}, not {planned}"
        raise LaunchError(f"The state is of another structure than the step's: {difference}.")
    arrays = split_lanes(leaves, count_state_lanes(program))
    for leaf, array in zip(list_state_leaves(program), arrays, strict=True):
        if tuple(np.shape(array)) != leaf.shape:
            raise LaunchError(f"{leaf.name} has shape {tuple(np.shape(array))}; the plan is for {leaf.shape}.")
        if isinstance(array, jax.Array) and array.is_deleted():
            raise LaunchError(
                f"{leaf.name} has been deleted: it was donated to a step. Keep the state that it returned."
            )
    return arrays


def unflatten_state(program: Program, arrays: Sequence[Any]) -> Any:
    """The state from one array for each of `list_state_leaves`."""
    leaves = join_lanes(arrays, count_state_lanes(program))
    return restore_non_arrays(jax.tree.unflatten(find_state_structure(program), leaves))
