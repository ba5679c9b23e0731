"""Times of the stage programme against the paper's way of searching, of resharding prices, of the simulator, and what
searching microbatches and schedules brings, and what the cache of stages saves.

    python -m tests.benchmarks.inter [--quick] [--only PART] [--json FILE] [--check]

The paper's way tries every threshold on the slowest stage in ascending order, here with the same runs of the dynamic
programme; both sides are measured in this run and have to agree. For searches and sweeps the other way is a planner for
each case, which shares nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from alpaviz.cluster import SubmeshShape, get_cluster, make_logical_mesh
from alpaviz.cost import price_resharding_matrix
from alpaviz.errors import InfeasibleError
from alpaviz.inter import StageConstraints, StageCostTable, choose_stages
from alpaviz.inter.programme import StageProgramme
from alpaviz.models import get_model
from alpaviz.plan import Plan, PlanTry
from alpaviz.plan_diff import format_seconds
from alpaviz.plan_sweep import SweepTable
from alpaviz.planner import Planner
from alpaviz.program.strategy import iterate_specs
from alpaviz.schedule import StageDurations, order_1f1b, simulate_schedule

SIZES = (1, 2, 4, 4, 8, 8, 16, 16, 32, 64)
NUM_DEVICES = 64


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured; `other_s` is the other way where it was run, `target_s` what it is held to."""

    case: str
    seconds: float
    other_s: float | None
    target_s: float | None
    note: str

    @property
    def is_met(self) -> bool:
        return self.target_s is None or self.seconds <= self.target_s


def make_table(layers: int, *, is_uneven: bool, has_once: bool = False) -> StageCostTable:
    """Layers whose work scales with devices to the power 0.9; small submeshes hold few microbatches in flight."""
    rng = np.random.default_rng(0)
    work = rng.uniform(0.5, 1.5, layers) if is_uneven else np.ones(layers)
    until = np.concatenate([[0.0], np.cumsum(work)])
    sums = np.maximum(until[None, 1:] - until[:-1, None], 0.0)  # (first, last)
    share = np.asarray(SIZES) ** 0.9
    noise = rng.uniform(1.0, 1.3, (layers, layers, len(SIZES))) if is_uneven else np.ones((layers, layers, len(SIZES)))
    latency = np.repeat((sums[:, :, None] / share * noise)[..., None], layers, axis=3)
    latency[np.tril_indices(layers, -1)] = np.inf
    latency[:, :, :3, 8:] = np.inf
    once = rng.uniform(0.0, 0.5, latency.shape) if has_once else None
    return StageCostTable(latency, SIZES, once)


def search_as_the_paper_does(table: StageCostTable, num_microbatches: int) -> float:
    """The least step time by ascending thresholds, stopping when a slower stage cannot pay off."""
    programme = StageProgramme.build(table.latency, table.sizes, NUM_DEVICES, num_microbatches)
    best = float("inf")
    for threshold in np.unique(programme.pace[np.isfinite(programme.pace)]):
        if num_microbatches * threshold >= best:
            break
        found = programme.run(float(threshold)).find_best(None)
        if found is not None:
            best = min(best, programme.price(found.total, found.slowest, 0.0))
    return best


