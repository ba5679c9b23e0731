"""What recording when chunks run adds to a step, both sides in one run.

    python -m tests.benchmarks.recording [--width 512] [--steps 40]

4 stages of a layer each, 8 microbatches, local: steps that are not recorded, and steps that are, in turns. Medians of
wall time; the share of a training with `record_every=100` is a hundredth of what a recorded step takes more.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

from tests.benchmarks.runtime import make_loop, take_turns

STAGES, MICROBATCHES, EVERY = 4, 8, 100


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    planner, weights, x = make_wide_planner(options.width)
    plain = planner.launch(backend="local")
    recorded = planner.launch(backend="local", record_every=1)
    loops = {"not recorded": make_loop(plain, weights, x), "recorded": make_loop(recorded, weights, x)}
    times = {name: statistics.median(found) for name, found in take_turns(loops, options.steps).items()}
    more = times["recorded"] / times["not recorded"] - 1
    for name, seconds in times.items():
        print(f"{name:>14}: {seconds * 1e3:.3f} ms a step")
    print(f"a recorded step takes {more:+.2%}; every {EVERY}th recorded: {more / EVERY:+.4%}")
    return 0


def make_wide_planner(width: int) -> tuple[Any, Any, Any]:
    """A planner with a plan of `STAGES` stages, its weights and batch."""
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
    x = np.ones((64 * MICROBATCHES, width), np.float32)
    planner = Planner(step, weights, x, cluster=f"virtual:{STAGES}", num_microbatches=MICROBATCHES)
    planner.pin_num_stages(STAGES)
    planner.solve(on_progress=lambda _: None)
    return planner, weights, x


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={STAGES}")
    sys.exit(main())
