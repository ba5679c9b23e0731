"""Plans of one step under changed conditions, as a table. `Planner.sweep` makes it; it opens without JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from alpaviz.plan_diff import format_bytes, format_seconds

if TYPE_CHECKING:
    import plotly.graph_objects as go

INPUTS = {
    "link_bandwidth": "bytes/s",
    "network_bandwidth": "bytes/s",
    "device_memory": "bytes",
    "flops": "FLOP/s",
    "num_hosts": "hosts",
    "num_microbatches": "microbatches",
}
"""What can be varied, and in which unit."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One point: what it was planned for, and the plan that was found.

    Attributes:
        link_bandwidth, network_bandwidth: bytes/s of a device's link in its host, and of a host's to the others.
        device_memory: bytes.
        flops: FLOP/s of a device at the dtype of most of the program's matrix products.
        num_hosts: hosts.
        num_microbatches, schedule: of the plan; what was asked for where there is none (0 and `"auto"` if searched).
        step_s: seconds a step; None where there is no plan, `reason` then says why.
        objective_s: the step as the search minimised it.
        num_stages, memory_bytes, utilisation: of the plan: stages, bytes on the fullest device, share of peak FLOP/s.
    """

    link_bandwidth: float
    network_bandwidth: float
    device_memory: float
    flops: float
    num_hosts: int
    num_microbatches: int
    schedule: str
    step_s: float | None
    objective_s: float | None = None
    num_stages: int = 0
    memory_bytes: float = 0.0
    utilisation: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SweepTable:
    """Rows in the order of the values that were given, the last input running fastest; `varied` names the inputs."""

    program: str
    varied: tuple[str, ...]
    rows: tuple[SweepRow, ...]

    @property
    def best(self) -> SweepRow | None:
        """The row of the shortest step; None where nothing fits."""
        return min((row for row in self.rows if row.step_s is not None), key=lambda r: r.step_s or 0.0, default=None)

    @property
    def figure(self) -> go.Figure:
        """The step over the first varied input, a line for each combination of the others."""
        from alpaviz import plan_figures

        return plan_figures.sweep(self)

    def __str__(self) -> str:
        header = (*self.varied, "microbatches", "schedule", "stages", "step", "memory a device", "peak FLOP/s")
        table = [header, *(self._describe(row) for row in self.rows)]
        widths = [max(len(cells[c]) for cells in table) for c in range(len(header))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in table)

    def _describe(self, row: SweepRow) -> tuple[str, ...]:
        values = tuple(format_input(name, getattr(row, name)) for name in self.varied)
        if row.step_s is None:
            return (*values, str(row.num_microbatches or "-"), row.schedule, "-", f"none: {row.reason}", "", "")
        return (
            *values, str(row.num_microbatches), row.schedule, str(row.num_stages), format_seconds(row.step_s),
            format_bytes(row.memory_bytes), f"{row.utilisation:.1%}",
        )  # fmt: skip


def format_input(name: str, value: float) -> str:
    """`value` of the input `name` for people."""
    unit = INPUTS[name]
    if unit in ("bytes", "bytes/s"):
        return format_bytes(value) + unit.removeprefix("bytes")
    return f"{value / 1e12:.4g} TFLOP/s" if unit == "FLOP/s" else f"{value:g}"
