"""Results of a step that microbatches would change silently: refused, or warned about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from alpaviz.errors import InvalidStepError
from alpaviz.program.program import Accumulation, Op, Value


def refuse_row_results(
    flat_step: Callable[..., Any],
    leaves: Sequence[Any],
    closed: Any,
    rows: set[int],
    names: Sequence[str],
    state_outputs: Sequence[tuple[int, int]],
) -> None:
    """Raise if a result has a row for each row of the batch: those of different microbatches cannot be averaged.

    Args:
        flat_step: the step, of flat arguments.
        leaves: its arguments, not sliced.
        closed: its jaxpr for one microbatch.
        rows: lengths of the sliced dimensions; the step is traced for the whole batch only where a result has one.
        names: of the results, for the message.
        state_outputs: (result, input) of results that are the new state, which keep their shapes.

    Raises:
        InvalidStepError: it names the result and both shapes.
    """
    state = {position for position, _ in state_outputs}
    inputs = set(closed.jaxpr.invars)
    suspects = [
        i
        for i, v in enumerate(closed.jaxpr.outvars)
        if i not in state and rows & set(v.aval.shape) and (hasattr(v, "val") or v not in inputs)
    ]
    if not suspects:
        return
    whole = jax.eval_shape(flat_step, *leaves)
    for i in suspects:
        sliced = tuple(closed.jaxpr.outvars[i].aval.shape)
        if tuple(whole[i].shape) != sliced:
            raise InvalidStepError(
                f"The step's result {names[i]} has the shape {tuple(whole[i].shape)} for the whole batch and {sliced} "
                "for a microbatch: it holds values of single rows, which cannot be averaged over microbatches. Return "
                "a mean of it, or plan with num_microbatches=1."
            )


def warn_of_last_results(
    accumulations: Sequence[Accumulation],
    from_batch: set[int],
    ops: Sequence[Op],
    values: Sequence[Value],
    num_microbatches: int,
) -> list[str]:
    """A sentence for each result that depends on the batch and is no float: of it the last microbatch's is kept."""
    if num_microbatches == 1:
        return []
    kept = {a.value for a in accumulations if a.mode == "last" and a.value in from_batch}
    return [
        f"At {op.source or op.name} the step makes a result of type {values[v].dtype} from the batch, which is not "
        "averaged: that of the last microbatch is kept. Convert it to a float, inside of the function that "
        "alpaviz.value_and_grad differentiates."
        for op in ops
        for v in op.outputs
        if v in kept
    ]
