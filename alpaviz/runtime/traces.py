"""A recorded step beside the predicted one, as trace events."""

from __future__ import annotations

from typing import Any

from alpaviz.plan import Plan
from alpaviz.schedule import Timeline, export_trace, simulate

_NUM_PROCESSES = 2
"""Trace processes that `export_trace` uses: work and sends."""


def make_trace(recording: Timeline, plan: Plan) -> dict[str, Any]:
    """Trace events of both, the recorded first, for `json.dump`; they begin together."""
    measured: dict[str, Any] = dict(export_trace(recording, f"{plan.program.name}: measured"))
    predicted: dict[str, Any] = dict(export_trace(simulate(plan).timeline, f"{plan.program.name}: predicted"))
    below = [{**event, "pid": event["pid"] + _NUM_PROCESSES} for event in predicted["traceEvents"]]
    return {**measured, "traceEvents": [*measured["traceEvents"], *below]}
