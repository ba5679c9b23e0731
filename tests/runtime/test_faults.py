"""Faults of the cluster, each by causing it: what the user reads, and that training goes on from a checkpoint."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import alpaviz
from alpaviz.errors import CheckpointError, LaunchError
from alpaviz.planner import Planner
from alpaviz.runtime import ray_session
from alpaviz.runtime.ray_watch import list_versions, refuse_other_versions
from tests.runtime.checkpoint_steps import BATCH, KEY, assert_same_bits, initialize, plan

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module", autouse=True)
def running_ray() -> Iterator[None]:
    """One Ray for the module."""
    ray_session._start(ray)  # which allows for a machine that is busy
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def planner() -> Planner:
    """Two stages, each on a host of its own."""
    return plan("virtual:2x1", 2)


@pytest.fixture(scope="module")
def unbroken(planner: Planner) -> list[float]:
    """Losses of five steps without a fault, on devices of this process."""
    with planner.launch(backend="local") as executable:
        return train(executable, executable.initialize(initialize, KEY), 5)[1]


def train(executable: Any, state: Any, steps: int) -> tuple[Any, list[float]]:
    losses = []
    for _ in range(steps):
        state, loss = executable(state, BATCH)
        losses.append(float(loss))
    return state, losses


# Workers.


@dataclass(frozen=True, slots=True)
class Broken:
    """A training whose worker was killed after two steps and a checkpoint of them."""

    executable: Any
    folder: Path
    losses: list[float]
    message: str
    seconds: float


@pytest.fixture(scope="module")
def broken(planner: Planner, tmp_path_factory: pytest.TempPathFactory) -> Broken:
    folder = tmp_path_factory.mktemp("broken")
    executable = planner.launch(backend="ray", timeout_s=60.0)
    state, losses = train(executable, executable.initialize(initialize, KEY), 2)
    executable.save(state, folder, 2)
    os.kill(executable._pids[1], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        train(executable, state, 3)
    return Broken(executable, folder, losses, str(caught.value), time.monotonic() - began)


def test_a_killed_worker_is_named_with_its_stage_within_ten_seconds(broken: Broken) -> None:
    assert broken.message.startswith("The worker of host 1 (stage 1) died. Launch the plan again")
    assert broken.seconds < 10


def test_training_goes_on_from_the_last_checkpoint(planner: Planner, unbroken: list[float], broken: Broken) -> None:
    with planner.launch(backend="local") as executable:
        _, rest = train(executable, executable.restore(broken.folder), 3)
    np.testing.assert_allclose(broken.losses + rest, unbroken, rtol=1e-6)


def test_training_goes_on_with_the_hosts_that_are_left(unbroken: list[float], broken: Broken) -> None:
    with pytest.warns(UserWarning, match="cannot be kept and were left out: there are 2 stages"):
        remaining = broken.executable.replan()
    with remaining:
        assert remaining.plan.cluster.num_devices == 1
        _, rest = train(remaining, remaining.restore(broken.folder), 3)
    np.testing.assert_allclose(broken.losses + rest, unbroken, rtol=1e-5)


def test_a_worker_that_hangs_is_named_with_its_stage(planner: Planner) -> None:
    executable = planner.launch(backend="ray", timeout_s=60.0)
    pids = list(executable._pids)
    try:
        state, _ = train(executable, executable.initialize(initialize, KEY), 1)
        executable._timeout_s = 3.0  # shorter than a start may take
        os.kill(pids[1], signal.SIGSTOP)
        with pytest.raises(LaunchError, match=r"worker of host 1 \(stage 1\) has not answered for 3 s: it hangs"):
            train(executable, state, 1)
        with pytest.raises(LaunchError, match=r"cannot go on, as the worker of host 1 \(stage 1\) hangs"):
            train(executable, state, 1)
    finally:
        executable.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "a stopped process is ended too"


def test_a_worker_with_another_jax_is_refused_with_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "jax-0.0.7.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 0.0.7\n")
    found = ray_session._choose_import_path().get("PYTHONPATH", "")
    monkeypatch.setattr(ray_session, "_choose_import_path", lambda: {"PYTHONPATH": f"{tmp_path}{os.pathsep}{found}"})
    message = rf"worker of host 0 \(stage 0\) has jax 0\.0\.7, this process has jax {re.escape(version('jax'))}"
    with pytest.raises(LaunchError, match=message):
        plan("virtual:1", 1).launch(backend="ray", timeout_s=60.0)


def test_a_worker_with_another_alpaviz_is_refused_with_both_versions() -> None:
    with pytest.raises(
        LaunchError, match=rf"host 1 has alpaviz 0\.0\.7, this process has alpaviz {alpaviz.__version__}"
    ):
        refuse_other_versions({**list_versions(), "alpaviz": "0.0.7"}, "host 1")


# Disks.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small disk needs root: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("backend", ["local", "ray"])
def test_a_full_disk_leaves_the_older_checkpoint_and_a_usable_executable(
    planner: Planner, small_disk: Path, backend: str
) -> None:
    with planner.launch(backend=backend) as executable:
        state = executable.place(initialize(KEY))
        executable.save(state, small_disk, 1)
        filling = small_disk / "filling"
        filling.write_bytes(b"x" * shutil.disk_usage(small_disk).free)
        with pytest.raises(CheckpointError, match=r"no space is left on the disk"):
            executable.save(state, small_disk, 2)
        assert sorted(entry.name for entry in small_disk.iterdir()) == ["filling", "step_00000001"]
        assert_same_bits(executable.fetch(executable.restore(small_disk)), initialize(KEY))
        filling.unlink()
        executable.save(state, small_disk, 2)


def test_a_segmentation_fault_in_a_worker_that_saves_leaves_the_older_checkpoint(
    planner: Planner, tmp_path: Path
) -> None:
    with planner.launch(backend="ray", timeout_s=60.0) as executable:
        state = executable.initialize(initialize, KEY)
        executable.save(state, tmp_path, 1)
        os.kill(executable._pids[0], signal.SIGSTOP)  # so that the fault meets it in the middle
        os.kill(executable._pids[0], signal.SIGSEGV)
        threading.Timer(0.5, os.kill, (executable._pids[0], signal.SIGCONT)).start()
        with pytest.raises(LaunchError, match=r"worker of host 0 \(stage 0\) died"):
            executable.save(state, tmp_path, 2)
        assert alpaviz.list_checkpoints(tmp_path) == (1,)
        assert [entry.name for entry in tmp_path.iterdir()] == ["step_00000001"]
