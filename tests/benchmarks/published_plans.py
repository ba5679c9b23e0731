"""The plans that Alpa found and published, by our cost model, beside ours; and what three freedoms bring.

    python -m tests.benchmarks.published_plans [--devices N ...] [--family NAME] [--free] [--gains] [--check]

Theirs are pins: stages, submeshes, logical meshes, microbatches and layers as in the public benchmark suites
(`suite_auto_gpt.py`, `suite_auto_moe.py`, `suite_wresnet.py`). What is sharded how inside their stages is left to our
solver, so a plan of theirs costs here at most what Alpa's own strategies would. Ours is searched twice: with their
layers and microbatches, and with `--free` with microbatches and layers chosen as well. `--check` exits with 1 if one of
theirs is better than ours, which would be a bug of the search.

`--gains` takes away, one at a time, what Alpa's choice of stages lacks: prices of what crosses the cuts, and the choice
of microbatches, layers and schedule together with the stages.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from alpaviz.cluster import Cluster, get_cluster
from alpaviz.errors import AlpaVizError
from alpaviz.models import get_model
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.plan_diff import format_seconds
from alpaviz.planner import Planner
from alpaviz.stage_candidates import StageCandidates

TOLERANCE = 1e-3
"""Relative: the search minimizes an objective from which the simulated step differs a little."""


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """One of the 21: `stages` holds (layers, devices, logical mesh) of each stage."""

    model: str
    num_devices: int
    batch_size: int
    num_microbatches: int | Literal["auto"]
    num_layers: int | None
    stages: tuple[tuple[int, int, str], ...]

    def make_cluster(self) -> Cluster:
        """Whole hosts, or the first devices of one."""
        cluster = get_cluster("p3.16xlarge", -(-self.num_devices // 8))
        if self.num_devices % 8 == 0:
            return cluster
        host = replace(cluster.hosts[0], num_devices=self.num_devices)
        return replace(cluster, name=f"{self.num_devices} of p3.16xlarge", hosts=(host,))

    def list_pins(self) -> Iterator[Pin]:
        """Pins that leave only the sharding inside the stages open."""
        yield Pin(PinKind.NUM_STAGES, None, len(self.stages))
        first = 0
        for stage, (layers, devices, mesh) in enumerate(self.stages):
            for layer in sorted({first, first + layers - 1}):
                yield Pin(PinKind.LAYER_STAGE, layer, stage)
            yield Pin(PinKind.STAGE_SUBMESH, stage, f"1x{devices}")
            yield Pin(PinKind.LOGICAL_MESH, stage, mesh)
            first += layers
        assert first == self.num_layers, "the stages hold all layers"


def _repeat(count: int, layers: int, devices: int, mesh: str) -> tuple[tuple[int, int, str], ...]:
    return ((layers, devices, mesh),) * count


# A logical mesh with an axis of one device is the same to us whichever axis that is: (1, 4) and (4, 1) are "4".
PUBLISHED = (
    PublishedPlan("gpt-350m", 1, 1024, 512, 1, _repeat(1, 1, 1, "1")),
    PublishedPlan("gpt-760m", 2, 1024, 128, 6, _repeat(2, 3, 1, "1")),
    PublishedPlan("gpt-1.3b", 4, 1024, 128, 6, _repeat(2, 3, 2, "2")),
    PublishedPlan("gpt-2.6b", 8, 1024, 128, 8, ((2, 2, "2"), (2, 2, "2"), (4, 4, "4"))),
    PublishedPlan("gpt-6.7b", 16, 1024, 64, 8, _repeat(2, 4, 8, "2x4")),
    PublishedPlan("gpt-15b", 32, 1024, 128, 16, _repeat(4, 4, 8, "2x4")),
    PublishedPlan("gpt-39b", 64, 1024, 1024, 16, _repeat(16, 1, 4, "4")),
    PublishedPlan("moe-380m", 1, 1024, 512, 1, _repeat(1, 1, 1, "1")),
    PublishedPlan("moe-690m", 2, 1024, 32, 8, _repeat(1, 8, 2, "2")),
    PublishedPlan("moe-1.3b", 4, 1024, 32, 8, _repeat(2, 4, 2, "2")),
    PublishedPlan("moe-2.4b", 8, 1024, 32, 8, _repeat(2, 4, 4, "4")),
    PublishedPlan("moe-10b", 16, 1024, 16, 8, _repeat(2, 4, 8, "8")),
    PublishedPlan("moe-27b", 32, 1024, 128, 8, _repeat(8, 1, 4, "4")),
    PublishedPlan("moe-70b", 64, 1024, 64, 8, _repeat(8, 1, 8, "8")),
    PublishedPlan("wide-resnet-250m", 1, 1536, 24, 16, _repeat(1, 16, 1, "1")),
    PublishedPlan("wide-resnet-500m", 2, 1536, 24, 16, _repeat(1, 16, 2, "2")),
    PublishedPlan("wide-resnet-1b", 4, 1536, 24, 16, _repeat(1, 16, 4, "4")),
    PublishedPlan("wide-resnet-2b", 8, 1536, 24, 16, _repeat(2, 8, 4, "4")),
    PublishedPlan("wide-resnet-4b", 16, 1536, 32, 16, ((5, 4, "4"), (4, 4, "4"), (7, 8, "8"))),
    PublishedPlan(
        "wide-resnet-6.8b", 32, 1536, 32, 16, ((5, 8, "8"), (4, 8, "8"), (4, 8, "8"), (3, 8, "8"))
    ),
    PublishedPlan(
        "wide-resnet-13b", 64, 1520, 38, 33, (*_repeat(6, 4, 8, "8"), (5, 8, "8"), (4, 8, "8"))
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row of the table; None where there is no plan, for the reason in `note`."""

    model: str
    num_devices: int
    theirs_s: float | None
    ours_s: float | None
    free_s: float | None
    search_s: float
    stages: str
    note: str

    @property
    def is_beaten(self) -> bool:
        """Whether theirs is better than ours."""
        if self.theirs_s is None:
            return False
        found = [seconds for seconds in (self.ours_s, self.free_s) if seconds is not None]
        return self.ours_s is None or max(found) > self.theirs_s * (1 + TOLERANCE)


