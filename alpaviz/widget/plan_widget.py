"""The view of one plan, without a planner: read-only."""

from __future__ import annotations

import uuid
from typing import Any

import anywidget
import msgspec
import traitlets

from alpaviz.pins import Pin
from alpaviz.plan import Plan
from alpaviz.schedule import Timeline
from alpaviz.widget.assets import read_module, read_styles
from alpaviz.widget.bundle import make_bundle
from alpaviz.widget.packed_plan import pack_plan

_READ_ONLY = {
    "state": "solved", "message": "", "progress": None, "can_undo": False, "can_redo": False, "last_change": "",
    "variant": None,
}  # fmt: skip


def word_pins(pins: tuple[Pin, ...]) -> list[dict[str, Any]]:
    """Pins for the page, each with its sentence."""
    return [{"kind": p.kind.value, "subject": p.subject, "choice": p.choice, "text": str(p)} for p in pins]


class PlanWidget(anywidget.AnyWidget):
    """Shows `plan`; nothing in it can be changed.

    Traits (all of them the kernel's; the page only sends messages):
        plan_data: the plan as `pack_plan` writes it; empty before there is one.
        status: state, message, progress, can_undo, can_redo, last_change (what undo takes back), variant (which of
            those that the page was offered the plan is), history and history_position (a planner's only).
        pins: kind, subject, choice and sentence of each.
        changes: a `PlanDiff` against the plan before, or None.
        measured: seconds that stages took, by stage number as text, or None.
        recording: (stage, kind, microbatch, start, end) of each chunk of a recorded step, in s, or None.
        is_read_only: there is no planner to ask.
        session_id: tells this widget from others in the page.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    plan_data = traitlets.Bytes(b"").tag(sync=True)
    status: Any = traitlets.Dict(_READ_ONLY).tag(sync=True)
    pins: Any = traitlets.List().tag(sync=True)
    changes: Any = traitlets.Dict(None, allow_none=True).tag(sync=True)
    measured: Any = traitlets.Dict(None, allow_none=True).tag(sync=True)
    recording: Any = traitlets.List(None, allow_none=True).tag(sync=True)
    is_read_only = traitlets.Bool(True).tag(sync=True)
    session_id = traitlets.Unicode().tag(sync=True)

    @traitlets.default("_esm")
    def _read_module(self) -> str:
        return read_module()

    @traitlets.default("_css")
    def _read_styles(self) -> str:
        return read_styles()

    def __init__(self, plan: Plan | None = None, **traits: Any) -> None:
        self._plan = plan
        first = {} if plan is None else {"plan_data": pack_plan(plan), "pins": word_pins(plan.pins)}
        super().__init__(session_id=uuid.uuid4().hex, **(first | traits))

    def _make_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        made = super()._repr_mimebundle_()
        data, metadata = made if isinstance(made, tuple) else (made, {})
        return {**(data or {}), **make_bundle(self._plan, self.plan_data or None)}, metadata or {}

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._make_bundle()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'no plan yet' if self._plan is None else self._plan.program.name!r})"


def list_events(recording: Timeline | None) -> list[tuple[int, str, int, float, float]] | None:
    """A recorded step for the page."""
    if recording is None:
        return None
    events = [event for row in recording.stages for event in row]
    return [(e.task.stage, e.task.kind.value, e.task.microbatch, e.start_s, e.end_s) for e in events]


def to_page(value: Any) -> Any:
    """Dataclasses, enums and tuples as JSON takes them."""
    return msgspec.to_builtins(value, str_keys=True)
