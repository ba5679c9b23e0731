"""What several solves of one step can share: prices on a mesh, and stages that are solved already.

In: programs of one training step (at different numbers of microbatches) and logical meshes. Out: for each pair its
`StageSolver`, made once. Memory limits are not part of the costs, so meshes that differ in nothing else share.
"""

from __future__ import annotations

from dataclasses import replace

from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.intra.op_cost import MeshCosts
from alpaviz.intra.stage_solver import StageSolver
from alpaviz.intra.structure import ProgramStructure, find_structure
from alpaviz.program.program import Program


class SolverPool:
    """Structures, costs and solvers of one training step. Changes only by remembering; for one thread at a time."""

    def __init__(self, solver: str = "auto") -> None:
        self._solver = solver
        self._structures: dict[str, ProgramStructure] = {}
        self._costs: dict[LogicalMesh, MeshCosts] = {}
        self._solvers: dict[tuple[str, LogicalMesh], StageSolver] = {}

    def find_structure(self, program: Program) -> ProgramStructure:
        """Equal layers of `program`."""
        if program.fingerprint not in self._structures:
            self._structures[program.fingerprint] = find_structure(program)
        return self._structures[program.fingerprint]

    def find_solver(self, program: Program, mesh: LogicalMesh) -> StageSolver:
        """The solver of `program` on `mesh`, whatever the memory of the devices."""
        plain = replace(mesh, device_type=replace(mesh.device_type, memory_bytes=1.0))
        key = program.fingerprint, plain
        if key not in self._solvers:
            if plain not in self._costs:
                self._costs[plain] = MeshCosts(plain)
            structure = self.find_structure(program)
            self._solvers[key] = StageSolver(program, structure, self._costs[plain], self._solver)
        return self._solvers[key]
