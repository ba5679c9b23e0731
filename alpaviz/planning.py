"""The two-level solve: candidates from `intra`, stages from `inter`, the plan from `plan_builder`.

In: a program, a cluster, options and pins. Out: a `Plan`. A `PlanningSession` remembers every stage that it has
solved, so that a solve after a pin only does what the pin changes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from alpaviz.alternatives import list_alternatives
from alpaviz.cluster import Cluster, enumerate_logical_meshes, enumerate_submeshes
from alpaviz.cluster.mesh import MESH_AXES, LogicalMesh
from alpaviz.errors import AlpaVizError, InfeasibleError, PinConflictError, PinError, SolveCancelledError
from alpaviz.inter import (
    ChosenRange,
    StageChoice,
    StageConstraints,
    StageCostTable,
    choose_stages,
    choose_stages_by_count,
)
from alpaviz.intra.problem import FloatArray
from alpaviz.intra.restrict import find_pinned_layer
from alpaviz.intra.solvers import SOLVERS
from alpaviz.intra.stage_problem import Restriction, StageShape, StageShapes
from alpaviz.intra.stage_solver import SolvedStage, StageSolver
from alpaviz.intra.structure import ProgramStructure
from alpaviz.pin_specs import check_spec_pin
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan, SolverReport
from alpaviz.plan_builder import ChosenStage, build_plan
from alpaviz.plan_diff import format_bytes
from alpaviz.planner_state import Alternative
from alpaviz.program.program import Program, Role, ValueKind
from alpaviz.schedule import SCHEDULES, count_chunks, count_most_in_flight
from alpaviz.solver_pool import SolverPool
from alpaviz.stage_variants import StageVariants

USABLE_MEMORY = 0.95
"""Share of a device's memory that a plan may fill; the rest is for the runtime and fragmentation."""

Report = Callable[..., None]
Restrict = Callable[[StageSolver], Mapping[int, Restriction] | None]
"""Per layer what a scheme leaves of its candidates on the mesh of a solver; None where it does not use such a mesh."""


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """How to plan.

    Attributes:
        max_stages: limits the pipeline's length; None allows as many stages as layers and devices.
        max_mesh_axes: logical meshes of one to this many axes are tried.
    """

    schedule: str = "1f1b"
    solver: str = "auto"
    max_stages: int | None = None
    max_mesh_axes: int = 2

    def check(self) -> None:
        """Raise AlpaVizError where a name is unknown."""
        if self.schedule not in (*SCHEDULES, "auto"):
            raise AlpaVizError(f"No schedule is called {self.schedule!r}. Known: {', '.join(SCHEDULES)}, auto.")
        if self.solver not in SOLVERS:
            raise AlpaVizError(f"No solver is called {self.solver!r}. Known: {', '.join(SOLVERS)}.")
        if self.max_mesh_axes not in range(1, len(MESH_AXES) + 1):
            raise AlpaVizError(f"max_mesh_axes must be 1 to {len(MESH_AXES)}, not {self.max_mesh_axes!r}.")


@dataclass(frozen=True, slots=True)
class _Option:
    """One logical mesh of one submesh shape, with its solver."""

    mesh: LogicalMesh
    solver: StageSolver


