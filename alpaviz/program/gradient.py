"""`value_and_grad` and `grad`: drop-in for JAX's, and the marker of what a training step does once per microbatch.

Everything that `value_and_grad` computes is done for each microbatch; what is made from its results (the optimizer)
once per step. The function is traced first and each of its ops is run under a scope that carries the op's number, so
that forward and backward ops can be told apart and matched to each other afterwards, exactly and for any library.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpaviz.errors import InvalidStepError
from alpaviz.program import jax_internals as internals
from alpaviz.program.flatten import PLAIN_CALLS, inline_calls
from alpaviz.program.leaves import mark_non_arrays, restore_non_arrays
from alpaviz.program.sums import mark_sum

SEED = internals.make_identity_primitive("alpaviz_seed")
"""Marks the cotangent that a backward pass starts from."""
EXIT = internals.make_identity_primitive("alpaviz_exit")
"""Marks a result of `value_and_grad`."""
BOUNDARY = internals.make_identity_primitive("alpaviz_layer_boundary")
"""Marks a cut between two layers."""

SCOPE_PREFIX = "alpaviz_op_"

_region_numbers = itertools.count()


def layer_boundary(tree: Any) -> Any:
    """`tree`, unchanged; the ops of the forward pass before it and after it are in different layers.

    Use it inside the function that `alpaviz.value_and_grad` differentiates: `x = alpaviz.layer_boundary(x)`.
    """
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [BOUNDARY.bind(leaf) for leaf in leaves])


def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *, reduction: str = "mean"
) -> Callable[..., Any]:
    """`jax.value_and_grad`, and a marker: what it computes is done once per microbatch.

    A planned step runs it on slices of the batch, each from the same state. The value, the gradients and
    floating-point auxiliary results are averaged over the microbatches, so `fun` should return a mean over its batch
    (else see `reduction`). Running statistics (of BatchNorm) among the auxiliary results are averaged too. Other
    auxiliary results (counters, keys) are those of the last microbatch. Random numbers are the same in all
    microbatches, unless the batch holds a key for each row.

    Args:
        fun: returns a scalar, or (scalar, auxiliary results) with `has_aux`.
        argnums: which positional arguments to differentiate with respect to.
        has_aux: `fun` returns a pair.
        reduction: `"sum"` where `fun` returns a sum over its batch: the value, the gradients and floating-point
            auxiliary results that depend on the batch are then added up over the microbatches.

    Raises:
        InvalidStepError: another `reduction`; when called, an argument or a result that cannot be differentiated.
    """
    if reduction not in ("mean", "sum"):
        raise InvalidStepError(f"value_and_grad: reduction must be 'mean' or 'sum', not {reduction!r}.")

    @functools.wraps(fun)
    def value_and_grad_of_fun(*args: Any, **kwargs: Any) -> Any:
        return _differentiate(fun, argnums, has_aux, reduction, args, kwargs)

    return value_and_grad_of_fun


def grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *, reduction: str = "mean"
) -> Callable[..., Any]:
    """`jax.grad`, and a marker like `value_and_grad`."""
    both = value_and_grad(fun, argnums, has_aux, reduction=reduction)

    @functools.wraps(fun)
    def grad_of_fun(*args: Any, **kwargs: Any) -> Any:
        value, gradients = both(*args, **kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return grad_of_fun


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.core.Tracer))


def _differentiate(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    reduction: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for position in positions:
        if not -len(args) <= position < len(args):
            raise InvalidStepError(
                f"value_and_grad: argnums {position} asks for an argument that is not there ({len(args)} were given)."
            )
    positions = tuple(position % len(args) for position in positions)
    wanted = [args[p] for p in positions]
    wanted_leaves, wanted_tree = jax.tree.flatten(wanted)
    others = (tuple(None if i in positions else a for i, a in enumerate(args)), kwargs)
    other_leaves, other_tree = jax.tree.flatten(others)
    array_slots = [i for i, leaf in enumerate(other_leaves) if _is_array(leaf)]
    out_trees: list[Any] = []

    def flat_fun(*leaves: Any) -> list[Any]:
        split = len(wanted_leaves)
        filled = list(other_leaves)
        for slot, leaf in zip(array_slots, leaves[split:], strict=True):
            filled[slot] = leaf
        other_args, other_kwargs = jax.tree.unflatten(other_tree, filled)
        full = list(other_args)
        for p, arg in zip(positions, jax.tree.unflatten(wanted_tree, leaves[:split]), strict=True):
            full[p] = arg
        result = fun(*full, **other_kwargs)
        value, aux = result if has_aux else (result, None)
        aux_leaves, aux_tree = jax.tree.flatten(mark_non_arrays(aux))
        out_trees.append(aux_tree)
        return [value, *aux_leaves]

    flat_args = [*wanted_leaves, *(other_leaves[slot] for slot in array_slots)]
    closed = inline_calls(jax.make_jaxpr(flat_fun)(*flat_args), PLAIN_CALLS)
    value, gradients, aux_leaves = _run_marked(closed, flat_args, len(wanted_leaves))
    if reduction == "sum":
        value, gradients = mark_sum(value), [mark_sum(g) for g in gradients]
        aux_leaves = [mark_sum(a, of_batch=True) for a in aux_leaves]
    gradient_trees = jax.tree.unflatten(wanted_tree, gradients)
    gradient = gradient_trees[0] if isinstance(argnums, int) else tuple(gradient_trees)
    aux = restore_non_arrays(jax.tree.unflatten(out_trees[-1], aux_leaves))
    return ((value, aux) if has_aux else value), gradient


def _run_marked(closed: Any, flat_args: list[Any], num_wanted: int) -> tuple[Any, list[Any], list[Any]]:
    """Value, gradients and auxiliary results, with every op under its number's scope and every exit marked."""
    region = next(_region_numbers)
    value_aval = closed.jaxpr.outvars[0].aval
    if value_aval.shape != ():
        raise InvalidStepError(
            f"value_and_grad: the function must return a scalar, not an array of shape {value_aval.shape}."
        )
    if not jnp.issubdtype(value_aval.dtype, jnp.floating):
        raise InvalidStepError(
            f"value_and_grad: the function must return a real floating-point scalar, not {value_aval.dtype}."
        )
    rest = flat_args[num_wanted:]

    def evaluate(*wanted: Any) -> tuple[Any, list[Any]]:
        outputs = _evaluate(closed, [*wanted, *rest], region)
        return outputs[0], outputs[1:]

    value, pull_back, aux = jax.vjp(evaluate, *flat_args[:num_wanted], has_aux=True)
    gradients = pull_back(SEED.bind(jnp.ones(value.shape, value.dtype)))
    return EXIT.bind(value), [_mark_exit(g) for g in gradients], [_mark_exit(a) for a in aux]


