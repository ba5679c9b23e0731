"""The few places where JAX's private modules are needed, in one file.

Reasons: a jaxpr's equations carry name stacks and tracebacks that only `jax._src.source_info_util` can read or set,
and new variables and equations are made by `jax._src.core`. Checked with jax 0.10 and 0.12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core as jax_core
from jax._src import source_info_util
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from alpaviz.program.user_lines import choose_user_frame, format_line

Literal = jex_core.Literal
ClosedJaxpr = jex_core.ClosedJaxpr
Jaxpr = jex_core.Jaxpr


def make_variable(aval: Any) -> Any:
    """A new jaxpr variable of type `aval`."""
    return jax_core.Var(aval)


def is_dropped(variable: Any) -> bool:
    """Whether an equation's result is thrown away (`_` in a printed jaxpr)."""
    return isinstance(variable, jax_core.DropVar)


def make_jaxpr(
    constvars: Sequence[Any], invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any], consts: Sequence[Any]
) -> Any:
    """A closed jaxpr of the given parts."""
    effects = jax_core.join_effects(*(eqn.effects for eqn in eqns))
    debug_info = jax_core.DebugInfo("alpaviz", "step", None, None)
    jaxpr = jex_core.Jaxpr(list(constvars), list(invars), list(outvars), list(eqns), effects, debug_info)
    return jex_core.ClosedJaxpr(jaxpr, list(consts))


def make_equation(
    primitive: Any, invars: Sequence[Any], outvars: Sequence[Any], params: dict[str, Any], like: Any
) -> Any:
    """A new equation that takes its source and context from the equation `like`."""
    return jax_core.new_jaxpr_eqn(
        list(invars), list(outvars), primitive, params, jax_core.no_effects, like.source_info, like.ctx
    )


def read_scopes(eqn: Any) -> tuple[str, ...]:
    """Names of the `jax.named_scope`s around an equation, outermost first; transformations are left out."""
    return tuple(entry.name for entry in eqn.source_info.name_stack.stack if isinstance(entry, source_info_util.Scope))


def prepend_source(outer: Any, inner: Any, *, use_outer_traceback: bool) -> Any:
    """`inner` with `outer`'s name stack put before its own, as JAX does when it lowers a call."""
    info = inner.source_info
    info = info.replace(name_stack=outer.source_info.name_stack + info.name_stack)
    if use_outer_traceback:
        info = info.replace(traceback=outer.source_info.traceback)
    return inner.replace(source_info=info)


def add_outer_scope(eqn: Any, scope: str) -> Any:
    """`eqn` with one more scope at the beginning of its name stack."""
    info = eqn.source_info
    stack = source_info_util.new_name_stack(scope) + info.name_stack
    return eqn.replace(source_info=info.replace(name_stack=stack))


def add_scope(eqn: Any, scope: str) -> Any:
    """`eqn` with one more scope at the end of its name stack."""
    info = eqn.source_info
    return eqn.replace(source_info=info.replace(name_stack=info.name_stack.extend(scope)))


def is_extended(dtype: Any) -> bool:
    """Whether `dtype` is one of JAX's own (a typed PRNG key), which NumPy does not know."""
    return bool(jnp.issubdtype(dtype, jax.dtypes.extended))


def read_source_line(eqn: Any) -> str:
    """`file.py:41` of the innermost frame that is the user's (`cell:41` in a notebook), or "" where JAX kept none."""
    traceback = eqn.source_info.traceback
    codes, instructions = traceback.raw_frames() if traceback else ([], [])
    position = choose_user_frame(code.co_filename for code in codes)
    if position is None:
        return ""
    frame = source_info_util.raw_frame_to_frame(codes[position], instructions[position])
    return format_line(frame.file_name, frame.start_line)


@contextmanager
def equation_context(eqn: Any, scope: str | None) -> Iterator[None]:
    """Everything bound inside gets `eqn`'s traceback and its name stack, `scope` before it."""
    stack = source_info_util.current_name_stack()
    if scope is not None:
        stack = stack.extend(scope)
    stack = stack + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def bind_equation(eqn: Any, operands: Sequence[Any], scope: str | None = None) -> list[Any]:
    """Apply `eqn`'s primitive to `operands`."""
    with equation_context(eqn, scope):
        results = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(results) if eqn.primitive.multiple_results else [results]


def make_identity_primitive(name: str) -> Any:
    """A primitive that does nothing but mark a value: differentiable, batchable, lowered to nothing."""
    primitive = jex_core.Primitive(name)
    primitive.def_impl(lambda x, **_: x)
    primitive.def_abstract_eval(lambda x, **_: x)
    mlir.register_lowering(primitive, lambda ctx, x, **_: [x])
    ad.deflinear2(primitive, lambda cotangent, x, **_: [cotangent])

    def batch(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return primitive.bind(operands[0], **params), dims[0]

    batching.primitive_batchers[primitive] = batch
    return primitive


def optimization_barrier_primitive() -> Any:
    """JAX's own barrier primitive, which keeps XLA from merging recomputation into the forward pass."""
    from jax._src.ad_checkpoint import remat_p  # noqa: F401  (makes sure that the module is loaded)
    from jax._src.lax.lax import optimization_barrier_p

    return optimization_barrier_p


def select_primitive() -> Any:
    """The primitive of `jax.lax.select_n`."""
    from jax._src.lax.lax import select_n_p

    return select_n_p


def multiply_primitive() -> Any:
    """The primitive of `jax.lax.mul`."""
    from jax._src.lax.lax import mul_p

    return mul_p


def make_scalar(value: float, dtype: Any) -> Any:
    """A literal of shape ()."""
    array = np.asarray(value, dtype)
    return Literal(array, jax_core.ShapedArray((), array.dtype))


def list_bodies(eqn: Any) -> list[Any]:
    """The closed jaxprs among an equation's parameters; open ones are closed without constants."""
    found = []
    for param in eqn.params.values():
        for entry in param if isinstance(param, (tuple, list)) else [param]:
            if isinstance(entry, jex_core.ClosedJaxpr):
                found.append(entry)
            elif isinstance(entry, jex_core.Jaxpr):
                found.append(jex_core.ClosedJaxpr(entry, []))
    return found


def count_scan_parts(params: Any) -> tuple[int, int]:
    """(constants, carries) among the operands of a `scan`."""
    if "num_consts" in params:
        return int(params["num_consts"]), int(params["num_carry"])
    # jax 0.12 keeps the structure of the operands instead: one entry each for constants, carry and inputs.
    consts, carry, *_ = params["ft_in"].unpack()
    return len(consts), len(carry)


def read_static_positions(function: Any) -> tuple[int, ...]:
    """`static_argnums` of a function under `jax.jit`, to which JAX adds those of `static_argnames`; () for others."""
    info = getattr(function, "_jit_info", None)
    return tuple(getattr(info, "static_argnums", None) or ())


def trace_flat(function: Callable[..., Any], avals: Sequence[Any]) -> Any:
    """`jax.make_jaxpr` of a function of flat arguments."""
    return jax.make_jaxpr(function)(*avals)
