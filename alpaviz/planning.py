"""The two-level solve: candidates from `intra`, stages from `inter`, the plan from `plan_builder`.

In: a program, a cluster, options and pins. Out: a `Plan`. A `PlanningSession` remembers every stage that it has
solved, so that a solve after a pin only does what the pin changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from alpaviz.alternatives import list_alternatives
from alpaviz.cluster import Cluster, enumerate_logical_meshes, enumerate_submeshes
from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.errors import InfeasibleError, PinConflictError, PinError, SolveCancelledError
from alpaviz.inter import StageChoice, StageCostTable, StageConstraints, choose_stages
from alpaviz.intra.op_cost import MeshCosts
from alpaviz.intra.restrict import find_pinned_layer
from alpaviz.intra.stage_problem import StageShapes
from alpaviz.intra.stage_solver import SolvedStage, StageSolver
from alpaviz.intra.structure import ProgramStructure, find_structure
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan, SolverReport
from alpaviz.plan_builder import ChosenStage, build_plan
from alpaviz.planner_state import Alternative
from alpaviz.program.program import Program

USABLE_MEMORY = 0.95
"""Share of a device's memory that a plan may fill; the rest is for the runtime and fragmentation."""

Report = Callable[..., None]


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """How to plan. `max_stages` limits the pipeline's length; None allows as many stages as layers and devices."""

    schedule: str = "1f1b"
    solver: str = "auto"
    max_stages: int | None = None


@dataclass(frozen=True, slots=True)
class _Option:
    """One logical mesh of one submesh shape, with its solver."""

    mesh: LogicalMesh
    solver: StageSolver


class PlanningSession:
    """Everything that is known about planning one program on one cluster. Use from one thread at a time."""

    def __init__(self, program: Program, cluster: Cluster, options: PlannerOptions) -> None:
        self.program, self.cluster, self.options = program, cluster, options
        self.structure: ProgramStructure = find_structure(program)
        self.options_by_mesh = tuple(
            _Option(mesh, StageSolver(program, self.structure, MeshCosts(mesh), options.solver))
            for shape in enumerate_submeshes(cluster)
            for mesh in enumerate_logical_meshes(cluster, shape)
        )
        self._chosen: tuple[ChosenStage, ...] = ()

    @property
    def memory_limit(self) -> float:
        return USABLE_MEMORY * self.cluster.device_type.memory_bytes