def make_planner(case: PublishedPlan, schedule: str = "1f1b") -> Planner:
    """A planner with the layers and microbatches of `case`."""
    changes: dict[str, Any] = {"remat": True} if case.model.startswith("gpt") else {}
    model = get_model(case.model, case.batch_size, **changes)
    return Planner(
        *model, cluster=case.make_cluster(), num_microbatches=case.num_microbatches,
        num_layers=case.num_layers, schedule=schedule, cache=None,
    )  # fmt: skip


def find_plan(planner: Planner) -> tuple[Plan | None, str]:
    """The plan, or None and why there is none."""
    try:
        return planner.solve(on_progress=lambda _: None), ""
    except AlpaVizError as error:
        return None, str(error).split(". ")[0]


def explain(theirs: Plan, ours: Plan) -> str:
    """Where ours saves most, by the parts that a step's time adds up from; what it spends more on counts against it."""

    def list_parts(plan: Plan) -> dict[str, float]:
        e = plan.estimate
        return {
            "compute": e.compute_s, "collectives": sum(seconds for _, seconds in e.collectives_s),
            "resharding": e.resharding_s, "waiting for sends": e.transfer_s, "idle": e.bubble_s - e.transfer_s,
        }  # fmt: skip

    before, after = list_parts(theirs), list_parts(ours)
    changes = sorted(((after[name] - before[name], name) for name in before), key=lambda pair: -abs(pair[0]))
    told = [
        f"{name} {seconds:+.3g} s" for seconds, name in changes if abs(seconds) > TOLERANCE * theirs.estimate.step_s
    ]
    return ", ".join(told[:3]) or "equal"


def describe_stages(plan: Plan) -> str:
    """Layers x devices (logical mesh) of each stage, equal neighbours once."""
    told: list[tuple[str, int]] = []
    for stage in plan.stages:
        mesh = "x".join(map(str, stage.mesh_shape))
        text = f"{stage.last_layer - stage.first_layer + 1} on {mesh}"
        count = told.pop()[1] if told and told[-1][0] == text else 0
        told.append((text, count + 1))
    return ", ".join(text if count == 1 else f"{count} times {text}" for text, count in told)