class PlanningSession:
    """Everything that is known about planning one program on one cluster. Use from one thread at a time."""

    def __init__(
        self, program: Program, cluster: Cluster, options: PlannerOptions, pool: SolverPool | None = None
    ) -> None:
        self.program, self.cluster, self.options = program, cluster, options
        self._pool = pool = pool or SolverPool(options.solver)
        self.structure: ProgramStructure = pool.find_structure(program)
        self.options_by_mesh = tuple(
            _Option(mesh, pool.find_solver(program, mesh))
            for shape in enumerate_submeshes(cluster)
            for mesh in enumerate_logical_meshes(cluster, shape, options.max_mesh_axes)
        )
        self._unpinned = StageShapes(program, self.structure, {})
        self._chosen: tuple[ChosenStage, ...] = ()
        self._passing = count_passing_bytes(program, self.structure)
        self._chunks = count_chunks(options.schedule)
        self._in_flight = self._list_in_flight()

    @property
    def memory_limit(self) -> float:
        """Bytes of each device that a plan may use, for each of the stages that share devices."""
        return USABLE_MEMORY * self.cluster.device_type.memory_bytes / self._chunks

    @property
    def max_stages(self) -> int:
        """Most stages that are tried: one where the step has no gradient marker."""
        if not self.program.has_gradient_marker:
            return 1
        most = min(self.program.num_layers, self.cluster.num_devices * self._chunks)
        return min(most, self.options.max_stages or most)

    def solve(
        self,
        pins: tuple[Pin, ...],
        report: Report,
        should_stop: Callable[[], bool],
        restrict: Restrict | None = None,
    ) -> Plan:
        """The best plan that keeps `pins`, and that `restrict` allows (which then stands for pins on ops and inputs).

        Raises:
            InfeasibleError: nothing fits; says what is short and by how much.
            PinConflictError: pins leave nothing; names a minimal set of them.
            SolveCancelledError: `should_stop` became true.
        """
        try:
            return self._solve(pins, report, should_stop, restrict)
        finally:
            self._pool.save()  # what a solve found that failed or was cancelled is right all the same

    def _solve(
        self, pins: tuple[Pin, ...], report: Report, should_stop: Callable[[], bool], restrict: Restrict | None
    ) -> Plan:
        began = time.monotonic()
        check_pins(self.program, self.cluster, pins, self.options.max_mesh_axes)
        pricing = self._price(pins, report, should_stop, restrict)
        choice = self._choose(pins, pricing, report, should_stop)
        if not choice.is_feasible:
            self._explain(pins if restrict is None else (), pricing, should_stop)
        _stop_if(should_stop)
        bound = choice.objective * pricing.least_share
        report("writing the plan", 0, 1, choice.objective, bound)
        chosen = tuple(self._take(pricing, r) for r in choice.stages)
        solved = sum(option.solver.num_solved for option in self.options_by_mesh)
        result = SolverReport(
            self.options.solver, time.monotonic() - began, choice.objective, bound, pricing.num_candidates, solved,
            (f"{solved} distinct stages solved on {len(self.options_by_mesh)} logical meshes",),
        )  # fmt: skip
        plan = build_plan(
            self.program, self.structure, self.cluster, chosen, schedule=self.options.schedule, pins=pins, report=result
        )
        self._chosen = chosen
        return plan

    def _take(self, pricing: _Pricing, chosen: ChosenRange) -> ChosenStage:
        option = self.options_by_mesh[chosen.option]
        stage = pricing.exact[chosen.first, chosen.last, chosen.option, chosen.in_flight - 1]
        shapes = pricing.shapes[chosen.option]
        in_flight = self._count_in_flight(chosen.in_flight)
        return ChosenStage(chosen.first, chosen.last, option.mesh, option.solver, shapes, stage, in_flight)

    def _choose(
        self, pins: Sequence[Pin], pricing: _Pricing, report: Report, should_stop: Callable[[], bool]
    ) -> StageChoice:
        """The best stages. Only candidates that a best choice asks for are solved exactly.

        The table begins with lower limits (without memory limit, without pins); where the programme picks such an
        entry it is solved and the programme runs again. Entries only rise, so a choice of exact entries is the best.
        """
        constraints = self._constrain(pins)
        for round_number in itertools.count():
            _stop_if(should_stop)
            table = StageCostTable(pricing.latency, tuple(o.mesh.num_devices for o in self.options_by_mesh))
            choice = self._run_programme(table, constraints)
            inexact = [r for r in choice.stages if (r.first, r.last, r.option, r.in_flight - 1) not in pricing.exact]
            report("choosing stages", round_number, round_number + len(inexact), None, choice.objective)
            if not inexact:
                return choice
            for r in inexact:
                self._make_exact(pricing, r, should_stop)
        raise AssertionError("the loop ends by returning")

    def _run_programme(self, table: StageCostTable, constraints: StageConstraints) -> StageChoice:
        """The best stages of `table`; its last axis counts stages to the end, or all stages where those matter."""
        devices, microbatches = self.cluster.num_devices, self.program.num_microbatches
        if self.options.schedule in ("1f1b", "gpipe"):
            return choose_stages(table, devices, microbatches, constraints)
        return choose_stages_by_count(table, devices, microbatches, constraints, num_chunks=self._chunks)

    def _make_exact(self, pricing: _Pricing, chosen: ChosenRange, should_stop: Callable[[], bool]) -> None:
        key = (chosen.first, chosen.last, chosen.option, chosen.in_flight - 1)
        option = self.options_by_mesh[chosen.option]
        shape = pricing.shapes[chosen.option].find(chosen.first, chosen.last)
        in_flight = self._count_in_flight(chosen.in_flight)
        stage = option.solver.find(shape, in_flight, self.memory_limit, should_stop)
        pricing.exact[key] = stage
        if stage.price is None:
            pricing.latency[chosen.first, chosen.last, chosen.option, chosen.in_flight - 1 :] = np.inf
            pricing.note_short(chosen.option, stage.bytes_short, chosen.first, chosen.last)
            return
        entry = stage.objective + self._price_entry(chosen.first, option)
        later = pricing.latency[chosen.first, chosen.last, chosen.option, chosen.in_flight - 1 :]
        np.maximum(later, entry, out=later)
        pricing.note_share(stage)

    def _list_in_flight(self) -> tuple[int, ...]:
        """For each number of stages, most microbatches whose activations one of them keeps; never falling."""
        microbatches, counts = self.program.num_microbatches, [1]
        for stages in range(1, self.max_stages + 1):
            rows, rest = divmod(stages, self._chunks)
            is_possible = self._chunks == 1 or (not rest and microbatches % rows == 0)
            found = count_most_in_flight(self.options.schedule, stages, microbatches) if is_possible else 1
            counts.append(max(counts[-1], found))
        return tuple(counts)

    def _count_in_flight(self, stages_to_end: int) -> int:
        """Microbatches whose activations a stage keeps."""
        return self._in_flight[stages_to_end]

    def _price(
        self, pins: Sequence[Pin], report: Report, should_stop: Callable[[], bool], restrict: Restrict | None = None
    ) -> _Pricing:
        """Lower limits of all candidates: their optimum without memory limit and without pins on ops and inputs."""
        layers, options, stages = self.program.num_layers, len(self.options_by_mesh), self.max_stages
        pricing = _Pricing(np.full((layers, layers, options, stages), np.inf))
        allowed = self._list_allowed_options(pins)
        for m, option in enumerate(self.options_by_mesh):
            _stop_if(should_stop)
            report("solving stages", m, options)
            solver = option.solver
            unpinned = self._unpinned
            restricted = restrict(solver) if restrict is not None and m in allowed else {}
            if m not in allowed or restricted is None:
                pricing.shapes.append(unpinned)  # never asked: its latency stays infinite
                continue
            restrictions = restricted or solver.restrict(pins)
            shapes = StageShapes(self.program, self.structure, restrictions) if restrictions else unpinned
            unpinned = shapes if restricted else unpinned  # solved quickly, and a closer limit
            pricing.shapes.append(shapes)
            ranges = [(i, j) for i in range(layers) for j in range(i, layers) if self._may_be_stage(i, j, option)]
            found = {r: unpinned.find(*r) for r in ranges}
            solver.solve_unlimited(list(found.values()), should_stop)
            self._pool.save()
            fitting: dict[StageShape, tuple[int, float]] = {}
            for (i, j), shape in found.items():
                free = solver.find(shape, None, np.inf, should_stop)
                pricing.note_share(free)
                pinned = shapes.find(i, j)
                if pinned not in fitting:
                    fitting[pinned] = self._count_fitting(solver, pinned)
                count, short = fitting[pinned]
                pricing.note_short(m, short, i, j)
                pricing.num_candidates += count
                pricing.latency[i, j, m, :count] = free.objective + self._price_entry(i, option)
        return pricing

    def _count_fitting(self, solver: StageSolver, shape: StageShape) -> tuple[int, float]:
        """To how many stages from the end `shape` may fit, and the bytes that it lacks for one more (0: for none)."""
        for s in range(self.max_stages):
            short = solver.count_least_bytes(shape, self._count_in_flight(s + 1)) - self.memory_limit
            if short > 0:
                return s, short
        return self.max_stages, 0.0

    def _may_be_stage(self, first: int, last: int, option: _Option) -> bool:
        """Whether layers `first` .. `last` on this many devices can be part of a plan that uses all devices."""
        left = self.cluster.num_devices - option.mesh.num_devices
        others = self.program.num_layers - (last - first + 1)
        if others == 0 or self.max_stages == 1:
            return left == 0 and others == 0
        return left > 0

    def _price_entry(self, first: int, option: _Option) -> float:
        """Seconds to pass the cut before layer `first`, activations there and cotangents back."""
        if first == 0:
            return 0.0
        one_host = self.cluster.num_hosts == 1
        link = self.cluster.hosts[0].link if one_host else self.cluster.network
        lanes = option.mesh.num_devices if one_host else option.mesh.submesh.num_hosts
        return 2 * link.latency + self._passing[first] / (link.bandwidth * lanes)

    def _list_allowed_options(self, pins: Sequence[Pin]) -> frozenset[int]:
        """Options that a pin of every stage's logical mesh leaves."""
        shapes = {pin.choice for pin in pins if pin.kind is PinKind.LOGICAL_MESH and pin.subject is None}
        return frozenset(
            m for m, option in enumerate(self.options_by_mesh) if not shapes or {str(option.mesh)} == shapes
        )

    def _constrain(self, pins: Sequence[Pin]) -> StageConstraints:
        """What pins ask of the stages."""
        count: int | None = None
        layer_stage: dict[int, int] = {}
        options: dict[int, frozenset[int]] = {}
        for pin in pins:
            if pin.kind is PinKind.NUM_STAGES:
                count = int(pin.choice)
            elif pin.kind is PinKind.LAYER_STAGE:
                layer_stage[int(pin.subject or 0)] = int(pin.choice)
            elif pin.kind in (PinKind.STAGE_SUBMESH, PinKind.LOGICAL_MESH) and pin.subject is not None:
                of_mesh = pin.kind is PinKind.LOGICAL_MESH
                fitting = frozenset(
                    m
                    for m, option in enumerate(self.options_by_mesh)
                    if str(option.mesh if of_mesh else option.mesh.submesh) == pin.choice
                )
                stage = int(pin.subject)
                options[stage] = options.get(stage, fitting) & fitting
        return StageConstraints(count, layer_stage, options)

    def _explain(self, pins: tuple[Pin, ...], pricing: _Pricing, should_stop: Callable[[], bool]) -> None:
        """Raise the error that says why there is no plan."""
        if pins and self._is_feasible((), should_stop):
            conflict = self._shrink_conflict(pins, should_stop)
            within = self._describe_memory(pricing)
            more = " or give more memory" if within else ""
            if len(conflict) == 1:
                raise PinConflictError(
                    f"No plan keeps the pin '{conflict[0]}'{within}. Remove it{more}, or choose another alternative.",
                    conflict,
                )
            raise PinConflictError(
                f"No plan keeps these pins together{within}: {'; '.join(map(str, conflict))}. "
                f"Remove one of them{more}.",
                conflict,
            )
        memory = self.cluster.device_type.memory_bytes
        if pricing.short:
            short, first, last = min(pricing.short.values())
            raise InfeasibleError(
                f"The model does not fit: layers {first} to {last} need at least {format_bytes(short)} more on each "
                f"device than the {format_bytes(self.memory_limit)} that a plan may use of {format_bytes(memory)}. Use "
                "more devices or microbatches, a larger device, or jax.checkpoint.",
                short,
            )
        raise InfeasibleError(
            f"No stages of {self.program.num_layers} layers fill the {self.cluster.num_devices} devices of "
            f"{self.cluster.name!r}. Use fewer devices or more layers." + self._describe_interleaving()
        )

    def _describe_memory(self, pricing: _Pricing) -> str:
        """The limit that some candidates would break, with the least that they lack; nothing where none would."""
        if not pricing.short:
            return ""
        short = min(pricing.short.values())[0]
        return (
            f" within the {format_bytes(self.memory_limit)} of each device that a plan may use (at least "
            f"{format_bytes(short)} are missing)"
        )

    def _describe_interleaving(self) -> str:
        if self._chunks == 1:
            return ""
        return (
            f" Schedule {self.options.schedule!r} needs a multiple of {self._chunks} stages, on at least two equal "
            f"groups of devices whose number divides the {self.program.num_microbatches} microbatches."
        )

    def _is_feasible(self, pins: tuple[Pin, ...], should_stop: Callable[[], bool]) -> bool:
        pricing = self._price(pins, _ignore, should_stop)
        return self._choose(pins, pricing, _ignore, should_stop).is_feasible

    def _shrink_conflict(self, pins: tuple[Pin, ...], should_stop: Callable[[], bool]) -> tuple[Pin, ...]:
        """A minimal set of pins that no plan keeps together: every pin whose absence leaves a conflict is dropped."""
        kept = pins
        for pin in pins:
            without = tuple(p for p in kept if p != pin)
            if not self._is_feasible(without, should_stop):
                kept = without
        return kept

    def list_alternatives(self, op_name: str, pins: Sequence[Pin]) -> tuple[Alternative, ...]:
        """What else could be decided for an op of the last plan."""
        if not self._chosen:
            raise PinError("Alternatives are known after a solve: call planner.solve() first.")
        return list_alternatives(self.program, self._chosen, pins, op_name, self.program.num_microbatches)

    def vary(self, plan: Plan, stage: int) -> StageVariants:
        """Variants of a stage of `plan`, which is the last one that was found here."""
        if not self._chosen or len(self._chosen) != len(plan.stages):
            raise AlpaVizError("Variants are known after a solve: call planner.solve() first.")
        if not 0 <= stage < len(plan.stages):
            raise AlpaVizError(f"The plan has stages 0 to {len(plan.stages) - 1}, not {stage}.")
        return StageVariants(self.program, self.cluster, plan, self._chosen, stage, self.memory_limit)

    def list_twins(self, op_name: str) -> tuple[str, ...]:
        """Names of the ops that stand at the same place in equal layers, the op itself included."""
        layer = find_pinned_layer(self.program, Pin(PinKind.STRATEGY, op_name, ""))
        instance = self.structure.instances[layer]
        position = next(p for p, i in enumerate(instance.ops) if self.program.ops[i].name == op_name)
        return tuple(
            self.program.ops[other.ops[position]].name
            for other in self.structure.instances
            if other.layer_class == instance.layer_class
        )


