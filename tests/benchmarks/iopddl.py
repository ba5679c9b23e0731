"""Our solver on the public instances of google/iopddl, and on any other files of that format.

    python -m tests.benchmarks.iopddl [FILE ...] [--seconds N] [--check]

Without files, the four instances in `iopddl/` of ALPAVIZ_SHARED, or of `shared` beside the repository. Each gets what
is left of the contest's time after reading; `--check` exits 1 where an answer is over the targets below.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from alpaviz.intra.iopddl import read_iopddl
from alpaviz.intra.solvers import solve_problem
from alpaviz.intra.solvers.large.solve import is_within
from tests.benchmarks.intra_solvers import PUBLISHED, find_shared

SECONDS = {"G": 3.0, "A": 60.0, "M": 180.0, "S": 240.0}
"""Wall time with reading: the contest's, except for G, which is to be proven optimal at once."""
WORST_RATIO = 1.015
WORST_GAP = 0.03
_SPARE_SECONDS = 4.0
"""For unfolding, checking and pricing the answer."""


def measure(path: Path, seconds: float | None, *, is_checked: bool) -> bool:
    """Print one instance's line; False where it misses its targets."""
    letter = path.name.removesuffix(".gz").removesuffix(".json").rsplit("-", 1)[-1]
    allowed = seconds or SECONDS.get(letter, 240.0)
    start = time.perf_counter()
    problem = read_iopddl(path)
    left = max(1.0, allowed - (time.perf_counter() - start) - _SPARE_SECONDS)
    solution = solve_problem(problem, time_limit=30.0 if letter == "G" else left)
    spent = time.perf_counter() - start
    legal = bool(solution.choice) and is_within(problem.profile, solution.choice)
    ratio = solution.objective / PUBLISHED[letter] if letter in PUBLISHED else float("nan")
    print(
        f"{path.name:32} {solution.objective:16.0f} {ratio:8.5f} {solution.gap:8.5f} "
        f"{'legal' if legal else 'no choice':9} {solution.status.value:10} {spent:7.1f} of {allowed:g} s",
        flush=True,
    )
    is_good = legal and solution.gap <= (1e-9 if letter == "G" else WORST_GAP) and not ratio > WORST_RATIO
    return not is_checked or (is_good and spent <= allowed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, help="wall time for each, instead of the contest's")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    folder = find_shared() / "iopddl"
    files = options.files or [folder / f"asplos-2025-iopddl-{letter}.json.gz" for letter in SECONDS]
    print(f"{'instance':32} {'objective':>16} {'/ best':>8} {'gap':>8} {'memory':9} {'status':10}    wall time")
    missing = [path for path in files if not path.exists()]
    for path in missing:
        print(f"{path}: not found; left out", file=sys.stderr)
    met = [measure(path, options.seconds, is_checked=options.check) for path in files if path not in missing]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
