"""Starts the process that compiles a plan's stages, listens, and kills it when time is up or the caller says stop."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from alpaviz.errors import SolveCancelledError, VerificationError
from alpaviz.plan import Plan
from alpaviz.plan_check import validate_plan
from alpaviz.plan_file import plan_to_json
from alpaviz.program.program import Program
from alpaviz.program.recompute import fit_to_layers
from alpaviz.runtime.recipes import pickle_recipe
from alpaviz.verify.report import Verification

_POLL_S = 0.05
_CONFIG = ("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_matmul_precision")
"""Settings of JAX that change what a step is traced to."""
_COUNT_FLAG = re.compile(r"--xla_force_host_platform_device_count=\S*")

Report = Callable[[int, int], None]


def verify_plan(
    plan: Plan,
    program: Program,
    *,
    timeout_s: float = 600.0,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: Report = lambda done, total: None,
) -> Verification:
    """Compile every stage of `plan` for virtual CPU devices in a process of its own, and compare.

    Args:
        program: the traced step that the plan was made for.
        timeout_s: seconds after which the process is ended.
        should_stop: asked often; ends the process where true.
        on_progress: called with the stages done and their number.

    Raises:
        PlanMismatchError: the plan is for another program.
        VerificationError: the step cannot be handed to the process or traced there, or the process died or took too
            long. The plan is as it was.
        SolveCancelledError: `should_stop` became true.
    """
    program = fit_to_layers(program, plan.program.recomputed_layers)
    validate_plan(plan, program)
    request = make_request(plan, program)
    try:
        folder = Path(tempfile.mkdtemp(prefix="alpaviz-verify-"))
        (folder / "request.pickle").write_bytes(request)
    except OSError as error:
        raise VerificationError(
            f"Verifying needs a temporary folder and none can be written ({error}): set TMPDIR to one with free space."
        ) from error
    try:
        with (folder / "output.txt").open("wb") as output:
            process = _start(folder, max(stage.num_devices for stage in plan.stages), output)
            try:
                _wait(process, folder, time.monotonic() + timeout_s, timeout_s, should_stop, on_progress)
            finally:
                _kill(process)
        return _read_answer(process.returncode, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_request(plan: Plan, program: Program) -> bytes:
    """What the process is asked. Raises `VerificationError` where the step cannot be pickled."""
    if program.recipe is None:
        raise VerificationError("The program does not know how it was traced: trace it in this process.")
    import jax

    try:
        recipe = pickle_recipe(program.recipe)
    except Exception as error:
        raise VerificationError(
            f"The step cannot be handed to the process that compiles it, since it closes over something that cannot be "
            f"pickled ({type(error).__name__}: {error!s:.300}). Make that where the step is defined, or pass it in."
        ) from error
    config = {name: getattr(jax.config, name) for name in _CONFIG if hasattr(jax.config, name)}
    request = {"path": list(sys.path), "config": config, "plan": plan_to_json(plan), "recipe": recipe}
    return pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)


def list_child_command(folder: Path) -> list[str]:
    """Command line of the process; `-P` keeps this folder's modules from shadowing others by name."""
    if not sys.executable:
        raise VerificationError("Verifying compiles in a process of its own, and sys.executable is empty here.")
    return [sys.executable, "-P", str(Path(__file__).with_name("child.py")), str(folder)]


def _start(folder: Path, num_devices: int, output: Any) -> subprocess.Popen[bytes]:
    flags = _COUNT_FLAG.sub("", os.environ.get("XLA_FLAGS", ""))
    environment = {
        **os.environ, "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={num_devices}".strip(),
    }  # fmt: skip
    command = list_child_command(folder)
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env=environment,
        )  # fmt: skip
    except OSError as error:
        raise VerificationError(
            f"The process that compiles can't be started: {' '.join(command)} ({error})."
        ) from error


def _wait(
    process: subprocess.Popen[bytes],
    folder: Path,
    deadline: float,
    timeout_s: float,
    should_stop: Callable[[], bool],
    on_progress: Report,
) -> None:
    seen: list[int] = []
    while process.poll() is None:
        if should_stop():
            raise SolveCancelledError("The verification was cancelled; the plan is as it was.")
        if time.monotonic() > deadline:
            where = f" at stage {seen[0]} of {seen[1]}" if seen else " while it traced the step"
            raise VerificationError(
                f"Compiling the plan's stages took longer than {timeout_s:g} s and was ended{where}. Give it more time "
                "with timeout_s."
            )
        progress = folder / "progress.json"
        now = json.loads(progress.read_text()) if progress.exists() else []
        if now != seen:
            seen = now
            on_progress(*now)
        time.sleep(_POLL_S)


def _read_answer(code: int, folder: Path) -> Verification:
    answer = folder / "answer.pickle"
    if code != 0 or not answer.exists():
        how = f"was killed by signal {-code} ({_name_signal(-code)})" if code < 0 else f"ended with exit code {code}"
        last = (folder / "output.txt").read_text(errors="replace").strip().splitlines()[-3:]
        raise VerificationError(
            f"The process that compiles the plan's stages {how} before it had an answer; last words: "
            f"{' | '.join(last) or 'none'}. The plan is as it was."
        )
    content: dict[str, Any] = pickle.loads(answer.read_bytes())
    if "error" in content:
        raise VerificationError(f"The plan could not be held against XLA: {content['error']}")
    verification: Verification = content["verification"]
    return verification


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()