@dataclass(slots=True, eq=False)
class _Pricing:
    """What is known of all candidates during one solve; keys are (first, last, option, stages to the end - 1).

    Attributes:
        latency: lower limits, exact where `exact` has the key.
        least_share: the smallest bound / objective of a solution that went in.
        short: per option, the least bytes that are missing, and for which layers.
    """

    latency: FloatArray
    exact: dict[tuple[int, int, int, int], SolvedStage] = field(default_factory=dict)
    shapes: list[StageShapes] = field(default_factory=list)
    least_share: float = 1.0
    num_candidates: int = 0
    short: dict[int, tuple[float, int, int]] = field(default_factory=dict)

    def note_share(self, stage: SolvedStage) -> None:
        if stage.objective > 0 and np.isfinite(stage.objective):
            self.least_share = min(self.least_share, stage.bound / stage.objective)

    def note_short(self, option: int, num_bytes: float, first: int, last: int) -> None:
        if 0 < num_bytes < np.inf:
            self.short[option] = min(self.short.get(option, (np.inf, 0, 0)), (num_bytes, first, last))


def _stop_if(should_stop: Callable[[], bool]) -> None:
    if should_stop():
        raise SolveCancelledError("The solve was cancelled.")


def _ignore(*_: object) -> None:
    """A report that nobody reads."""


