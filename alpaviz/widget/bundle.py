"""What a cell's output holds beside the live widget, so that a saved notebook shows the plan without a kernel."""

from __future__ import annotations

import base64
from typing import Any

from alpaviz.plan import Plan
from alpaviz.plan_text import describe_plan
from alpaviz.widget.packed_plan import pack_plan
from alpaviz.widget.static_view import render_plan_html

PLAN_MIME = "application/vnd.alpaviz.plan.v1+json"
"""AlpaViz's JupyterLab extension draws it: the live widget where its kernel runs, else the plan, read-only."""

MAX_PACKED_BYTES = 130_000
"""A larger plan is saved without its ops; with base64 and HTML an output stays below about 250 kB."""


def make_bundle(plan: Plan | None, packed: bytes | None = None) -> dict[str, Any]:
    """MIME type -> data of `plan`, without the widget's own.

    Args:
        packed: `pack_plan(plan)`, if it is at hand.
    """
    if plan is None:
        # The MIME type is there from the beginning, so that the same renderer stays when the plan comes.
        text = "AlpaViz planner: no plan yet. Solve to find one."
        return {"text/plain": text, "text/html": f"<p>{text}</p>", PLAN_MIME: {"plan": None}}
    data = packed or pack_plan(plan)
    is_whole = len(data) <= MAX_PACKED_BYTES
    if not is_whole:
        data = pack_plan(plan, with_ops=False)
    return {
        "text/plain": describe_plan(plan),
        "text/html": render_plan_html(plan),
        PLAN_MIME: {"plan": base64.b64encode(data).decode(), "has_ops": is_whole},
    }
