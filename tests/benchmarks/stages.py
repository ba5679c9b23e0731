"""The intra-operator solver on whole models as one stage: times of `auto` against `paper`, growth, memory, pins.

    python -m tests.benchmarks.stages [--quick] [--check] [--paper-seconds N]

Everything that is compared is measured in one run. `paper` (Alpa's formulation with CBC) is stopped after the seconds
given; a ratio is then a lower limit. GPT-2 small is timed in a fresh process, from the Python function to the solution
with its bound, imports excluded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from alpaviz.cluster import enumerate_logical_meshes, enumerate_submeshes, parse_cluster
from alpaviz.intra.problem import ShardingSolution
from alpaviz.intra.solvers import find_forced_optima, solve_problem
from alpaviz.intra.stage_problem import Restriction, StageProblem, StageShapes
from alpaviz.intra.stage_solver import TOLERANCE, StageSolver
from alpaviz.models import GPTConfig, get_model_config
from alpaviz.models.training import ModelConfig, make_training_step
from alpaviz.program import trace_program
from alpaviz.solver_pool import SolverPool

GPT_2_SMALL = GPTConfig(hidden=768, num_layers=12, num_heads=12, vocab=50257, seq=1024, dtype="float32")
_CHILD = "--cold"


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure; `target` is the most it may be, or the least where `at_least`."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        if self.target is None:
            return True
        return self.value >= self.target if self.at_least else self.value <= self.target

    def __str__(self) -> str:
        line = f"{self.name:<66} {self.value:>10.4g} {self.unit:<3}"
        if self.target is None:
            return line.rstrip()
        verdict = "met" if self.is_met else "MISSED"
        return f"{line} {'at least' if self.at_least else 'at most'} {self.target:<7.3g} {verdict}"


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A whole model as one stage, with the seconds that it took to come here from the Python function."""

    solver: StageSolver
    shapes: StageShapes
    problem: StageProblem
    trace_s: float
    build_s: float

    def limit(self, factor: float) -> StageProblem:
        """The same within `factor` times the least bytes that any choice takes."""
        shape = self.shapes.find(0, self.solver.program.num_layers - 1)
        return self.solver.build(shape, 1, factor * self.solver.count_least_bytes(shape, 1))


def build_stage(config: ModelConfig, batch: int, mesh_shape: str) -> Stage:
    """Trace `config` and put its problem together on a mesh of eight V100 of one host."""
    step, state, data = make_training_step(config, batch)
    began = time.perf_counter()
    program = trace_program(step, state, data)
    traced = time.perf_counter()
    cluster = parse_cluster("p3.16xlarge:1")
    meshes = [m for s in enumerate_submeshes(cluster) for m in enumerate_logical_meshes(cluster, s, 3)]
    mesh = next(m for m in meshes if str(m) == mesh_shape and m.num_devices == 8)
    pool = SolverPool()
    structure = pool.find_structure(program)
    solver = pool.find_solver(program, mesh)
    shapes = StageShapes(program, structure, {})
    problem = solver.build(shapes.find(0, program.num_layers - 1))
    return Stage(solver, shapes, problem, traced - began, time.perf_counter() - traced)


def solve(problem: StageProblem, solver: str = "auto", limit: float | None = None) -> tuple[ShardingSolution, float]:
    """A solution and the seconds that it took."""
    began = time.perf_counter()
    solution = solve_problem(problem.problem, solver=solver, tolerance=TOLERANCE, time_limit=limit)
    return solution, time.perf_counter() - began


def compare_with_paper(num_layers: int, ratio: float, most_s: float | None, paper_s: float) -> list[Figure]:
    """`auto` against `paper` on GPT of `num_layers` blocks."""
    stage = build_stage(make_gpt(num_layers), 8, "4x2")
    ours, our_s = solve(stage.problem)
    theirs, their_s = solve(stage.problem, "paper", paper_s)
    name = f"GPT, {num_layers} layers, 4x2"
    found = [
        Figure(f"{name}: auto, candidates and solve", stage.build_s + our_s, "s", most_s),
        Figure(f"{name}: auto, solve alone", our_s, "s"),
        Figure(f"{name}: paper, {theirs.status.value}", their_s, "s"),
        Figure(f"{name}: paper / auto", their_s / our_s, "", ratio, at_least=True),
    ]
    if theirs.choice:
        share = ours.objective / theirs.objective - 1.0
        found.append(Figure(f"{name}: objective of auto over that of paper", share, "", 1e-6))
    return found


def make_gpt(num_layers: int) -> GPTConfig:
    """GPT-1.3B's blocks (Zheng et al. 2022, table 6), `num_layers` of them."""
    return GPTConfig(hidden=2048, num_layers=num_layers, num_heads=32)


def time_large(name: str, config: ModelConfig, batch: int, mesh: str) -> list[Figure]:
    """Candidates and solve of one large stage, and its gap."""
    stage = build_stage(config, batch, mesh)
    solution, seconds = solve(stage.problem)
    return [
        Figure(f"{name}, {mesh}: tracing", stage.trace_s, "s"),
        Figure(f"{name}, {mesh}: candidates and solve", stage.build_s + seconds, "s", 5.0),
        Figure(f"{name}, {mesh}: gap", solution.gap, "", 1e-3),
    ]


