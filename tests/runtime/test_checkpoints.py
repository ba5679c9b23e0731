"""`executable.save` and `restore`: every leaf comes back bit by bit, onto any plan, and damage is told by leaf."""

from __future__ import annotations

import builtins
import functools
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import alpaviz
from alpaviz.errors import CheckpointError, LaunchError
from alpaviz.planner import Planner
from alpaviz.runtime import checkpoint_pieces, ray_session
from tests.runtime.checkpoint_steps import BATCH, KEY, WIDTH, assert_same_bits, initialize, plan, step

PLANS: dict[str, tuple[str, int, str | None, str | None]] = {
    "one device": ("virtual:1", 1, None, None),
    "rows over four devices": ("virtual:4", 1, "4", "[x, -]"),
    "columns over two devices": ("virtual:2", 1, "2", "[-, x]"),
    "blocks over eight devices": ("virtual:8", 1, "4x2", "[x, y]"),
    "two stages": ("virtual:4", 2, None, None),
}


@functools.cache
def find_plan(name: str) -> Planner:
    cluster, stages, mesh, split = PLANS[name]
    return plan(cluster, stages, mesh, split=split)


def launch(name: str, **options: Any) -> Any:
    return find_plan(name).launch(backend="local", **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of step 5, from rows over four devices."""
    folder = tmp_path_factory.mktemp("saved")
    with launch("rows over four devices") as executable:
        executable.save(executable.place(initialize(KEY)), folder, 5)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of `saved` to do harm to."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


@pytest.fixture(scope="module")
def executable() -> Iterator[Any]:
    with launch("columns over two devices") as launched:
        yield launched


@pytest.mark.parametrize("target", PLANS)
def test_a_checkpoint_is_restored_onto_any_plan_bit_by_bit(saved: Path, target: str) -> None:
    with launch(target) as executable:
        restored = executable.restore(saved)
        assert_same_bits(executable.fetch(restored), initialize(KEY))


@pytest.mark.parametrize("source", PLANS)
def test_a_checkpoint_is_saved_from_any_plan_bit_by_bit(tmp_path: Path, source: str, executable: Any) -> None:
    with launch(source) as writer:
        writer.save(writer.place(initialize(KEY)), tmp_path)
    assert_same_bits(executable.fetch(executable.restore(tmp_path)), initialize(KEY))


def test_a_restored_state_lies_as_an_initialized_one_does(saved: Path, executable: Any) -> None:
    restored, created = executable.restore(saved), executable.initialize(initialize, KEY)
    shardings = [[leaf.sharding for leaf in jax.tree.leaves(jax.tree.map(lambda s: getattr(s, "lanes", s), tree))]
                 for tree in (restored, created)]  # fmt: skip
    assert shardings[0] == shardings[1]


def test_no_piece_is_more_than_one_device_holds(saved: Path) -> None:
    index = json.loads((saved / "step_00000005" / "index.json").read_text())
    (head,) = [leaf for leaf in index["leaves"] if leaf["name"] == "state['head']"]
    assert [piece["bounds"] for piece in head["pieces"]] == [[[4 * i, 4 * i + 4], [0, 8]] for i in range(4)]


def test_no_piece_is_read_twice(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    read_keys = checkpoint_pieces._read_keys
    monkeypatch.setattr(
        checkpoint_pieces, "_read_keys", lambda part, host, keys: (read.extend(keys), read_keys(part, host, keys))[1]
    )
    with launch("two stages") as executable:
        executable.restore(saved)
    assert len(read) == len(set(read))


def test_a_state_of_the_host_can_be_saved(tmp_path: Path, executable: Any) -> None:
    state = {**initialize(KEY), "count": 0, "head": np.ones((WIDTH, 8), np.float32)}
    executable.save(state, tmp_path)
    restored = executable.fetch(executable.restore(tmp_path))
    assert int(restored["count"]) == 0
    np.testing.assert_array_equal(restored["head"], state["head"])


@pytest.mark.parametrize("donate_state", [False, True])
def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path, donate_state: bool) -> None:
    unbroken: list[float] = []
    with launch("two stages", donate_state=donate_state) as executable:
        state = executable.initialize(initialize, KEY)
        for number in range(6):
            if number == 3:
                executable.save(state, tmp_path, number)
            state, loss = executable(state, BATCH)
            unbroken.append(float(loss))
    with launch("two stages", donate_state=donate_state) as executable:
        state = executable.restore(tmp_path)
        resumed = []
        for _ in range(3):
            state, loss = executable(state, BATCH)
            resumed.append(float(loss))
    assert resumed == unbroken[3:]


# Which checkpoint.


def test_the_newest_checkpoint_is_restored_unless_a_step_is_named(tmp_path: Path, executable: Any) -> None:
    state = initialize(KEY)
    for number in (2, 10, 3):
        executable.save({**state, "count": jnp.int32(number)}, tmp_path, number)
    assert alpaviz.list_checkpoints(tmp_path) == (2, 3, 10)
    assert int(executable.restore(tmp_path)["count"]) == 10
    assert int(executable.restore(tmp_path, 3)["count"]) == 3


def test_checkpoints_without_a_step_are_counted(tmp_path: Path, executable: Any) -> None:
    for _ in range(2):
        executable.save(initialize(KEY), tmp_path)
    assert alpaviz.list_checkpoints(tmp_path) == (0, 1)


def test_a_step_that_was_saved_is_not_overwritten(saved: Path, executable: Any) -> None:
    with pytest.raises(CheckpointError, match=r"a checkpoint of step 5 in .* already"):
        executable.save(initialize(KEY), saved, 5)


def test_a_folder_without_checkpoints_is_named(tmp_path: Path, executable: Any) -> None:
    with pytest.raises(CheckpointError, match=f"no checkpoint in {re.escape(str(tmp_path))}"):
        executable.restore(tmp_path)


def test_steps_that_there_are_are_named(saved: Path, executable: Any) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7 in .*; there are 5"):
        executable.restore(saved, 7)


# Damage.


def list_data_files(folder: Path) -> list[Path]:
    """The files of a checkpoint that hold arrays, the largest last."""
    files = [p for p in (folder / "step_00000005" / "host_0000").rglob("*") if p.is_file() and p.parent.name == "d"]
    return sorted(files, key=lambda p: p.stat().st_size)


def test_a_missing_host_folder_is_told_with_a_leaf(folder: Path, executable: Any) -> None:
    shutil.rmtree(folder / "step_00000005" / "host_0000")
    with pytest.raises(
        CheckpointError, match=r"copy/step_00000005 is damaged: state\['\w+'\] cannot be read from host_0000"
    ):
        executable.restore(folder)


def test_truncated_data_is_told_with_a_leaf(folder: Path, executable: Any) -> None:
    for path in list_data_files(folder):
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CheckpointError, match=r"is damaged: state\['\w+'\]"):
        executable.restore(folder)


def test_bytes_that_changed_are_noticed(folder: Path, executable: Any) -> None:
    path = folder / "step_00000005" / "index.json"
    index = json.loads(path.read_text())
    (head,) = [leaf for leaf in index["leaves"] if leaf["name"] == "state['head']"]
    head["pieces"][2]["checksum"] ^= 1
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"state\['head'\] has other bytes in host_0000 than were written"):
        executable.restore(folder)


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "\ufffd"], ids=["empty", "cut", "no leaves", "no JSON"])
def test_a_damaged_index_is_told_with_its_folder(folder: Path, executable: Any, text: str) -> None:
    (folder / "step_00000005" / "index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"copy/step_00000005 is (damaged|of format)"):
        executable.restore(folder)


def test_an_index_without_all_pieces_is_told_with_the_leaf(folder: Path, executable: Any) -> None:
    path = folder / "step_00000005" / "index.json"
    index = json.loads(path.read_text())
    (stack,) = [leaf for leaf in index["leaves"] if leaf["name"] == "state['stack']"]
    del stack["pieces"][1]
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"its pieces do not make up all of state\['stack'\]"):
        executable.restore(folder)


def test_a_checkpoint_of_a_later_format_is_refused(folder: Path, executable: Any) -> None:
    (folder / "step_00000005" / "index.json").write_text('{"format": 99}')
    with pytest.raises(CheckpointError, match="is of format 99; this AlpaViz reads format 1"):
        executable.restore(folder)


# Other states.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {**s, "extra": jnp.ones(3)}, r"has no leaf state\['extra'\]"),
        (lambda s: {k: v for k, v in s.items() if k != "empty"}, r"has a leaf state\['empty'\], which the step's"),
        (lambda s: {**s, "empty": jnp.zeros((0, 4))}, r"state\['empty'\] as float32\[0, 3\].*float32\[0, 4\]"),
        (lambda s: {**s, "empty": jnp.zeros((0, 3), jnp.int32)}, r"state\['empty'\] as float32\[0, 3\].*int32\[0, 3\]"),
    ],
    ids=["a leaf more", "a leaf less", "another shape", "another dtype"],
)
def test_a_checkpoint_of_another_state_is_refused_by_leaf_and_folder(saved: Path, change: Any, message: str) -> None:
    planner = Planner(step, jax.eval_shape(lambda: change(initialize(KEY))), BATCH, cluster="virtual:1")
    planner.solve(on_progress=lambda _: None)
    with planner.launch() as executable, pytest.raises(CheckpointError, match=r"saved\d*/step_00000005.*" + message):
        executable.restore(saved)


def test_a_state_of_another_structure_is_not_saved(tmp_path: Path, executable: Any) -> None:
    with pytest.raises(LaunchError, match=r"'extra'.* is new"):
        executable.save({**initialize(KEY), "extra": jnp.ones(3)}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_donated_state_is_not_saved(tmp_path: Path) -> None:
    with launch("two stages", donate_state=True) as executable:
        state = executable.place(initialize(KEY))
        executable(state, BATCH)
        with pytest.raises(LaunchError, match=r"deleted: it was donated"):
            executable.save(state, tmp_path)


# Failures while saving.


def test_a_failed_save_leaves_the_older_checkpoint_and_nothing_else(
    folder: Path, executable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise CheckpointError("no more")

    monkeypatch.setattr("alpaviz.runtime.checkpoints.write_index", fail)
    with pytest.raises(CheckpointError, match="no more"):
        executable.save(initialize(KEY), folder, 6)
    assert [entry.name for entry in folder.iterdir()] == ["step_00000005"]
    assert_same_bits(executable.fetch(executable.restore(folder)), initialize(KEY))


def test_what_a_killed_save_has_left_goes_with_the_next(tmp_path: Path, executable: Any) -> None:
    (tmp_path / ".partial_step_00000001" / "host_0000").mkdir(parents=True)
    executable.save(initialize(KEY), tmp_path, 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_00000001"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, executable: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file/below/step_00000000 could not be written"):
        executable.save(initialize(KEY), tmp_path / "file" / "below")


def test_without_orbax_the_error_says_what_to_install(
    tmp_path: Path, executable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_module = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.startswith("orbax"):
            raise ImportError(name)
        return import_module(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(CheckpointError, match=r"pip install alpaviz\[checkpoints\]"):
        executable.save(initialize(KEY), tmp_path)


# Ray.


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("running_ray")
def test_hosts_of_one_mesh_save_and_restore_each_its_own(tmp_path: Path, saved: Path, executable: Any) -> None:
    with plan("virtual:2x1", 1, "2", split="[x, -]").launch(backend="ray", timeout_s=60.0) as remote:
        state = remote.restore(saved)
        assert_same_bits(remote.fetch(state), initialize(KEY))
        path = remote.save(state, tmp_path, 1)
        assert sorted(entry.name for entry in path.iterdir()) == ["host_0000", "host_0001", "index.json"]
        remote.save(initialize(KEY), tmp_path, 2)
    for number in (1, 2):
        assert_same_bits(executable.fetch(executable.restore(tmp_path, number)), initialize(KEY))


@pytest.fixture(scope="module")
def running_ray() -> Iterator[None]:
    """One Ray for the module."""
    import ray

    ray_session._start(ray)  # which allows for a machine that is busy
    yield
    ray.shutdown()
