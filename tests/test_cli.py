"""The command line, in process."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

import alpaviz
from alpaviz.cli import main
from alpaviz.plan_file import load_plan

TINY = ["plan", "gpt-tiny", "--cluster", "virtual:4"]


def fail(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Standard error of a command that must fail with code 2, in one line, and say nothing else."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("[")]  # without progress
    assert out == ""
    assert len(lines) == 1
    return lines[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of two stages, written by the command."""
    path = tmp_path_factory.mktemp("plans") / "two.alpaplan.json"
    assert main([*TINY, "--stages", "2", "--output", str(path), "--quiet"]) == 0
    return path


def test_planning_prints_the_plan_and_its_progress(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--batch-size", "8", "--num-microbatches", "2", "--layers", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Plan of gpt-tiny on virtual:4\n")
    assert "in 2 layers" in out
    assert "2 microbatches" in out
    assert "tracing" in err
    assert "writing the plan" in err


def test_a_plan_is_saved_with_the_stages_asked_for(saved: Path) -> None:
    plan = load_plan(saved)
    assert plan.num_stages == 2
    assert plan.program.name == "gpt-tiny"
    assert [str(pin) for pin in plan.pins] == ["there are 2 stages"]


def test_quiet_says_nothing_where_the_plan_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gpipe.json"
    assert main([*TINY, "--schedule", "gpipe", "--output", str(path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert load_plan(path).schedule == "gpipe"


def test_microbatches_and_schedule_are_searched_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "searched.json"
    asked = ("--num-microbatches", "auto", "--schedule", "auto", "--batch-size", "4")
    assert main([*TINY, *asked, "--output", str(path)]) == 0
    plan = load_plan(path)
    assert {(t.num_microbatches, t.schedule) for t in plan.solver.tries} == {
        (count, schedule) for count in (1, 2, 4) for schedule in ("1f1b", "gpipe")
    }
    assert "Microbatches and schedule: " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*TINY, "--num-microbatches", "some"])
    assert "'some' is neither a whole number above 0 nor 'auto'" in capsys.readouterr().err


def test_showing_a_plan_prints_what_planning_printed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(saved)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Plan of gpt-tiny on virtual:4\n")
    assert out.endswith("Pins\n  there are 2 stages\n")
    assert err == ""


def test_comparing_names_what_changed(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "one.json"
    assert main([*TINY, "--stages", "1", "--output", str(other), "--quiet"]) == 0
    assert main(["compare", str(saved), str(other)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The step is ")
    assert "there is 1 stage" in out
    assert "stage 1" in out


def test_a_plan_that_takes_too_long_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    message = fail(capsys, "plan", "gpt-39b", "--cluster", "p3.16xlarge:8", "--time-limit", "1")
    assert message.startswith("alpaviz: error: No plan was found in 1 s. Give it more time")


def test_a_time_limit_that_is_kept_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert main([*TINY, "--stages", "1", "--time-limit", "600", "--quiet", "--output", str(path)]) == 0
    assert load_plan(path).num_stages == 1


def test_models_and_clusters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    models = capsys.readouterr().out
    assert "gpt-1.3b     1.32 billion parameters\n" in models
    assert "gpt-tiny" in models
    assert main(["clusters"]) == 0
    clusters = capsys.readouterr().out
    assert "p3.16xlarge      8 x V100-16GB (16 GB) a host" in clusters
    assert "virtual:2x4" in clusters


def test_an_unknown_model_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    message = fail(capsys, "plan", "gpt-9t")
    assert message.startswith("alpaviz: error: No model is called 'gpt-9t'. Models: ")
    assert "gpt-1.3b" in message


def test_an_unknown_cluster_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    message = fail(capsys, "plan", "gpt-tiny", "--cluster", "abacus")
    assert message.startswith("alpaviz: error: No cluster preset is called 'abacus'. Presets: p3.16xlarge")


def test_an_unknown_solver_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No solver is called 'guess'. Known: auto, exact, ilp" in fail(capsys, *TINY, "--solver", "guess")


def test_microbatches_that_do_not_divide_the_batch_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Choose a num_microbatches that divides 16" in fail(capsys, *TINY, "--num-microbatches", "5")


def test_a_folder_that_is_not_there_is_said_before_planning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "missing" / "plan.json"
    assert main([*TINY, "--output", str(target)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"alpaviz: error: {str(target)!r} cannot be written: there is no folder {str(target.parent)!r}.\n"


@pytest.mark.parametrize("text", ["not json", "{}", '{"schema_version": 99}'])
def test_a_bad_file_is_refused_in_one_sentence(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert f"alpaviz: error: plan file '{path}'" in fail(capsys, "show", str(path))


def test_a_missing_file_is_refused_by_compare(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'nowhere.json' cannot be read" in fail(capsys, "compare", str(saved), "nowhere.json")


@pytest.mark.parametrize("number", ["0", "-3", "many"])
def test_numbers_below_one_are_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*TINY, f"--batch-size={number}"])
    assert exit_.value.code == 2
    assert f"'{number}' is not a whole number above 0" in capsys.readouterr().err


def test_no_command_is_an_error_that_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([])
    assert exit_.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_lab_hands_every_argument_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    lab = types.ModuleType("alpaviz.lab")
    lab.main = lambda argv: seen.append(argv) or 7  # type: ignore[attr-defined, func-returns-value]
    monkeypatch.setitem(sys.modules, "alpaviz.lab", lab)
    monkeypatch.setattr(alpaviz, "lab", lab, raising=False)
    assert main(["lab", "--port", "9000", "--help", "folder"]) == 7
    assert seen == [["--port", "9000", "--help", "folder"]]


def test_the_module_runs_as_a_program_and_says_its_version() -> None:
    command = [sys.executable, "-m", "alpaviz", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(alpaviz.__file__).parents[1])
    assert result.stdout == f"alpaviz {alpaviz.__version__}\n"


def test_help_is_given_without_jax_or_numpy() -> None:
    code = (
        "import sys\nfrom alpaviz.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'jax', 'numpy', 'plotly', 'ray'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=Path(alpaviz.__file__).parents[1])
