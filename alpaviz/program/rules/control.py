"""Loops and branches: one op to the planner, whose body is planned inside.

The rule of a loop follows from the rules of its body's ops. Dimensions that must be split alike (through an op, or as
a carry that comes out as it went in) are one factor; an op that sums over a factor, or whose result is read in
another layout than it is made in, adds a collective to every iteration. So a recurrent cell can be split over its
batch, over the rows or over the columns of its weights, and the price of each is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from alpaviz.program import jax_internals as internals
from alpaviz.program.flatten import inline_calls
from alpaviz.program.flops import count_flops
from alpaviz.program.rule import BodyWork, DimFactors, Factor, FactorKind, ShardingRule
from alpaviz.program.rules.registry import OpSignature, make_rule, register_rule, sign_equation

Node = tuple[Any, int]
"""A variable of a body and one of its dimensions."""
Shape = tuple[int, ...]


@register_rule("scan")
def make_scan_rule(signature: OpSignature) -> ShardingRule:
    """Constants and carry as in the body; what is scanned over or stacked has a first dimension that stays whole."""
    params = signature.params
    num_consts, num_carry = internals.count_scan_parts(params)
    analysis = _Analysis()
    body = analysis.add_body(params["jaxpr"], float(params["length"]))
    carry_in, carry_out = body.invars[num_consts : num_consts + num_carry], body.outvars[:num_carry]
    for made, read in zip(carry_out, carry_in, strict=True):
        analysis.pass_on(made, read)
    before = num_consts + num_carry
    return analysis.finish(
        [(v, 0 if i < before else 1) for i, v in enumerate(body.invars)],
        [(v, 0) for v in carry_in] + [(v, 1) for v in body.outvars[num_carry:]],
        signature,
    )


@register_rule("while")
def make_while_rule(signature: OpSignature) -> ShardingRule:
    """As `scan`; how often the body runs is not known, so that it is priced as once."""
    params = signature.params
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    analysis = _Analysis()
    body = analysis.add_body(params["body_jaxpr"], 1.0)
    test = analysis.add_body(params["cond_jaxpr"], 1.0)
    carry = body.invars[num_body:]
    for made, read in zip(body.outvars, carry, strict=True):
        analysis.pass_on(made, read)
    for tested, read in zip(test.invars[num_cond:], carry, strict=True):
        analysis.pass_on(read, tested)
    operands = [*test.invars[:num_cond], *body.invars[:num_body], *carry]
    return analysis.finish([(v, 0) for v in operands], [(v, 0) for v in carry], signature)


@register_rule("cond")
def make_cond_rule(signature: OpSignature) -> ShardingRule:
    """All branches take and give the same layouts; the price is that of the branch with the most work."""
    analysis = _Analysis()
    branches = signature.params["branches"]
    heaviest = max(range(len(branches)), key=lambda i: sum(map(count_flops, _open(branches[i]).eqns)))
    bodies = [analysis.add_body(b, 1.0 if i == heaviest else 0.0) for i, b in enumerate(branches)]
    first = bodies[heaviest]
    for body in bodies:
        if body is first:
            continue
        for mine, other in zip(first.invars, body.invars, strict=True):
            analysis.pass_on(mine, other)
        for mine, other in zip(first.outvars, body.outvars, strict=True):
            analysis.pass_on(other, mine)
    return analysis.finish([(v, 0) for v in first.invars], [(v, 0) for v in first.outvars], signature, skip=1)


def _open(closed: Any) -> Any:
    return getattr(closed, "jaxpr", closed)


@dataclass(slots=True)
class _Class:
    """Dimensions that are split alike. `members` holds at most one dimension of each variable."""

    members: dict[Any, int]
    size: int
    is_whole: bool = False


@dataclass(slots=True)
class _Work:
    """Work of one body op: nodes that split it, nodes that it sums over, bytes and nodes of its result."""

    times: float
    flops: float
    split: tuple[Node, ...]
    summed: tuple[Node, ...]
    num_bytes: float
    result: tuple[Node, ...]


@dataclass(slots=True)
class _Analysis:
    """Finds classes of dimensions over one or more bodies."""

    class_of: dict[Node, _Class] = field(default_factory=dict)
    work: list[_Work] = field(default_factory=list)

    def add_body(self, closed: Any, times: float) -> Any:
        """Take in a body that runs `times`; its jaxpr, with nested calls inlined."""
        body: Any = inline_calls(closed).jaxpr
        for v in [*body.invars, *body.constvars]:
            self._add_variable(v)
        for eqn in body.eqns:
            for v in eqn.outvars:
                self._add_variable(v)
            self._add_equation(eqn, times)
        return body

    def _add_variable(self, v: Any) -> None:
        for dim, size in enumerate(v.aval.shape):
            self.class_of.setdefault((v, dim), _Class({v: dim}, size, is_whole=size == 1))

    def _add_equation(self, eqn: Any, times: float) -> None:
        rule = make_rule(sign_equation(eqn))
        minor = rule.minor_factors()
        leads = _list_nodes(eqn.invars, rule.operands), _list_nodes(eqn.outvars, rule.results)
        bound = {node for side in leads for nodes in side.values() for node in nodes}
        for v in [*eqn.invars, *eqn.outvars]:
            if not isinstance(v, internals.Literal):
                for dim in range(len(v.aval.shape)):
                    if (v, dim) not in bound:
                        self.class_of[v, dim].is_whole = True
        split: list[Node] = []
        summed: list[Node] = []
        results = tuple((v, dim) for v in eqn.outvars for dim in range(len(v.aval.shape)))
        num_bytes = float(sum(math.prod(v.aval.shape) * getattr(v.aval.dtype, "itemsize", 8) for v in eqn.outvars))
        for position, factor in enumerate(rule.factors):
            read, made = leads[0].get(position, []), leads[1].get(position, [])
            if factor.kind not in (FactorKind.PARALLEL, FactorKind.REDUCTION) or position in minor:
                for node in (*read, *made):
                    self.class_of[node].is_whole = True
                continue
            joined = self._join_all(read)
            if factor.kind is FactorKind.REDUCTION:
                summed += joined[:1]
            elif joined and made:
                self._join_all([joined[0], *made])
            split += (joined or made)[:1]
        inner = rule.body
        if not inner:
            flops = count_flops(eqn)
            self.work.append(_Work(times, flops, tuple(split), tuple(summed), num_bytes, results))
            return
        nodes = {f: (leads[0].get(f, []) + leads[1].get(f, []))[:1] for f in range(len(rule.factors))}
        for part in inner:

            def find(factors: Iterable[int]) -> tuple[Node, ...]:
                return tuple(node for f in factors for node in nodes[f])

            self.work.append(
                _Work(times * part.times, part.flops, find(part.split), find(part.summed), part.num_bytes,
                      find(part.result))
            )  # fmt: skip

    def _join_all(self, nodes: Sequence[Node]) -> list[Node]:
        for node in nodes[1:]:
            self._join(nodes[0], node)
        return list(nodes)

    def pass_on(self, made: Any, read: Any) -> None:
        """`made` is read as `read` in the next iteration or in another body: they have the same layout."""
        if isinstance(made, internals.Literal):
            return
        for dim in range(len(read.aval.shape)):
            self._join((made, dim), (read, dim))

    def _join(self, first: Node, second: Node) -> None:
        a, b = self.class_of[first], self.class_of[second]
        if a is b:
            return
        if any(a.members.get(v, dim) != dim for v, dim in b.members.items()):
            # Two dimensions of one array would be split alike, which no layout can; XLA's conversions in between are
            # not to be foretold.
            a.is_whole = b.is_whole = True
            return
        a.members.update(b.members)
        a.size, a.is_whole = math.gcd(a.size, b.size), a.is_whole or b.is_whole
        for v, dim in b.members.items():
            self.class_of[v, dim] = a

    def finish(
        self, operands: Sequence[tuple[Any, int]], results: Sequence[tuple[Any, int]], signature: OpSignature,
        skip: int = 0,
    ) -> ShardingRule:  # fmt: skip
        """The rule; operands and results are (variable of the body, dimensions before its own).

        Args:
            skip: operands of the op that no body has (a branch's index).
        """
        factors: list[Factor] = []
        number: dict[int, int] = {}

        def place(node: Node) -> DimFactors:
            found = self.class_of[node]
            if found.is_whole or found.size == 1:
                return ()
            if id(found) not in number:
                number[id(found)] = len(factors)
                factors.append(Factor(f"{_LETTERS[len(factors) % 26]}{len(factors) // 26 or ''}", found.size, _SPLIT))
            return (number[id(found)],)

        def term(v: Any, before: int) -> tuple[DimFactors, ...]:
            if hasattr(v, "val"):  # a literal: the same on every device
                return ((),) * (before + len(v.aval.shape))
            return ((),) * before + tuple(place((v, dim)) for dim in range(len(v.aval.shape)))

        missing: list[tuple[DimFactors, ...]] = [((),) * len(shape) for shape in signature.operand_shapes[:skip]]
        operand_terms = tuple(missing + [term(v, before) for v, before in operands])
        result_terms = tuple(term(v, before) for v, before in results)

        def known(nodes: Iterable[Node]) -> tuple[int, ...]:
            return tuple(sorted({number[i] for node in nodes if (i := id(self.class_of[node])) in number}))

        found: dict[tuple[tuple[int, ...], ...], BodyWork] = {}
        parts: list[BodyWork] = []
        for work in self.work:
            part = BodyWork(
                work.times, work.flops, known(work.split), known(work.summed), work.num_bytes, known(work.result)
            )  # fmt: skip
            if part.summed:
                parts.append(part)
            else:
                key = (part.split,)
                total = found.get(key)
                flops = part.flops * part.times + (total.flops if total else 0.0)
                found[key] = BodyWork(1.0, flops, part.split, (), 0.0, ())
        is_opaque = not factors and any(len(v.aval.shape) > 0 for v, _ in operands) and self._has_heavy_work()
        return ShardingRule(
            tuple(factors), operand_terms, result_terms, is_opaque=is_opaque, body=(*found.values(), *parts)
        )

    def _has_heavy_work(self) -> bool:
        return any(work.flops for work in self.work)


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SPLIT = FactorKind.PARALLEL


def _list_nodes(variables: Iterable[Any], terms: Sequence[tuple[DimFactors, ...]]) -> dict[int, list[Node]]:
    """The dimensions in which each factor comes first."""
    found: dict[int, list[Node]] = {}
    for v, term in zip(variables, terms, strict=True):
        if not isinstance(v, internals.Literal):
            for dim, factors in enumerate(term):
                if factors:
                    found.setdefault(factors[0], []).append((v, dim))
    return found
