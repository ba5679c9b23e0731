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

from tests.benchmarks.runtime import STAGES, make_loop, make_planner, take_turns

MICROBATCHES, EVERY = 8, 100


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    planner, weights, x = make_planner(f"virtual:{STAGES}", MICROBATCHES, options.width, rows=64)
    plain = planner.launch(backend="local")
    recorded = planner.launch(backend="local", record_every=1)
    loops = {"not recorded": make_loop(plain, weights, x), "recorded": make_loop(recorded, weights, x)}
    times = {name: statistics.median(found) for name, found in take_turns(loops, options.steps).items()}
    more = times["recorded"] / times["not recorded"] - 1
    for name, seconds in times.items():
        print(f"{name:>14}: {seconds * 1e3:.3f} ms a step")
    print(f"a recorded step takes {more:+.2%}; every {EVERY}th recorded: {more / EVERY:+.4%}")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count={STAGES}")
    sys.exit(main())
