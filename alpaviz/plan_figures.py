"""Figures of a plan for notebooks and reports, made with plotly: timeline, costs, memory, and two plans side by side.

Colours are those of Okabe and Ito, told apart with any kind of colour vision; the background is transparent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from alpaviz.plan import Plan
from alpaviz.plan_diff import format_bytes, format_seconds
from alpaviz.plan_sweep import INPUTS, SweepRow, SweepTable, format_input
from alpaviz.plan_times import play_plan

if TYPE_CHECKING:
    import plotly.graph_objects as go

_Columns = Mapping[str, Mapping[str, float]]
"""Parts by column, in order, each part in seconds or bytes."""

COLOURS: dict[str, str] = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "input gradient": "#E69F00",
    "weight gradient": "#F0E442",
    "update": "#009E73",
    "send": "#CC79A7",
    "compute": "#0072B2",
    "all-reduce": "#D55E00",
    "all-gather": "#E69F00",
    "reduce-scatter": "#CC79A7",
    "all-to-all": "#F0E442",
    "collective-permute": "#56B4E9",
    "resharding": "#009E73",
    "waiting": "#999999",
    "parameters": "#0072B2",
    "optimizer": "#56B4E9",
    "gradients": "#009E73",
    "activations": "#E69F00",
    "batch": "#F0E442",
    "temporary": "#CC79A7",
    "capacity": "#D55E00",
}
"""Colour of each part, the same in every figure."""


def timeline(plan: Plan) -> go.Figure:
    """One step, a row for each stage and, beside it, what it sends: bars from start to end, in ms."""
    played = play_plan(plan)
    bars: dict[str, list[tuple[str, float, float, str]]] = {}
    names = [played.name_row(row) for row in range(len(played.stages))]
    row_of = {event.task.stage: name for name, events in zip(names, played.stages, strict=True) for event in events}
    for event in (event for events in played.stages for event in events):
        kind, stage = event.task.kind.value, f"stage {event.task.stage}"
        what = f"{stage}, {kind}" if kind == "update" else f"{stage}, {kind} of microbatch {event.task.microbatch}"
        bars.setdefault(kind, []).append((row_of[event.task.stage], event.start_s, event.end_s, what))
    for send in played.sends:
        moved = "once a step" if send.microbatch < 0 else f"microbatch {send.microbatch}"
        what = f"{moved} to stage {send.target}"
        bars.setdefault("send", []).append((f"{row_of[send.source]} sends", send.start_s, send.end_s, what))
    rows = names
    if "send" in bars:
        rows = [row for name in names for row in (name, f"{name} sends")]
    figure = make_figure(f"Timeline of a step of {plan.program.name}: {format_seconds(plan.estimate.step_s)}")
    for kind, items in bars.items():
        figure.add_bar(
            name=kind, orientation="h", marker={"color": COLOURS[kind], "line": {"width": 0.5, "color": "white"}},
            y=[row for row, *_ in items], base=[start * 1e3 for _, start, _, _ in items],
            x=[(end - start) * 1e3 for _, start, end, _ in items],
            customdata=[[what, format_seconds(end - start)] for _, start, end, what in items],
            hovertemplate="%{y}: %{customdata[0]}<br>%{customdata[1]} from %{base:.4g} ms<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="overlay", xaxis={"title": "time (ms)", "rangemode": "tozero"})
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1])
    return figure


def costs(plan: Plan) -> go.Figure:
    """Where the time of a step goes on each stage, in ms: compute, collectives by kind, resharding, waiting."""
    step = plan.estimate.step_s
    columns: dict[str, dict[str, float]] = {}
    for stage in plan.stages:
        parts = {"compute": stage.compute_s, **dict(stage.collectives_s), "resharding": stage.resharding_s}
        columns[f"stage {stage.index}"] = {**parts, "waiting": max(0.0, step - sum(parts.values()))}
    figure = make_figure(f"Time of a step of {plan.program.name}: {format_seconds(step)}")
    _stack(figure, columns, 1e3, format_seconds)
    figure.update_layout(yaxis={"title": "time a step (ms)"})
    return figure


def memory(plan: Plan) -> go.Figure:
    """What fills the fullest device of each stage, in GB (1e9 bytes), and what it can hold."""
    columns = {
        f"stage {stage.index}": {
            "parameters": stage.memory.parameters_bytes,
            "optimizer": stage.memory.optimizer_bytes,
            "gradients": stage.memory.gradients_bytes,
            "activations": stage.memory.activations_bytes,
            "batch": stage.memory.batch_bytes,
            "temporary": stage.memory.temporary_bytes,
        }
        for stage in plan.stages
    }
    figure = make_figure(f"Memory of the fullest device of each stage of {plan.program.name}")
    _stack(figure, columns, 1e-9, format_bytes)
    capacities = [stage.memory.capacity_bytes for stage in plan.stages]
    figure.add_scatter(
        name="capacity", x=list(columns), y=[c * 1e-9 for c in capacities], mode="markers",
        marker={"symbol": "line-ew-open", "size": 40, "color": COLOURS["capacity"], "line": {"width": 3}},
        customdata=[format_bytes(c) for c in capacities], hovertemplate="%{x} can hold %{customdata}<extra></extra>",
    )  # fmt: skip
    figure.update_layout(yaxis={"title": "memory a device (GB)", "rangemode": "tozero"})
    return figure


def compare(before: Plan, after: Plan) -> go.Figure:
    """Two plans side by side: the parts of their steps along the stage that works longest, in ms."""
    columns = {"before": _list_step_parts(before), "after": _list_step_parts(after)}
    old, new = format_seconds(before.estimate.step_s), format_seconds(after.estimate.step_s)
    figure = make_figure(f"Step of {after.program.name}: {old} before, {new} after")
    _stack(figure, columns, 1e3, format_seconds)
    figure.update_layout(yaxis={"title": "time a step (ms)"})
    return figure


def compare_all(plans: Mapping[str, Plan | None]) -> go.Figure:
    """Plans side by side by name, as in `compare`; a plan that does not exist (None) has an empty column."""
    columns = {name: {} if plan is None else _list_step_parts(plan) for name, plan in plans.items()}
    programs = dict.fromkeys(plan.program.name for plan in plans.values() if plan is not None)
    figure = make_figure(f"Step of {', '.join(programs)} by plan")
    _stack(figure, columns, 1e3, format_seconds)
    figure.update_layout(
        xaxis={"categoryorder": "array", "categoryarray": list(columns), "range": [-0.5, len(columns) - 0.5]},
        yaxis={"title": "time a step (ms)"},
    )
    return figure


def sweep(table: SweepTable) -> go.Figure:
    """The step in ms over the first varied input, a line for each combination of the others; gaps do not fit."""
    first, *others = table.varied
    lines: dict[str, list[SweepRow]] = {}
    for row in table.rows:
        name = ", ".join(f"{other} {format_input(other, getattr(row, other))}" for other in others)
        lines.setdefault(name, []).append(row)
    figure = make_figure(f"Step of {table.program} over {first}")
    for name, rows in lines.items():
        ordered = sorted(rows, key=lambda row: float(getattr(row, first)))
        figure.add_scatter(
            name=name, mode="lines+markers", x=[getattr(row, first) for row in ordered], showlegend=bool(others),
            y=[None if row.step_s is None else row.step_s * 1e3 for row in ordered],
            customdata=[
                [
                    format_input(first, getattr(row, first)), format_seconds(row.step_s or 0.0), row.num_stages,
                    row.num_microbatches, row.schedule, format_bytes(row.memory_bytes),
                ]
                for row in ordered
            ],
            hovertemplate="%{customdata[0]}: %{customdata[1]}<br>stages %{customdata[2]}, microbatches "
            "%{customdata[3]}, %{customdata[4]}<br>%{customdata[5]} a device<extra></extra>",
        )  # fmt: skip
    axis = {"title": f"{first} ({INPUTS[first]})", "type": "linear" if first.startswith("num_") else "log"}
    figure.update_layout(xaxis=axis, yaxis={"title": "time a step (ms)", "rangemode": "tozero"})
    return figure


def _list_step_parts(plan: Plan) -> dict[str, float]:
    estimate = plan.estimate
    return {
        "compute": estimate.compute_s, **dict(estimate.collectives_s), "resharding": estimate.resharding_s,
        "waiting": estimate.bubble_s,
    }  # fmt: skip


def make_figure(title: str) -> go.Figure:
    """An empty figure in the style of all."""
    graph_objects = _import_plotly()
    return graph_objects.Figure(
        layout={
            "title": {"text": title},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "legend": {"orientation": "h", "y": -0.2},
            "margin": {"l": 60, "r": 20, "t": 50, "b": 40},
            "font": {"color": "#767676"},  # legible on white and on black
            "xaxis": {"gridcolor": "rgba(127,127,127,0.25)"},
            "yaxis": {"gridcolor": "rgba(127,127,127,0.25)"},
        }
    )


def _import_plotly() -> Any:
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise ImportError("Figures need plotly: pip install plotly.") from error
    return plotly.graph_objects


def _stack(figure: Any, columns: _Columns, scale: float, describe: Callable[[float], str]) -> None:
    """A bar for each part of each column, on top of the parts before it; parts that are 0 everywhere are left out."""
    floors = dict.fromkeys(columns, 0.0)
    for part in dict.fromkeys(part for parts in columns.values() for part in parts if part != "waiting"):
        _add_part(figure, columns, part, floors, scale, describe)
    _add_part(figure, columns, "waiting", floors, scale, describe)
    figure.update_layout(barmode="overlay", bargap=0.5)


def _add_part(
    figure: Any, columns: _Columns, part: str, floors: dict[str, float], scale: float, describe: Callable[[float], str]
) -> None:
    sizes = {column: parts.get(part, 0.0) for column, parts in columns.items()}
    if not any(size > 0 for size in sizes.values()):
        return
    figure.add_bar(
        name=part, marker={"color": COLOURS[part]}, x=list(columns), y=[size * scale for size in sizes.values()],
        base=[floors[column] * scale for column in columns], customdata=[describe(size) for size in sizes.values()],
        hovertemplate="%{x}, " + part + ": %{customdata}<extra></extra>",
    )  # fmt: skip
    for column, size in sizes.items():
        floors[column] += size
