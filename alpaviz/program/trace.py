"""Tracing: a JAX training step and abstract arguments become a `Program`. Nothing is allocated or run."""

from __future__ import annotations

import inspect
import itertools
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from alpaviz.errors import AlpaVizError, InvalidStepError
from alpaviz.program import jax_internals as internals
from alpaviz.program.assemble import assemble_program
from alpaviz.program.batch_axes import list_batch_axes, slice_shapes
from alpaviz.program.branches import select_branches
from alpaviz.program.collector import paused_collector
from alpaviz.program.flatten import inline_calls
from alpaviz.program.gradient import EXIT
from alpaviz.program.layer_scans import UnstackedStep, unstack_layers
from alpaviz.program.leaves import (
    NonArray,
    have_equal_structures,
    is_number,
    mark_non_arrays,
    name_argument,
    restore_non_arrays,
)
from alpaviz.program.placement import place_in_layers
from alpaviz.program.program import Program
from alpaviz.program.recompute import recompute_layers
from alpaviz.program.results import refuse_row_results
from alpaviz.program.roles import mark_roles
from alpaviz.program.sums import scale_sums
from alpaviz.program.user_lines import choose_user_frame, format_line


@dataclass(frozen=True, slots=True)
class TraceRecipe:
    """What `trace_program` was called with, arrays replaced by shapes: enough to trace the same program elsewhere.

    `recomputed_layers` are those of the program (`alpaviz.program.recompute`).
    """

    step: Callable[..., Any]
    state: Any
    batch: tuple[Any, ...]
    num_microbatches: int
    num_layers: int | None
    batch_axes: Any
    name: str
    recomputed_layers: tuple[int, ...] = ()


def trace_program(
    step: Callable[..., Any],
    state: Any,
    *batch: Any,
    num_microbatches: int = 1,
    num_layers: int | None = None,
    batch_axes: Any = 0,
    name: str | None = None,
) -> Program:
    """Trace `step(state, *batch)` for planning.

    Args:
        step: a training step; its results hold the new state in the form of `state` (all of it, or one entry of a
            tuple or dictionary). Wrapped in `jax.jit` or not.
        state, batch: pytrees of arrays or `jax.ShapeDtypeStruct`.
        num_microbatches: slices that the batch is cut into.
        num_layers: layers of the forward pass; None follows `layer_boundary` marks or chooses.
        batch_axes: the dimension of batch leaves that is sliced: one number, or a tree prefix of `batch` with a number
            for each; -1 or None for leaves that every microbatch gets whole.
        name: of the program, for people; by default the step's.

    Raises:
        InvalidStepError: `step` is not a function, cannot be traced, has side effects, or the batch does not divide.
    """
    return retrace(
        make_recipe(
            step, state, batch, num_microbatches=num_microbatches, num_layers=num_layers, batch_axes=batch_axes,
            name=name,
        )
    )  # fmt: skip


def make_recipe(
    step: Callable[..., Any],
    state: Any,
    batch: tuple[Any, ...],
    *,
    num_microbatches: int,
    num_layers: int | None,
    batch_axes: Any,
    name: str | None,
) -> TraceRecipe:
    """Check the arguments of `trace_program` and replace arrays by their shapes; traces nothing."""
    if not callable(step):
        raise InvalidStepError(
            f"The training step must be a function of (state, *batch), not {type(step).__name__} ({step!r:.80})."
        )
    if not isinstance(num_microbatches, int) or num_microbatches < 1:
        raise InvalidStepError(f"num_microbatches must be a whole number of at least 1, not {num_microbatches!r}.")
    _check_call(step, len(batch))
    label = str(name or getattr(step, "__name__", type(step).__name__))
    static = internals.read_static_positions(step)
    arguments = tuple(NonArray(b) if i in static else _abstract(b) for i, b in enumerate(batch, start=1))
    return TraceRecipe(step, _abstract(state), arguments, num_microbatches, num_layers, batch_axes, label)


def _check_call(step: Callable[..., Any], num_batch: int) -> None:
    """Raise unless `step` can be called with the state and `num_batch` arguments, all by position."""
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):  # some callables do not tell
        return
    try:
        signature.bind(*[None] * (1 + num_batch))
    except TypeError as error:
        name = getattr(step, "__name__", "step")
        by_keyword = [
            p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty
        ]
        advice = "Bind what does not change with functools.partial."
        if by_keyword:
            advice = (
                f"It takes {', '.join(by_keyword)} by keyword only: wrap it, for instance in "
                f"`lambda state, batch: {name}(**state, batch=batch)` with a dictionary as state."
            )
        raise InvalidStepError(
            f"{name}{signature} cannot be called as step(state, *batch) with {num_batch} batch argument"
            f"{'' if num_batch == 1 else 's'}: {error}. {advice}"
        ) from None


