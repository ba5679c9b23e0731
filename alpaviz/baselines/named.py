"""The schemes by name, and the plan of each.

Each is a set of pins on the stages and a `Scheme` inside of them; where a scheme leaves a choice (the dimension in
which a parameter is stored in pieces, the mesh), the cheapest is taken, as a person who tries them all would.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from alpaviz.baselines.dimensions import DimensionClasses, find_dimension_classes
from alpaviz.baselines.scheme import Scheme, restrict_to_scheme
from alpaviz.baselines.tensor import Experts, find_experts, find_sequence_classes, find_tensor_classes
from alpaviz.cluster import Cluster, enumerate_logical_meshes, enumerate_submeshes
from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.errors import AlpaVizError, InfeasibleError
from alpaviz.intra.stage_problem import Restriction
from alpaviz.intra.stage_solver import StageSolver
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.planner import Planner
from alpaviz.planner_options import PlannerOptions
from alpaviz.planning import PlanningSession
from alpaviz.program.program import Program
from alpaviz.schedule import SCHEDULES
from alpaviz.stage_candidates import Restrict
from alpaviz.types import MeshAxis, format_spec


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One way to carry out a baseline: pins, and what is left inside of the stages (None: everything)."""

    pins: tuple[Pin, ...]
    restrict: Restrict | None


