"""A step's time from its stages, by playing the schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from alpaviz.cluster import Cluster
from alpaviz.plan import Plan, StagePlan, StepEstimate, Transfer
from alpaviz.schedule import Timeline, get_order, play_stages, simulate

if TYPE_CHECKING:  # a plan is played without JAX
    from alpaviz.program.program import Program


def estimate_step(
    program: Program, cluster: Cluster, stages: Sequence[StagePlan], transfers: Sequence[Transfer], schedule: str
) -> StepEstimate:
    """Where a step's time goes, along the stage (or the stages that share devices) that works longest."""
    order = get_order(schedule, len(stages), program.num_microbatches)
    timeline = play_stages(order, stages, transfers, cluster)
    without_sends = play_stages(order, stages, (), cluster)
    busiest = max(range(len(order)), key=timeline.busy_s)
    row = [stages[s] for s in sorted({task.stage for task in order[busiest]})]
    collectives: dict[str, float] = defaultdict(float)
    for kind, seconds in (pair for stage in row for pair in stage.collectives_s):
        collectives[kind] += seconds
    step = timeline.makespan_s
    waiting = max(0.0, step - timeline.busy_s(busiest))
    devices = {device for stage in stages for device in stage.devices}
    dtype = find_main_dtype(program)
    peak = sum(cluster.hosts[host].device_type.peak_flops(dtype) for host, _ in devices)
    return StepEstimate(
        step_s=step, compute_s=sum(s.compute_s for s in row), collectives_s=tuple(sorted(collectives.items())),
        resharding_s=sum(s.resharding_s for s in row),
        transfer_s=min(waiting, max(0.0, step - without_sends.makespan_s)), bubble_s=waiting,
        bubble_fraction=waiting / step if step > 0 else 0.0,
        model_flops_utilisation=program.flops / (step * peak) if step > 0 else 0.0,
    )  # fmt: skip


def play_plan(plan: Plan) -> Timeline:
    """The timeline of one step of `plan`."""
    return simulate(plan).timeline


def find_main_dtype(program: Program) -> str:
    """The dtype in which most FLOP of matrix products are done."""
    flops: dict[str, float] = defaultdict(float)
    for op in program.ops:
        first = next((v for v in op.inputs if v is not None), None)
        if first is not None and op.primitive in ("dot_general", "conv_general_dilated"):
            flops[program.values[first].dtype] += op.flops
    return max(flops, key=lambda dtype: flops[dtype], default="float32")