def retrace(recipe: TraceRecipe) -> Program:
    """The program of `recipe`. A step without a gradient marker gets one microbatch, with a warning."""
    with paused_collector():
        program = _trace_once(recipe, recipe.num_microbatches)
        if not program.has_gradient_marker and recipe.num_microbatches > 1:
            program = _trace_once(recipe, 1)
        program = replace(program, recipe=replace(recipe, recomputed_layers=()))
        return recompute_layers(program, recipe.recomputed_layers)


def count_rows(recipe: TraceRecipe) -> int:
    """The largest number of microbatches that divides every sliced leaf of the batch; 1 where nothing is sliced."""
    leaves = jax.tree.leaves(recipe.batch)
    labels = [name_argument(name) for name in _name_leaves((recipe.state, *recipe.batch))][-len(leaves) :]
    axes = list_batch_axes(recipe.batch, recipe.batch_axes, labels)
    sizes = [leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None]
    return max(1, math.gcd(*sizes))


def _trace_once(recipe: TraceRecipe, num_microbatches: int) -> Program:
    arguments = (recipe.state, *recipe.batch)
    leaves, in_tree = jax.tree.flatten(arguments)
    names = _name_leaves(arguments)
    num_state = len(jax.tree.leaves(recipe.state))
    labels = [name_argument(name) for name in names]
    axes = [*([None] * num_state), *list_batch_axes(recipe.batch, recipe.batch_axes, labels[num_state:])]
    is_default = recipe.batch_axes is None or isinstance(recipe.batch_axes, int)
    avals = slice_shapes(leaves, axes, num_microbatches, labels, is_default=is_default)
    step = getattr(recipe.step, "__wrapped__", recipe.step) if _is_jitted(recipe.step) else recipe.step
    out_trees: list[Any] = []

    def flat_step(*flat: Any) -> list[Any]:
        result = step(*restore_non_arrays(jax.tree.unflatten(in_tree, flat)))
        flat_result, out_tree = jax.tree.flatten(mark_non_arrays(result))
        _refuse_objects(result)
        out_trees.append(out_tree)
        return flat_result

    closed = select_branches(inline_calls(_trace_or_explain(flat_step, avals)))
    _refuse_effects(closed)
    closed = scale_sums(closed, num_microbatches, set(closed.jaxpr.invars[num_state:]))
    state_outputs = _match_state(recipe.state, out_trees[-1], leaves[:num_state], closed.out_avals)
    if num_microbatches > 1 and any(eqn.primitive is EXIT for eqn in closed.jaxpr.eqns):
        rows = {aval.shape[axis] for aval, axis in zip(avals, axes, strict=True) if axis is not None}
        results = _name_leaves(jax.tree.unflatten(out_trees[-1], closed.out_avals))
        refuse_row_results(flat_step, leaves, closed, rows, results, state_outputs)
    unstacked = unstack_layers(closed, state_outputs, num_state)
    closed, lanes = unstacked.closed, unstacked.input_lanes
    num_state_values = sum(max(1, count) for count in lanes[:num_state])
    batch_vars = set(closed.jaxpr.invars[num_state_values:])
    marked = mark_roles(closed.jaxpr.eqns, closed.jaxpr.outvars, batch_vars)
    placed = place_in_layers(marked, closed.jaxpr.invars, recipe.num_layers)
    return assemble_program(
        closed, placed, marked, names=_repeat_names(names, lanes),
        batch_axes=tuple(axis for axis, count in zip(axes, lanes, strict=True) for _ in range(max(1, count))),
        num_state=num_state_values, state_outputs=_expand_pairs(state_outputs, unstacked),
        num_microbatches=num_microbatches, name=recipe.name, in_tree=in_tree, out_tree=out_trees[-1], recipe=recipe,
        input_lanes=lanes, output_lanes=unstacked.output_lanes,
    )  # fmt: skip


