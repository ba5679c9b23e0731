"""State that is created where the plan keeps it: one compiled function for each stage makes that stage's leaves only.

Each device computes its own part of every leaf, so no device and no host ever holds what the plan splits. JAX's default
generator gives each element the same random bits however the array is split (`jax_threefry_partitionable`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from alpaviz.errors import LaunchError
from alpaviz.program.leaves import describe_difference, have_equal_structures, mark_non_arrays
from alpaviz.program.program import Program
from alpaviz.runtime.arguments import find_dtype
from alpaviz.runtime.pieces import PortableKey, to_portable
from alpaviz.runtime.stacked import split_lanes
from alpaviz.runtime.state_leaves import StateLeaf, count_state_lanes, find_state_structure, list_state_leaves

InitFunction = Callable[[Any], Any]
"""Takes a key, or any tree of arrays, and makes a state."""


def make_portable(key: Any) -> Any:
    """The argument of an init function as something that can be pickled and is on no device."""
    return jax.tree.map(lambda leaf: to_portable(leaf, str(jax.numpy.result_type(leaf))), key)


def refuse_other_state(program: Program, init_fn: InitFunction, key: Any) -> None:
    """Raise where `init_fn(key)` does not make the state that the step was planned for; nothing is computed."""
    structures = []

    def create(key: Any) -> list[Any]:
        leaves, structure = jax.tree.flatten(mark_non_arrays(init_fn(key)))
        structures.append(structure)
        return leaves

    leaves = jax.eval_shape(create, key)
    planned = find_state_structure(program)
    if not have_equal_structures(structures[0], planned):
        difference = describe_difference(planned, structures[0]) or f"{structures[0]}, not {planned}"
        raise LaunchError(f"init_fn makes a state of another structure than the step's: {difference}.")
    whole = {leaf.name: leaf for leaf in list_state_leaves(program)}
    for made, leaf in zip(leaves, whole.values(), strict=True):
        if tuple(made.shape) != leaf.whole_shape or find_dtype(made) != leaf.dtype:
            raise LaunchError(
                f"init_fn makes {leaf.name} as {made.dtype}{list(made.shape)}; the plan is for "
                f"{leaf.dtype}{list(leaf.whole_shape)}."
            )


def create_leaves(
    program: Program, init_fn: InitFunction, key: Any, shardings: Mapping[StateLeaf, Any]
) -> dict[int, Any]:
    """The leaves in `shardings`, all on the devices of one mesh, by value; every process of the mesh calls this.

    Args:
        key: as `make_portable` gives it.
    """
    jitted, words = make_creator(program, init_fn, key, shardings)
    return {leaf.value: array for leaf, array in zip(shardings, jitted(words), strict=True)}


def make_creator(
    program: Program, init_fn: InitFunction, key: Any, shardings: Mapping[StateLeaf, Any]
) -> tuple[Any, list[Any]]:
    """The jitted function behind `create_leaves`, and its argument."""
    order = {leaf.value: position for position, leaf in enumerate(list_state_leaves(program))}
    leaves, structure = jax.tree.flatten(key)
    implementations = [leaf.implementation if isinstance(leaf, PortableKey) else None for leaf in leaves]

    def create(words: list[Any]) -> list[Any]:
        arguments = [
            array if name is None else jax.random.wrap_key_data(array, impl=name)
            for array, name in zip(words, implementations, strict=True)
        ]
        made = jax.tree.leaves(mark_non_arrays(init_fn(jax.tree.unflatten(structure, arguments))))
        parts = split_lanes(made, count_state_lanes(program))
        return [parts[order[leaf.value]] for leaf in shardings]

    words = [leaf.words if isinstance(leaf, PortableKey) else leaf for leaf in leaves]
    return jax.jit(create, out_shardings=list(shardings.values())), words
