"""Between a step's pytrees and a program's values: checking, slicing into microbatches, putting together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from alpaviz.errors import LaunchError
from alpaviz.program.jax_internals import is_extended
from alpaviz.program.leaves import (
    describe_difference,
    have_equal_structures,
    mark_arguments,
    name_argument,
    restore_non_arrays,
)
from alpaviz.program.program import Program, ValueKind
from alpaviz.runtime.stacked import StackedArray, join_lanes, split_lanes


def flatten_arguments(program: Program, arguments: Sequence[Any]) -> list[Any]:
    """One array for each input of the program: the leaves of (state, *batch), stacks of layers taken apart.

    Raises:
        LaunchError: another structure or another shape than was planned for; the message names the leaf.
    """
    leaves, structure = jax.tree.flatten(mark_arguments(arguments, program.in_tree))
    if not have_equal_structures(structure, program.in_tree):
        difference = describe_difference(program.in_tree, structure)
        what = name_argument(difference) if difference else f"{structure}, not {program.in_tree}"
        raise LaunchError(
            f"The step was planned for arguments of another structure: {what}. Pass the state and batch in the form "
            "that the planner was given."
        )
    _refuse_other_stacks(program, leaves)
    leaves = split_lanes(leaves, program.input_lanes)
    for leaf, v, axis in zip(leaves, program.inputs, program.batch_axes, strict=True):
        value = program.values[v]
        shape = list(value.shape)
        if axis is not None:
            shape[axis] *= program.num_microbatches
        if tuple(np.shape(leaf)) != tuple(shape):
            raise LaunchError(f"{value.name} has shape {tuple(np.shape(leaf))}; the plan is for {tuple(shape)}.")
        dtype = find_dtype(leaf)
        if dtype is not None and dtype != value.dtype:
            raise LaunchError(f"{value.name} is of dtype {dtype}; the plan is for {value.dtype}.")
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise LaunchError(
                f"{value.name} has been deleted: it was donated to an earlier step. Keep the state that the step "
                "returned, or launch with donate_state=False."
            )
    return leaves


def _refuse_other_stacks(program: Program, leaves: Sequence[Any]) -> None:
    """Raise for a leaf that cannot be taken apart into its layers."""
    position = 0
    for leaf, count in zip(leaves, program.input_lanes, strict=False):
        value = program.values[program.inputs[position]]
        position += max(1, count)
        shape = tuple(leaf.shape if isinstance(leaf, StackedArray) else np.shape(leaf))
        if count and shape != (count, *value.shape):
            name = value.name.removesuffix("[0]")
            raise LaunchError(f"{name} has shape {shape}; the plan is for {(count, *value.shape)}.")
        if count and isinstance(leaf, jax.Array) and leaf.is_deleted():
            name = value.name.removesuffix("[0]")
            raise LaunchError(f"{name} has been deleted: keep the state that the step returned.")


def find_dtype(leaf: Any) -> str | None:
    """The dtype that JAX takes an array as; None for Python numbers, which become what is needed."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or isinstance(dtype, str):  # a string: an array on the workers
        return dtype
    return str(dtype) if is_extended(dtype) else str(jax.dtypes.canonicalize_dtype(dtype))


def slice_microbatch(program: Program, leaf: Any, position: int, microbatch: int) -> Any:
    """The part of batch leaf `position` that belongs to `microbatch`; the whole leaf where it is not sliced."""
    axis = program.batch_axes[position]
    if axis is None or program.num_microbatches == 1:
        return leaf
    size = program.values[program.inputs[position]].shape[axis]
    index = [slice(None)] * np.ndim(leaf)
    index[axis] = slice(microbatch * size, (microbatch + 1) * size)
    return leaf[tuple(index)]


def is_batch(program: Program, position: int) -> bool:
    """Whether input `position` is part of the batch."""
    return program.values[program.inputs[position]].kind is ValueKind.BATCH


def to_host(leaf: Any) -> Any:
    """A batch leaf on the host, where it is sliced; PRNG keys stay arrays of JAX."""
    if isinstance(leaf, jax.Array) and is_extended(leaf.dtype):
        return leaf
    return np.asarray(leaf)


def assemble_results(program: Program, leaves: Sequence[Any], results: Mapping[int, Any]) -> Any:
    """The step's result tree from the values that the stages gave; inputs and literals are passed through."""
    by_input = dict(zip(program.inputs, leaves, strict=True))
    outputs = []
    for v, variable in zip(program.outputs, program.jaxpr.jaxpr.outvars, strict=True):
        if v is None:
            outputs.append(np.asarray(variable.val))
        elif v in results:
            outputs.append(results[v])
        elif v in by_input:
            outputs.append(by_input[v])
        else:
            outputs.append(program.jaxpr.consts[program.constants.index(v)])
    return restore_non_arrays(jax.tree.unflatten(program.out_tree, join_lanes(outputs, program.output_lanes)))
