"""What alternatives cost against one solve: the ten cheapest plans, fronts of 8 and 12 points of time against memory.

    python -m tests.benchmarks.alternatives [--seconds N] [--model NAME]...

Whole models as one stage on 4x2. CPU seconds of this process, all of one model in one run; a search that the limit of
wall time cut short says so, and its figures are then lower limits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from alpaviz.intra.problem import ShardingProblem
from alpaviz.intra.solvers import ParetoFront, find_best_choices, find_pareto_front, solve_problem
from alpaviz.models import get_model_config
from tests.benchmarks.stages import build_stage

MODELS = {"gpt-24": ("gpt-1.3b", 8), "moe-1.3b": ("moe-1.3b", 8)}
"""Name here -> registered model and batch."""

Result = TypeVar("Result")


def measure(work: Callable[[], Result]) -> tuple[Result, float]:
    """What `work` gives, and its CPU seconds."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def report(name: str, seconds: float) -> None:
    """Print the figures of one model; each search may take `seconds` of wall time."""
    model, batch = MODELS[name]
    stage = build_stage(get_model_config(model), batch, "4x2")
    # Without a limit the row is dropped, and a front needs it.
    problem = stage.limit(1e6).problem
    best, one = measure(lambda: solve_problem(problem))
    print(f"{name}: {problem.num_variables} variables; one solve {one:.2f} s, {best.status}", flush=True)
    found, taken = measure(lambda: find_best_choices(problem, 10, best=best, time_limit=seconds))
    proven = sum(solution.gap <= 1e-9 for solution in found)
    print(
        f"  {'k best, 10':<12} {taken:8.2f} s = {taken / one:6.1f} solves; {proven} of {len(found)} proven", flush=True
    )
    row = int(np.argmax([len(memory.variables) for memory in problem.memory]))
    for count in (8, 12):
        print(
            f"  {f'front of {count}':<12} {_describe_front(*_find_front(problem, row, count, seconds), one)}",
            flush=True,
        )


def _find_front(problem: ShardingProblem, row: int, count: int, seconds: float) -> tuple[ParetoFront, float]:
    return measure(lambda: find_pareto_front(problem, row, count=count, time_limit=seconds))


def _describe_front(front: ParetoFront, taken: float, one: float) -> str:
    cut = "" if front.is_complete else ", cut short"
    return f"{taken:8.2f} s = {taken / one:6.1f} solves; {len(front.points)} points{cut}"


def main() -> None:
    """Print the figures of the models asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="wall time of each search (default: 60)")
    parser.add_argument("--model", action="append", choices=MODELS, help="default: all")
    options = parser.parse_args()
    for name in options.model or MODELS:
        report(name, options.seconds)


if __name__ == "__main__":
    main()
