"""The integer solver's process: missing, dying, hanging, silent, killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from alpaviz.errors import SolverError
from alpaviz.intra.problem import Edge, ShardingProblem, ShardingSolution, SolveStatus
from alpaviz.intra.solvers import process, solve_problem
from tests.sharding_problems import make_training_step

SMALL = ShardingProblem((np.array([1.0, 2.0]), np.array([0.0, 5.0])), (Edge(0, 1, np.array([[9.0, 0.0], [1.0, 0.0]])),))


def run_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(process, "list_child_command", lambda folder: [sys.executable, "-c", code, str(folder)])


def test_process_that_dies_is_told_from_a_problem_without_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "import os; print('out of memory', flush=True); os.kill(os.getpid(), 9)")
    with pytest.raises(SolverError, match=r"killed by signal 9 \(SIGKILL\).*out of memory.*solver='exact'"):
        solve_problem(SMALL, solver="ilp")


def test_process_that_exits_is_named_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "raise SystemExit(139)")
    with pytest.raises(SolverError, match="exit code 139"):
        solve_problem(SMALL, solver="ilp")


def test_process_that_hangs_is_killed_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "import time; time.sleep(60)")
    start = time.perf_counter()
    solution = solve_problem(SMALL, solver="ilp", time_limit=0.2)
    assert solution.status is SolveStatus.CANCELLED
    assert time.perf_counter() - start < 5.0


def test_process_that_hangs_is_killed_on_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "import time; time.sleep(60)")
    start = time.perf_counter()
    solution = solve_problem(SMALL, solver="ilp", should_stop=lambda: time.perf_counter() - start > 0.2)
    assert solution.status is SolveStatus.CANCELLED
    assert time.perf_counter() - start < 1.5


def test_missing_solver_says_what_was_looked_for_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Path(process.__file__).with_name("child.py")
    code = (
        "import os, sys, runpy; sys.modules['highspy'] = None; "
        f"sys.argv = ['child', sys.argv[1], str(os.getppid())]; runpy.run_path({str(child)!r}, run_name='__main__')"
    )
    run_instead(monkeypatch, code)
    with pytest.raises(SolverError, match=r"looked for HiGHS as Python package highspy.*pip install highspy.*exact"):
        solve_problem(SMALL, solver="ilp-highs")


def test_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prefix: str) -> str:
        raise PermissionError(13, "Permission denied", prefix)

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(SolverError, match=r"temporary folder.*Permission denied.*TMPDIR"):
        solve_problem(SMALL, solver="ilp")


def test_solver_prints_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    solution = solve_problem(SMALL, solver="ilp")
    assert solution.objective == 3.0
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("solver", ["ilp-highs", "paper"])
def test_a_kernel_that_is_killed_leaves_no_solver_and_no_folder(solver: str, tmp_path: Path) -> None:
    code = (
        "from alpaviz.intra.solvers import solve_problem\n"
        "from tests.sharding_problems import make_training_step\n"
        f"solve_problem(make_training_step(3), solver={solver!r})"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    kernel = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=Path(__file__).parents[2])
    wait_until(lambda: list_commands(tmp_path))
    kernel.kill()
    kernel.wait()
    wait_until(lambda: not list_commands(tmp_path) and not list(tmp_path.glob("alpaviz-solver-*")))


def list_commands(folder: Path) -> list[str]:
    """Command lines of all processes that name `folder`."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        if str(folder) in line:
            found.append(line)
    return found


def wait_until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < end, "waited for a minute"
        time.sleep(0.05)


def test_integer_solver_runs_from_a_thread() -> None:
    found: list[ShardingSolution] = []
    thread = threading.Thread(target=lambda: found.append(solve_problem(SMALL, solver="ilp")))
    thread.start()
    thread.join(30.0)
    assert found[0].objective == 3.0


def test_cancelled_integer_solve_keeps_the_choice_it_was_given() -> None:
    problem = make_training_step(1)
    start = time.perf_counter()
    warm = solve_problem(problem, solver="exact").choice
    solution = solve_problem(
        problem, solver="ilp", warm_start=warm, should_stop=lambda: time.perf_counter() - start > 0.3
    )
    assert solution.status in (SolveStatus.FEASIBLE, SolveStatus.OPTIMAL)
    assert solution.choice != ()