def count_passing_bytes(program: Program, structure: ProgramStructure) -> list[float]:
    """Per layer, bytes of one microbatch that pass the cut before it, in both directions."""
    furthest: dict[int, tuple[int, int]] = {}
    for op in program.ops:
        if op.role is Role.UPDATE or op.layer < 0:
            continue
        for v in op.inputs:
            if v is None or program.values[v].kind is not ValueKind.INTERMEDIATE:
                continue
            made = structure.producer_layer[v]
            if made >= 0 and made != op.layer:
                low, high = furthest.get(v, (made, made))
                furthest[v] = (min(low, op.layer), max(high, op.layer))
    passing = [0.0] * (program.num_layers + 1)
    for v, (low, high) in furthest.items():
        for cut in range(low + 1, high + 1):
            passing[cut] += program.values[v].num_bytes
    return passing


def check_pins(program: Program, cluster: Cluster, pins: Sequence[Pin], max_mesh_axes: int = 2) -> None:
    """Find what is wrong with pins without solving.

    Raises:
        PinError: a pin names nothing that exists, or asks for something that cannot be.
        PinConflictError: two pins contradict each other.
    """
    for pin in pins:
        _check_pin(program, cluster, pin, max_mesh_axes)
        if pin.kind is PinKind.SPEC:
            value = next(program.values[v] for v in program.inputs if program.values[v].name == pin.subject)
            check_spec_pin(pin, value, _list_open_meshes(cluster, pins, max_mesh_axes))
    layers = sorted(
        (int(p.subject), int(p.choice), p) for p in pins if p.kind is PinKind.LAYER_STAGE and p.subject is not None
    )
    for (a, stage_a, pin_a), (b, stage_b, pin_b) in itertools.pairwise(layers):
        if stage_a > stage_b or (stage_b - stage_a > b - a):
            raise PinConflictError(
                f"layer {a} is pinned to stage {stage_a} and layer {b} to stage {stage_b}, but stages hold layers in "
                "order and none is empty. Unpin one of the two.",
                (pin_a, pin_b),
            )
    count = next((p for p in pins if p.kind is PinKind.NUM_STAGES), None)
    if count is not None:
        for pin in pins:
            stage = _find_stage(pin)
            if stage is not None and stage >= int(count.choice):
                raise PinConflictError(
                    f"'{pin}' names stage {stage}, but '{count}' (stages are numbered from 0). Unpin one of the two.",
                    (pin, count),
                )


