"""What-if: plans of one step on changed clusters and for other numbers of microbatches.

In: a `PlanSearch` and lists of values. Out: a `SweepTable`, found in the background. The points share structures,
strategies and, where only memory differs, solved stages with one another and with the planner.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from alpaviz.cluster import Cluster
from alpaviz.errors import (
    AlpaVizError,
    InfeasibleError,
    InvalidClusterError,
    PinConflictError,
    PinError,
    SolveCancelledError,
)  # fmt: skip
from alpaviz.microbatch_search import PlanSearch, describe_try
from alpaviz.pins import Pin
from alpaviz.plan_sweep import INPUTS, SweepRow, SweepTable, format_input
from alpaviz.plan_times import find_main_dtype
from alpaviz.planner_state import SolveProgress
from alpaviz.program.trace import count_rows

Point = Mapping[str, float]


class SweepInputs(TypedDict, total=False):
    """What `Planner.sweep` can vary.

    Attributes:
        link_bandwidth, network_bandwidth: bytes/s of a device's link in its host, and of a host's to the others.
        device_memory: bytes.
        flops: FLOP/s of a device at the dtype of most matrix products; other dtypes change by the same factor.
        num_hosts, num_microbatches: whole numbers.
    """

    link_bandwidth: Sequence[float]
    network_bandwidth: Sequence[float]
    device_memory: Sequence[float]
    flops: Sequence[float]
    num_hosts: Sequence[int]
    num_microbatches: Sequence[int]


def check_inputs(inputs: SweepInputs, search: PlanSearch) -> dict[str, tuple[float, ...]]:
    """The inputs that are varied, with their values.

    Raises:
        AlpaVizError: no list is given, one is empty, or a value is none of its kind; the message names the input.
    """
    found = {name: _list_values(name, values) for name, values in inputs.items()}
    if not found:
        raise AlpaVizError(f"sweep: give at least one list of values, of {', '.join(INPUTS)}.")
    rows = count_rows(search.recipe)
    for count in found.get("num_microbatches", ()):
        if rows % int(count):
            raise AlpaVizError(f"sweep: num_microbatches holds {count}, which does not divide the {rows} rows a step.")
    if "num_microbatches" in found and not search.find_program(1).has_gradient_marker:
        raise AlpaVizError(
            "sweep: num_microbatches cannot be varied for a step that does not use alpaviz.value_and_grad or "
            "alpaviz.grad, because it is not known what of it each microbatch repeats."
        )
    return found


def _list_values(name: str, values: Any) -> tuple[float, ...]:
    if name not in INPUTS:
        raise AlpaVizError(f"sweep: no input is called {name!r}. Inputs: {', '.join(INPUTS)}.")
    unit = INPUTS[name]
    is_whole = name.startswith("num_")
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise AlpaVizError(f"sweep: {name} must be a list of {unit}, not {values!r}.")
    found = tuple(values)
    if not found:
        raise AlpaVizError(f"sweep: {name} is empty; give a list of {unit}, or leave it out.")
    for value in found:
        if not _is_positive(value) or (is_whole and value != int(value)):
            kind = "whole numbers" if is_whole else "numbers"
            raise AlpaVizError(f"sweep: {name} holds {value!r}; give {kind} above 0, in {unit}.")
    return tuple(int(v) if is_whole else float(v) for v in found)


def _is_positive(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value) and value > 0
    except TypeError:
        return False


def run_sweep(
    search: PlanSearch,
    inputs: Mapping[str, tuple[float, ...]],
    pins: tuple[Pin, ...],
    report: Callable[[SolveProgress], None],
    should_stop: Callable[[], bool],
) -> SweepTable:
    """Plan every combination of values.

    Args:
        inputs: what `check_inputs` gives.
        pins: kept in every point.

    Raises:
        SolveCancelledError: `should_stop` became true.
    """
    began = time.monotonic()
    points = list(_list_points(inputs))
    rows = []
    for number, point in enumerate(points):
        if should_stop():
            raise SolveCancelledError("The sweep was cancelled.")
        label = ", ".join(f"{name} {format_input(name, value)}" for name, value in point.items())
        report(SolveProgress(label, number, len(points), None, None, time.monotonic() - began))
        rows.append(_plan_point(search, point, pins, should_stop))
    return SweepTable(search.recipe.name, tuple(inputs), tuple(rows))


def _list_points(inputs: Mapping[str, tuple[float, ...]]) -> Iterator[Point]:
    for values in itertools.product(*inputs.values()):
        yield dict(zip(inputs, values, strict=True))


def _plan_point(search: PlanSearch, point: Point, pins: tuple[Pin, ...], should_stop: Callable[[], bool]) -> SweepRow:
    dtype = find_main_dtype(search.find_program())
    cluster = change_cluster(search.cluster, point, dtype)
    count = int(point.get("num_microbatches", search.recipe.num_microbatches))
    is_searched = search.is_searched and "num_microbatches" not in point
    own = PlanSearch(
        replace(search.recipe, num_microbatches=count), cluster, search.options, is_searched=is_searched,
        pool=search.pool, programs=search.programs,
    )  # fmt: skip
    asked = SweepRow(
        cluster.hosts[0].link.bandwidth, cluster.network.bandwidth, cluster.device_type.memory_bytes,
        cluster.device_type.peak_flops(dtype), cluster.num_hosts, 0 if is_searched else count, search.options.schedule,
        None,
    )  # fmt: skip
    try:
        plan = own.solve(pins, _ignore, should_stop)
    except (InfeasibleError, PinConflictError, PinError) as error:
        return replace(asked, reason=str(error).split(". ")[0])
    found = describe_try(plan)
    return replace(
        asked, num_microbatches=plan.num_microbatches, schedule=plan.schedule, step_s=plan.estimate.step_s,
        objective_s=plan.solver.objective, num_stages=plan.num_stages, memory_bytes=found.memory_bytes or 0.0,
        utilisation=plan.estimate.model_flops_utilisation, reason=found.reason,
    )  # fmt: skip


def change_cluster(cluster: Cluster, point: Point, dtype: str) -> Cluster:
    """`cluster` with what `point` changes; `flops` is the rate at `dtype`, other dtypes change by the same factor."""
    if len(cluster.kinds) > 1 and not set(point) <= {"network_bandwidth"}:
        raise InvalidClusterError(f"The hosts of {cluster.name!r} differ: a sweep can change its network only.")
    if len(cluster.kinds) > 1:
        network = replace(cluster.network, bandwidth=point.get("network_bandwidth", cluster.network.bandwidth))
        return replace(cluster, network=network)
    host, device = cluster.hosts[0], cluster.device_type
    if "device_memory" in point:
        device = replace(device, memory_bytes=point["device_memory"])
    factor = 1.0
    if "flops" in point:
        factor = point["flops"] / device.peak_flops(dtype)
        device = replace(device, flops=tuple((name, rate * factor) for name, rate in device.flops))
    if device.measured is not None:
        links = point.get("link_bandwidth", host.link.bandwidth) / host.link.bandwidth
        device = replace(device, measured=device.measured.scale(factor, links))
    link = replace(host.link, bandwidth=point.get("link_bandwidth", host.link.bandwidth))
    network = replace(cluster.network, bandwidth=point.get("network_bandwidth", cluster.network.bandwidth))
    hosts = (replace(host, device_type=device, link=link),) * int(point.get("num_hosts", cluster.num_hosts))
    changes = ", ".join(f"{name} {format_input(name, value)}" for name, value in point.items())
    return replace(cluster, name=f"{cluster.name} ({changes})", hosts=hosts, network=network)


def _ignore(*_: object) -> None:
    """A report that nobody reads."""
