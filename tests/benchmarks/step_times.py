"""Predicted against measured step times: plans of a small GPT on virtual CPU devices, with calibrated costs.

    python -m tests.benchmarks.step_times [--quick] [--check] [--plans N] [--rounds N] [--json FILE] [--figure FILE]
                                          [--calibration FOLDER] [--seed N]

The devices are measured first (about a minute), unless `--calibration` has a folder with what was measured before.
Plans are the optimum, the baselines and plans with random pins; all are launched, and their steps are timed in turn,
so that what else the machine does meets all alike. The least time of each counts. `--check` exits with 1 if a target
is missed: Spearman's rank correlation of 0.9, and the plan called best within 10 % of the best measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alpaviz.calibration import Calibration
    from alpaviz.plan import Plan
    from alpaviz.planner import Planner

DEVICES = 8
MODEL = {"hidden": 128, "num_layers": 2, "num_heads": 8, "vocab": 512, "seq": 64}
BATCH, MICROBATCHES = 32, 4
CORRELATION, CLOSE = 0.9, 0.1
"""Targets."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One plan: seconds of a step as predicted, the least of those measured and their median."""

    name: str
    meshes: str
    predicted_s: float
    measured_s: float = 0.0
    median_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.name:<20} {self.meshes:<26} {self.predicted_s * 1e3:>9.1f} {self.measured_s * 1e3:>9.1f} "
            f"{self.median_s * 1e3:>9.1f} {self.predicted_s / self.measured_s - 1:>+7.0%}"
        )


