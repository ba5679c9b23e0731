"""What the runtime adds to the compiled calls that it makes.

    python -m tests.benchmarks.runtime [--quick] [--local] [--check]

A one-stage plan against a hand-written `jax.jit` with the same shardings; then a plan of 4 stages and 32 microbatches,
local and on Ray (one host, and a host for each stage), against a bare loop of the same jitted calls with inputs at
hand, in turns in one run. What a step takes beyond the bare loop, divided by its instructions (runs, sends, receives,
frees), is the overhead per instruction; it holds slicing the batch and the transfers between stages too. For these the
loop is timed again with the sends' `device_put`. Medians; `--check` exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.main_job import Figure, format_table, time_steps

LOCAL_S, RAY_S, STEP_RATIO = 50e-6, 1e-3, 1.03
"""Targets: overhead per instruction in s, local and on Ray; a launched one-stage step over one by hand."""

STAGES, MICROBATCHES, WIDTH = 4, 32, 8
STATE = "state"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a chunk, with the inputs that it had. `key` names the sums that it adds to."""

    jitted: Any
    given: list[Any]
    kept: list[Any]
    key: Any


def main() -> int:
    """Measure, print a table; 1 if `--check` was given and a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--local", action="store_true", help="without Ray")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    steps = 10 if options.quick else 40
    *figures, ratio = time_steps(steps)  # sets the number of virtual devices, so it comes first
    figures += [Figure(ratio.name, ratio.value, ratio.unit, STEP_RATIO), *time_instructions(steps, options.local)]
    print(format_table(figures))
    return int(options.check and not all(figure.is_met for figure in figures))


def make_planner(cluster: str, num_microbatches: int = MICROBATCHES, width: int = WIDTH, rows: int = 2) -> Any:
    """A planner with a plan of `STAGES` stages of one layer each, its weights and a batch of `rows` a microbatch.

    Layers are small unless told otherwise, so that calls are all that a step is.
    """
    import jax
    import numpy as np

    import alpaviz
    from alpaviz.planner import Planner

    def loss_fn(weights: Any, x: Any) -> Any:
        for i in range(STAGES):
            x = jax.numpy.tanh(x @ weights[f"w{i}"])
            if i < STAGES - 1:
                x = alpaviz.layer_boundary(x)
        return (x**2).mean()

    def step(weights: Any, x: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(weights, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, weights, grads), loss

    weights = {f"w{i}": np.eye(width, dtype=np.float32) for i in range(STAGES)}
    x = np.ones((rows * num_microbatches, width), np.float32)
    planner = Planner(step, weights, x, cluster=cluster, num_microbatches=num_microbatches)
    planner.pin_num_stages(STAGES)
    planner.solve(on_progress=lambda _: None)
    return planner, weights, x


def time_instructions(num_steps: int, is_local: bool) -> list[Figure]:
    """Figures of the overhead per instruction, medians of `num_steps` steps."""
    planner, weights, x = make_planner(f"virtual:{STAGES}")
    loops: dict[str, Callable[[], Any]] = {}
    targets = {"local": LOCAL_S, "Ray, one host": RAY_S, "Ray, a host per stage": RAY_S}
    local = planner.launch(backend="local")
    executables = [local]
    loops["local"] = make_loop(local, weights, x)
    if not is_local:
        for name, cluster in (("Ray, one host", f"virtual:{STAGES}"), ("Ray, a host per stage", f"virtual:{STAGES}x1")):
            executables.append(make_planner(cluster)[0].launch(backend="ray"))
            loops[name] = make_loop(executables[-1], weights, x)
    calls, puts = record(local, weights, x)
    loops["bare"] = lambda: play(local, calls, ())
    loops["bare with device_put"] = lambda: play(local, calls, puts)
    times = {name: statistics.median(found) for name, found in take_turns(loops, num_steps).items()}
    count = sum(map(len, local.lists))
    for executable in executables:
        executable.close()
    what = f"{STAGES} stages x {MICROBATCHES} microbatches"
    figures = [Figure(f"{what}: {name}", seconds * 1e3, "ms", None) for name, seconds in times.items()]
    figures += [Figure(f"{what}: instructions", count, "", None), Figure(f"{what}: jitted calls", len(calls), "", None)]
    for name in loops:
        if name not in targets:
            continue
        beyond = (times[name] - times["bare"]) / count
        rest = (times[name] - times["bare with device_put"]) / count
        figures += [
            Figure(f"{name}: overhead per instruction", beyond * 1e6, "µs", targets[name] * 1e6),
            Figure(f"{name}: without the transfers", rest * 1e6, "µs", None),
            Figure(f"{name}: step / bare loop", times[name] / times["bare"], "", None),
        ]
    return figures


def make_loop(executable: Any, weights: Any, x: Any) -> Callable[[], Any]:
    """One training step after another."""
    held = {STATE: executable.place(weights)}

    def step() -> Any:
        held[STATE], loss = executable(held[STATE], x)
        return held[STATE], loss

    return step


def record(executable: Any, weights: Any, x: Any) -> tuple[list[Call], list[tuple[Any, Any]]]:
    """The calls of a local step in order, and what is put from stage to stage: (array, sharding)."""
    import jax

    from alpaviz.runtime.chunk_runner import ChunkRunner

    calls: list[Call] = []
    puts: list[tuple[Any, Any]] = []
    run, put = ChunkRunner.__call__, jax.device_put

    def note_call(runner: Any, inputs: Sequence[Any], sums: Sequence[Any]) -> Any:
        given, kept = runner.split_inputs(inputs)
        calls.append(Call(runner.jitted, given, kept, runner.chunk.key if runner.accumulates else None))
        return run(runner, inputs, sums)

    def note_put(array: Any, sharding: Any, *rest: Any, **options: Any) -> Any:
        puts.append((array, sharding))
        return put(array, sharding, *rest, **options)

    state = executable.place(weights)
    executable(state, x)
    ChunkRunner.__call__, jax.device_put = note_call, note_put  # type: ignore[method-assign]
    try:
        executable(state, x)
    finally:
        ChunkRunner.__call__, jax.device_put = run, put  # type: ignore[method-assign]
    sends = [(array, sharding) for array, sharding in puts if isinstance(array, jax.Array)]
    return calls, sends


def play(executable: Any, calls: Sequence[Call], puts: Sequence[tuple[Any, Any]]) -> Any:
    """The bare loop."""
    import jax

    sums = {key: make() for worker in executable.workers for key, make in worker._zero_makers.items()}
    results = []
    for call in calls:
        made = call.jitted(call.given, call.kept, sums.get(call.key, []))
        if call.key is not None:
            sums[call.key] = made[1]
        results.append(made[0])
    return results, sums, [jax.device_put(array, sharding) for array, sharding in puts]


def take_turns(loops: dict[str, Callable[[], Any]], num_steps: int) -> dict[str, list[float]]:
    """Seconds of each call of every loop, in turns; who begins moves on by one each turn."""
    import jax

    names = list(loops)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-3, num_steps):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            result = loops[name]()
            jax.block_until_ready([leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)])
            if turn >= 0:
                times[name].append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
