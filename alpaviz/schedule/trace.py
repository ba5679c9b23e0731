"""A timeline as trace events, for the viewers of Chrome and Perfetto."""

from __future__ import annotations

from collections.abc import Sequence

from alpaviz.schedule.orders import Task, TaskKind
from alpaviz.schedule.simulation import DeviceMemory
from alpaviz.schedule.timeline import Timeline, TimelineEvent


def export_trace(timeline: Timeline, name: str = "step", memory: Sequence[DeviceMemory] = ()) -> dict[str, object]:
    """Trace events for the viewers of Chrome and Perfetto, ready for `json.dump`.

    One track for each stage's work, below one for each pair of stages between which something is sent, and for each
    entry of `memory` a stacked counter of the bytes on a device.

    Source: Trace Event Format of the Chromium project (complete events `X`, metadata events `M`, counters `C`).
    """
    work, sends = 0, 1
    pairs = {pair: track for track, pair in enumerate(sorted({(s.source, s.target) for s in timeline.sends}))}
    events: list[dict[str, object]] = [_name_track(work, None, name)]
    events.extend(_name_track(work, row, timeline.name_row(row)) for row in range(len(timeline.stages)))
    events.extend(
        _make_event(work, row, _label(event.task, items), event.task.kind.value, event.start_s, event.end_s)
        for row, items in enumerate(timeline.stages)
        for event in items
    )
    if pairs:
        events.append(_name_track(sends, None, "sends"))
    events.extend(_name_track(sends, track, f"stage {a} to {b}") for (a, b), track in pairs.items())
    for s in timeline.sends:
        label = "send once" if s.microbatch < 0 else f"send {s.microbatch}"
        events.append(_make_event(sends, pairs[s.source, s.target], label, "send", s.start_s, s.end_s))
    for held in memory:
        label = f"memory of a device of {timeline.name_row(held.row)} (bytes)"
        events.extend(
            {"ph": "C", "pid": work, "tid": held.row, "name": label, "ts": at.start_s * 1e6, "args": dict(at.parts)}
            for at in held.points
        )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": name}}


def _label(task: Task, row: Sequence[TimelineEvent]) -> str:
    name = task.kind.value if task.kind is TaskKind.UPDATE else f"{task.kind.value} {task.microbatch}"
    return f"{name} of stage {task.stage}" if any(event.task.stage != task.stage for event in row) else name


def _name_track(process: int, track: int | None, name: str) -> dict[str, object]:
    """What the viewers write beside a track, or above all tracks of a process."""
    kind = "process_name" if track is None else "thread_name"
    return {"ph": "M", "pid": process, "tid": track or 0, "name": kind, "args": {"name": name}}


def _make_event(process: int, track: int, name: str, category: str, start_s: float, end_s: float) -> dict[str, object]:
    """One complete event; its times are in microseconds, as the viewers want them."""
    return {
        "ph": "X", "pid": process, "tid": track, "name": name, "cat": category, "ts": start_s * 1e6,
        "dur": (end_s - start_s) * 1e6,
    }  # fmt: skip