def _mark_exit(leaf: Any) -> Any:
    return EXIT.bind(jnp.asarray(leaf)) if leaf.dtype != jax.dtypes.float0 else leaf


def _evaluate(closed: Any, arguments: list[Any], region: int) -> list[Any]:
    env: dict[Any, Any] = dict(
        zip([*closed.jaxpr.constvars, *closed.jaxpr.invars], [*closed.consts, *arguments], strict=True)
    )

    def read(v: Any) -> Any:
        return v.val if isinstance(v, internals.Literal) else env[v]

    for number, eqn in enumerate(closed.jaxpr.eqns):
        if eqn.primitive.name == "scan":
            eqn = _number_body(eqn, region)
        results = internals.bind_equation(eqn, [read(v) for v in eqn.invars], f"{SCOPE_PREFIX}{region}_{number}")
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in closed.jaxpr.outvars]


def _number_body(scan: Any, region: int) -> Any:
    """A scan whose body's ops carry their numbers, for the case that it is written out."""
    body = inline_calls(scan.params["jaxpr"], PLAIN_CALLS)
    eqns = [
        internals.add_outer_scope(_number_body(eqn, region) if eqn.primitive.name == "scan" else eqn, scope)
        for eqn, scope in ((eqn, f"{SCOPE_PREFIX}{region}_{i}") for i, eqn in enumerate(body.jaxpr.eqns))
    ]
    jaxpr = body.jaxpr
    numbered = internals.make_jaxpr(jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns, body.consts)
    return scan.replace(params={**scan.params, "jaxpr": numbered})