class Baselines:
    """Plans of one program on one cluster by the schemes that people use. Use from one thread at a time.

    What one plan needs of the cost model is kept for the next.
    """

    def __init__(self, program: Program, cluster: Cluster, options: PlannerOptions) -> None:
        self.program, self.cluster, self.options = program, cluster, options
        self._sessions: dict[str, PlanningSession] = {}
        self._classes: DimensionClasses | None = None

    @property
    def classes(self) -> DimensionClasses:
        """Classes of the program's dimensions."""
        if self._classes is None:
            self._classes = find_dimension_classes(self.program)
        return self._classes

    def plan(self, name: str) -> Plan:
        """The plan of the baseline called `name`.

        Raises:
            AlpaVizError: there is no such baseline.
            InfeasibleError: it does not fit the devices or the program; the message says why.
        """
        if name not in _RECIPES:
            raise AlpaVizError(f"No baseline is called {name!r}. Baselines: {', '.join(_RECIPES)}.")
        schedule, list_attempts = _RECIPES[name]
        best: Plan | None = None
        reason: InfeasibleError | None = None
        try:
            for attempt in list_attempts(self):
                try:
                    found = self._session(schedule).solve(attempt.pins, _ignore, _never, attempt.restrict)
                except InfeasibleError as error:
                    # The way that came closest is the one to tell.
                    if reason is None or 0 < error.bytes_short < (reason.bytes_short or float("inf")):
                        reason = error
                    continue
                if best is None or found.solver.objective < best.solver.objective:
                    best = found
        except InfeasibleError as error:
            reason = error
        if best is None:
            assert reason is not None, "a baseline without an attempt says why"
            raise InfeasibleError(f"Baseline {name}: {reason}", reason.bytes_short)
        return best

    def _session(self, schedule: str | None) -> PlanningSession:
        key = schedule or self.options.schedule
        if key not in self._sessions:
            self._sessions[key] = PlanningSession(self.program, self.cluster, replace(self.options, schedule=key))
        return self._sessions[key]

    def restrict(self, scheme: Scheme, num_devices: int | None = None) -> Restrict:
        """`scheme` on all meshes, or on those of `num_devices` devices."""

        def restrict(solver: StageSolver) -> Mapping[int, Restriction] | None:
            mesh = solver.costs.mesh
            if num_devices is not None and mesh.num_devices != num_devices:
                return None
            return restrict_to_scheme(self.program, solver.structure, solver, scheme)

        return restrict

    def restrict_mesh(self, scheme: Scheme, mesh: LogicalMesh, tensor_axes: Sequence[MeshAxis] = ()) -> Restrict:
        """`scheme` on one mesh, whose `tensor_axes` are not data axes."""

        def restrict(solver: StageSolver) -> Mapping[int, Restriction] | None:
            own = solver.costs.mesh
            if (own.submesh, own.shape) != (mesh.submesh, mesh.shape):
                return None
            return restrict_to_scheme(self.program, solver.structure, solver, scheme, tensor_axes)

        return restrict

    def list_meshes(self, num_devices: int) -> list[LogicalMesh]:
        """Logical meshes of so many devices."""
        shapes = [shape for shape in enumerate_submeshes(self.cluster) if shape.num_devices == num_devices]
        most = self.options.max_mesh_axes
        return [mesh for shape in shapes for mesh in enumerate_logical_meshes(self.cluster, shape, most)]

    def list_stage_counts(self) -> list[int]:
        """Numbers of stages of one size that use all devices."""
        devices = self.cluster.num_devices
        most = min(self.program.num_layers, devices) if self.program.has_gradient_marker else 1
        return [count for count in range(1, most + 1) if devices % count == 0 and self.list_meshes(devices // count)]

    def pin_equal_stages(self, count: int) -> tuple[Pin, ...]:
        """So many stages, whose numbers of layers differ by one at most."""
        layers = self.program.num_layers
        placed = (Pin(PinKind.LAYER_STAGE, layer, layer * count // layers) for layer in range(layers))
        return (Pin(PinKind.NUM_STAGES, None, count), *placed)

    def count_expert_shards(self, mesh: LogicalMesh, experts: Experts) -> int:
        """Into how many pieces the axes of `mesh` can split the experts."""
        numbers = {
            size
            for v in experts.values
            for size, c in zip(self.program.values[v].shape, self.classes.of_values[v], strict=True)
            if c in experts.classes
        }
        shards = (math.prod(mesh.axis_sizes[axis] for axis in axes) for axes in _list_subsets(mesh.axis_names))
        return max(count for count in shards if all(number % count == 0 for number in numbers))

    def check_batch(self, num_devices: int) -> None:
        """Raise where the rows of a microbatch cannot be split over so many devices."""
        for v, dim in zip(self.program.inputs, self.program.batch_axes, strict=True):
            value = self.program.values[v]
            if dim is not None and value.shape[dim] % num_devices:
                raise InfeasibleError(
                    f"a microbatch of {value.name} has {value.shape[dim]} rows, which {num_devices} devices do not "
                    "divide. Use a larger batch or fewer microbatches."
                )


ONE_STAGE = (Pin(PinKind.NUM_STAGES, None, 1),)


def _list_data_parallel(
    baselines: Baselines, *, optimizer: bool = False, gradients: bool = False, parameters: bool = False
) -> Iterator[_Attempt]:
    devices = baselines.cluster.num_devices
    baselines.check_batch(devices)
    scheme = Scheme(
        baselines.classes, split_optimizer=optimizer, scatter_gradients=gradients, split_parameters=parameters
    )
    yield _Attempt(ONE_STAGE, baselines.restrict(scheme, devices))


def _list_zero_1(baselines: Baselines) -> Iterator[_Attempt]:
    return _list_data_parallel(baselines, optimizer=True)


def _list_zero_2(baselines: Baselines) -> Iterator[_Attempt]:
    return _list_data_parallel(baselines, optimizer=True, gradients=True)


def _list_zero_3(baselines: Baselines) -> Iterator[_Attempt]:
    return _list_data_parallel(baselines, optimizer=True, gradients=True, parameters=True)


def _list_megatron(baselines: Baselines, *, splits_sequence: bool = False) -> Iterator[_Attempt]:
    """Every (data, tensor, pipeline) grid: equal stages of equal meshes, each axis data parallel or tensor parallel."""
    classes = baselines.classes
    tensor = find_tensor_classes(baselines.program, classes)
    if not tensor:
        raise InfeasibleError("the program has no products of activations and parameters to split.")
    sequence = find_sequence_classes(baselines.program, classes, tensor) if splits_sequence else frozenset()
    if splits_sequence and not sequence:
        raise InfeasibleError("activations have no dimension beside the batch and the features.")
    scheme = Scheme(classes, tensor=tensor, sequence=sequence)
    for stages in baselines.list_stage_counts():
        pins = baselines.pin_equal_stages(stages)
        for mesh in baselines.list_meshes(baselines.cluster.num_devices // stages):
            for tensor_axes in _list_subsets(mesh.axis_names):
                if not splits_sequence or tensor_axes:
                    yield _Attempt(pins, baselines.restrict_mesh(scheme, mesh, tensor_axes))


def _list_sequence_parallel(baselines: Baselines) -> Iterator[_Attempt]:
    return _list_megatron(baselines, splits_sequence=True)


def _list_expert_parallel(baselines: Baselines) -> Iterator[_Attempt]:
    """Tokens are split over all devices, and so are the experts, or over as many as divide their number."""
    devices = baselines.cluster.num_devices
    baselines.check_batch(devices)
    experts = find_experts(baselines.program, baselines.classes)
    if not experts.classes:
        raise InfeasibleError("the program has no experts whose parameters are products with tokens of their own.")
    meshes = baselines.list_meshes(devices)
    counts = [baselines.count_expert_shards(mesh, experts) for mesh in meshes]
    if max(counts) == 1:
        raise InfeasibleError(f"no mesh of {devices} devices has an axis that divides the number of experts.")
    scheme = Scheme(
        baselines.classes, experts=experts.classes, expert_ops=experts.ops, expert_values=experts.values
    )  # fmt: skip
    for mesh, count in zip(meshes, counts, strict=True):
        if count == max(counts):
            yield _Attempt(ONE_STAGE, baselines.restrict_mesh(scheme, mesh))


def _list_pipeline(baselines: Baselines) -> Iterator[_Attempt]:
    """A stage for every device, as equal as the number of layers allows."""
    devices, layers = baselines.cluster.num_devices, baselines.program.num_layers
    if devices not in baselines.list_stage_counts():
        raise InfeasibleError(
            f"a stage for each of {devices} devices needs as many layers and alpaviz.value_and_grad; the program has "
            f"{layers} layers. Plan with num_layers={devices} or more."
        )
    yield _Attempt(baselines.pin_equal_stages(devices), baselines.restrict(Scheme(baselines.classes), 1))


def _list_pipedream(baselines: Baselines) -> Iterator[_Attempt]:
    """Any stages, each data parallel over its devices."""
    yield _Attempt((), baselines.restrict(Scheme(baselines.classes)))


def _list_inter_only(baselines: Baselines) -> Iterator[_Attempt]:
    """Any stages of one device."""
    yield _Attempt((), baselines.restrict(Scheme(baselines.classes), 1))


def _list_intra_only(baselines: Baselines) -> Iterator[_Attempt]:
    """One stage, split in any way."""
    yield _Attempt(ONE_STAGE, None)


def _list_subsets(axes: Sequence[MeshAxis]) -> Iterator[tuple[MeshAxis, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(axes, count) for count in range(len(axes) + 1))


_RECIPES: dict[str, tuple[str | None, Callable[[Baselines], Iterable[_Attempt]]]] = {
    "data-parallel": (None, _list_data_parallel),
    "zero-1": (None, _list_zero_1),
    "zero-2": (None, _list_zero_2),
    "zero-3": (None, _list_zero_3),
    "megatron": (None, _list_megatron),
    "sequence-parallel": (None, _list_sequence_parallel),
    "expert-parallel": (None, _list_expert_parallel),
    "gpipe": ("gpipe", _list_pipeline),
    "1f1b": ("1f1b", _list_pipeline),
    "pipedream": (None, _list_pipedream),
    "inter-op-only": (None, _list_inter_only),
    "intra-op-only": (None, _list_intra_only),
}
"""Schedule (None: that of the planner) and attempts of each baseline."""

NAMES: tuple[str, ...] = tuple(_RECIPES)
"""Names of all baselines."""


def plan(name: str, planner: Planner) -> Plan:
    """The plan of the baseline called `name` for the planner's program and cluster; its pins play no part.

    Raises:
        AlpaVizError: there is no such baseline.
        InfeasibleError: it does not fit the devices or the program; the message says why.
        InvalidStepError: the planner's step cannot be traced.
    """
    return open_baselines(planner).plan(name)


def open_baselines(planner: Planner) -> Baselines:
    """Baselines for the planner's program, cluster and schedule (its plan's where it searches the schedule)."""
    program = planner.program
    schedule = planner.options.schedule
    if schedule not in SCHEDULES:
        schedule = planner.plan.schedule if planner.plan is not None else "1f1b"
    return Baselines(program, planner.cluster, replace(planner.options, schedule=schedule))


def list_pins(plan: Plan) -> tuple[Pin, ...]:
    """Pins that keep all decisions of `plan`: stages, meshes, strategies of ops, layouts of inputs.

    They make a baseline a starting point: give them to a planner, take some away, and solve.
    """
    pins = [Pin(PinKind.NUM_STAGES, None, plan.num_stages)]
    for stage in plan.stages:
        layers = range(stage.first_layer, stage.last_layer + 1)
        pins += [Pin(PinKind.LAYER_STAGE, layer, stage.index) for layer in layers]
        pins.append(Pin(PinKind.STAGE_SUBMESH, stage.index, stage.submesh))
        pins.append(Pin(PinKind.LOGICAL_MESH, stage.index, "x".join(map(str, stage.mesh_shape))))
    pins += [Pin(PinKind.STRATEGY, op.name, op.strategy) for op in plan.ops if op.is_decision]
    read = {v for op in plan.ops for v in op.inputs}
    pins += [
        Pin(PinKind.SPEC, value.name, format_spec(value.spec))
        for value in plan.values
        if value.kind in ("state", "batch") and value.shape and value.id in read
    ]
    return tuple(pins)


def _ignore(*_: object) -> None:
    """A report that nobody reads."""


def _never() -> bool:
    return False
