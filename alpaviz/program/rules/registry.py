"""Which rule belongs to which primitive, and what a user adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from alpaviz.errors import ShardingRuleError
from alpaviz.program.rule import RuleBuilder, ShardingRule, parse_rule

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpSignature:
    """What a rule may look at: shapes of operands (literals included) and results, and the primitive's parameters."""

    primitive: str
    operand_shapes: tuple[Shape, ...]
    result_shapes: tuple[Shape, ...]
    params: Mapping[str, Any]


def sign_equation(eqn: Any) -> OpSignature:
    """The signature of a jaxpr's equation."""
    return OpSignature(
        eqn.primitive.name,
        tuple(tuple(np.shape(v.val) if hasattr(v, "val") else v.aval.shape) for v in eqn.invars),
        tuple(tuple(v.aval.shape) for v in eqn.outvars),
        eqn.params,
    )


RuleMaker = Callable[[OpSignature], ShardingRule]

# Registration happens when the modules of this package are imported, and when a user registers a rule of their own.
_RULES: dict[str, RuleMaker] = {}


def register_rule(*primitives: str) -> Callable[[RuleMaker], RuleMaker]:
    """Decorator: the function makes the rule of these primitives."""

    def register(make: RuleMaker) -> RuleMaker:
        for name in primitives:
            _RULES[name] = make
        return make

    return register


def register_sharding_rule(name_or_primitive: Any, rule: str) -> None:
    """Give a primitive that AlpaViz does not know (or knows too little of) a sharding rule.

    Args:
        name_or_primitive: a JAX primitive or its name.
        rule: for instance `"b s d, d f -> b s f"`: a term per operand and result, a factor per dimension; `(h d)` is a
            dimension made of two factors, `1` one that nothing may split. A factor that no result has is summed over.

    Raises:
        ShardingRuleError: at once if the text cannot be read; when a program is traced if it does not fit the op.
    """
    name = getattr(name_or_primitive, "name", name_or_primitive)
    if not isinstance(name, str):
        raise ShardingRuleError(f"register_sharding_rule takes a primitive or its name, not {name_or_primitive!r}.")
    if not isinstance(rule, str):
        raise ShardingRuleError(f"the rule must be text, not {rule!r}: for instance 'b m k, b k n -> b m n'.")
    if rule.count("->") != 1:
        raise ShardingRuleError(f"rule {rule!r}: write operands, '->', results, as in 'b m k, b k n -> b m n'.")
    _RULES[name] = lambda signature: parse_rule(rule, signature.operand_shapes, signature.result_shapes)


def make_rule(signature: OpSignature) -> ShardingRule:
    """The op's rule; the safe one (every factor whole, `is_opaque`) where its primitive has none."""
    maker = _RULES.get(signature.primitive)
    return make_opaque_rule(signature) if maker is None else maker(signature)


def make_opaque_rule(signature: OpSignature) -> ShardingRule:
    """The safe rule: nothing may be split."""
    operands: list[list[tuple[int, ...]]] = [[()] * len(shape) for shape in signature.operand_shapes]
    results: list[list[tuple[int, ...]]] = [[()] * len(shape) for shape in signature.result_shapes]
    return RuleBuilder().finish(operands, results, is_opaque=True)


def list_primitives() -> tuple[str, ...]:
    """Names of all primitives that have a rule."""
    return tuple(sorted(_RULES))


def list_rule_families() -> tuple[tuple[RuleMaker, tuple[str, ...]], ...]:
    """Makers of this package's own rules, each with the primitives that it serves; in order of the first of them."""
    found: dict[RuleMaker, list[str]] = {}
    for name, maker in sorted(_RULES.items()):
        if maker.__module__.startswith(__package__ or "") and maker.__name__ != "<lambda>":
            found.setdefault(maker, []).append(name)
    return tuple((maker, tuple(names)) for maker, names in found.items())
