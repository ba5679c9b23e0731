"""The collectives that a plan names, as XLA compiles them for the CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from alpaviz.plan import OpPlan, Plan
from alpaviz.runtime.collectives_in_hlo import CollectiveBytes
from alpaviz.types import MeshAxis


@dataclass(frozen=True, slots=True)
class PredictedCollective:
    """One collective of op `op`: `num_bytes` of one run, which happens `runs` times a step."""

    kind: str
    axes: tuple[MeshAxis, ...]
    num_bytes: float
    runs: int
    op: int


def list_predicted(plan: Plan, stage: int) -> tuple[PredictedCollective, ...]:
    """What a step of `stage` communicates inside the stage, by the plan.

    CPUs have no reduce-scatter: those over the axes of one factor that scatter to one dimension
    become an all-reduce of the whole tensor and a slice.
    """
    axes_of_mesh = plan.stages[stage].mesh_axes
    found = []
    for op in plan.ops:
        if op.stage == stage:
            runs = 1 if op.role == "update" else plan.num_microbatches
            found += [
                PredictedCollective(kind, tuple(a for a in axes_of_mesh if a in axes), size, 1 if once else runs, op.id)
                for kind, axes, size, once in _list_of_op(op)
            ]
    return tuple(found)


def _list_of_op(op: OpPlan) -> Iterator[tuple[str, tuple[MeshAxis, ...], float, bool]]:
    scattered = [c for c in op.collectives if c.kind == "reduce-scatter"]
    deferred = [c for c in op.collectives if c.once]
    if deferred:  # shares are added up over all axes at once
        yield "all-reduce", tuple(a for c in deferred for a in c.axes), deferred[0].num_bytes, True
        scattered = []
    for axes in _group_axes(op.strategy, {axis for c in scattered for axis in c.axes}):
        yield "all-reduce", axes, scattered[0].num_bytes, False
    for c in op.collectives:
        if c.kind != "reduce-scatter" and not c.once:
            yield c.kind, c.axes, c.num_bytes, False
    for resharding in op.reshardings:
        for c in resharding.collectives:
            yield c.kind, c.axes, c.num_bytes, False


def _group_axes(strategy: str, scattered: set[MeshAxis]) -> list[tuple[MeshAxis, ...]]:
    """Axes by the factor that they split and the dimension that they scatter to: `c:x>1 c:y>1` are one group."""
    groups: dict[tuple[str, str], list[MeshAxis]] = defaultdict(list)
    for part in strategy.split():
        factor, _, rest = part.partition(":")
        axis, _, dimension = rest.partition(">")
        if dimension and axis in scattered:
            groups[factor, dimension].append(axis)
    return [tuple(axes) for axes in groups.values()]


def predict_bytes(plan: Plan, stage: int) -> CollectiveBytes:
    """Bytes of one step of `stage` by kind and axes."""
    found: CollectiveBytes = defaultdict(float)
    for collective in list_predicted(plan, stage):
        found[collective.kind, collective.axes] += collective.num_bytes * collective.runs
    return dict(found)
