"""Solved stages on disk: what another session finds there, and that nothing wrong is ever found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from alpaviz import stage_cache
from alpaviz.cluster import Cluster, Link, describe_cluster
from alpaviz.errors import SolveCancelledError
from alpaviz.intra import stage_solver
from alpaviz.intra.stage_problem import StagePrice
from alpaviz.intra.stage_records import SolvedStage, StageRecords
from alpaviz.plan import Plan
from alpaviz.planner import Planner
from alpaviz.stage_cache import StageCache, choose_folder, find_cost_model_version
from tests.program.small_models import adam_step, init_gpt_state

IDS = jax.ShapeDtypeStruct((8, 17), np.int32)
STATE = jax.eval_shape(lambda: init_gpt_state(3))
PRICE = StagePrice(1.5, 0.25, 1.0, 2.0, 3.0, 4.0)
SOLVED = SolvedStage((0, 3, 129), PRICE, 1.75, 1.7499, "exact")
UNSOLVED = SolvedStage((), None, np.inf, np.inf, "memory", 17.0)


def make_cluster(bandwidth: float = 1e10, memory_bytes: float | None = None) -> Cluster:
    cluster = describe_cluster("test", 1, 2, device="V100-16GB", link=Link(bandwidth, 1e-6), network=Link(1e9, 1e-5))
    if memory_bytes is None:
        return cluster
    host = cluster.hosts[0]
    return replace(cluster, hosts=(replace(host, device_type=replace(host.device_type, memory_bytes=memory_bytes)),))


def make_planner(folder: Path | str | None, cluster: Cluster | None = None, step: Any = adam_step) -> Planner:
    return Planner(step, STATE, IDS, cluster=cluster or make_cluster(), num_microbatches=2, cache=folder)


def solve(planner: Planner) -> Plan:
    return planner.solve(on_progress=lambda _: None)


def strip(plan: Plan) -> Plan:
    """`plan` without what the solve took."""
    return replace(plan, solver=replace(plan.solver, seconds=0.0, num_solved=0, notes=()))


@pytest.fixture
def count_solves(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many stages were solved since the last call."""
    calls: list[None] = []
    original = stage_solver.solve_problem

    def count(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        return original(*arguments, **options)

    def take() -> int:
        number = len(calls)
        calls.clear()
        return number

    monkeypatch.setattr(stage_solver, "solve_problem", count)
    return take


@pytest.fixture
def warm(tmp_path: Path, count_solves: Callable[[], int]) -> Path:
    """A folder in which the stages of the test's step are kept."""
    solve(make_planner(tmp_path))
    assert count_solves() > 0
    return tmp_path


def list_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.stages"))


def test_another_session_solves_nothing_again(warm: Path, count_solves: Callable[[], int]) -> None:
    solve(make_planner(warm))
    assert count_solves() == 0


def test_another_session_looks_at_the_layers_on_the_chosen_meshes_only(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meshes = set()
    original = stage_solver.build_layer_problem

    def note(*arguments: Any) -> Any:
        meshes.add(str(arguments[3].mesh))
        return original(*arguments)

    monkeypatch.setattr(stage_solver, "build_layer_problem", note)
    plan = solve(make_planner(warm))
    assert meshes == {"x".join(map(str, stage.mesh_shape)) for stage in plan.stages}


def test_a_plan_from_the_cache_is_the_plan_without_it(warm: Path) -> None:
    assert strip(solve(make_planner(warm))) == strip(solve(make_planner(None)))


def test_another_process_uses_the_cache(warm: Path) -> None:
    code = (
        "import sys\n"
        "from alpaviz.intra import stage_solver\n"
        "from tests.test_stage_cache import make_planner, solve\n"
        "def refuse(*_, **__): raise AssertionError('solved again')\n"
        "stage_solver.solve_problem = refuse\n"
        "print(repr(solve(make_planner(sys.argv[1])).solver.objective))\n"
    )
    root = Path(__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code, str(warm)], capture_output=True, text=True, check=True, cwd=root)
    assert float(run.stdout) == solve(make_planner(None)).solver.objective


def test_an_edit_that_changes_no_op_keeps_what_is_known(warm: Path, count_solves: Callable[[], int]) -> None:
    def renamed(state: Any, ids: Any) -> Any:
        with jax.named_scope("another_name"):
            return adam_step(state, ids)

    solve(make_planner(warm, step=renamed))
    assert count_solves() == 0


def test_another_version_of_the_cost_model_ignores_the_files(
    warm: Path, count_solves: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_cache, "COST_MODEL_VERSION", "another")
    solve(make_planner(warm))
    assert count_solves() > 0


@pytest.mark.parametrize("name", ["hardware/volta.toml", "intra/op_cost.py", "intra/solvers/exact.py"])
def test_an_edit_of_what_decides_costs_is_another_version_of_the_cost_model(name: str, tmp_path: Path) -> None:
    shutil.copytree(Path(stage_cache.__file__).parent, tmp_path / "alpaviz")
    with (tmp_path / "alpaviz" / name).open("a", encoding="utf-8") as file:
        file.write("# edited\n")
    assert find_cost_model_version(tmp_path / "alpaviz") != find_cost_model_version()


def test_a_copy_of_the_package_has_the_same_version_of_the_cost_model(tmp_path: Path) -> None:
    shutil.copytree(Path(stage_cache.__file__).parent, tmp_path / "alpaviz")
    assert find_cost_model_version(tmp_path / "alpaviz") == find_cost_model_version()


def test_another_bandwidth_solves_anew(warm: Path, count_solves: Callable[[], int]) -> None:
    solve(make_planner(warm, make_cluster(bandwidth=1e6)))
    assert count_solves() > 0


def test_less_memory_gives_the_plan_that_it_gives_without_a_cache(warm: Path) -> None:
    fullest = max(stage.memory.total_bytes for stage in solve(make_planner(warm)).stages)
    tight = make_cluster(memory_bytes=0.9 * fullest)
    assert strip(solve(make_planner(warm, tight))) == strip(solve(make_planner(None, tight)))


def test_a_pin_is_kept_by_a_plan_from_the_cache(warm: Path) -> None:
    def plan_with_pin(folder: Path | None) -> Plan:
        planner = make_planner(folder)
        planner.pin_num_stages(1)
        plan = solve(planner)
        op = next(op.name for op in plan.ops if op.is_decision and op.scope == "block_1/mlp")
        planner.pin_strategy(op, planner.alternatives(op)[1].strategy)
        return strip(solve(planner))

    plan_with_pin(warm)
    assert plan_with_pin(warm) == plan_with_pin(None)


def test_another_session_solves_nothing_again_after_the_same_pin(warm: Path, count_solves: Callable[[], int]) -> None:
    first = make_planner(warm)
    first.pin_num_stages(1)
    plan = solve(first)
    op = next(op.name for op in plan.ops if op.is_decision and op.scope == "block_1/mlp")
    choice = first.alternatives(op)[1].strategy
    first.pin_strategy(op, choice)
    solve(first)
    assert count_solves() > 0
    second = make_planner(warm)
    second.pin_num_stages(1)
    second.pin_strategy(op, choice)
    solve(second)
    assert count_solves() == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        lambda data: b"\x80\x04cos\nsystem\n(S'exit 1'\ntR.",
    ],
    ids=["empty", "cut off", "a changed bit", "a pickle"],
)
def test_damaged_files_are_ignored_and_written_anew(
    warm: Path, count_solves: Callable[[], int], damage: Callable[[bytes], bytes]
) -> None:
    for path in list_files(warm):
        path.write_bytes(damage(path.read_bytes()))
    solve(make_planner(warm))
    assert count_solves() > 0
    solve(make_planner(warm))
    assert count_solves() == 0


