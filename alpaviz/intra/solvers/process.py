"""Runs the integer solver's process: starts it, listens, and kills it when time is up or the caller says stop."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alpaviz.errors import SolverError
from alpaviz.intra.solvers.watch import Watch

_POLL_SECONDS = 0.03
_GRACE_SECONDS = 1.0
"""A solver may need a moment to wind up after its own time limit, before the limit from outside kills it."""


def list_child_command(folder: Path) -> list[str]:
    """Command line of the solver process; `-P` keeps this folder's modules from shadowing others by name."""
    if not sys.executable:
        raise SolverError("the integer solver runs in a process of its own, and sys.executable is empty here")
    return [sys.executable, "-P", str(Path(__file__).with_name("child.py")), str(folder), str(os.getpid())]


def run_child(
    request: dict[str, Any], watch: Watch, on_progress: Callable[[dict[str, Any]], None]
) -> dict[str, Any] | None:
    """The child's answer; None where it was stopped by `watch`, after its last progress was passed on.

    Raises:
        SolverError: there is no folder to write to, no solver, or the process died.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="alpaviz-solver-"))
        (folder / "request.pickle").write_bytes(pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL))
    except OSError as error:
        raise SolverError(
            f"the integer solver needs a temporary folder and none can be written ({error}); set TMPDIR to a folder "
            f"with free space, or use solver='exact'"
        ) from error
    try:
        with (folder / "output.txt").open("wb") as output:
            process = _start(list_child_command(folder), output)
            try:
                answer = _wait(process, folder, watch, on_progress)
            finally:
                _kill(process)
        return answer
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(command: list[str], output: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        raise SolverError(f"the integer solver's process can't be started: {' '.join(command)} ({error})") from error


def _wait(
    process: subprocess.Popen[bytes], folder: Path, watch: Watch, on_progress: Callable[[dict[str, Any]], None]
) -> dict[str, Any] | None:
    seen = 0.0
    while True:
        code = process.poll()
        progress = folder / "progress.pickle"
        if progress.exists() and progress.stat().st_mtime != seen:
            seen = progress.stat().st_mtime
            on_progress(pickle.loads(progress.read_bytes()))
        if code is not None:
            return _read_answer(code, folder)
        if watch.is_over() and (watch.is_cancelled or watch.seconds_left < -_GRACE_SECONDS):
            return None
        time.sleep(_POLL_SECONDS)


def _read_answer(code: int, folder: Path) -> dict[str, Any]:
    answer = folder / "answer.pickle"
    if code != 0 or not answer.exists():
        how = f"was killed by signal {-code} ({_name_signal(-code)})" if code < 0 else f"ended with exit code {code}"
        last = (folder / "output.txt").read_text(errors="replace").strip().splitlines()[-3:]
        raise SolverError(
            f"the integer solver's process {how} before it had an answer; last words: {' | '.join(last) or 'none'}. "
            f"Use solver='exact', or another solver with solver='ilp-highs' or 'ilp-cbc'"
        )
    content: dict[str, Any] = pickle.loads(answer.read_bytes())
    if content["status"] == "missing":
        raise SolverError(f"no integer solver found: {content['message']}; or use solver='exact', which needs none")
    return content


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started (CBC is a process of its own)."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
