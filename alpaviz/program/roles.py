"""Roles: which equations are forward, backward and update, told apart by what they compute from.

In: the flat equations with the markers of `gradient.py` in them. Out: the equations without markers, each with its
role and the number of the forward op that it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alpaviz.program import jax_internals as internals
from alpaviz.program.flatten import RECOMPUTED
from alpaviz.program.gradient import BOUNDARY, EXIT, SCOPE_PREFIX, SEED
from alpaviz.program.layer_scans import LAYER_SCOPE
from alpaviz.program.program import Role

_GroupKey = tuple[int, ...]
"""Region, op, and inside a scan over layers the layer and the op of its body. Sorted, they are in forward order."""


@dataclass(frozen=True, slots=True)
class MarkedEquation:
    """An equation with its role; `group` is the number of its forward op, None outside `value_and_grad`."""

    eqn: Any
    role: Role
    group: int | None
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """Flat equations with roles. `boundaries` are group numbers after which a new layer starts."""

    equations: tuple[MarkedEquation, ...]
    outvars: tuple[Any, ...]
    boundaries: tuple[int, ...]
    has_gradient_marker: bool
    warnings: tuple[str, ...]


def mark_roles(eqns: Sequence[Any], outvars: Sequence[Any], batch_vars: set[Any]) -> MarkedStep:
    """Tell roles apart and take the markers out.

    Forward: what the results of `value_and_grad` are made from. Backward: what is made from the seed of its backward
    pass. Update: the rest. A step without the marker, or with one `value_and_grad` that depends on the results of
    another, is all forward and has a warning.
    """
    warnings: list[str] = []
    has_marker = any(eqn.primitive is EXIT for eqn in eqns)
    if not has_marker:
        warnings.append(
            "The step does not use alpaviz.value_and_grad or alpaviz.grad, so forward, backward and update cannot be "
            "told apart: it is planned with one microbatch and one stage."
        )
    roles = _find_roles(eqns, batch_vars, warnings) if has_marker else [Role.FORWARD] * len(eqns)
    if roles is None:
        has_marker, roles = False, [Role.FORWARD] * len(eqns)
    return _remove_markers(eqns, outvars, roles, has_marker, tuple(warnings))


def _find_roles(eqns: Sequence[Any], batch_vars: set[Any], warnings: list[str]) -> list[Role] | None:
    from_seed: set[Any] = set()
    from_exit: set[Any] = set()
    from_batch = set(batch_vars)
    to_exit: set[Any] = set()
    for eqn in reversed(eqns):
        if eqn.primitive is EXIT or any(v in to_exit for v in eqn.outvars):
            to_exit.update(v for v in eqn.invars if not isinstance(v, internals.Literal))
    roles = []
    for eqn in eqns:
        inputs = [v for v in eqn.invars if not isinstance(v, internals.Literal)]
        is_batch = any(v in from_batch for v in inputs)
        if is_batch:
            from_batch.update(eqn.outvars)
        if eqn.primitive is EXIT:
            from_exit.update(eqn.outvars)
            roles.append(Role.BACKWARD)
        elif any(v in from_exit for v in inputs):
            if any(v in to_exit for v in eqn.outvars):
                warnings.append(
                    "One value_and_grad of the step depends on the results of another: the step is planned with one "
                    "microbatch and one stage."
                )
                return None
            from_exit.update(eqn.outvars)
            roles.append(Role.UPDATE)
        elif eqn.primitive is SEED or any(v in from_seed for v in inputs) or RECOMPUTED in internals.read_scopes(eqn):
            from_seed.update(eqn.outvars)
            roles.append(Role.BACKWARD)
        elif any(v in to_exit for v in eqn.outvars):
            roles.append(Role.FORWARD)
        elif is_batch:
            line = internals.read_source_line(eqn) or eqn.primitive.name
            warnings.append(
                f"At {line} the step computes from the batch outside of value_and_grad, which slices of the batch "
                "cannot do: it is planned with one microbatch and one stage. Return it as auxiliary data instead."
            )
            return None
        else:
            roles.append(Role.UPDATE)
    return roles


def _remove_markers(
    eqns: Sequence[Any], outvars: Sequence[Any], roles: Sequence[Role], has_marker: bool, warnings: tuple[str, ...]
) -> MarkedStep:
    alias: dict[Any, Any] = {}
    all_scopes = [internals.read_scopes(eqn) for eqn in eqns]
    keys = [_read_group(scopes) for scopes in all_scopes]
    number_of = {key: number for number, key in enumerate(sorted({key for key in keys if key is not None}))}
    boundaries: list[int] = []
    kept: list[MarkedEquation] = []

    def resolve(v: Any) -> Any:
        return v if isinstance(v, internals.Literal) else alias.get(v, v)

    for eqn, role, scopes, key in zip(eqns, roles, all_scopes, keys, strict=True):
        group = None if key is None else number_of[key]
        if eqn.primitive in (SEED, EXIT, BOUNDARY):
            alias[eqn.outvars[0]] = resolve(eqn.invars[0])
            if eqn.primitive is BOUNDARY and group is not None and role is Role.FORWARD:
                boundaries.append(group)
            continue
        plain = tuple(_name_for_people(s) for s in scopes if _is_for_people(s))
        placed = eqn.replace(invars=[resolve(v) for v in eqn.invars])
        kept.append(MarkedEquation(placed, role, group, plain))
    return MarkedStep(tuple(kept), tuple(resolve(v) for v in outvars), tuple(boundaries), has_marker, warnings)


def _name_for_people(scope: str) -> str:
    return scope.removeprefix("alpaviz_") if scope.startswith(LAYER_SCOPE) else scope


def _is_for_people(scope: str) -> bool:
    """Whether a scope was set by the user or a framework, not by us, by `jnp.einsum` or by `jax.checkpoint`."""
    return (
        not scope.startswith(SCOPE_PREFIX)
        and "->" not in scope
        and scope not in ("rematted_computation", "checkpoint", RECOMPUTED)
    )


def _read_group(scopes: tuple[str, ...]) -> _GroupKey | None:
    """Numbers in the marker scopes, outermost first; None outside `value_and_grad`."""
    numbers: list[int] = []
    wants_op = True  # JAX may repeat a scope inside a recomputed region: only the first op of a level counts
    for scope in scopes:
        if scope.startswith(SCOPE_PREFIX) and wants_op:
            region, number = scope[len(SCOPE_PREFIX) :].split("_")
            numbers += [int(number)] if numbers else [int(region), int(number)]
            wants_op = False
        elif scope.startswith(LAYER_SCOPE) and numbers:
            numbers.append(int(scope[len(LAYER_SCOPE) :]))
            wants_op = True
    return tuple(numbers) or None