def measure(action: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def measure_stages(*, is_quick: bool) -> Iterator[Figure]:
    for layers in (12,) if is_quick else (12, 24, 48):
        for is_uneven in (True, False):
            table = make_table(layers, is_uneven=is_uneven)
            for microbatches in (8, 128):
                seconds, choice = measure(lambda t=table, b=microbatches: choose_stages(t, NUM_DEVICES, b))  # type: ignore[misc]
                other, objective = None, None
                if layers <= (12 if is_quick else 24):
                    other, objective = measure(lambda t=table, b=microbatches: search_as_the_paper_does(t, b))  # type: ignore[misc]
                    assert np.isclose(choice.objective, objective), "both ways find the same optimum"  # type: ignore[attr-defined]
                name = f"{layers} {'uneven' if is_uneven else 'equal'} layers, {microbatches} microbatches"
                target = 1.0 if layers <= 24 else None
                yield Figure(name, seconds, other, target, f"{choice.num_runs} runs")  # type: ignore[attr-defined]
    layers = 12 if is_quick else 24
    table = make_table(layers, is_uneven=True, has_once=True)
    seconds, choice = measure(lambda: choose_stages(table, NUM_DEVICES, 128))
    yield Figure(f"{layers} uneven layers, work once a step", seconds, None, 1.0, f"{choice.num_runs} runs")  # type: ignore[attr-defined]
    pins = StageConstraints(layer_stage={3: 1}, stage_options={0: frozenset({3, 4})})
    table = make_table(layers, is_uneven=True)
    seconds, choice = measure(lambda: choose_stages(table, NUM_DEVICES, 128, pins))
    yield Figure(f"{layers} uneven layers, pinned stages", seconds, None, 1.0, f"{choice.num_runs} runs")  # type: ignore[attr-defined]


def measure_resharding(*, is_quick: bool) -> Iterator[Figure]:
    mesh = make_logical_mesh(get_cluster("p3.16xlarge", 2), SubmeshShape(2, 8), (2, 8))
    shapes = [(8, 16 * k, 1024, 64) for k in range(1, 5 if is_quick else 33)]
    specs = tuple(iterate_specs(shapes[0], mesh.axis_sizes))

    def price_all() -> None:
        for shape in shapes:
            price_resharding_matrix(shape, 2, specs, specs, mesh)

    seconds, _ = measure(price_all)
    note = f"{len(specs)} x {len(specs)} pairs, {seconds / len(shapes) * 1e3:.2f} ms each"
    yield Figure(f"resharding of {len(shapes)} values, new mesh", seconds, None, 0.005 * len(shapes) + 0.02, note)


def measure_simulation(*, is_quick: bool) -> Iterator[Figure]:
    stages, microbatches = 16, 128 if is_quick else 1024
    durations = [StageDurations(1.0, 2.0, 0.1)] * stages
    sends = {(i, j): 0.1 for i in range(stages) for j in (i - 1, i + 1)}
    sends = {pair: seconds for pair, seconds in sends.items() if 0 <= pair[1] < stages}
    seconds, _ = measure(lambda: simulate_schedule(order_1f1b(stages, microbatches), durations, sends))
    yield Figure(f"timeline of {stages} stages, {microbatches} microbatches", seconds, None, 1.0, "1F1B")


def measure_search(*, is_quick: bool) -> Iterator[Figure]:
    """What searching microbatches and schedules brings on GPT-2.6B and 8 V100, and what sharing saves."""
    name, rows = ("gpt-tiny", 16) if is_quick else ("gpt-2.6b", 1024)
    model = get_model(name, rows, remat=True)
    given = rows // 8

    def plan(num_microbatches: Any, schedule: str) -> Plan:
        planner = Planner(*model, cluster="p3.16xlarge:1", num_microbatches=num_microbatches, schedule=schedule)
        return planner.solve(on_progress=lambda _: None)

    first: float | None = None
    for microbatches, schedule in (
        (given, "1f1b"), (given, "gpipe"), (given, "zero-bubble"), (given, "interleaved-2"), ("auto", "1f1b"),
        ("auto", "auto"),
    ):  # fmt: skip
        case = f"{name}, {microbatches} microbatches, {schedule}"
        try:
            seconds, found = measure(lambda m=microbatches, s=schedule: plan(m, s))  # type: ignore[misc]
        except InfeasibleError as error:
            yield Figure(case, 0.0, None, None, str(error).split(". ")[0])
            continue
        assert isinstance(found, Plan)
        first = first or found.estimate.step_s
        gain = first / found.estimate.step_s - 1
        fullest = max(stage.memory.total_bytes for stage in found.stages) / 1e9
        note = (
            f"step {format_seconds(found.estimate.step_s)} ({gain:+.1%}), {found.num_microbatches} microbatches, "
            f"{found.schedule}, {found.num_stages} stages, {fullest:.3g} GB"
        )
        tries = found.solver.tries
        other = sum(measure(lambda t=t: try_alone(plan, t))[0] for t in tries) if schedule == "auto" else None  # type: ignore[misc]
        yield Figure(case, seconds, other, None, note)


def try_alone(plan: Callable[[Any, str], Plan], tried: PlanTry) -> None:
    """Plan as a planner does that shares nothing."""
    try:
        plan(tried.num_microbatches, tried.schedule)
    except InfeasibleError:
        assert tried.step_s is None, "both ways agree on what fits"


def measure_sweep(*, is_quick: bool) -> Iterator[Figure]:
    """Points of a sweep against planners of their own."""
    name, rows = ("gpt-tiny", 16) if is_quick else ("gpt-1.3b", 1024)
    model = get_model(name, rows, remat=True)

    def make() -> Planner:
        return Planner(*model, cluster="p3.16xlarge:1", num_microbatches=rows // 8)

    inputs: dict[str, list[float]] = {"device_memory": [14e9, 16e9, 24e9, 32e9], "link_bandwidth": [2e10, 6e10, 1.2e11]}
    for varied, values in inputs.items():
        seconds, table = measure(lambda n=varied, v=values: make().sweep(on_progress=lambda _: None, **{n: v}))  # type: ignore[misc]
        other, _ = measure(
            lambda n=varied, v=values: [make().sweep(on_progress=lambda _: None, **{n: [x]}) for x in v]  # type: ignore[misc]
        )
        assert isinstance(table, SweepTable)
        steps = ", ".join("-" if row.step_s is None else format_seconds(row.step_s) for row in table.rows)
        yield Figure(f"{name}, sweep of {len(values)} {varied}", seconds, other, None, f"steps {steps}")


def measure_cache(*, is_quick: bool) -> Iterator[Figure]:
    """A planner for stages that another one has solved and kept on disk, tracing included, and a new pin after that.

    GPT-39B takes minutes to solve cold.
    """
    name, cluster, layers = ("gpt-1.3b", "p3.16xlarge:1", 8) if is_quick else ("gpt-39b", "p3.16xlarge:8", 16)
    model = get_model(name, 1024, remat=True)
    with tempfile.TemporaryDirectory() as folder:

        def plan() -> Planner:
            planner = Planner(*model, cluster=cluster, num_microbatches=64, num_layers=layers, cache=folder)
            planner.solve(on_progress=lambda _: None)
            return planner

        cold, first = measure(plan)
        warm, planner = measure(plan)
        assert isinstance(first, Planner)
        assert isinstance(planner, Planner)
        before, after = first.plan, planner.plan
        assert before is not None
        assert after is not None
        assert before.solver.objective == after.solver.objective, "both find the same plan"
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        note = f"{before.solver.num_solved} stages solved cold, {after.solver.num_solved} warm, {size / 1e6:.2g} MB"
        yield Figure(f"{name}, {cluster}, {layers} layers, warm", warm, cold, 3.0, note)
        op = next(op.name for op in after.ops if op.is_decision and len(planner.alternatives(op.name)) > 1)
        planner.pin_strategy(op, planner.alternatives(op)[1].strategy)
        seconds, _ = measure(lambda: planner.solve(on_progress=lambda _: None))
        yield Figure(f"{name}, {cluster}, {layers} layers, new pin", seconds, cold, 2.0, "after the warm solve")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller cases, under a minute")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument(
        "--only", choices=("stages", "resharding", "simulation", "search", "sweep", "cache"), help="one part"
    )
    options = parser.parse_args()
    parts = {
        "stages": measure_stages, "resharding": measure_resharding, "simulation": measure_simulation,
        "search": measure_search, "sweep": measure_sweep, "cache": measure_cache,
    }  # fmt: skip
    sources = list(parts.values()) if options.only is None else [parts[options.only]]
    figures: list[Figure] = []
    print(f"{'case':42} {'seconds':>8} {'other way':>9} {'ratio':>6} {'target':>7}  note")
    for source in sources:
        for f in source(is_quick=options.quick):
            other, ratio = ("-", "-") if f.other_s is None else (f"{f.other_s:.3f}", f"{f.other_s / f.seconds:.0f}")
            target = "-" if f.target_s is None else f"{f.target_s:g}"
            print(f"{f.case:42} {f.seconds:8.3f} {other:>9} {ratio:>6} {target:>7}  {f.note}", flush=True)
            figures.append(f)
    if options.json:
        options.json.write_text(json.dumps([asdict(f) for f in figures], indent=1))
    missed = [f for f in figures if not f.is_met]
    for f in missed:
        print(f"missed: {f.case} took {f.seconds:.3f} s, target {f.target_s} s")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
