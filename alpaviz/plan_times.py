"""A step's time from its stages, by playing the schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from alpaviz.cluster import Cluster
from alpaviz.plan import Plan, StagePlan, StepEstimate, Transfer
from alpaviz.schedule import StageDurations, Timeline, get_order, simulate_schedule

if TYPE_CHECKING:  # a plan is played without JAX
    from alpaviz.program.program import Program


def estimate_step(
    program: Program, cluster: Cluster, stages: Sequence[StagePlan], transfers: Sequence[Transfer], schedule: str
) -> StepEstimate:
    """Where a step's time goes, along the stage that works longest."""
    microbatches = program.num_microbatches
    timeline = play_stages(stages, transfers, schedule, microbatches)
    without_sends = play_stages(stages, (), schedule, microbatches)
    once = max((t.time_s for t in transfers if t.once), default=0.0)
    busiest = max(range(len(stages)), key=timeline.busy_s)
    stage = stages[busiest]
    step = timeline.makespan_s + once
    waiting = max(0.0, step - timeline.busy_s(busiest))
    devices = sum(s.num_devices for s in stages)
    peak = cluster.device_type.peak_flops(find_main_dtype(program)) * devices
    return StepEstimate(
        step_s=step, compute_s=stage.compute_s, collectives_s=stage.collectives_s, resharding_s=stage.resharding_s,
        transfer_s=min(waiting, max(0.0, step - without_sends.makespan_s)), bubble_s=waiting,
        bubble_fraction=waiting / step if step > 0 else 0.0,
        model_flops_utilisation=program.flops / (step * peak) if step > 0 else 0.0,
    )  # fmt: skip


def play_stages(
    stages: Sequence[StagePlan], transfers: Sequence[Transfer], schedule: str, num_microbatches: int
) -> Timeline:
    """The timeline of one step."""
    durations = [StageDurations(s.forward_s, s.backward_s, s.update_s) for s in stages]
    sends: dict[tuple[int, int], float] = defaultdict(float)
    for transfer in transfers:
        if not transfer.once:
            sends[transfer.source_stage, transfer.target_stage] += transfer.time_s
    return simulate_schedule(get_order(schedule, len(stages), num_microbatches), durations, sends)


def play_plan(plan: Plan) -> Timeline:
    """The timeline of one step of `plan`, without the transfers that happen once a step."""
    return play_stages(plan.stages, plan.transfers, plan.schedule, plan.num_microbatches)


def find_main_dtype(program: Program) -> str:
    """The dtype in which most FLOP of matrix products are done."""
    flops: dict[str, float] = defaultdict(float)
    for op in program.ops:
        first = next((v for v in op.inputs if v is not None), None)
        if first is not None and op.primitive in ("dot_general", "conv_general_dilated"):
            flops[program.values[first].dtype] += op.flops
    return max(flops, key=lambda dtype: flops[dtype], default="float32")
