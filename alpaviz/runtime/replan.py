"""Planning again for the devices that are left: the same step, microbatches and schedule, and pins that still fit."""

from __future__ import annotations

import warnings
from dataclasses import replace

from alpaviz.cluster import Cluster
from alpaviz.errors import PinConflictError, PinError
from alpaviz.microbatch_search import PlanSearch
from alpaviz.pin_checks import check_pins
from alpaviz.pins import Pin
from alpaviz.plan import Plan
from alpaviz.planner_options import PlannerOptions
from alpaviz.program import Program, retrace
from alpaviz.solver_pool import SolverPool
from alpaviz.stage_cache import open_cache


def plan_again(plan: Plan, program: Program, cluster: Cluster) -> tuple[Plan, Program]:
    """The best plan of the same step on another cluster, and its program, which may recompute other layers.

    Pins of `plan` that cannot be kept there are left out, with a warning that names them.

    Raises:
        InfeasibleError: the step does not fit, also without pins.
    """
    mesh_axes = max(len(stage.mesh_axes) for stage in plan.stages)
    options = PlannerOptions(plan.schedule, plan.solver.solver, max_mesh_axes=max(2, mesh_axes))
    if program.recomputed_layers:
        program = retrace(replace(program.recipe, recomputed_layers=()))
    search = PlanSearch(
        program.recipe, cluster, options, pool=SolverPool(options.solver, open_cache()),
        programs={program.num_microbatches: program},
    )  # fmt: skip
    pins = tuple(pin for pin in plan.pins if _is_possible(pin, program, cluster, options))
    while True:
        try:
            found = search.solve(pins, lambda *_: None, lambda: False)
            break
        except PinError as error:
            if not pins:
                raise
            conflict = error.pins if isinstance(error, PinConflictError) else ()
            pins = tuple(pin for pin in pins if conflict and pin not in conflict)
    dropped = [pin for pin in plan.pins if pin not in pins]
    if dropped:
        warnings.warn(
            f"On {cluster.name!r} these pins cannot be kept and were left out: {'; '.join(map(str, dropped))}.",
            stacklevel=3,
        )
    return found, search.find_program_of(found)


def _is_possible(pin: Pin, program: Program, cluster: Cluster, options: PlannerOptions) -> bool:
    try:
        check_pins(program, cluster, (pin,), options.max_mesh_axes)
    except PinError:
        return False
    return True


def keep_hosts(cluster: Cluster, count: int) -> Cluster:
    """`cluster` with its first `count` hosts; all are alike."""
    return replace(cluster, name=f"{count} of {cluster.num_hosts} hosts of {cluster.name}", hosts=cluster.hosts[:count])
