"""Ops of equal layers that run alike, counted as one, with what they cost in a step.

In: a plan. Out: groups of ops by cost, and what each kind of collective over the same axes is made of.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from alpaviz.plan import OpPlan, Plan, PlannedCollective
from alpaviz.types import MeshAxis

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class OpGroup:
    """Ops of one stage with one name but for the numbers in its scope, one role and one strategy.

    Attributes:
        first: stands for all.
        count: of them.
        compute_s, communication_s: of all together, in one step.
    """

    first: OpPlan
    count: int
    compute_s: float
    communication_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.communication_s


@dataclass(frozen=True, slots=True)
class CollectiveShare:
    """The part of a stage's collectives of one kind over the same axes that one group of ops causes.

    `is_resharding`: an operand arrived in another spec, or a result goes back to one; else the op's own result is
    completed. `runs`, `num_bytes` (what each takes part with) and `time_s` are those of one step.
    """

    first: OpPlan
    count: int
    is_resharding: bool
    runs: int
    num_bytes: float
    time_s: float


def group_ops(plan: Plan, stage: int) -> tuple[OpGroup, ...]:
    """Groups of a stage's ops, those that take most of a step first."""
    members: dict[tuple[str, str, str], list[OpPlan]] = defaultdict(list)
    for op in plan.ops:
        if op.stage == stage:
            members[name_group(op), op.role, op.strategy].append(op)
    groups = [
        OpGroup(
            ops[0], len(ops), sum(op.compute_s * count_runs(plan, op) for op in ops),
            sum(c.time_s * count_runs(plan, op, c) for op in ops for _, c in _list_collectives(op)),
        )
        for ops in members.values()
    ]  # fmt: skip
    return tuple(sorted(groups, key=lambda group: (-group.step_s, group.first.id)))


def split_collectives(plan: Plan, stage: int, kind: str, axes: tuple[MeshAxis, ...]) -> tuple[CollectiveShare, ...]:
    """What the stage's collectives of this kind over these axes are made of, the slowest part first."""
    members: dict[tuple[str, str, str, bool], list[OpPlan]] = defaultdict(list)
    sums: dict[tuple[str, str, str, bool], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for op in plan.ops:
        if op.stage != stage:
            continue
        for is_resharding, collective in _list_collectives(op):
            if (collective.kind, collective.axes) != (kind, axes):
                continue
            key = name_group(op), op.role, op.strategy, is_resharding
            if not members[key] or members[key][-1] is not op:
                members[key].append(op)
            runs = count_runs(plan, op, collective)
            for k, more in enumerate((runs, runs * collective.num_bytes, runs * collective.time_s)):
                sums[key][k] += more
    shares = [
        CollectiveShare(ops[0], len(ops), key[3], int(sums[key][0]), sums[key][1], sums[key][2])
        for key, ops in members.items()
    ]
    return tuple(sorted(shares, key=lambda share: (-share.time_s, share.first.id)))


def name_group(op: OpPlan) -> str:
    """The op's name without the numbers of its scope, which tell equal layers apart."""
    scope, slash, name = op.name.rpartition("/")
    return _NUMBER.sub("*", scope) + slash + name


def count_runs(plan: Plan, op: OpPlan, collective: PlannedCollective | None = None) -> int:
    """How often an op, or a collective of it, runs in a step."""
    is_once = op.role == "update" or (collective is not None and collective.once)
    return 1 if is_once else plan.num_microbatches


def _list_collectives(op: OpPlan) -> list[tuple[bool, PlannedCollective]]:
    """Collectives of an op, and whether they are those of a resharding."""
    own = [(False, collective) for collective in op.collectives]
    return own + [(True, collective) for resharding in op.reshardings for collective in resharding.collectives]
