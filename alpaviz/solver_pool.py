"""What several solves of one step can share: prices on a mesh, and stages that are solved already.

In: programs of one training step (at different numbers of microbatches) and logical meshes. Out: for each pair its
`StageSolver`, made once. Memory limits are not part of the costs, so meshes that differ in nothing else share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.errors import SolveCancelledError
from alpaviz.intra.op_cost import MeshCosts
from alpaviz.intra.recomputation import TwofoldProgram, make_twofold
from alpaviz.intra.solvers import SolveProgress
from alpaviz.intra.stage_records import StageRecords, digest_structure
from alpaviz.intra.stage_solver import StageSolver
from alpaviz.intra.structure import ProgramStructure, find_structure
from alpaviz.program.program import Program
from alpaviz.stage_cache import StageCache, make_key

_SLICE_S = 0.1
"""Seconds after which who waits for its turn looks whether it is to stop."""

_TELL_EVERY_S = 0.1
"""Least seconds between two reports of running solves; a solve reports at this rate itself, but solves are many."""


class SolverPool:
    """Structures, costs and solvers of one training step.

    Changes only by remembering. Used from one thread at a time: whoever solves holds `take_turn` meanwhile.

    Args:
        cache: where solved stages are looked up and kept; None for nowhere.
    """

    def __init__(self, solver: str = "auto", cache: StageCache | None = None) -> None:
        self._solver = solver
        self._cache = cache
        self._digests: dict[str, str] = {}
        self._records: dict[str, StageRecords] = {}
        self._lock = threading.Lock()
        self._structures: dict[str, ProgramStructure] = {}
        self._twofold: dict[str, TwofoldProgram | None] = {}
        self._costs: dict[LogicalMesh, MeshCosts] = {}
        self._first_of_shape: dict[tuple[int, ...], MeshCosts] = {}
        self._solvers: dict[tuple[str, LogicalMesh], StageSolver] = {}
        self._listener: Callable[[SolveProgress], None] | None = None
        self._told_at = -float("inf")

    @contextmanager
    def take_turn(
        self, should_stop: Callable[[], bool], on_progress: Callable[[SolveProgress], None] | None = None
    ) -> Iterator[None]:
        """Wait until no other thread solves.

        Args:
            on_progress: hears incumbent and bound of each stage solve of this turn, at most ten times a second.

        Raises:
            SolveCancelledError: `should_stop` became true meanwhile.
        """
        while not self._lock.acquire(timeout=_SLICE_S):
            if should_stop():
                raise SolveCancelledError("The solve was cancelled.")
        self._listener = on_progress
        try:
            yield
        finally:
            self._listener = None
            self._lock.release()

    def _pass_on(self, progress: SolveProgress) -> None:
        now = time.monotonic()
        if self._listener is not None and now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            self._listener(progress)

    def find_structure(self, program: Program) -> ProgramStructure:
        """Equal layers of `program`."""
        if program.fingerprint not in self._structures:
            self._structures[program.fingerprint] = find_structure(program)
        return self._structures[program.fingerprint]

    def find_twofold(self, program: Program) -> TwofoldProgram | None:
        """`program` with each layer kept and recomputed; None where recomputation gains nothing."""
        if program.fingerprint not in self._twofold:
            found = self._twofold[program.fingerprint] = make_twofold(program, self.find_structure(program))
            if found is not None:
                self._structures[found.program.fingerprint] = found.structure
        return self._twofold[program.fingerprint]

    def find_solver(self, program: Program, mesh: LogicalMesh) -> StageSolver:
        """The solver of `program` on `mesh`, whatever the memory of the devices."""
        plain = replace(mesh, device_type=replace(mesh.device_type, memory_bytes=1.0))
        key = program.fingerprint, plain
        if key not in self._solvers:
            if plain not in self._costs:
                like = self._first_of_shape.setdefault(plain.shape, MeshCosts(plain))
                self._costs[plain] = like if like.mesh == plain else MeshCosts(plain, like)
            structure = self.find_structure(program)
            records = self._find_records(program, structure, plain)
            self._solvers[key] = StageSolver(
                program, structure, self._costs[plain], self._solver, records, self._pass_on
            )
        return self._solvers[key]

    def _find_records(self, program: Program, structure: ProgramStructure, mesh: LogicalMesh) -> StageRecords | None:
        if self._cache is None:
            return None
        if program.fingerprint not in self._digests:
            self._digests[program.fingerprint] = digest_structure(program, structure)
        key = make_key(self._digests[program.fingerprint], mesh, self._solver)
        if key not in self._records:
            self._records[key] = self._cache.load(key)
        return self._records[key]

    def save(self) -> None:
        """Keep on disk what was found since the last call."""
        for key, records in self._records.items():
            if records.is_changed and self._cache is not None:
                self._cache.save(key, records)