def _repeat_names(names: Sequence[str], lanes: Sequence[int]) -> list[str]:
    """`state['w']`, or `state['w'][0]`, `state['w'][1]`, ... for a leaf that was taken apart."""
    return [
        found
        for name, count in zip(names, lanes, strict=True)
        for found in ([f"{name}[{i}]" for i in range(count)] if count else [name])
    ]


def _expand_pairs(pairs: Sequence[tuple[int, int]], unstacked: UnstackedStep) -> tuple[tuple[int, int], ...]:
    """State outputs by position after stacked leaves were taken apart."""

    def list_starts(lanes: Sequence[int]) -> list[int]:
        return list(itertools.accumulate((max(1, count) for count in lanes), initial=0))

    starts_out, starts_in = list_starts(unstacked.output_lanes), list_starts(unstacked.input_lanes)
    return tuple(
        (starts_out[o] + k, starts_in[i] + k) for o, i in pairs for k in range(max(1, unstacked.input_lanes[i]))
    )


def _abstract(tree: Any) -> Any:
    """`tree` with arrays replaced by shapes; Python numbers stay as they are, other leaves become `NonArray`."""

    def abstract(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf if leaf.sharding is None else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        if isinstance(leaf, jax.Array):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        if isinstance(leaf, (np.ndarray, np.generic)):
            # What JAX makes of it: 64 bits become 32 unless they are enabled, and jax 0.12 warns of other requests.
            return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
        if is_number(leaf):
            return leaf
        raise InvalidStepError(
            f"A leaf of the step's arguments is a {type(leaf).__name__} ({leaf!r:.60}), not an array or a number. "
            "Register its class as a pytree (jax.tree_util.register_dataclass) or close over it."
        )

    return jax.tree.map(abstract, mark_non_arrays(tree))


def _refuse_objects(result: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(mark_non_arrays(result)):
        if not hasattr(leaf, "dtype") and not is_number(leaf):
            raise InvalidStepError(
                f"The step returns a {type(leaf).__name__} at {jax.tree_util.keystr(path) or 'the top'}, which is no "
                "array. Register its class as a pytree (jax.tree_util.register_dataclass) or leave it out."
            )


def _is_jitted(step: Callable[..., Any]) -> bool:
    return hasattr(step, "lower") and hasattr(step, "__wrapped__")


def _name_leaves(tree: Any) -> tuple[str, ...]:
    """Paths of the leaves of the step's arguments: `state['w']`, `batch['x']`, `batch1` ..."""
    found = []
    for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
        found.append(jax.tree_util.keystr(path))
    return tuple(found)


def _trace_or_explain(function: Callable[..., Any], avals: Sequence[Any]) -> Any:
    try:
        return internals.trace_flat(function, avals)
    except AlpaVizError:
        raise
    except Exception as error:
        line = _find_user_line(error)
        first = " ".join(str(error).strip().split("\n\n")[0].split("The error occurred while")[0].split())
        raise InvalidStepError(
            f"{line}the training step cannot be traced: {type(error).__name__}: {first:.500}"
        ) from error


def _find_user_line(error: BaseException) -> str:
    """`train.py:41: ` of the user's innermost frame, or ""."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)][::-1]
    position = choose_user_frame(file for file, _ in frames)
    return "" if position is None else f"{format_line(*frames[position])}: "


def _refuse_effects(closed: Any) -> None:
    for eqn in closed.jaxpr.eqns:
        if eqn.effects:
            line = internals.read_source_line(eqn)
            raise InvalidStepError(
                f"{line}: the training step has a side effect ({eqn.primitive.name}), which cannot be planned. "
                "Remove the callback or print, or return the value as auxiliary data."
            )


def _match_state(
    state: Any, out_tree: Any, state_leaves: Sequence[Any], out_avals: Sequence[Any]
) -> tuple[tuple[int, int], ...]:
    """(output position, input position) of the results that are the new state."""
    structure = jax.tree.structure(state)
    start = 0
    is_whole = have_equal_structures(out_tree, structure)
    parts = [out_tree] if is_whole or not out_tree.num_leaves else out_tree.children()
    for part in parts:
        stop = start + part.num_leaves
        if have_equal_structures(part, structure) and all(
            tuple(a.shape) == tuple(getattr(b, "shape", ()))
            for a, b in zip(out_avals[start:stop], state_leaves, strict=True)
        ):
            return tuple((start + i, i) for i in range(part.num_leaves))
        start = stop
    return ()
