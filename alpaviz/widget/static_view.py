"""A plan as static HTML: what a saved notebook, nbconvert and GitHub show without a kernel.

Pure functions of a `Plan`. No script, no style sheet, no network: tables with inline styles and one inline SVG, at most
`MAX_HTML_BYTES`. Colours are told apart by the colour-blind, and numbers or words go with each of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape

from alpaviz.plan import MemoryEstimate, OpPlan, Plan, StagePlan, StepEstimate
from alpaviz.plan_diff import format_bytes, format_seconds
from alpaviz.plan_text import describe_plan

MAX_HTML_BYTES = 200_000
MAX_LAYER_ROWS = 200
MAX_DEVICE_ROWS = 64
MAX_STAGE_ROWS = 64

_STAGE_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#f0e442", "#8c8c8c")
_PART_COLOURS = {
    "compute": "#7aa6d6", "all-reduce": "#ee7d89", "all-gather": "#57b262", "reduce-scatter": "#d6c34f",
    "all-to-all": "#66ccee", "collective-permute": "#c77fb1", "resharding": "#e0984a", "transfer": "#b9a3e3",
    "bubble": "#d9d9d9",
}  # fmt: skip
_MEMORY_COLOURS = {
    "parameters": "#7aa6d6", "optimizer": "#66ccee", "gradients": "#57b262", "activations": "#ee7d89",
    "batch": "#d6c34f", "temporary": "#bdbdbd",
}  # fmt: skip


def _format_count(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def list_step_parts(estimate: StepEstimate) -> list[tuple[str, float]]:
    """(name, seconds) of what a step consists of; they add up to it. The bubble is without its transfers."""
    parts = [
        ("compute", estimate.compute_s),
        *estimate.collectives_s,
        ("resharding", estimate.resharding_s),
        ("transfer", estimate.transfer_s),
        ("bubble", max(0.0, estimate.bubble_s - estimate.transfer_s)),
    ]
    return [(name, seconds) for name, seconds in parts if seconds > 0]


def _list_memory_parts(memory: MemoryEstimate) -> list[tuple[str, float]]:
    parts = [
        ("parameters", memory.parameters_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("gradients", memory.gradients_bytes),
        ("activations", memory.activations_bytes),
        ("batch", memory.batch_bytes),
        ("temporary", memory.temporary_bytes),
    ]
    return [(name, count) for name, count in parts if count > 0]


def _name_layers(plan: Plan, stage: StagePlan) -> str:
    first, last = stage.first_layer, stage.last_layer
    names = plan.program.layers
    if first == last:
        return f"layer {first} ({names[first]})" if first < len(names) else f"layer {first}"
    return f"layers {first}–{last} ({names[first]} to {names[last]})" if last < len(names) else f"layers {first}–{last}"


def _describe_mesh(stage: StagePlan) -> str:
    axes = ", ".join(f"{axis}={size}" for axis, size in stage.axis_sizes.items())
    return f"{'x'.join(map(str, stage.mesh_shape))} ({axes})"


# HTML

_CELL = (
    "padding:2px 12px 2px 0;border:0;border-bottom:1px solid rgba(127,127,127,.35);text-align:left;white-space:nowrap"
)
_NUMBER = _CELL.replace("text-align:left", "text-align:right")
_DIM = "opacity:.72"


def render_plan_html(plan: Plan) -> str:
    """The plan on one page: step time, devices, stages, memory, layers, pins. At most `MAX_HTML_BYTES` bytes."""
    sections = [
        _render_head(plan),
        _render_devices(plan),
        _render_stages(plan),
        _render_layers(plan),
        _render_notes(plan),
    ]
    style = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.4;max-width:1000px"
    html = f'<div class="alpaviz-static" style="{style}">{"".join(sections)}</div>'
    if len(html.encode()) > MAX_HTML_BYTES:
        text = escape(describe_plan(plan)[:100_000])
        html = f'<div class="alpaviz-static" style="{style}">{_render_head(plan)}<pre>{text}</pre></div>'
    return html


def _render_head(plan: Plan) -> str:
    cluster, program, estimate = plan.cluster, plan.program, plan.estimate
    microbatches = _format_count(plan.num_microbatches, "microbatch", "microbatches")
    devices = " + ".join(
        f"{cluster.take_kind(kind).num_devices} × {host.device_type.name}" for kind, host in cluster.kinds.items()
    )
    facts = (
        f"{_format_count(cluster.num_hosts, 'host')}, {devices} · "
        f"{_format_count(plan.num_stages, 'stage')}, {microbatches} "
        f"({plan.schedule}) · {_format_count(program.num_ops, 'op')} in {_format_count(program.num_layers, 'layer')}"
    )
    parts = list_step_parts(estimate)
    measured = ", measured costs" if cluster.device_type.measured is not None else ""
    return (
        f"<div><b>{escape(program.name)}</b> on <b>{escape(cluster.name)}</b>: "
        f'<b style="font-size:16px">{format_seconds(estimate.step_s)}</b> a step (estimate{measured})</div>'
        f'<div style="{_DIM}">{escape(facts)}</div>'
        + _render_bar(parts, _PART_COLOURS, sum(seconds for _, seconds in parts), "Step time")
        + _render_legend(parts, _PART_COLOURS, estimate.step_s)
    )


def _render_bar(parts: Sequence[tuple[str, float]], colours: dict[str, str], total: float, label: str) -> str:
    width, x, shapes = 720.0, 0.0, []
    for name, value in parts:
        length = value / total * width if total > 0 else 0.0
        colour = colours.get(name, "#cccccc")
        shapes.append(f'<rect x="{x:.1f}" y="0" width="{max(0.5, length - 1):.1f}" height="16" fill="{colour}"/>')
        if length > 7.5 * len(name):
            shapes.append(f'<text x="{x + 5:.1f}" y="12" font-size="11" fill="#111">{escape(name)}</text>')
        x += length
    return (
        f'<svg role="img" aria-label="{label}" width="{width:.0f}" height="16" viewBox="0 0 {width:.0f} 16" '
        f'style="display:block;margin:6px 0 3px;max-width:100%">{"".join(shapes)}</svg>'
    )


def _render_legend(parts: Iterable[tuple[str, float]], colours: dict[str, str], total: float) -> str:
    entries = []
    for name, seconds in parts:
        share = seconds / total if total > 0 else 0.0
        swatch = f'<span style="color:{colours.get(name, "#cccccc")}">■</span>'
        entries.append(
            f'<span style="white-space:nowrap;margin-right:14px">{swatch} {escape(name)} '
            f'<b>{format_seconds(seconds)}</b> <span style="{_DIM}">{share:.0%}</span></span>'
        )
    return f"<div>{' '.join(entries)}</div>"


def _render_devices(plan: Plan) -> str:
    owners = {device: stage for stage in plan.stages for device in stage.devices}
    rows = []
    for host, description in list(enumerate(plan.cluster.hosts))[:MAX_DEVICE_ROWS]:
        cells = []
        for device in range(description.num_devices):
            stage = owners.get((host, device))
            if stage is None:
                cells.append(f'<td style="{_CELL};{_DIM}">unused</td>')
                continue
            colour = _STAGE_COLOURS[stage.index % len(_STAGE_COLOURS)]
            share = stage.memory.total_bytes / stage.memory.capacity_bytes
            cells.append(
                f'<td style="{_CELL};border-left:4px solid {colour};padding-left:6px">'
                f"<b>{stage.index}</b> <span style='{_DIM}'>{share:.0%}</span></td>"
            )
        rows.append(f'<tr><td style="{_CELL}">host {host}</td>{"".join(cells)}</tr>')
    more = plan.cluster.num_hosts - MAX_DEVICE_ROWS
    note = f" (and {more} more hosts)" if more > 0 else ""
    caption = f'<div style="margin-top:10px"><b>Devices</b>: stage and share of memory used{note}</div>'
    return f'{caption}<table style="border-collapse:collapse;margin:2px 0">{"".join(rows)}</table>'


def _render_stages(plan: Plan) -> str:
    heads = (
        "stage",
        "layers",
        "submesh",
        "logical mesh",
        "forward",
        "backward",
        "update",
        "memory a device",
        "by kind",
    )
    rows = []
    for stage in plan.stages[:MAX_STAGE_ROWS]:
        memory = stage.memory
        colour = _STAGE_COLOURS[stage.index % len(_STAGE_COLOURS)]
        kinds = ", ".join(f"{name} {format_bytes(count)}" for name, count in _list_memory_parts(memory))
        times = "".join(
            f'<td style="{_NUMBER}">{format_seconds(t)}</td>'
            for t in (stage.forward_s, stage.backward_s, stage.update_s)
        )
        rows.append(
            f'<tr><td style="{_CELL};border-left:4px solid {colour};padding-left:6px"><b>{stage.index}</b></td>'
            f'<td style="{_CELL}">{escape(_name_layers(plan, stage))}</td><td style="{_CELL}">{stage.submesh}</td>'
            f'<td style="{_CELL}">{_describe_mesh(stage)}</td>{times}'
            f'<td style="{_NUMBER}">{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)}</td>'
            f'<td style="{_CELL};{_DIM}">{kinds}</td></tr>'
        )
    more = plan.num_stages - MAX_STAGE_ROWS
    note = f" (and {more} more)" if more > 0 else ""
    caption = f'<div style="margin-top:10px"><b>Stages</b>{note}: times of one microbatch, update once a step</div>'
    return caption + _render_table(heads, rows)


def _render_table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th style="{_CELL};{_DIM};font-weight:normal">{escape(title)}</th>' for title in heads)
    return (
        # by keyboard, only what has the focus can be scrolled
        f'<div style="overflow-x:auto" tabindex="0" role="region" aria-label="Table">'
        f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _render_layers(plan: Plan) -> str:
    by_layer: dict[int, list[OpPlan]] = defaultdict(list)
    for op in plan.ops:
        by_layer[op.layer].append(op)
    layers = range(min(plan.program.num_layers, MAX_LAYER_ROWS))
    if not plan.ops or not layers:
        return ""
    more = plan.program.num_layers - MAX_LAYER_ROWS
    note = f" (and {more} more)" if more > 0 else ""
    heads = ("layer", "stage", "ops", "compute", "collectives of a microbatch, bytes", "commonest decisions")
    body = _render_table(heads, [_render_layer(plan, layer, by_layer.get(layer, ())) for layer in layers])
    return f'<details style="margin-top:10px"><summary><b>Layers</b>{note}</summary>{body}</details>'


def _render_layer(plan: Plan, layer: int, ops: Sequence[OpPlan]) -> str:
    names = plan.program.layers
    stage = next((s.index for s in plan.stages if s.first_layer <= layer <= s.last_layer), "")
    traffic: dict[str, float] = defaultdict(float)
    decisions: dict[str, int] = defaultdict(int)
    for op in ops:
        for collective in (*op.collectives, *(c for r in op.reshardings for c in r.collectives)):
            traffic[f"{collective.kind} {''.join(collective.axes)}"] += collective.num_bytes
        if op.is_decision:
            decisions[op.strategy] += 1
    common = sorted(decisions, key=lambda strategy: (-decisions[strategy], strategy))[:3]
    seconds = sum(op.compute_s for op in ops if op.role != "update")
    cells = (
        (_CELL, f"{layer} {names[layer] if layer < len(names) else ''}"),
        (_CELL, str(stage)),
        (_NUMBER, str(len(ops))),
        (_NUMBER, format_seconds(seconds)),
        (_CELL, ", ".join(f"{kind} {format_bytes(count)}" for kind, count in sorted(traffic.items()))),
        (f"{_CELL};{_DIM}", ", ".join(f"{strategy} ({decisions[strategy]})" for strategy in common)),
    )
    return "<tr>" + "".join(f'<td style="{style}">{escape(text)}</td>' for style, text in cells) + "</tr>"


def _render_notes(plan: Plan) -> str:
    lines = [
        *(f"pinned: {pin}" for pin in plan.pins[:100]),
        *(f"warning: {w}" for w in plan.warnings[:50]),
        f"found by {plan.solver.solver} in {format_seconds(plan.solver.seconds)}: objective "
        f"{format_seconds(plan.solver.objective)}, proven bound {format_seconds(plan.solver.bound)}",
    ]
    return f'<div style="margin-top:10px">{"".join(f"<div>{escape(line)}</div>" for line in lines)}</div>'
