"""Which compiled collectives are the plan's, and which ops the others belong to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from alpaviz.plan import Plan
from alpaviz.program.program import Program
from alpaviz.runtime.collectives_in_hlo import CompiledCollective
from alpaviz.runtime.evaluate import PLAN_SCOPE
from alpaviz.types import MeshAxis
from alpaviz.verify.predicted import PredictedCollective
from alpaviz.verify.report import CollectiveCheck, UnmatchedCollective

_PLANNED = re.compile(rf"{PLAN_SCOPE}(\d+)")
Key = tuple[object, ...]


def check_collectives(
    predicted: Sequence[PredictedCollective], compiled: Sequence[CompiledCollective]
) -> tuple[CollectiveCheck, ...]:
    """Bytes of both sides by kind and axes; the largest first."""
    sums: dict[tuple[str, tuple[MeshAxis, ...]], list[float]] = defaultdict(lambda: [0.0, 0.0])
    sides: tuple[Sequence[PredictedCollective | CompiledCollective], ...] = (predicted, compiled)
    for side, found in enumerate(sides):
        for collective in found:
            sums[collective.kind, collective.axes][side] += collective.num_bytes * collective.runs
    checks = [CollectiveCheck(*key, *both) for key, both in sums.items()]
    return tuple(sorted(checks, key=lambda c: (-max(c.predicted_bytes, c.compiled_bytes), c.kind, c.axes)))


def find_ops(program: Program) -> dict[str, tuple[int, ...]]:
    """Scope, as XLA names it without the enclosing function, -> ops. A backward pass may have two ops of one scope."""
    found: dict[str, list[int]] = defaultdict(list)
    for op, eqn in zip(program.ops, program.jaxpr.eqns, strict=True):
        stack = str(eqn.source_info.name_stack)
        found[f"{stack}/{op.primitive}" if stack else op.primitive].append(op.id)
    return {scope: tuple(ops) for scope, ops in found.items()}


def match_collectives(
    plan: Plan,
    ops_of: dict[str, tuple[int, ...]],
    predicted: Sequence[PredictedCollective],
    compiled: Sequence[CompiledCollective],
) -> tuple[tuple[UnmatchedCollective, ...], tuple[UnmatchedCollective, ...]]:
    """Collectives that only XLA has, and those that only the plan has.

    Equal ones of the same op are matched first, then equal ones wherever they are: XLA may merge two that do the same.
    """
    left_compiled = [(c, _find_candidates(c, ops_of)) for c in compiled]
    left_predicted = list(predicted)
    for is_same_op in (True, False):
        waiting: dict[Key, list[PredictedCollective]] = defaultdict(list)
        for p in left_predicted:
            waiting[_make_key(p.kind, p.axes, p.num_bytes, p.op if is_same_op else None)].append(p)
        unmatched = []
        for c, candidates in left_compiled:
            keys = [_make_key(c.kind, c.axes, c.num_bytes, o) for o in (candidates if is_same_op else (None,))]
            key = next((k for k in keys if waiting.get(k)), None)
            if key is None:
                unmatched.append((c, candidates))
            else:
                waiting[key].pop(0)
        left_compiled = unmatched
        left_predicted = [p for found in waiting.values() for p in found]
    added = [(c, c.num_bytes * c.runs, candidates[0] if candidates else None) for c, candidates in left_compiled]
    missing = [(p, p.num_bytes * p.runs, p.op) for p in left_predicted if p.num_bytes]
    return _merge(plan, added), _merge(plan, missing)


def _make_key(kind: str, axes: tuple[MeshAxis, ...], num_bytes: float, op: int | None) -> Key:
    return kind, axes, round(num_bytes), op


def _find_candidates(collective: CompiledCollective, ops_of: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Ops of the plan that a compiled collective may come from."""
    match = _PLANNED.search(collective.scope)
    if match:
        return (int(match[1]),)
    scope = collective.scope
    while scope:  # the function's name, and loops around it, come first
        if scope in ops_of:
            return ops_of[scope]
        scope = scope.partition("/")[2]
    return ()


def _merge(
    plan: Plan, found: Iterable[tuple[PredictedCollective | CompiledCollective, float, int | None]]
) -> tuple[UnmatchedCollective, ...]:
    """Those of one op, kind and axes together; the largest first."""
    sums: dict[tuple[str, tuple[MeshAxis, ...], int | None], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for collective, size, op in found:
        total = sums[collective.kind, collective.axes, op]
        total[0] += size
        total[1] += collective.runs

    def name(op: int | None) -> tuple[str, str]:
        return ("", "") if op is None else (plan.ops[op].name, plan.ops[op].source)

    merged = [
        UnmatchedCollective(kind, axes, size, int(runs), *name(op)) for (kind, axes, op), (size, runs) in sums.items()
    ]
    return tuple(sorted(merged, key=lambda c: -c.num_bytes))
