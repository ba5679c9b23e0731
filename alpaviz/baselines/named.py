"""The schemes by name, and the plan of each.

Each is a set of pins on the stages and a `Scheme` inside of them; where a scheme leaves a choice (the dimension in
which a parameter is stored in pieces, the mesh), the cheapest is taken, as a person who tries them all would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from alpaviz.baselines.dimensions import DimensionClasses, find_dimension_classes
from alpaviz.baselines.scheme import Scheme, restrict_to_scheme
from alpaviz.cluster import Cluster
from alpaviz.errors import AlpaVizError, InfeasibleError
from alpaviz.intra.stage_problem import Restriction
from alpaviz.intra.stage_solver import StageSolver
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.planner import Planner
from alpaviz.planning import PlannerOptions, PlanningSession, Restrict
from alpaviz.program.program import Program


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


_RECIPES: dict[str, tuple[str | None, Callable[[Baselines], Iterable[_Attempt]]]] = {
    "data-parallel": (None, _list_data_parallel),
    "zero-1": (None, _list_zero_1),
    "zero-2": (None, _list_zero_2),
    "zero-3": (None, _list_zero_3),
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
    return Baselines(planner.program, planner.cluster, planner.options).plan(name)


def _ignore(*_: object) -> None:
    """A report that nobody reads."""


def _never() -> bool:
    return False
