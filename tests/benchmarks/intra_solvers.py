"""Times of the intra-operator solvers, each against the others in the same run.

    python -m tests.benchmarks.intra_solvers [--quick] [--json FILE] [--check]

Problems are training steps of growing size (tests/sharding_problems.py), with and without a memory limit that binds,
and the four public instances of google/iopddl where their folder is found: ALPAVIZ_SHARED, or `shared` beside the
repository.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from alpaviz.errors import SolverError
from alpaviz.intra.iopddl import read_iopddl
from alpaviz.intra.problem import ShardingProblem, ShardingSolution
from alpaviz.intra.solvers import solve_problem
from tests.sharding_problems import limit_memory, make_training_step

PUBLISHED = {"G": 217_039.0, "A": 6_548_641_531.0, "M": 49_928_460_991.0, "S": 1_534_613_444.0}


@dataclass(frozen=True, slots=True)
class Figure:
    """One solve and the time it is held to (seconds; None where there is no target)."""

    problem: str
    variables: int
    solver: str
    status: str
    seconds: float
    objective: float
    gap: float
    target_s: float | None

    @property
    def is_met(self) -> bool:
        return self.target_s is None or self.seconds <= self.target_s


def measure(
    name: str, problem: ShardingProblem, solver: str, limit: float, target: float | None
) -> tuple[Figure, ShardingSolution | None]:
    start = time.perf_counter()
    try:
        solution = solve_problem(problem, solver=solver, time_limit=limit)
    except SolverError as error:
        print(f"{name}: {solver}: {error}", file=sys.stderr)
        return Figure(name, problem.num_variables, solver, "failed", 0.0, float("nan"), float("inf"), None), None
    seconds = time.perf_counter() - start
    return (
        Figure(
            name,
            problem.num_variables,
            solver,
            solution.status.value,
            seconds,
            solution.objective,
            solution.gap,
            target,
        ),
        solution,
    )


def measure_training_steps(*, is_quick: bool) -> Iterator[Figure]:
    """Sizes up to six layers; the integer programmes only as far as they answer within the limit."""
    for layers in (1, 2) if is_quick else (1, 2, 4, 6):
        problem = make_training_step(layers)
        name = f"training step, {layers} layers"
        figure, best = measure(name, problem, "exact", 30.0, 0.3)
        yield figure
        if layers <= (1 if is_quick else 4):
            yield measure(name, problem, "ilp", 120.0, None)[0]
        if layers <= (1 if is_quick else 2):
            yield measure(name, problem, "paper", 120.0, None)[0]
        assert best is not None, "the exact solver needs nothing installed"
        for share in (0.9, 0.05):
            limited = limit_memory(problem, share, best.choice)
            yield measure(f"{name}, memory {share:g}", limited, "exact", 30.0, 2.0)[0]
            if layers <= (0 if is_quick else 1):
                yield measure(f"{name}, memory {share:g}", limited, "ilp", 120.0, None)[0]


def measure_public(*, is_quick: bool) -> Iterator[Figure]:
    folder = find_shared() / "iopddl"
    for letter, best in PUBLISHED.items():
        path = folder / f"asplos-2025-iopddl-{letter}.json.gz"
        if not path.exists():
            print(f"iopddl {letter}: not found in {folder}; left out", file=sys.stderr)
            continue
        if is_quick and letter != "G":
            continue
        problem = read_iopddl(path)
        figure, _ = measure(f"iopddl {letter}", problem, "auto", 60.0, 3.0 if letter == "G" else None)
        print(f"iopddl {letter}: {figure.objective / best:.4f} of the best published", file=sys.stderr)
        yield figure


def find_shared() -> Path:
    return Path(os.environ.get("ALPAVIZ_SHARED") or Path(__file__).resolve().parents[2].parent / "shared")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller cases, under a minute")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    print(
        f"{'problem':38} {'variables':>9} {'solver':6} {'status':10} {'seconds':>8} {'target':>7} {'gap':>8}  objective"
    )
    figures = list(_all(options.quick))
    if options.json:
        options.json.write_text(json.dumps([asdict(f) for f in figures], indent=1))
    missed = [f for f in figures if not f.is_met]
    for figure in missed:
        print(f"missed: {figure.problem} with {figure.solver} took {figure.seconds:.2f} s, target {figure.target_s} s")
    return 1 if options.check and missed else 0


def _all(is_quick: bool) -> Iterator[Figure]:
    for source in (measure_training_steps, measure_public):
        for f in source(is_quick=is_quick):
            target = "-" if f.target_s is None else f"{f.target_s:g}"
            print(
                f"{f.problem:38} {f.variables:9} {f.solver:6} {f.status:10} {f.seconds:8.3f} {target:>7} {f.gap:8.1e}  "
                f"{f.objective:.9g}",
                flush=True,
            )
            yield f


if __name__ == "__main__":
    sys.exit(main())