def time_limited(name: str, config: ModelConfig, batch: int) -> list[Figure]:
    """With 1.1 times the least possible memory on 4x2."""
    stage = build_stage(config, batch, "4x2")
    solution, seconds = solve(stage.limit(1.1))
    return [
        Figure(f"{name}, 4x2, 1.1 times the least memory: solve", seconds, "s", 5.0),
        Figure(f"{name}, 4x2, 1.1 times the least memory: gap", solution.gap, "", 0.01),
    ]


def time_pin(num_layers: int) -> list[Figure]:
    """A solve after one op is pinned in one layer, which splits a group, against the cold one."""
    stage = build_stage(make_gpt(num_layers), 8, "4x2")
    last = stage.solver.program.num_layers - 1
    began = time.perf_counter()
    solution = stage.solver.find(stage.shapes.find(0, last), None, np.inf, lambda: False)
    cold = stage.build_s + time.perf_counter() - began
    layer = num_layers // 3
    key = stage.shapes.keys[layer]
    variables = stage.solver.problems[key[0]].variables
    position = max(range(len(variables)), key=lambda v: variables[v].num_candidates)
    now = solution.choice[stage.problem.offsets[key] + position]
    pin: Restriction = ((position, ((now + 1) % variables[position].num_candidates,)),)
    began = time.perf_counter()
    stage.solver.find(stage.shapes.set_apart(layer, pin).find(0, last), None, np.inf, lambda: False)
    again = time.perf_counter() - began
    return [
        Figure(f"GPT, {num_layers} layers, 4x2: solve after a pin", again, "s"),
        Figure(f"GPT, {num_layers} layers, 4x2: solve after a pin / cold", again / cold, "", 0.1),
    ]


def time_regrets(num_layers: int, *, every: bool) -> list[Figure]:
    """Regrets of the op with most strategies, and of `every` decision, against one solve with its candidates."""
    stage = build_stage(make_gpt(num_layers), 8, "4x2")
    solution, seconds = solve(stage.problem)
    problem, name = stage.problem.problem, f"GPT, {num_layers} layers, 4x2: regrets"
    widest = max(range(problem.num_variables), key=lambda v: len(problem.unary[v]))
    find_forced_optima(problem, solution, [])  # loads the compiled loops
    parts = [(f"{name} of one op's {len(problem.unary[widest])} candidates", [widest], None)]
    if every:
        parts.append((f"{name} of all decisions", list(range(problem.num_variables)), 3.0))
    found = []
    for label, variables, target in parts:
        began = time.perf_counter()
        forced = find_forced_optima(problem, solution, variables)
        share = (time.perf_counter() - began) / (stage.build_s + seconds)
        proven = np.concatenate([part.is_exact for part in forced]).mean()
        found += [Figure(f"{label} / solve", share, "", target), Figure(f"{label}, proven", float(proven), "")]
    return found


def time_growth(counts: tuple[int, int]) -> list[Figure]:
    """From few to many equal layers."""
    few, many = (build_stage(make_gpt(count), 8, "4x2") for count in counts)
    (_, few_s), (_, many_s) = solve(few.problem), solve(many.problem)
    grown = (many.build_s + many_s) / (few.build_s + few_s)
    name = f"GPT, {counts[0]} to {counts[1]} layers, 4x2: growth of candidates and solve"
    return [Figure(name, grown, "", counts[1] / counts[0])]


def time_cold(mesh: str, target: float) -> Figure:
    """GPT-2 small from Python function to solution in a fresh process."""
    command = [sys.executable, "-m", "tests.benchmarks.stages", _CHILD, mesh]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    return Figure(f"GPT-2 small, {mesh}: function to solution, cold", json.loads(result.stdout), "s", target)


def run_cold(mesh: str) -> float:
    began = time.perf_counter()
    solve(build_stage(GPT_2_SMALL, 8, mesh).problem)
    return time.perf_counter() - began


def list_figures(options: Any) -> list[Figure]:
    found: list[Figure] = []

    def add(*figures: Figure) -> None:
        for figure in figures:
            print(figure, flush=True)
        found.extend(figures)

    meshes = (("8", 1.0), ("4x2", 2.5))
    for mesh, target in meshes[:1] if options.quick else meshes:
        add(time_cold(mesh, target))
    moe, resnet = get_model_config("moe-1.3b"), get_model_config("wide-resnet-500m")
    add(*time_large("MoE 1.3B", moe, 8, "4x2"))
    if not options.quick:
        add(*time_large("Wide-ResNet-50 500M", resnet, 32, "4x2"))
        add(*time_large("GPT, 24 layers", make_gpt(24), 8, "2x2x2"))
    add(*time_limited("MoE 1.3B", moe, 8), *time_limited("GPT, 24 layers", make_gpt(24), 8))
    add(*time_regrets(24, every=not options.quick))
    add(*time_pin(24), *time_growth((6, 24 if options.quick else 96)))
    if not options.quick:
        add(*compare_with_paper(8, 50.0, None, options.paper_seconds))
        add(*compare_with_paper(24, 300.0, 2.0, options.paper_seconds))
    return found


def main() -> int:
    """Measure, print; 1 if `--check` was given and a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="about a minute, without the paper's formulation")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--paper-seconds", type=float, default=600.0, help="when to stop the paper's formulation")
    parser.add_argument(_CHILD, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold is not None:
        print(json.dumps(run_cold(options.cold)))
        return 0
    figures = list_figures(options)
    return int(options.check and not all(figure.is_met for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
