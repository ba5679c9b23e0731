"""The two-level solve: candidates from `intra`, stages from `inter`, the plan from `plan_builder`.

In: a program, a cluster, options and pins. Out: a `Plan`. A `PlanningSession` remembers every stage that it has
solved, so that a solve after a pin only does what the pin changes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from alpaviz.alternatives import list_alternatives
from alpaviz.cluster import Cluster
from alpaviz.errors import AlpaVizError, InfeasibleError, PinConflictError, PinError
from alpaviz.inter import (
    ChosenRange,
    StageChoice,
    StageConstraints,
    StageCostTable,
    choose_stages,
    choose_stages_by_count,
)
from alpaviz.intra.recomputation import count_layer_bytes
from alpaviz.intra.restrict import find_pinned_layer
from alpaviz.memory_advice import describe_needs, list_remedies
from alpaviz.pin_checks import check_pins
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import RECOMPUTE, Plan, SolverReport, StagePlan
from alpaviz.plan_builder import ChosenStage, build_plan
from alpaviz.plan_diff import format_bytes, spell_layers
from alpaviz.planner_options import PlannerOptions
from alpaviz.planner_state import Alternative
from alpaviz.program.program import Program
from alpaviz.solver_pool import SolverPool
from alpaviz.stage_candidates import CandidatePricing, Report, Restrict, StageCandidates, stop_if
from alpaviz.stage_recomputation import move_to_program
from alpaviz.stage_variants import StageVariants


class PlanningSession:
    """Everything that is known about planning one program on one cluster. Use from one thread at a time."""

    def __init__(
        self, program: Program, cluster: Cluster, options: PlannerOptions, pool: SolverPool | None = None
    ) -> None:
        self.program, self.cluster, self.options = program, cluster, options
        self._pool = pool or SolverPool(options.solver)
        self.candidates = StageCandidates(program, cluster, options, self._pool)
        self._chosen: dict[int, tuple[tuple[StagePlan, ...], tuple[ChosenStage, ...]]] = {}

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
        pricing = self.candidates.price(pins, report, should_stop, restrict)
        choice = self._choose(pins, pricing, report, should_stop)
        if not choice.is_feasible:
            self._explain(pins if restrict is None else (), pricing, should_stop)
        stop_if(should_stop)
        bound = choice.objective * pricing.least_share
        report("writing the plan", 0, 1, choice.objective, bound)
        chosen = tuple(self._take(pricing, r) for r in choice.stages)
        layers = [layer for r in choice.stages if r in pricing.recomputed for layer in pricing.recomputed[r].layers]
        program, structure = self.program, self.candidates.structure
        if layers:
            program, chosen = move_to_program(
                program, layers, chosen, self._pool, pins, self.candidates.limit_memory, should_stop
            )
            structure = self._pool.find_structure(program)
        solved = sum(option.solver.num_solved for option in self.candidates.options_by_mesh)
        result = SolverReport(
            self.options.solver, time.monotonic() - began, choice.objective, bound, pricing.num_candidates, solved,
            (
                f"{solved} distinct stages solved on {len(self.candidates.options_by_mesh)} logical meshes",
                *_describe_recomputed(program),
            ),
        )  # fmt: skip
        plan = build_plan(
            program, structure, self.cluster, chosen, schedule=self.options.schedule, pins=pins, report=result
        )
        self._remember(plan, chosen)
        return plan

    def _remember(self, plan: Plan, chosen: tuple[ChosenStage, ...]) -> None:
        """Keep what `plan` was made from. A plan is known by its stages, which copies with another report share."""
        self._chosen[id(plan.stages)] = plan.stages, chosen

    def _recall(self, plan: Plan, what: str) -> tuple[ChosenStage, ...]:
        known = self._chosen.get(id(plan.stages))
        if known is None:
            raise PinError(f"{what} are known for plans that were found in this session: solve this one again.")
        return known[1]

    def _take(self, pricing: CandidatePricing, chosen: ChosenRange) -> ChosenStage:
        option = self.candidates.options_by_mesh[chosen.option]
        stage = pricing.exact[chosen]
        shapes = pricing.pinned[chosen.option]
        in_flight = self.candidates.count_in_flight(chosen.in_flight)
        again = pricing.recomputed.get(chosen)
        if again is not None:
            return ChosenStage(
                chosen.first, chosen.last, option.mesh, again.solver, again.shapes, again.solved, in_flight
            )
        return ChosenStage(chosen.first, chosen.last, option.mesh, option.solver, shapes, stage, in_flight)

    def _choose(
        self, pins: Sequence[Pin], pricing: CandidatePricing, report: Report, should_stop: Callable[[], bool]
    ) -> StageChoice:
        """The best stages. Only candidates that a best choice asks for are solved exactly.

        The table begins with quick lower limits (without memory limit, without pins); where the programme picks such
        an entry it is brought a step closer and the programme runs again. Entries only rise, so a
        choice of exact entries is the best.
        """
        constraints = self._constrain(pins)
        for round_number in itertools.count():
            stop_if(should_stop)
            table = StageCostTable(pricing.latency, self.candidates.sizes, kinds=self.candidates.kinds)
            choice = self._run_programme(table, constraints)
            inexact = [r for r in choice.stages if r not in pricing.exact]
            report("choosing stages", round_number, round_number + len(inexact), None, choice.objective)
            if not inexact:
                return choice
            for r in inexact:
                self.candidates.raise_limit(pricing, r, should_stop)
        raise AssertionError("the loop ends by returning")

    def _run_programme(self, table: StageCostTable, constraints: StageConstraints) -> StageChoice:
        """The best stages of `table`; its last axis counts stages to the end, or all stages where those matter."""
        devices, microbatches = self.candidates.num_devices, self.program.num_microbatches
        measured = self.cluster.device_type.measured
        if measured is not None and measured.shares_hardware:
            # Stages take turns, so a step takes all microbatches of all stages one after another.
            turns = StageCostTable(table.latency * microbatches, table.sizes, kinds=table.kinds)
            if self.options.schedule in ("1f1b", "gpipe"):
                return choose_stages(turns, devices, 1, constraints)
        if self.options.schedule in ("1f1b", "gpipe"):
            return choose_stages(table, devices, microbatches, constraints)
        return choose_stages_by_count(table, devices, microbatches, constraints, num_chunks=self.candidates.num_chunks)

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
                    for m, option in enumerate(self.candidates.options_by_mesh)
                    if str(option.mesh if of_mesh else option.mesh.submesh) == pin.choice
                )
                stage = int(pin.subject)
                options[stage] = options.get(stage, fitting) & fitting
        return StageConstraints(count, layer_stage, options)

    def _explain(self, pins: tuple[Pin, ...], pricing: CandidatePricing, should_stop: Callable[[], bool]) -> None:
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
        memory = max(host.device_type.memory_bytes for host in self.cluster.hosts)
        if pricing.short:
            short, first, last = min(pricing.short.values())
            raise InfeasibleError(
                f"The model does not fit: {spell_layers(range(first, last + 1))} "
                f"need{'s' if first == last else ''} at least {format_bytes(short)} more on each "
                f"device than the {format_bytes(self.candidates.memory_limit)} that a plan may use of "
                f"{format_bytes(memory)}. {self._advise()}",
                short,
            )
        raise InfeasibleError(
            f"No stages of {self.program.num_layers} layers fill the {self.cluster.num_devices} devices of "
            f"{self.cluster.name!r}. Use fewer devices or more layers." + self._describe_interleaving()
        )

    def _advise(self) -> str:
        """What takes the memory, and what would help; not where hosts differ, as advice counts with one memory."""
        if len(self.cluster.kinds) > 1:
            return "What would help: more devices of the kind with most memory, or more microbatches."
        kept = count_layer_bytes(self.program, self.candidates.structure)
        twofold = self._pool.find_twofold(self.program)
        again = None if twofold is None else count_layer_bytes(twofold.program, twofold.structure, twofold.layers)
        remedies = list_remedies(
            self.program, self.cluster, self.candidates.memory_limit, kept, again,
            may_recompute=self.options.recompute != "never",
        )  # fmt: skip
        advice = "; or ".join(remedies) or "fewer bytes in the model's state or in its largest layer"
        return f"{describe_needs(self.program, kept)} What would help: {advice}."

    def _describe_memory(self, pricing: CandidatePricing) -> str:
        """The limit that some candidates would break, with the least that they lack; nothing where none would."""
        if not pricing.short:
            return ""
        short = min(pricing.short.values())[0]
        return (
            f" within the {format_bytes(self.candidates.memory_limit)} of each device that a plan may use (at least "
            f"{format_bytes(short)} are missing)"
        )

    def _describe_interleaving(self) -> str:
        if self.candidates.num_chunks == 1:
            return ""
        return (
            f" Schedule {self.options.schedule!r} needs a multiple of {self.candidates.num_chunks} stages, on "
            f"at least two equal groups of devices whose number divides the "
            f"{self.program.num_microbatches} microbatches."
        )

    def _is_feasible(self, pins: tuple[Pin, ...], should_stop: Callable[[], bool]) -> bool:
        pricing = self.candidates.price(pins, _ignore, should_stop)
        return self._choose(pins, pricing, _ignore, should_stop).is_feasible

    def _shrink_conflict(self, pins: tuple[Pin, ...], should_stop: Callable[[], bool]) -> tuple[Pin, ...]:
        """A minimal set of pins that no plan keeps together: every pin whose absence leaves a conflict is dropped."""
        kept = pins
        for pin in pins:
            without = tuple(p for p in kept if p != pin)
            if not self._is_feasible(without, should_stop):
                kept = without
        return kept

    def list_alternatives(self, plan: Plan, op_name: str, pins: Sequence[Pin]) -> tuple[Alternative, ...]:
        """What else could be decided for an op of `plan`, which was found here."""
        chosen = self._recall(plan, "Alternatives")
        return list_alternatives(chosen[0].solver.program, chosen, pins, op_name, self.program.num_microbatches)

    def vary(self, plan: Plan, stage: int) -> StageVariants:
        """Variants of a stage of `plan`, which was found here; they count as found here too."""
        chosen = self._recall(plan, "Variants")
        if not 0 <= stage < len(plan.stages):
            raise AlpaVizError(f"The plan has stages 0 to {len(plan.stages) - 1}, not {stage}.")
        program, limit = chosen[0].solver.program, self.candidates.limit_memory(chosen[stage].mesh)
        return StageVariants(program, self.cluster, plan, chosen, stage, limit, self._remember)

    def list_twins(self, op_name: str, present: Program) -> tuple[str, ...]:
        """Names of the ops that stand at the same place in equal layers, the op itself included.

        Args:
            present: the program of the present plan, whose recomputed layers have ops that the traced one lacks.
        """
        program = present if op_name.startswith(RECOMPUTE) else self.program
        layer = find_pinned_layer(program, Pin(PinKind.STRATEGY, op_name, ""))
        instances = self._pool.find_structure(program).instances
        instance = instances[layer]
        position = next(p for p, i in enumerate(instance.ops) if program.ops[i].name == op_name)
        return tuple(
            program.ops[other.ops[position]].name for other in instances if other.layer_class == instance.layer_class
        )


def _describe_recomputed(program: Program) -> tuple[str, ...]:
    """A sentence on the layers that are recomputed; nothing where none are."""
    layers = program.recomputed_layers
    return (f"{spell_layers(layers)} recomputed in the backward pass; the bound is for these",) if layers else ()


def _ignore(*_: object) -> None:
    """A report that nobody reads."""
