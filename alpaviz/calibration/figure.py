"""A calibration for people: predicted against measured, as a figure and as text."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from alpaviz.calibration.fit import Calibration
from alpaviz.plan_diff import format_seconds
from alpaviz.plan_figures import COLOURS, make_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_COLOURS = {
    "matmul": "#0072B2", "convolution": "#56B4E9", "attention": "#009E73", "elementwise": "#F0E442",
    "transcendental": "#E69F00", "reduction": "#D55E00", "gather": "#CC79A7", "update": "#000000",
}  # fmt: skip
_SYMBOLS = {"transfer": "x", "call": "cross"}


def draw_residuals(calibration: Calibration) -> go.Figure:
    """A point for each sample, on logarithmic axes; the line is where they would be equal."""
    points: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for sample, predicted in calibration.residuals:
        if math.isfinite(predicted) and predicted > 0:
            points[sample.case.name].append((sample.seconds, predicted, str(sample.case)))
    title = f"Predicted against measured on {calibration.num_devices} x {calibration.device_kind}"
    figure = make_figure(title)
    ends = [pair for found in points.values() for point in found for pair in point[:2]]
    line = [min(ends, default=1.0), max(ends, default=1.0)]
    figure.add_scatter(name="equal", mode="lines", x=line, y=line, line={"color": "#999999", "dash": "dot"})
    for name, found in points.items():
        is_collective = name not in _COLOURS and name not in _SYMBOLS
        figure.add_scatter(
            name=name, mode="markers", x=[x for x, _, _ in found], y=[y for _, y, _ in found],
            marker={
                "color": _COLOURS.get(name, COLOURS.get(name, "#999999")), "size": 8,
                "symbol": "diamond-open" if is_collective else _SYMBOLS.get(name, "circle"),
            },
            customdata=[[what, format_seconds(x), format_seconds(y)] for x, y, what in found],
            hovertemplate="%{customdata[0]}<br>measured %{customdata[1]}, predicted %{customdata[2]}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        xaxis={"title": "measured (s)", "type": "log"}, yaxis={"title": "predicted (s)", "type": "log"}
    )
    return figure


def describe_calibration(calibration: Calibration) -> str:
    """What was measured, and how far the model is from it, class by class."""
    errors: dict[str, list[float]] = defaultdict(list)
    for sample, predicted in calibration.residuals:
        errors[sample.case.name].append(predicted / sample.seconds - 1)
    costs = calibration.costs
    lines = [
        f"Calibration of {costs.source}: {len(calibration.samples)} samples"
        + (f", {calibration.num_left_out} left out for want of time" if calibration.num_left_out else ""),
        f"  {costs.parallel_devices:.3g} of {costs.num_devices} devices work at once at full speed",
        f"  {'what':<20} samples  median error  largest",
    ]
    for name, found in errors.items():
        sizes = sorted(abs(error) for error in found)
        lines.append(f"  {name:<20} {len(found):>7} {sizes[len(sizes) // 2]:>12.0%} {sizes[-1]:>9.0%}")
    return "\n".join(lines)
