"""How to plan, whatever the program and the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from alpaviz.cluster.mesh import MESH_AXES
from alpaviz.errors import AlpaVizError
from alpaviz.intra.solvers import SOLVERS
from alpaviz.schedule import SCHEDULES

RECOMPUTE_WAYS = ("auto", "never", "always")


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """How to plan.

    Attributes:
        max_stages: limits the pipeline's length; None allows as many stages as layers and devices.
        max_mesh_axes: logical meshes of one to this many axes are tried.
        recompute: `"auto"` lets stages make activations of layers again where keeping all does not fit or costs more
            than 1 % of their time; `"never"`; `"always"`: all layers for which it frees memory.
    """

    schedule: str = "1f1b"
    solver: str = "auto"
    max_stages: int | None = None
    max_mesh_axes: int = 2
    recompute: str = "auto"

    def check(self) -> None:
        """Raise AlpaVizError where a name is unknown."""
        if self.schedule not in (*SCHEDULES, "auto"):
            raise AlpaVizError(f"No schedule is called {self.schedule!r}. Known: {', '.join(SCHEDULES)}, auto.")
        if self.solver not in SOLVERS:
            raise AlpaVizError(f"No solver is called {self.solver!r}. Known: {', '.join(SOLVERS)}.")
        if self.recompute not in RECOMPUTE_WAYS:
            raise AlpaVizError(f"recompute must be {', '.join(map(repr, RECOMPUTE_WAYS))}, not {self.recompute!r}.")
        if self.max_mesh_axes not in range(1, len(MESH_AXES) + 1):
            raise AlpaVizError(f"max_mesh_axes must be 1 to {len(MESH_AXES)}, not {self.max_mesh_axes!r}.")
