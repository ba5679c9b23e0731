"""The planner: a small state machine around one training step on one cluster.

It traces, solves in the background, keeps pins and history, and tells whoever has subscribed when anything changes.
Everything that the widget does is one of its methods.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Unpack

from alpaviz.cluster import Cluster, parse_cluster
from alpaviz.errors import (
    InfeasibleError,
    InvalidStepError,
    PinConflictError,
    PinError,
    PlanMismatchError,
    SolveCancelledError,
)
from alpaviz.intra.solvers import SolveProgress as StageProgress
from alpaviz.microbatch_search import AUTO, PlanSearch
from alpaviz.pin_checks import check_pins
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.plan_check import validate_plan
from alpaviz.plan_diff import PlanDiff, compare_plans
from alpaviz.plan_file import load_plan, save_plan
from alpaviz.plan_sweep import SweepTable
from alpaviz.planner_history import HistoryEntry, PlannerHistory
from alpaviz.planner_options import PlannerOptions
from alpaviz.planner_state import (
    Alternative,
    PhasePrinter,
    PlannerState,
    SolveProgress,
    describe_solved,
)
from alpaviz.program import Program
from alpaviz.program.trace import TraceRecipe, make_recipe
from alpaviz.solve_handle import SolveHandle
from alpaviz.solver_pool import SolverPool
from alpaviz.stage_cache import open_cache
from alpaviz.stage_variants import StageVariants
from alpaviz.sweep import SweepInputs, check_inputs, run_sweep

if TYPE_CHECKING:
    from alpaviz.runtime import Executable
    from alpaviz.schedule import Timeline
    from alpaviz.verify import Verification

Subscriber = Callable[[], None]


class Planner:
    """Plans a training step on a cluster, interactively.

    Methods may be called from any thread; subscribers are called from the thread in which something changed.

    Args:
        step: a function `(state, *batch) -> (new state, metrics)` or similar, using `alpaviz.value_and_grad`.
        state, batch: pytrees of arrays or `jax.ShapeDtypeStruct`; nothing is allocated.
        cluster: a `Cluster` (`alpaviz.attached_cluster()` is the one at hand), or text such as `"p3.16xlarge:2"` or
            `"virtual:8"`.
        num_microbatches: slices that the batch is cut into; `"auto"` tries its divisors.
        num_layers: layers of the forward pass; None chooses.
        batch_axes: the dimension of batch leaves that is sliced (0), or a tree of them.
        schedule: `"1f1b"` or `"gpipe"`, `"auto"` for the one of the shorter simulated step, or one to look at, which
            cannot be launched yet: `"zero-bubble"`, `"interleaved-2"`, `"interleaved-4"`.
        solver: `"auto"`, `"exact"`, `"ilp"` or `"paper"`.
        max_mesh_axes: a stage's devices are seen as meshes of one to this many axes (at most 3).
        recompute: `"auto"` lets stages make the activations of some layers again in the backward pass, where keeping
            all does not fit or costs more; `"never"`; `"always"`: all layers for which that frees memory.
        name: of the program, for people.
        cache: folder in which solved stages are kept for other sessions; `"auto"` is that of the environment variable
            `ALPAVIZ_CACHE`, or `alpaviz` in the user's cache folder; None keeps nothing.

    Raises:
        InvalidStepError: the arguments cannot be a training step (tracing itself happens when a solve begins).
        InvalidClusterError: the cluster text names no preset.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        state: Any,
        *batch: Any,
        cluster: Cluster | str,
        num_microbatches: int | Literal["auto"] = 1,
        num_layers: int | None = None,
        batch_axes: Any = 0,
        schedule: str = "1f1b",
        solver: str = "auto",
        max_mesh_axes: int = 2,
        recompute: str = "auto",
        name: str | None = None,
        cache: str | PathLike[str] | None = "auto",
    ) -> None:
        if not batch:
            raise InvalidStepError("Planner(step, state, *batch): give at least one batch argument after the state.")
        is_searched = num_microbatches == AUTO
        self._recipe: TraceRecipe = make_recipe(
            step, state, batch, num_microbatches=1 if num_microbatches == AUTO else num_microbatches,
            num_layers=num_layers, batch_axes=batch_axes, name=name,
        )  # fmt: skip
        self._cluster = parse_cluster(cluster) if isinstance(cluster, str) else cluster
        self.options = PlannerOptions(
            schedule=schedule, solver=solver, max_mesh_axes=max_mesh_axes, recompute=recompute
        )
        self.options.check()
        pool = SolverPool(solver, open_cache(cache))
        self._search = PlanSearch(self._recipe, self._cluster, self.options, is_searched=is_searched, pool=pool)
        self._lock = threading.RLock()
        self._subscribers: list[Subscriber] = []
        self._history = PlannerHistory()
        self._state = PlannerState.IDLE
        self._message = "Nothing planned yet: solve to find a plan."
        self._progress: SolveProgress | None = None
        self._handle: SolveHandle[Plan] | None = None
        self._sweep: SolveHandle[SweepTable] | None = None
        self._verification: SolveHandle[Verification] | None = None
        self._measured: dict[int, dict[str, float]] | None = None
        self._recording: Timeline | None = None

    # What there is to see.

    @property
    def state(self) -> PlannerState:
        """Where the planner is."""
        return self._state

    @property
    def message(self) -> str:
        """One sentence that goes with the state."""
        return self._message

    @property
    def progress(self) -> SolveProgress | None:
        """How far the running solve is; None when none runs."""
        return self._progress

    @property
    def cluster(self) -> Cluster:
        """The cluster that is planned for."""
        return self._cluster

    @property
    def program(self) -> Program:
        """The traced step, with the microbatches and recomputed layers of the present plan; traced at first use."""
        with self._lock:
            plan = self.plan
            return self._search.find_program() if plan is None else self._search.find_program_of(plan)

    @property
    def plan(self) -> Plan | None:
        """The last plan; it may be stale (see `state`)."""
        return self._history.last_plan

    @property
    def previous_plan(self) -> Plan | None:
        """The plan before the last solve, which `compare` compares with."""
        return self._history.previous_plan

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Decisions that the next solve must keep."""
        return self._history.present.pins

    @property
    def can_undo(self) -> bool:
        return self._history.can_undo

    @property
    def can_redo(self) -> bool:
        return self._history.can_redo

    @property
    def history(self) -> tuple[str, ...]:
        """What was done, oldest first, up to what redo can reach."""
        return self._history.labels

    @property
    def history_entries(self) -> tuple[HistoryEntry, ...]:
        """`history` with times."""
        with self._lock:
            return self._history.entries

    @property
    def history_position(self) -> int:
        """Which entry of `history` is now."""
        return self._history.position

    @property
    def last_change(self) -> str:
        """The entry of `history` that undo takes back."""
        with self._lock:
            return self._history.present.label

    @property
    def measured(self) -> dict[int, dict[str, float]] | None:
        """Seconds that the stages of a launched plan took, by stage: forward, backward, update, step."""
        return self._measured

    @property
    def recording(self) -> Timeline | None:
        """When the chunks of a launched plan's step ran, where that was given to `show_measured`."""
        return self._recording

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call `callback()` whenever anything changes; the result ends that."""
        with self._lock:
            self._subscribers.append(callback)

        def unsubscribe() -> None:
            with self._lock:
                if callback in self._subscribers:
                    self._subscribers.remove(callback)

        return unsubscribe

    def _notify(self) -> None:
        for callback in tuple(self._subscribers):
            callback()

    # Solving.

    def start(self) -> SolveHandle[Plan]:
        """Solve in the background; a handle at once (`await` it, `.wait()`, `.cancel()`). A running solve is joined."""
        with self._lock:
            if self._handle is not None and not self._handle.is_done:
                return self._handle
            pins = self.pins
            self._state, self._message = PlannerState.SOLVING, "Solving."
            self._progress = SolveProgress("tracing", 0, 1, None, None, 0.0)
            self._handle = SolveHandle(lambda should_stop: self._solve(pins, should_stop))
            handle = self._handle
        self._notify()
        return handle.begin()

    def solve(self, on_progress: Callable[[SolveProgress], None] | None = None) -> Plan:
        """Solve and wait; the plan. Stops on KeyboardInterrupt.

        Args:
            on_progress: called with each progress; None prints a line per phase.

        Raises:
            InfeasibleError, PinConflictError, PinError, InvalidStepError, SolverError, SolveCancelledError: no plan;
            the last one is kept.
        """
        report = on_progress or PhasePrinter()

        def pass_on() -> None:
            progress = self._progress
            if progress is not None:
                report(progress)

        unsubscribe = self.subscribe(pass_on)
        try:
            return self.start().wait()
        finally:
            unsubscribe()

    def cancel(self) -> None:
        """Stop the running solve, sweep and verification, if there are any. The last plan is kept."""
        for handle in (self._handle, self._sweep, self._verification):
            if handle is not None:
                handle.cancel()

    def _solve(self, pins: tuple[Pin, ...], should_stop: Callable[[], bool]) -> Plan:
        began = time.monotonic()

        def report(
            phase: str, done: int, total: int, objective: float | None = None, bound: float | None = None
        ) -> None:
            self._progress = SolveProgress(phase, done, total, objective, bound, time.monotonic() - began)
            self._notify()

        def report_stage(stage: StageProgress) -> None:
            present = self._progress
            if present is not None:
                self._progress = present.with_stage(stage.objective, stage.bound, time.monotonic() - began)
                self._notify()

        try:
            report("tracing", 0, 1)
            self._search.find_program()
            if should_stop():
                raise SolveCancelledError("The solve was cancelled.")
            plan = self._search.solve(pins, report, should_stop, report_stage)
        except SolveCancelledError:
            self._finish(PlannerState.CANCELLED, "Cancelled; the last plan is kept.")
            raise
        except (InfeasibleError, PinConflictError) as error:
            self._finish(PlannerState.INFEASIBLE, str(error))
            raise
        except BaseException as error:
            self._finish(PlannerState.FAILED, f"{type(error).__name__}: {error}")
            raise
        self._accept(plan, pins)
        return plan

    def _finish(self, state: PlannerState, message: str) -> None:
        with self._lock:
            self._state, self._message, self._progress = state, message, None
        self._notify()

    def _accept(self, plan: Plan, pins: tuple[Pin, ...]) -> None:
        with self._lock:
            if self._history.accept(plan, pins):
                self._state, self._message = PlannerState.SOLVED, describe_solved(plan)
            else:
                self._state, self._message = PlannerState.STALE, "Pins changed during the solve: solve again."
            self._progress = None
            self._measured = self._recording = None
        self._notify()

    # Pins and history.

    def pin(self, pin: Pin) -> None:
        """Keep a decision: the plan goes stale until the next solve. A pin of the same kind and subject is replaced.

        Raises:
            PinError: the pin names something that does not exist or cannot be.
            PinConflictError: it contradicts other pins; the message names them.
        """
        kept = tuple(p for p in self.pins if (p.kind, p.subject) != (pin.kind, pin.subject))
        pins = (*kept, pin)
        check_pins(self.program, self._cluster, pins, self.options.max_mesh_axes)
        self._change_pins(pins, f"pin: {pin}")

    def unpin(self, pin: Pin) -> None:
        """Let the solver decide again.

        Raises:
            PinError: there is no such pin.
        """
        if pin not in self.pins:
            raise PinError(f"There is no pin '{pin}'. Present pins: {'; '.join(map(str, self.pins)) or 'none'}.")
        self._change_pins(tuple(p for p in self.pins if p != pin), f"unpin: {pin}")

    def clear_pins(self) -> None:
        """Take all pins away."""
        if self.pins:
            self._change_pins((), "clear pins")

    def pin_strategy(self, op: str, strategy: str, *, same_in_all_layers: bool = False) -> None:
        """Pin the strategy of the op named `op`; `same_in_all_layers` pins its twins in equal layers as well."""
        names = self._list_twins(op) if same_in_all_layers else (op,)
        for name in names:
            self.pin(Pin(PinKind.STRATEGY, name, strategy))

    def pin_spec(self, value: str, spec: str) -> None:
        """Pin the spec of an input, for instance `pin_spec("state['w']", "[x, -]")`."""
        self.pin(Pin(PinKind.SPEC, value, spec))

    def pin_layer(self, layer: int, stage: int) -> None:
        """Pin a layer to a stage."""
        self.pin(Pin(PinKind.LAYER_STAGE, layer, stage))

    def pin_submesh(self, stage: int, shape: str) -> None:
        """Pin a stage's submesh shape, hosts x devices of each: `"1x4"`."""
        self.pin(Pin(PinKind.STAGE_SUBMESH, stage, shape))

    def pin_num_stages(self, count: int) -> None:
        """Pin the number of stages."""
        self.pin(Pin(PinKind.NUM_STAGES, None, count))

    def pin_logical_mesh(self, shape: str, stage: int | None = None) -> None:
        """Pin the logical mesh shape, `"4x2"`, of one stage or of all."""
        self.pin(Pin(PinKind.LOGICAL_MESH, stage, shape))

    def _list_twins(self, op: str) -> tuple[str, ...]:
        program = self.program
        return self._search.find_session(program.num_microbatches, "1f1b").list_twins(op, program)

    def _change_pins(self, pins: tuple[Pin, ...], label: str) -> None:
        with self._lock:
            self._history.push(pins, None, label)
            self._settle()
        self._notify()

    def _settle(self) -> None:
        """State after a change of position in the history; a running solve goes on for the pins it began with."""
        if self._handle is not None and not self._handle.is_done:
            return
        plan = self._history.present.plan
        if plan is not None:
            self._state, self._message = PlannerState.SOLVED, describe_solved(plan)
        elif self.plan is not None:
            self._state, self._message = PlannerState.STALE, "Pins changed since this plan was found: solve again."
        else:
            self._state, self._message = PlannerState.IDLE, "Nothing planned yet: solve to find a plan."

    def undo(self) -> None:
        """Go back before the last change of pins, with the plan that was there. Nothing happens at the beginning."""
        self._move(-1)

    def redo(self) -> None:
        """Take back an undo. Nothing happens at the end."""
        self._move(1)

    def go_to(self, position: int) -> None:
        """Undo or redo up to the entry `position` of `history`; nothing happens where there is none."""
        self._move(position - self._history.position)

    def _move(self, by: int) -> None:
        with self._lock:
            if not self._history.move(by):
                return
            self._settle()
        self._notify()

    # Questions.

    def alternatives(self, op: str) -> tuple[Alternative, ...]:
        """What else the solver could do with the op named `op`, and what each would cost; the chosen one first.

        Raises:
            PinError: there is no such op, nothing is decided about it, or nothing has been solved here yet.
        """
        if self.plan is None:
            raise PinError("Alternatives are known after a solve: call planner.solve() first.")
        session = self._search.find_session(self.plan.num_microbatches, self.plan.schedule)
        return session.list_alternatives(self.plan, op, self.pins)

    def variants(self, stage: int = 0) -> StageVariants:
        """What else a stage of the present plan could be: runners-up, time against memory, exact regrets.

        Raises:
            AlpaVizError: there is no such stage, or nothing has been solved here yet.
        """
        if self.plan is None:
            raise PinError("Variants are known after a solve: call planner.solve() first.")
        session = self._search.find_session(self.plan.num_microbatches, self.plan.schedule)
        return session.vary(self.plan, stage)

    def take(self, plan: Plan, label: str = "take a variant") -> None:
        """Make `plan`, for instance one of `variants`, the present plan with its pins. Undo goes back.

        Args:
            label: what `history` says of it.

        Raises:
            PlanMismatchError: it is for another program or cluster; the present plan is kept.
        """
        validate_plan(plan, self._search.find_program_of(plan), self._cluster)
        with self._lock:
            self._history.push(plan.pins, plan, label)
            self._measured = self._recording = None
            self._settle()
        self._notify()

    def compare(self, other: Plan | None = None) -> PlanDiff | None:
        """What changed from `other` (by default the plan before) to the present plan; None where one is missing."""
        before = other or self.previous_plan
        plan = self.plan
        return None if before is None or plan is None else compare_plans(before, plan)

    def sweep(
        self, on_progress: Callable[[SolveProgress], None] | None = None, **inputs: Unpack[SweepInputs]
    ) -> SweepTable:
        """What if the cluster were another: plans for every combination of values, with the present pins.

        The present plan stays. Runs in the background while this waits; `cancel` stops it, KeyboardInterrupt too.

        Args:
            on_progress: called before each point; None prints a line.
            inputs: lists of values of what `SweepInputs` names, such as `link_bandwidth=[1e9, 1e10]`.

        Raises:
            AlpaVizError: an input holds no such values (the message names it), or `cancel` was called.
        """
        checked, report, pins = check_inputs(inputs, self._search), on_progress or PhasePrinter(), self.pins
        self._sweep = SolveHandle(lambda should_stop: run_sweep(self._search, checked, pins, report, should_stop))
        return self._sweep.begin().wait()

    def verify(
        self, on_progress: Callable[[SolveProgress], None] | None = None, *, timeout_s: float = 600.0
    ) -> Verification:
        """Hold the present plan against what XLA compiles from it (see `Plan.verify`).

        Runs in the background while this waits; `cancel` stops it, KeyboardInterrupt too.

        Args:
            on_progress: called before each stage; None prints a line.

        Raises:
            PlanMismatchError: there is no plan yet.
            VerificationError: the step cannot be traced in the process, or it died or took too long.
            SolveCancelledError: `cancel` was called.
        """
        from alpaviz.verify import verify_plan

        plan = self.plan
        if plan is None:
            raise PlanMismatchError("There is no plan to verify yet: call planner.solve() first.")
        program, report, began = self.program, on_progress or PhasePrinter(), time.monotonic()

        def pass_on(done: int, total: int) -> None:
            report(SolveProgress("compiling", done, total, None, None, time.monotonic() - began))

        self._verification = SolveHandle(
            lambda should_stop: verify_plan(
                plan, program, timeout_s=timeout_s, should_stop=should_stop, on_progress=pass_on
            )
        )
        return self._verification.begin().wait()

    # Files and devices.

    def save(self, path: str | PathLike[str]) -> None:
        """Write the present plan to a file (`.alpaplan.json` opens in JupyterLab).

        Raises:
            PlanMismatchError: there is no plan yet.
        """
        if self.plan is None:
            raise PlanMismatchError("There is no plan to save yet: call planner.solve() first.")
        save_plan(self.plan, path)

    def load(self, path: str | PathLike[str]) -> Plan:
        """Take a saved plan, with its pins, as the present one.

        Raises:
            PlanFormatError: the file is no plan.
            PlanMismatchError: it was made for another program or cluster. The present plan is kept.
        """
        plan = load_plan(path)
        self.take(plan, f"load {path}")
        return plan

    def launch(self, backend: str = "auto", **options: Any) -> Executable:
        """Run the present plan on devices: `executable(state, *batch)` is the training step.

        Args:
            backend: `"local"` (devices of this process), `"ray"`, or `"auto"`: local where there are enough devices.

        Raises:
            PlanMismatchError: there is no plan, or it is stale.
            LaunchError: devices are missing or a worker failed.
        """
        from alpaviz.runtime import launch

        plan = self.plan
        if plan is None:
            raise PlanMismatchError("There is no plan to launch yet: call planner.solve() first.")
        return launch(plan, self.program, backend=backend, **options)

    def show_measured(self, measured: dict[int, dict[str, float]] | None, recording: Timeline | None = None) -> None:
        """Show measured times of the stages (`executable.measured`) beside the estimates.

        Args:
            recording: a recorded step (`executable.recording`), shown below the predicted timeline; without it, the
                timeline below is the schedule played with the measured times.
        """
        self._measured, self._recording = measured, recording
        self._notify()

    @property
    def widget(self) -> Any:
        """The live view (an anywidget); the same one at each call."""
        from alpaviz.widget import PlannerWidget

        with self._lock:
            if not hasattr(self, "_widget"):
                self._widget = PlannerWidget(self)
            return self._widget

    def _ipython_display_(self, **kwargs: Any) -> None:
        # The widget keeps the saved output current, also where no JupyterLab draws it.
        self.widget._ipython_display_(**kwargs)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return self.widget._repr_mimebundle_(**kwargs)

    def __repr__(self) -> str:
        return f"Planner({self._recipe.name!r} on {self._cluster.name!r}: {self._state.value}. {self._message})"