def _list_open_meshes(cluster: Cluster, pins: Sequence[Pin], max_mesh_axes: int) -> list[LogicalMesh]:
    """The logical meshes that a pin of one mesh for all stages leaves."""
    shapes = enumerate_submeshes(cluster)
    meshes = [m for shape in shapes for m in enumerate_logical_meshes(cluster, shape, max_mesh_axes)]
    wanted = {pin.choice for pin in pins if pin.kind is PinKind.LOGICAL_MESH and pin.subject is None}
    return [mesh for mesh in meshes if not wanted or str(mesh) in wanted]


def _find_stage(pin: Pin) -> int | None:
    if pin.kind is PinKind.LAYER_STAGE:
        return int(pin.choice)
    if pin.kind in (PinKind.STAGE_SUBMESH, PinKind.LOGICAL_MESH) and pin.subject is not None:
        return int(pin.subject)
    return None


def _check_pin(program: Program, cluster: Cluster, pin: Pin, max_mesh_axes: int) -> None:
    if pin.kind in (PinKind.STRATEGY, PinKind.SPEC):
        find_pinned_layer(program, pin)
        return
    most = 1 if not program.has_gradient_marker else min(program.num_layers, cluster.num_devices)
    stage = int(pin.choice) - 1 if pin.kind is PinKind.NUM_STAGES else _find_stage(pin)
    if stage is not None and not 0 <= stage < most:
        if not program.has_gradient_marker:
            raise PinError(
                f"Pin '{pin}': at most 1 stage is possible for a step that does not use alpaviz.value_and_grad or "
                "alpaviz.grad, because its layers cannot be told apart."
            )
        raise PinError(
            f"Pin '{pin}': at most {most} stages are possible here ({program.num_layers} layers, "
            f"{cluster.num_devices} devices)."
        )
    if pin.kind is PinKind.LAYER_STAGE and not 0 <= int(pin.subject or 0) < program.num_layers:
        raise PinError(f"Pin '{pin}': the program has layers 0 to {program.num_layers - 1}.")
    if pin.kind in (PinKind.STAGE_SUBMESH, PinKind.LOGICAL_MESH):
        shapes = enumerate_submeshes(cluster)
        meshes = [m for shape in shapes for m in enumerate_logical_meshes(cluster, shape, max_mesh_axes)]
        known = {str(m.submesh) if pin.kind is PinKind.STAGE_SUBMESH else str(m): None for m in meshes}
        if pin.choice not in known:
            raise PinError(f"Pin '{pin}': there is no such shape on {cluster.name!r}. Possible: {', '.join(known)}.")