def compare(case: PublishedPlan, *, is_free: bool) -> Comparison:
    """Theirs and ours in one planner, which shares what was solved."""
    planner = make_planner(case)
    began = time.perf_counter()
    ours, why_not_ours = find_plan(planner)
    search_s = time.perf_counter() - began
    for pin in case.list_pins():
        planner.pin(pin)
    theirs, why_not_theirs = find_plan(planner)
    free = find_plan(make_planner(replace(case, num_layers=None, num_microbatches="auto")))[0] if is_free else None
    notes = [text for text in (why_not_ours, why_not_theirs) if text]
    if ours is not None and theirs is not None:
        notes.append(explain(theirs, ours))
    if free is not None:
        notes.append(f"free: {free.num_microbatches} microbatches, {describe_stages(free)}")
    seconds = [None if plan is None else plan.estimate.step_s for plan in (theirs, ours, free)]
    return Comparison(
        case.model,
        case.num_devices,
        *seconds,
        search_s,
        "-" if ours is None else describe_stages(ours),
        "; ".join(notes),
    )


def measure_gains(case: PublishedPlan) -> Iterator[tuple[str, Plan | None]]:
    """Simulated steps with each freedom taken away; what crosses cuts is simulated even where it was not searched."""
    yield "given microbatches and layers, 1F1B", find_plan(make_planner(case))[0]
    with mock.patch.object(StageCandidates, "_price_entry", return_value=0.0):
        yield "the same, cuts thought to be free", find_plan(make_planner(case))[0]
    layers = replace(case, num_layers=None)
    yield "layers chosen", find_plan(make_planner(layers))[0]
    yield "microbatches chosen", find_plan(make_planner(replace(case, num_microbatches="auto")))[0]
    yield "schedule chosen", find_plan(make_planner(case, schedule="auto"))[0]
    free = replace(layers, num_microbatches="auto")
    yield "all three chosen", find_plan(make_planner(free, schedule="auto"))[0]


def print_gains() -> None:
    """The table of `--gains`."""
    for case in PUBLISHED:
        if case.model not in ("gpt-2.6b", "wide-resnet-2b"):
            continue
        first: float | None = None
        print(f"{case.model} on {case.num_devices} devices")
        for name, plan in measure_gains(case):
            if plan is None:
                print(f"  {name:42} -", flush=True)
                continue
            first = first or plan.estimate.step_s
            gain = f"{plan.estimate.step_s / first - 1:+.1%}"
            told = f"{plan.num_microbatches} microbatches, {plan.schedule}: {describe_stages(plan)}"
            print(f"  {name:42} {format_seconds(plan.estimate.step_s):>9} {gain:>7}  {told}", flush=True)


def print_table(cases: Sequence[PublishedPlan], *, is_free: bool) -> list[Comparison]:
    """Each row as soon as it is known."""
    rows = []
    print(f"{'model':18} {'GPUs':>4} {'theirs':>9} {'ours':>9} {'ratio':>6} {'free':>9} {'search':>7}  ours; why")
    for case in cases:
        row = compare(case, is_free=is_free)
        theirs, ours, free = (
            "-" if s is None else format_seconds(s) for s in (row.theirs_s, row.ours_s, row.free_s)
        )  # fmt: skip
        ratio = f"{row.theirs_s / row.ours_s:.3f}" if row.theirs_s and row.ours_s else "-"
        print(
            f"{row.model:18} {row.num_devices:4} {theirs:>9} {ours:>9} {ratio:>6} {free:>9} {row.search_s:6.1f}s  "
            f"{row.stages}; {row.note}",
            flush=True,
        )
        rows.append(row)
    return rows


def main() -> int:
    """Print the tables; 1 if `--check` was given and a published plan is better than ours."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="*", help="only plans for these numbers of GPUs")
    parser.add_argument("--family", choices=("gpt", "moe", "wide-resnet"), help="only plans of these models")
    parser.add_argument("--free", action="store_true", help="also choose layers and microbatches")
    parser.add_argument("--gains", action="store_true", help="what each freedom brings, instead of the table")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a published plan is better than ours")
    options = parser.parse_args()
    if options.gains:
        print_gains()
        return 0
    cases = [
        case
        for case in PUBLISHED
        if case.model.startswith(options.family or "") and case.num_devices in (options.devices or (case.num_devices,))
    ]
    rows = print_table(cases, is_free=options.free)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    beaten = [row.model for row in rows if row.is_beaten]
    print(f"theirs is better than ours: {', '.join(beaten) or 'none'}")
    return int(options.check and bool(beaten))


if __name__ == "__main__":
    sys.exit(main())
