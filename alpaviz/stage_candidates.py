"""Candidates of stages: every range of layers on every logical mesh, and what is known of their times.

In: a program, a cluster, options, pins. Out: a `CandidatePricing`: a table of lower limits for the programme of
`alpaviz.inter`, of which single entries can be made exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from alpaviz.cluster import Cluster, enumerate_logical_meshes, enumerate_submeshes
from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.errors import InvalidClusterError, SolveCancelledError
from alpaviz.inter import ChosenRange
from alpaviz.intra.problem import FloatArray
from alpaviz.intra.stage_problem import Restriction, StageShape, StageShapes
from alpaviz.intra.stage_solver import SolvedStage, StageSolver, name_family
from alpaviz.intra.structure import ProgramStructure
from alpaviz.pins import Pin, PinKind
from alpaviz.planner_options import PlannerOptions
from alpaviz.program.program import Program, Role, ValueKind
from alpaviz.schedule import count_chunks, count_most_in_flight
from alpaviz.solver_pool import SolverPool
from alpaviz.stage_recomputation import RecomputedStage, StageRecomputation

USABLE_MEMORY = 0.95
"""Share of a device's memory that a plan may fill; the rest is for the runtime and fragmentation."""

_WORTH_RECOMPUTING = 0.01
"""A stage that keeps everything within its memory at less than this share of extra time is not recomputed."""

Report = Callable[..., None]
Restrict = Callable[[StageSolver], Mapping[int, Restriction] | None]
"""Per layer what a scheme leaves of its candidates on the mesh of a solver; None where it does not use such a mesh."""


@dataclass(frozen=True, slots=True)
class MeshOption:
    """One logical mesh of one submesh shape, with its solver."""

    mesh: LogicalMesh
    solver: StageSolver


