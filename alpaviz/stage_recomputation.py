"""Stages that recompute some of their layers, for where keeping all activations does not fit or costs too much.

In: a stage that was asked for, with its microbatches in flight. Out: its best form with as few layers recomputed as fit
without further measures, or with all of them and the memory limit as a constraint. At the end the chosen stages move
to the program that does what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.intra.recomputation import TwofoldProgram, count_layer_bytes
from alpaviz.intra.stage_problem import Restriction, StageShapes
from alpaviz.intra.stage_records import SolvedStage
from alpaviz.intra.stage_solver import StageSolver
from alpaviz.pins import Pin
from alpaviz.plan_builder import ChosenStage
from alpaviz.program.program import Program
from alpaviz.program.recompute import recompute_layers
from alpaviz.solver_pool import SolverPool

LimitMemory = Callable[[LogicalMesh], float]
"""Bytes of each device of a mesh that a stage may use."""


@dataclass(frozen=True, slots=True, eq=False)
class RecomputedStage:
    """A stage of a twofold program that recomputes `layers`."""

    solved: SolvedStage
    layers: tuple[int, ...]
    solver: StageSolver
    shapes: StageShapes


@dataclass(frozen=True, slots=True, eq=False)
class _MeshForms:
    """What pins leave of both forms of the layers on one mesh."""

    solver: StageSolver
    kept: StageShapes
    recomputed: dict[int, Restriction]


class StageRecomputation:
    """Recomputed stages of one program, with one set of pins. Remembers what it has found."""

    def __init__(
        self, twofold: TwofoldProgram, pool: SolverPool, pins: Sequence[Pin], limit_memory: LimitMemory
    ) -> None:
        self.twofold, self.limit_memory = twofold, limit_memory
        self._pool, self._pins = pool, pins
        self._forms: dict[LogicalMesh, _MeshForms] = {}
        self._shapes: dict[tuple[LogicalMesh, tuple[int, ...]], StageShapes] = {}
        self._least = count_layer_bytes(twofold.program, twofold.structure, twofold.layers)

    def may_fit(self, first: int, last: int, mesh: LogicalMesh, in_flight: int) -> bool:
        """Whether the stage fits if all its memory could be split evenly; found without looking at logical meshes."""
        if self.twofold.layers.isdisjoint(range(first, last + 1)):
            return False
        needed = sum(layer.count(in_flight) for layer in self._least[first : last + 1])
        return needed / mesh.num_devices <= self.limit_memory(mesh)

    def find(
        self, first: int, last: int, mesh: LogicalMesh, in_flight: int, should_stop: Callable[[], bool]
    ) -> RecomputedStage | None:
        """The stage with the fewest layers recomputed with which it fits; None where there is nothing to recompute."""
        layers = [layer for layer in range(first, last + 1) if layer in self.twofold.layers]
        if not layers:
            return None
        solver = self._find_forms(mesh).solver
        limit = self.limit_memory(mesh)

        def solve(count: int) -> RecomputedStage:
            shapes = self._find_shapes(mesh, tuple(layers[:count]))
            solved = solver.find(shapes.find(first, last), None, np.inf, should_stop)
            return RecomputedStage(solved, tuple(layers[:count]), solver, shapes)

        def fits(stage: RecomputedStage) -> bool:
            price = stage.solved.price
            return price is not None and price.count_bytes(in_flight) <= limit

        best = solve(len(layers))
        if not fits(best):
            shape = best.shapes.find(first, last)
            return replace(best, solved=solver.find(shape, in_flight, limit, should_stop))
        few, enough = 0, len(layers)
        while enough - few > 1:
            middle = (few + enough) // 2
            stage = solve(middle)
            if fits(stage):
                best, enough = stage, middle
            else:
                few = middle
        return best

    def _find_forms(self, mesh: LogicalMesh) -> _MeshForms:
        if mesh not in self._forms:
            program, structure = self.twofold.program, self.twofold.structure
            solver = self._pool.find_solver(program, mesh)
            kept = StageShapes(program, structure, solver.restrict(self._pins))
            self._forms[mesh] = _MeshForms(solver, kept, solver.restrict(self._pins, recomputed=True))
        return self._forms[mesh]

    def _find_shapes(self, mesh: LogicalMesh, layers: tuple[int, ...]) -> StageShapes:
        if (mesh, layers) not in self._shapes:
            forms = self._find_forms(mesh)
            self._shapes[mesh, layers] = forms.kept.recompute(layers, forms.recomputed)
        return self._shapes[mesh, layers]


def move_to_program(
    program: Program,
    layers: Sequence[int],
    chosen: Sequence[ChosenStage],
    pool: SolverPool,
    pins: Sequence[Pin],
    limit_memory: LimitMemory,
    should_stop: Callable[[], bool],
) -> tuple[Program, tuple[ChosenStage, ...]]:
    """The program that recomputes `layers`, and `chosen` as stages of it.

    A stage whose problem is the same there keeps its choice; another is solved again.
    """
    again = recompute_layers(program, layers)
    structure = pool.find_structure(again)
    moved = []
    for stage in chosen:
        solver = pool.find_solver(again, stage.mesh)
        shapes = StageShapes(again, structure, solver.restrict(pins))
        problem = solver.build(shapes.find(stage.first, stage.last))
        solved, sizes = stage.solved, [len(costs) for costs in problem.problem.unary]
        is_same = len(sizes) == len(solved.choice) and all(k < n for k, n in zip(solved.choice, sizes, strict=True))
        if not is_same or not np.isclose(problem.problem.price(solved.choice), solved.objective, rtol=1e-6):
            limit = limit_memory(stage.mesh)
            solved = solver.find(shapes.find(stage.first, stage.last), stage.in_flight, limit, should_stop)
        moved.append(replace(stage, solver=solver, shapes=shapes, solved=solved))
    return again, tuple(moved)
