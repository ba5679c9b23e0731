"""The main job, timed: plan GPT-1.3B, plan again after a pin, and run a launched plan against a hand-written step.

    python -m tests.benchmarks.main_job [--quick] [--json FILE] [--check]

Planning is timed in a fresh process, from its start to the plan, imports and tracing included. The launched step is a
plan of one stage on eight virtual CPU devices, against `jax.jit` of the same step with the same shardings of state and
results. By hand, the batch is sharded as in the plan and, as a person would, over one mesh axis or all; the fastest of
these counts. All in one process, in turns, after a warm-up; medians. `--check` exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alpaviz.types import ShardingSpec, format_spec

COLD_S, AGAIN_SHARE, STEP_RATIO = 60.0, 0.1, 1.05
"""Targets: seconds of the first plan; a plan after a pin as a share of it; a launched step over one by hand."""

DEVICES = 8
Loop = Callable[[Any], Any]
"""From a state to (new state, metrics)."""
_CHILD = "--plan-with-layers"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure, in `unit`, with its `target`, the most that it may be (None: no target)."""

    name: str
    value: float
    unit: str
    target: float | None

    @property
    def is_met(self) -> bool:
        return self.target is None or self.value <= self.target


def main() -> int:
    """Measure, print a table; 1 if `--check` was given and a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one number of layers, fewer steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(_CHILD, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan_with_layers is not None:
        print(json.dumps(plan_and_pin(options.plan_with_layers, options.started)))
        return 0
    counts = (0,) if options.quick else (0, 24)
    figures = [figure for layers in counts for figure in time_planning(layers)]
    figures += time_steps(10 if options.quick else 30)
    print(format_table(figures))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    return int(options.check and not all(figure.is_met for figure in figures))


def format_table(figures: list[Figure]) -> str:
    """A line for each figure."""
    width = max(len(figure.name) for figure in figures)
    lines = [f"{'figure':<{width}}  {'value':>10}        {'at most':>8}"]
    for figure in figures:
        target = "" if figure.target is None else f"{figure.target:>8.3g}  {'met' if figure.is_met else 'MISSED'}"
        lines.append(f"{figure.name:<{width}}  {figure.value:>10.4g} {figure.unit:<6} {target}".rstrip())
    return "\n".join(lines)


def time_planning(num_layers: int) -> list[Figure]:
    """Figures of planning GPT-1.3B, cut into `num_layers` layers (0: as many as the planner chooses)."""
    command = [sys.executable, "-m", "tests.benchmarks.main_job", _CHILD, str(num_layers), f"--started={time.time()}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=Path(__file__).parents[2]
    )
    if result.returncode != 0:
        raise RuntimeError(f"planning failed:\n{result.stderr}")
    times = json.loads(result.stdout)
    what = f"GPT-1.3B, 8 V100, {times['layers']} layers"
    again = statistics.median(times["again_s"])
    return [
        Figure(f"{what}: first plan", times["cold_s"], "s", COLD_S),
        Figure(f"{what}: tracing, part of it", times["trace_s"], "s", None),
        Figure(f"{what}: solving, part of it", times["solve_s"], "s", None),
        Figure(f"{what}: plan after a pin", again, "s", None),
        Figure(f"{what}: plan after a pin / first", again / times["cold_s"], "", AGAIN_SHARE),
    ]


def plan_and_pin(num_layers: int, started: float, num_pins: int = 5) -> dict[str, Any]:
    """Times in s of a first plan since `started`, and of a plan after each of `num_pins` pins of one op."""
    from alpaviz.models import get_model
    from alpaviz.planner import Planner

    step, state, batch = get_model("gpt-1.3b", 1024)
    planner = Planner(step, state, batch, cluster="p3.16xlarge:1", num_microbatches=128, num_layers=num_layers or None)
    began = time.time()
    layers = planner.program.num_layers
    traced = time.time()
    plan = planner.solve(on_progress=lambda _: None)
    solved = time.time()
    again = []
    names = [op.name for op in plan.ops if op.is_decision and op.primitive == "dot_general" and op.role == "forward"]
    for position in range(num_pins):
        op = names[(2 * position + 1) * len(names) // (2 * num_pins)]
        other = next(a.strategy for a in planner.alternatives(op) if not a.is_chosen)
        pinned = time.time()
        planner.pin_strategy(op, other)
        planner.solve(on_progress=lambda _: None)
        again.append(time.time() - pinned)
        planner.clear_pins()
    return {
        "layers": layers, "cold_s": solved - started, "trace_s": traced - began, "solve_s": solved - traced,
        "again_s": again,
    }  # fmt: skip


def time_steps(num_steps: int) -> list[Figure]:
    """Figures of a launched step against a hand-written one, medians of `num_steps` steps of each."""
    flag = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    from alpaviz.planner import Planner
    from tests.program.small_models import adam_step, init_gpt_state

    state = init_gpt_state(4, width=256, vocab=512, length=64)
    ids = jax.random.randint(jax.random.key(1), (16, 65), 0, 512)
    planner = Planner(adam_step, state, ids, cluster=f"virtual:{DEVICES}")
    planner.pin_num_stages(1)
    plan = planner.solve(on_progress=lambda _: None)
    with planner.launch("local") as executable:
        placed = executable.place(state)
        loops: dict[str, Loop] = {"launched": lambda s: executable(s, ids)}
        (planned,) = (value.spec for value in plan.values if value.kind == "batch")
        axes = plan.stages[0].mesh_axes
        for spec in dict.fromkeys((planned, *(((axis,), ()) for axis in axes), (axes, ()))):
            loops[f"by hand, batch {format_spec(spec)}"] = write_by_hand(adam_step, placed, ids, spec)
        times = {name: statistics.median(seconds) for name, seconds in take_turns(loops, placed, num_steps).items()}
    mesh = "x".join(map(str, plan.stages[0].mesh_shape))
    what = f"step on {DEVICES} CPU devices, mesh {mesh}"
    launched, *by_hand = times.values()
    return [
        *(Figure(f"{what}: {name}", seconds * 1e3, "ms", None) for name, seconds in times.items()),
        Figure(f"{what}: launched / fastest by hand", launched / min(by_hand), "", STEP_RATIO),
    ]


def write_by_hand(step: Callable[..., Any], placed: Any, ids: Any, batch_spec: ShardingSpec) -> Loop:
    """`jax.jit` of `step` for state and results as in `placed`, with `ids` sharded by `batch_spec`."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    shardings = jax.tree.map(lambda leaf: leaf.sharding, placed)
    mesh = jax.tree.leaves(shardings)[0].mesh
    of_batch = NamedSharding(mesh, PartitionSpec(*(axes or None for axes in batch_spec)))
    whole = NamedSharding(mesh, PartitionSpec())
    run = jax.jit(step, in_shardings=(shardings, of_batch), out_shardings=(shardings, whole))
    batch = jax.device_put(ids, of_batch)
    return lambda state: run(state, batch)


def take_turns(loops: dict[str, Loop], state: Any, num_steps: int) -> dict[str, list[float]]:
    """Seconds of each step of every training loop from `state`, in turns; who begins moves on by one each turn."""
    import jax

    states, names = dict.fromkeys(loops, state), list(loops)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-3, num_steps):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            states[name], _ = jax.block_until_ready(loops[name](states[name]))
            if turn >= 0:
                times[name].append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    sys.exit(main())
