"""From a plan to something that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alpaviz.errors import LaunchError, PlanMismatchError
from alpaviz.plan import Plan
from alpaviz.plan_check import validate_plan
from alpaviz.program.program import Program
from alpaviz.program.recompute import fit_to_layers
from alpaviz.runtime.executable import Executable
from alpaviz.runtime.meshes import count_needed_devices
from alpaviz.schedule import RUNNABLE_SCHEDULES


def launch(
    plan: Plan,
    program: Program,
    *,
    backend: str = "auto",
    devices: Sequence[Any] | None = None,
    donate_state: bool = False,
    timeout_s: float = 300.0,
    record_every: int | None = None,
) -> Executable:
    """Run `plan` on devices.

    Args:
        program: the traced step that the plan was made for.
        backend: `"local"` (devices of this process), `"ray"` (workers, one for each host of the plan), or `"auto"`:
            local where this process has enough devices.
        devices: those to use locally, hosts laid end to end; by default all of this process's.
        donate_state: let a step overwrite the state that it is given, which halves the memory of states. State that
            a step returned or `place` made cannot be used after it was passed in; a step that fails loses it. Other
            arrays of the user's are not touched, unless they lie in the plan's layout already.
        timeout_s: on Ray, how long a worker may leave the driver without an answer before the step fails; twice as
            long, a worker waits for another that does answer.
        record_every: record when chunks run (`executable.recording`) in one of so many steps; None: only in `profile`.

    Raises:
        PlanMismatchError: the plan is for another program.
        LaunchError: too few devices, a worker could not be started, the step uses `shard_map`, or the
            plan's schedule cannot be run yet.
    """
    program = fit_to_layers(program, plan.program.recomputed_layers)
    validate_plan(plan, program)
    if program.jaxpr is None:
        raise PlanMismatchError("The program has no jaxpr: trace it in this process before launching.")
    _refuse_own_meshes(program)
    if backend not in ("auto", "local", "ray"):
        raise LaunchError(f"No backend is called {backend!r}: use 'auto', 'local' or 'ray'.")
    if record_every is not None and record_every < 1:
        raise LaunchError(f"record_every is {record_every}: give a number of steps, 1 or more.")
    if plan.schedule not in RUNNABLE_SCHEDULES:
        raise LaunchError(
            f"Plans with schedule {plan.schedule!r} can be simulated and shown, but not launched yet. Plan with "
            f"{' or '.join(map(repr, RUNNABLE_SCHEDULES))} to run."
        )
    needed = count_needed_devices(plan)
    if backend != "ray":
        import jax

        available = list(devices) if devices is not None else list(jax.devices())
        if len(available) >= needed:
            from alpaviz.runtime.local import LocalExecutable

            return LocalExecutable(plan, program, available, donate_state=donate_state, record_every=record_every)
        if backend == "local":
            raise LaunchError(
                f"The plan needs {needed} devices, this process has {len(available)}. Use backend='ray', or set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={needed} before JAX starts to try it on CPU devices."
            )
    from alpaviz.runtime.ray_backend import RayExecutable

    return RayExecutable(plan, program, donate_state=donate_state, timeout_s=timeout_s, record_every=record_every)


def _refuse_own_meshes(program: Program) -> None:
    for op in program.ops:
        if op.primitive == "shard_map":
            mesh = program.jaxpr.eqns[op.id].params.get("mesh")
            where = f"{op.source}: " if op.source else ""
            raise LaunchError(
                f"{where}the step uses shard_map over a mesh of its own ({getattr(mesh, 'shape_tuple', mesh)}), which "
                "is not the plan's. Write this part in plain JAX operations, which the plan can split."
            )
