"""The public benchmark's format, and its transformer instance where the file is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alpaviz.intra.iopddl import read_iopddl
from alpaviz.intra.problem import SolveStatus
from alpaviz.intra.solvers import solve_problem
from alpaviz.intra.solvers.large.rows import spell_out
from tests.benchmarks.intra_solvers import find_shared
from tests.sharding_problems import find_best_cost

CONTENT = {
    "problem": {
        "name": "two overlapping nodes and one later",
        "nodes": {
            "intervals": [[0, 10], [5, 20], [10, 20]],
            "costs": [[1, 4], [2, 3], [5, 10**18]],
            "usages": [[30, 10], [20, 25], [5, 0]],
        },
        "edges": {"nodes": [[0, 1], [1, 2], [1, 0]], "costs": [[0, 1, 1, 0], [0, 0, 2, 0], [0, 0, 0, 6]]},
        "usage_limit": 45,
    }
}


def write(folder: Path) -> Path:
    path = folder / "small.json"
    path.write_text(json.dumps(CONTENT))
    return path


def test_parallel_edges_are_added_and_big_costs_forbid(tmp_path: Path) -> None:
    problem = read_iopddl(write(tmp_path))
    assert [e.cost.tolist() for e in problem.edges if e.u == 0] == [[[0.0, 1.0], [1.0, 6.0]]]
    assert problem.price((0, 0, 1)) == float("inf")


def test_rows_hold_the_nodes_alive_together(tmp_path: Path) -> None:
    rows = spell_out(read_iopddl(write(tmp_path))).memory
    assert [(row.name, row.variables) for row in rows] == [("time 5", (0, 1)), ("time 10", (1, 2))]


def test_small_instance_is_solved_as_brute_force_solves_it(tmp_path: Path) -> None:
    problem = read_iopddl(write(tmp_path))
    assert find_best_cost(spell_out(problem)) == 12.0
    assert solve_problem(problem).objective == 12.0


def test_transformer_instance_is_proven_optimal() -> None:
    path = find_shared() / "iopddl" / "asplos-2025-iopddl-G.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not at hand; set ALPAVIZ_SHARED to the folder that holds iopddl/")
    solution = solve_problem(read_iopddl(path), time_limit=60.0)
    assert (solution.status, solution.objective) == (SolveStatus.OPTIMAL, 217_039.0)