class StageCandidates:
    """All candidates of one program on one cluster, with the solvers of their meshes."""

    def __init__(self, program: Program, cluster: Cluster, options: PlannerOptions, pool: SolverPool) -> None:
        self.program, self.cluster, self.options = program, cluster, options
        self._pool = pool
        self.structure: ProgramStructure = pool.find_structure(program)
        self.options_by_mesh = tuple(
            MeshOption(mesh, pool.find_solver(program, mesh))
            for shape in enumerate_submeshes(cluster)
            for mesh in enumerate_logical_meshes(cluster, shape, options.max_mesh_axes)
        )
        self._unpinned = StageShapes(program, self.structure, {})
        self._passing = count_passing_bytes(program, self.structure)
        self.num_chunks = count_chunks(options.schedule)
        self._in_flight = self._list_in_flight()
        if self.num_chunks > 1 and len(cluster.kinds) > 1:
            raise InvalidClusterError(
                f"Schedule {options.schedule!r} needs equal groups of devices; the hosts of {cluster.name!r} differ."
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices of each option."""
        return tuple(option.mesh.num_devices for option in self.options_by_mesh)

    @property
    def kinds(self) -> tuple[int, ...]:
        """Which of the cluster's kinds of hosts each option is on."""
        names = list(self.cluster.kinds)
        return tuple(names.index(option.mesh.submesh.kind) for option in self.options_by_mesh)

    @property
    def num_devices(self) -> tuple[int, ...]:
        """Devices of each kind of host."""
        return tuple(self.cluster.take_kind(kind).num_devices for kind in self.cluster.kinds)

    @property
    def memory_limit(self) -> float:
        """Bytes of each device that a plan may use; of those with most memory, where hosts differ."""
        return max(self.limit_memory(option.mesh) for option in self.options_by_mesh)

    def limit_memory(self, mesh: LogicalMesh) -> float:
        """Bytes of each device of `mesh` that a plan may use, for each of the stages that share devices."""
        return USABLE_MEMORY * mesh.device_type.memory_bytes / self.num_chunks

    @property
    def max_stages(self) -> int:
        """Most stages that are tried: one where the step has no gradient marker."""
        if not self.program.has_gradient_marker:
            return 1
        most = min(self.program.num_layers, self.cluster.num_devices * self.num_chunks)
        return min(most, self.options.max_stages or most)

    def price(
        self, pins: Sequence[Pin], report: Report, should_stop: Callable[[], bool], restrict: Restrict | None = None
    ) -> CandidatePricing:
        """Lower limits of all candidates, found quickly: without memory limit and without pins on ops and inputs."""
        layers, options, stages = self.program.num_layers, len(self.options_by_mesh), self.max_stages
        pricing = CandidatePricing(pins, np.full((layers, layers, options, stages), np.inf))
        pricing.recomputation = self._make_recomputation(pins) if restrict is None else None
        allowed = self._list_allowed_options(pins)
        for m, option in enumerate(self.options_by_mesh):
            stop_if(should_stop)
            report("solving stages", m, options)
            shapes = self._unpinned
            restricted = restrict(option.solver) if restrict is not None and m in allowed else {}
            if m not in allowed or restricted is None:
                pricing.shapes.append(self._unpinned)  # never asked: its latency stays infinite
                continue
            if restricted:
                shapes = StageShapes(self.program, self.structure, restricted)  # solved quickly, and a closer limit
            pricing.shapes.append(shapes)
            ranges = [(i, j) for i in range(layers) for j in range(i, layers) if self._may_be_stage(i, j, option)]
            for first, last in ranges:
                shape = shapes.find(first, last)
                pricing.latency[first, last, m] = 0.0
                pricing.num_candidates += self._limit(pricing, m, first, last, shape)
                limit = option.solver.bound_unlimited(shape) + self._price_entry(first, option)
                pricing.raise_to(first, last, m, limit)
        self._pool.save()
        return pricing

    def _make_recomputation(self, pins: Sequence[Pin]) -> StageRecomputation | None:
        if self.options.recompute != "auto":
            return None
        twofold = self._pool.find_twofold(self.program)
        return None if twofold is None else StageRecomputation(twofold, self._pool, pins, self.limit_memory)

    def raise_limit(self, pricing: CandidatePricing, chosen: ChosenRange, should_stop: Callable[[], bool]) -> None:
        """Bring the entry of `chosen` one step closer to its exact value.

        First to the optimum without memory limit and pins, together with all stages that differ from it only in their
        number of layers; then, with pins, to what these leave; then to the exact value.
        """
        option, m = self.options_by_mesh[chosen.option], chosen.option
        shape = pricing.shapes[m].find(chosen.first, chosen.last)
        if (m, name_family(shape)) not in pricing.is_free:
            pricing.is_free.add((m, name_family(shape)))
            self._solve_family(pricing, m, name_family(shape), should_stop)
        elif m not in pricing.pinned:
            pricing.pinned[m] = self._pin(pricing, m)
        else:
            self._make_exact(pricing, chosen, option, should_stop)

    def _solve_family(self, pricing: CandidatePricing, m: int, family: object, should_stop: Callable[[], bool]) -> None:
        option = self.options_by_mesh[m]
        firsts, lasts = np.nonzero(np.isfinite(pricing.latency[:, :, m, 0]))
        ranges = [(int(i), int(j)) for i, j in zip(firsts, lasts, strict=True)]
        found = {r: pricing.shapes[m].find(*r) for r in ranges}
        found = {r: shape for r, shape in found.items() if name_family(shape) == family}
        option.solver.solve_unlimited(list(found.values()), should_stop)
        self._pool.save()
        for (first, last), shape in found.items():
            free = option.solver.find(shape, None, np.inf, should_stop)
            pricing.raise_to(first, last, m, free.bound + self._price_entry(first, option))

    def _pin(self, pricing: CandidatePricing, m: int) -> StageShapes:
        """The shapes that pins on ops and inputs leave on a mesh; takes entries away that no choice can fill."""
        if pricing.shapes[m] is not self._unpinned:
            return pricing.shapes[m]  # a scheme's restriction stands for pins
        restrictions = self.options_by_mesh[m].solver.restrict(pricing.pins)
        if not restrictions:
            return self._unpinned
        shapes = StageShapes(self.program, self.structure, restrictions)
        for first, last in zip(*np.nonzero(np.isfinite(pricing.latency[:, :, m, 0])), strict=True):
            self._limit(pricing, m, int(first), int(last), shapes.find(int(first), int(last)))
        return shapes

    def _limit(self, pricing: CandidatePricing, m: int, first: int, last: int, shape: StageShape) -> int:
        """Take entries away for which `shape` never fits; returns the number of those left."""
        key = (m, shape)
        if key not in pricing.fitting:
            pricing.fitting[key] = self._count_fitting(self.options_by_mesh[m], shape)
        count, short = pricing.fitting[key]
        again, mesh = pricing.recomputation, self.options_by_mesh[m].mesh
        while (
            again is not None and count < self.max_stages
            and again.may_fit(first, last, mesh, self.count_in_flight(count + 1))
        ):  # fmt: skip
            count += 1
        pricing.note_short(m, short, first, last)
        pricing.latency[first, last, m, count:] = np.inf
        return count

    def _count_fitting(self, option: MeshOption, shape: StageShape) -> tuple[int, float]:
        """To how many stages from the end `shape` may fit, and the bytes that it lacks for one more (0: for none)."""
        for s in range(self.max_stages):
            least = option.solver.count_least_bytes(shape, self.count_in_flight(s + 1))
            short = least - self.limit_memory(option.mesh)
            if short > 0:
                return s, short
        return self.max_stages, 0.0

    def _may_be_stage(self, first: int, last: int, option: MeshOption) -> bool:
        """Whether layers `first` .. `last` on this many devices can be part of a plan that uses all devices."""
        left = self.cluster.num_devices - option.mesh.num_devices
        others = self.program.num_layers - (last - first + 1)
        if others == 0 or self.max_stages == 1:
            return left == 0 and others == 0
        return left > 0

    def _price_entry(self, first: int, option: MeshOption) -> float:
        """Seconds to pass the cut before layer `first` (activations there, cotangents back) and to start the stage."""
        measured = self.cluster.device_type.measured
        is_alone = option.mesh.num_devices == self.cluster.num_devices
        calls = 0.0 if measured is None or is_alone else 2 * measured.price_call(option.mesh.num_devices)
        if first == 0:
            return calls
        one_host = self.cluster.num_hosts == 1
        link = self.cluster.hosts[0].link if one_host else self.cluster.network
        lanes: float = option.mesh.num_devices if one_host else option.mesh.submesh.num_hosts
        if one_host and measured is not None:
            lanes = measured.count_lanes(option.mesh.num_devices)
        return calls + 2 * link.latency + self._passing[first] / (link.bandwidth * lanes)

    def _list_allowed_options(self, pins: Sequence[Pin]) -> frozenset[int]:
        """Options that a pin of every stage's logical mesh leaves."""
        shapes = {pin.choice for pin in pins if pin.kind is PinKind.LOGICAL_MESH and pin.subject is None}
        return frozenset(
            m for m, option in enumerate(self.options_by_mesh) if not shapes or {str(option.mesh)} == shapes
        )

    def _make_exact(
        self, pricing: CandidatePricing, chosen: ChosenRange, option: MeshOption, should_stop: Callable[[], bool]
    ) -> None:
        shape = pricing.pinned[chosen.option].find(chosen.first, chosen.last)
        in_flight = self.count_in_flight(chosen.in_flight)
        stage = option.solver.find(shape, in_flight, self.limit_memory(option.mesh), should_stop)
        stage = self._recompute(pricing, chosen, stage, shape, should_stop)
        pricing.exact[chosen] = stage
        if stage.price is None:
            pricing.latency[chosen.first, chosen.last, chosen.option, chosen.in_flight - 1 :] = np.inf
            pricing.note_short(chosen.option, stage.bytes_short, chosen.first, chosen.last)
            return
        limit = stage.objective + self._price_entry(chosen.first, option)
        pricing.raise_to(chosen.first, chosen.last, chosen.option, limit, chosen.in_flight - 1)
        pricing.note_share(stage)

    def _recompute(
        self,
        pricing: CandidatePricing,
        chosen: ChosenRange,
        kept: SolvedStage,
        shape: StageShape,
        should_stop: Callable[[], bool],
    ) -> SolvedStage:
        """The stage of `chosen` with layers recomputed where that is better than `kept`, else `kept`."""
        again, option = pricing.recomputation, self.options_by_mesh[chosen.option]
        if again is None:
            return kept
        free = option.solver.find(shape, None, np.inf, should_stop)
        if kept.price is not None and kept.objective <= free.objective * (1 + _WORTH_RECOMPUTING):
            return kept
        in_flight = self.count_in_flight(chosen.in_flight)
        found = again.find(chosen.first, chosen.last, option.mesh, in_flight, should_stop)
        if found is None or (found.solved.price is None and found.solved.bytes_short == 0.0):
            return kept
        if kept.price is not None and kept.objective <= found.solved.objective:
            return kept
        if found.solved.price is not None:
            pricing.recomputed[chosen] = found
        return found.solved

    def _list_in_flight(self) -> tuple[int, ...]:
        """For each number of stages, most microbatches whose activations one of them keeps; never falling."""
        microbatches, counts = self.program.num_microbatches, [1]
        for stages in range(1, self.max_stages + 1):
            rows, rest = divmod(stages, self.num_chunks)
            is_possible = self.num_chunks == 1 or (not rest and microbatches % rows == 0)
            found = count_most_in_flight(self.options.schedule, stages, microbatches) if is_possible else 1
            counts.append(max(counts[-1], found))
        return tuple(counts)

    def count_in_flight(self, stages_to_end: int) -> int:
        """Microbatches whose activations a stage keeps."""
        return self._in_flight[stages_to_end]


@dataclass(slots=True, eq=False)
class CandidatePricing:
    """What is known of all candidates during one solve.

    Attributes:
        latency: by first and last layer, option and stages to the end - 1: lower limits, exact where `exact` has them.
        shapes: per option, without pins; `pinned`: with them, of options where an entry was asked for.
        is_free: (option, family of shapes) whose limits are the optimum without memory limit.
        fitting: by option and shape, to how many stages from the end it may fit and the bytes it lacks for one more.
        least_share: the smallest bound / objective of a solution that went in.
        short: per option, the least bytes that are missing, and for which layers.
        recomputation: finds stages that recompute layers; None where none may.
        recomputed: those that went in because keeping everything does not fit or is slower.
    """

    pins: Sequence[Pin]
    latency: FloatArray
    exact: dict[ChosenRange, SolvedStage] = field(default_factory=dict)
    shapes: list[StageShapes] = field(default_factory=list)
    pinned: dict[int, StageShapes] = field(default_factory=dict)
    is_free: set[tuple[int, object]] = field(default_factory=set)
    fitting: dict[tuple[int, StageShape], tuple[int, float]] = field(default_factory=dict)
    least_share: float = 1.0
    num_candidates: int = 0
    short: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    recomputation: StageRecomputation | None = None
    recomputed: dict[ChosenRange, RecomputedStage] = field(default_factory=dict)

    def raise_to(self, first: int, last: int, option: int, limit: float, stages: int = 0) -> None:
        """Raise entries of `stages` + 1 or more stages to the end to at least `limit`."""
        entries = self.latency[first, last, option, stages:]
        np.maximum(entries, limit, out=entries)

    def note_share(self, stage: SolvedStage) -> None:
        if stage.objective > 0 and np.isfinite(stage.objective):
            self.least_share = min(self.least_share, stage.bound / stage.objective)

    def note_short(self, option: int, num_bytes: float, first: int, last: int) -> None:
        if 0 < num_bytes < np.inf:
            self.short[option] = min(self.short.get(option, (np.inf, 0, 0)), (num_bytes, first, last))


def stop_if(should_stop: Callable[[], bool]) -> None:
    if should_stop():
        raise SolveCancelledError("The solve was cancelled.")


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