def main() -> int:
    """Measure, print a line for each plan and the verdict; 1 if `--check` was given and a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6 plans, 3 rounds")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=12, help="steps of each plan that are timed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record for each plan")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="write the scatter as HTML")
    parser.add_argument("--calibration", type=Path, metavar="FOLDER", help="where measurements are kept")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    os.environ.update(XLA_FLAGS=flags.strip(), JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="2")
    from alpaviz import cost

    with tempfile.TemporaryDirectory() as temporary:
        calibration = cost.measure(folder=options.calibration or temporary, budget_s=300.0)
    print(calibration)
    timed = time_plans(calibration, options)
    print(f"{'plan':<20} {'meshes':<26} {'pred. ms':>9} {'least ms':>9} {'median':>9} {'error':>7}")
    print(*timed, sep="\n")
    correlation = find_rank_correlation([t.predicted_s for t in timed], [t.measured_s for t in timed])
    called, best = min(timed, key=lambda t: t.predicted_s), min(timed, key=lambda t: t.measured_s)
    excess = called.measured_s / best.measured_s - 1
    print(f"Spearman's rank correlation {correlation:.3f} (target {CORRELATION})")
    print(f"called best: {called.name}, {excess:.1%} slower than the best measured, {best.name} (target {CLOSE:.0%})")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(t) for t in timed], indent=1) + "\n")
    if options.figure is not None:
        draw(timed).write_html(options.figure, include_plotlyjs="cdn")
    return int(options.check and (correlation < CORRELATION or excess > CLOSE))


def time_plans(calibration: Calibration, options: argparse.Namespace) -> list[Timed]:
    """All plans, launched and timed in turn."""
    import jax

    from alpaviz.cluster import parse_cluster
    from alpaviz.models import get_model
    from alpaviz.planner import Planner
    from alpaviz.runtime import launch

    training = get_model("gpt-tiny", BATCH, abstract=False, **MODEL)
    cluster = parse_cluster(f"virtual:{DEVICES}").calibrated(calibration)
    planner = Planner(*training, cluster=cluster, num_microbatches=MICROBATCHES, cache=None)
    plans = choose_plans(planner, 6 if options.quick else options.plans, options.seed)
    _, state, *batch = training
    steps: list[Any] = []
    timed = []
    for name, plan in plans:
        began = time.perf_counter()
        executable = launch(plan, planner.program)
        placed = executable.place(state)
        jax.block_until_ready(executable(placed, *batch))
        steps.append((executable, placed))
        meshes = " + ".join("x".join(map(str, stage.mesh_shape)) for stage in plan.stages)
        timed.append(Timed(name, meshes, plan.estimate.step_s))
        print(f"compiled {name} ({meshes}) in {time.perf_counter() - began:.1f} s", flush=True)
    seconds: list[list[float]] = [[] for _ in steps]
    for _ in range(3 if options.quick else options.rounds):
        for taken, (executable, placed) in zip(seconds, steps, strict=True):
            began = time.perf_counter()
            jax.block_until_ready(executable(placed, *batch))
            taken.append(time.perf_counter() - began)
    return [
        replace(t, measured_s=min(taken), median_s=sorted(taken)[len(taken) // 2])
        for t, taken in zip(timed, seconds, strict=True)
    ]


def choose_plans(planner: Planner, count: int, seed: int) -> list[tuple[str, Plan]]:
    """The optimum, the baselines that fit, and plans with random pins; no two alike."""
    from alpaviz.baselines import compare_with_baselines

    plans: list[tuple[str, Plan]] = [("optimum", planner.solve(on_progress=lambda _: None))]
    for row in compare_with_baselines(planner).rows[1:]:
        if row.plan is not None and len(plans) < count * 2 // 3:
            plans.append((row.name, row.plan))
    chance, number = random.Random(seed), 0
    while len(plans) < count and number < 3 * count:
        number += 1
        plan = plan_at_random(planner, chance)
        if plan is not None:
            plans.append((f"random {number}", plan))
        plans = [(name, plan) for k, (name, plan) in enumerate(plans) if _is_new(plan, plans[:k])]
    return plans


def plan_at_random(planner: Planner, chance: random.Random) -> Plan | None:
    """A plan with a random number of stages, logical mesh and strategies of up to half of the ops; None if it fails."""
    from alpaviz.errors import AlpaVizError

    try:
        planner.clear_pins()
        count = chance.choice((1, 1, 1, 2, 4))
        planner.pin_num_stages(count)
        size = DEVICES // count
        planner.pin_logical_mesh(chance.choice([f"{a}x{size // a}" for a in (2, 4) if a < size] + [f"{size}"]))
        plan = planner.solve(on_progress=lambda _: None)
        decided = [op.name for op in plan.ops if op.is_decision and op.role != "update"]
        for name in chance.sample(decided, chance.randint(1, max(1, len(decided) // 2))):
            planner.pin_strategy(name, chance.choice(planner.alternatives(name)).strategy)
        return planner.solve(on_progress=lambda _: None)
    except AlpaVizError:
        return None


def _is_new(plan: Plan, others: Sequence[tuple[str, Plan]]) -> bool:
    return all((plan.stages, plan.ops) != (other.stages, other.ops) for _, other in others)


def find_rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's: Pearson's correlation of the ranks, equals sharing the mean of theirs."""
    a, b = rank(left), rank(right)
    mean = (len(a) - 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spread = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return float(covariance / spread**0.5) if spread > 0 else 1.0


def rank(values: Sequence[float]) -> list[float]:
    """The place of each value, from 0."""
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def draw(timed: Sequence[Timed]) -> Any:
    """The scatter, in ms."""
    from alpaviz.plan_figures import make_figure

    figure = make_figure("Step of a small GPT on 8 virtual CPU devices: predicted against measured")
    most = 1e3 * max(max(t.predicted_s, t.measured_s) for t in timed)
    figure.add_scatter(name="equal", mode="lines", x=[0, most], y=[0, most], line={"color": "#999999", "dash": "dot"})
    figure.add_scatter(
        name="plans", mode="markers+text", x=[t.measured_s * 1e3 for t in timed],
        y=[t.predicted_s * 1e3 for t in timed], text=[t.name for t in timed], textposition="top center",
        marker={"color": "#0072B2", "size": 8},
    )  # fmt: skip
    figure.update_layout(xaxis={"title": "measured (ms)"}, yaxis={"title": "predicted (ms)"})
    return figure


if __name__ == "__main__":
    sys.exit(main())
