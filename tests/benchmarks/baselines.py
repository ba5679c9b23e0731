"""AlpaViz's plans beside those that people write, by the cost model.

    python -m tests.benchmarks.baselines [--quick] [--check] [MODEL CLUSTER BATCH MICROBATCHES]

For each job a table: seconds of a step, its ratio to ours, memory of the fullest device, meshes of stages. `--check`
exits with 1 if a baseline is faster than our plan by more than the solver's tolerance.
"""

from __future__ import annotations

import argparse
import time

from alpaviz.baselines import BaselineTable, compare_with_baselines
from alpaviz.models import get_model
from alpaviz.planner import Planner

JOBS = (
    ("gpt-1.3b", "p3.16xlarge:1", 64, 8),
    ("moe-1.3b", "p3.16xlarge:1", 64, 4),
    ("wide-resnet-250m", "p3.16xlarge:1", 192, 8),
)
"""Model, cluster, batch size, microbatches."""

TOLERANCE = 1e-3
"""Relative: the search minimizes an objective from which the simulated step differs a little."""


def main() -> int:
    """Print a table for each job; 1 if `--check` was given and a baseline is faster than ours."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only the first job")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a baseline is faster than our plan")
    parser.add_argument("job", nargs="*", help="model, cluster, batch size, microbatches")
    options = parser.parse_args()
    jobs = JOBS[:1] if options.quick else JOBS
    if options.job:
        model, cluster, batch, microbatches = options.job
        jobs = ((model, cluster, int(batch), int(microbatches)),)
    faster = []
    for model, cluster, batch, microbatches in jobs:
        began = time.perf_counter()
        planner = Planner(*get_model(model, batch), cluster=cluster, num_microbatches=microbatches)
        planner.solve(on_progress=lambda _: None)
        solved = time.perf_counter()
        table = compare_with_baselines(planner)
        print(f"{model} on {cluster}, batch {batch} in {microbatches} microbatches: ours in {solved - began:.1f} s, ")
        print(f"baselines in {time.perf_counter() - solved:.1f} s\n{table}\n", flush=True)
        faster += [f"{model}: {name}" for name in list_faster(table)]
    print(f"faster than ours: {', '.join(faster) or 'none'}")
    return int(options.check and bool(faster))


def list_faster(table: BaselineTable) -> list[str]:
    """Baselines whose step is shorter than ours."""
    ours = table.rows[0].step_s
    assert ours is not None, "our plan was solved"
    return [row.name for row in table.rows[1:] if row.step_s is not None and row.step_s < ours * (1 - TOLERANCE)]


if __name__ == "__main__":
    raise SystemExit(main())
