"""AlpaViz's plan beside the plans that people write, as a table and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from alpaviz import plan_figures
from alpaviz.baselines.named import NAMES, open_baselines
from alpaviz.errors import InfeasibleError
from alpaviz.plan import Plan
from alpaviz.plan_diff import format_bytes, format_seconds
from alpaviz.planner import Planner

if TYPE_CHECKING:
    import plotly.graph_objects as go

OURS = "alpaviz"
"""Name of the row of the planner's own plan."""


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """One plan of the table.

    Attributes:
        step_s: seconds of a simulated step; None where there is no plan.
        peak_bytes: on the fullest device; None where there is no plan.
        is_feasible: there is a plan, and its parameters, gradients, optimizer state and activations fit.
        reason: why there is no plan, else "".
    """

    name: str
    step_s: float | None
    peak_bytes: float | None
    is_feasible: bool
    reason: str
    plan: Plan | None


@dataclass(frozen=True, slots=True)
class BaselineTable:
    """Rows in the order of `alpaviz.baselines.NAMES`, after the planner's own plan."""

    rows: tuple[BaselineRow, ...]

    def find(self, name: str) -> BaselineRow:
        """The row called `name`.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def figure(self) -> go.Figure:
        """Bars of the parts of each plan's step, in ms; names of plans that do not exist are below an empty column."""
        return plan_figures.compare_all({row.name: row.plan for row in self.rows})

    def __str__(self) -> str:
        ours = self.rows[0].step_s
        lines = [f"{'plan':<18} {'step':>9} {'of ours':>8} {'peak memory':>12}  stages"]
        for row in self.rows:
            if row.plan is None or row.step_s is None or row.peak_bytes is None:
                lines.append(f"{row.name:<18} {'-':>9} {'-':>8} {'-':>12}  {row.reason}")
                continue
            share = f"{row.step_s / ours:.2f}x" if ours else "-"
            stages = ", ".join("x".join(map(str, stage.mesh_shape)) for stage in row.plan.stages)
            step, peak = format_seconds(row.step_s), format_bytes(row.peak_bytes)
            lines.append(f"{row.name:<18} {step:>9} {share:>8} {peak:>12}  {stages}")
        return "\n".join(lines)


def compare_with_baselines(planner: Planner, names: Sequence[str] = NAMES) -> BaselineTable:
    """The planner's plan (solved first where there is none) and those of the baselines, priced alike.

    Raises:
        AlpaVizError: a name is no baseline's, or the planner finds no plan.
    """
    ours = planner.plan or planner.solve(on_progress=lambda _: None)
    baselines = open_baselines(planner)
    rows = [_describe(OURS, ours)]
    for name in names:
        try:
            rows.append(_describe(name, baselines.plan(name)))
        except InfeasibleError as error:
            rows.append(BaselineRow(name, None, None, False, str(error).removeprefix(f"Baseline {name}: "), None))
    return BaselineTable(tuple(rows))


def _describe(name: str, plan: Plan) -> BaselineRow:
    peak = max(stage.memory.total_bytes for stage in plan.stages)
    return BaselineRow(name, plan.estimate.step_s, peak, True, "", plan)