def test_a_file_under_the_name_of_another_is_ignored(tmp_path: Path) -> None:
    cache = StageCache(tmp_path)
    cache.save("a", StageRecords({"stage": SOLVED}))
    list_files(tmp_path)[0].rename(tmp_path / "b.stages")
    assert not cache.load("b").stages


def test_a_folder_that_cannot_be_written_is_told_once_and_the_solve_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    planner = make_planner(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="cannot be kept") as told:
        plan = solve(planner)
    assert len(told) == 1
    assert strip(plan) == strip(solve(make_planner(None)))


def test_a_cancelled_solve_leaves_only_what_is_right(tmp_path: Path, count_solves: Callable[[], int]) -> None:
    planner = make_planner(tmp_path)

    def cancel_once_stages_are_solved() -> None:
        progress = planner.progress
        if progress and progress.phase == "choosing stages" and progress.done == 1:
            planner.cancel()

    planner.subscribe(cancel_once_stages_are_solved)
    with pytest.raises(SolveCancelledError):
        solve(planner)
    assert count_solves() > 0
    assert strip(solve(make_planner(tmp_path))) == strip(solve(make_planner(None)))


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    StageCache(tmp_path).save("key", StageRecords({"a": SOLVED, "b": UNSOLVED}, {"group": 12.5}))
    found = StageCache(tmp_path).load("key")
    assert (found.stages, found.least_bytes) == ({"a": SOLVED, "b": UNSOLVED}, {"group": 12.5})


def test_what_another_process_has_written_is_kept(tmp_path: Path) -> None:
    ours, theirs = StageCache(tmp_path), StageCache(tmp_path)
    records = ours.load("key")
    theirs.save("key", StageRecords({"theirs": SOLVED}))
    records.keep_stage("ours", UNSOLVED)
    ours.save("key", records)
    assert set(ours.load("key").stages) == {"ours", "theirs"}


def test_the_folder_keeps_its_size_by_dropping_what_was_not_used_for_longest(tmp_path: Path) -> None:
    cache = StageCache(tmp_path)
    cache.save("a", StageRecords({"stage": SOLVED}))
    size = list_files(tmp_path)[0].stat().st_size
    small = StageCache(tmp_path, most_bytes=5 * size // 2)
    small.save("b", StageRecords({"stage": SOLVED}))
    for age, name in enumerate(("a", "b")):
        os.utime(tmp_path / f"{name}.stages", (age, age))
    small.load("a")
    small.save("c", StageRecords({"stage": SOLVED}))
    assert [path.stem for path in list_files(tmp_path)] == ["a", "c"]


def test_a_file_keeps_its_size_by_dropping_what_was_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_cache, "MOST_FILE_BYTES", 2000)
    cache = StageCache(tmp_path)
    cache.save("key", StageRecords({f"stage {i}": SOLVED for i in range(100)}))
    kept = cache.load("key").stages
    assert list_files(tmp_path)[0].stat().st_size <= 2000
    assert "stage 99" in kept
    assert "stage 0" not in kept


def test_the_folder_is_the_users_cache_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALPAVIZ_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert choose_folder() == tmp_path / "alpaviz"


@pytest.mark.parametrize(("value", "folder"), [("off", None), ("", None), ("/some/folder", Path("/some/folder"))])
def test_an_environment_variable_names_the_folder_or_turns_the_cache_off(
    value: str, folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALPAVIZ_CACHE", value)
    assert choose_folder() == folder
