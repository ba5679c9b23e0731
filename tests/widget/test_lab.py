"""`alpaviz lab`: where its notebooks come from and how JupyterLab is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from alpaviz import lab
from alpaviz.errors import AlpaVizError


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation without a checkout; its shared notebooks."""
    shared = tmp_path / "prefix" / lab.SHARED
    shared.mkdir(parents=True)
    (shared / lab.TOUR).write_text("tour")
    (shared / "01_more.ipynb").write_text("more")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(lab, "__file__", str(tmp_path / "site/alpaviz/lab.py"))
    monkeypatch.setattr(lab.sysconfig, "get_path", lambda name: str(tmp_path / "prefix"))
    return shared


def test_checkout_notebooks_are_used_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / lab.TOUR).write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert lab.prepare_notebooks() == tmp_path / "notebooks" / lab.TOUR


def test_installed_notebooks_are_copied_once(installed: Path) -> None:
    tour = lab.prepare_notebooks()
    assert tour == Path.cwd() / "notebooks" / lab.TOUR
    assert (tour.parent / "01_more.ipynb").read_text() == "more"
    tour.write_text("edited")
    (tour.parent / "01_more.ipynb").unlink()
    lab.prepare_notebooks()
    assert tour.read_text() == "edited"


def test_no_notebooks_is_an_error(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "find_shared_notebooks", lambda: None)
    with pytest.raises(AlpaVizError, match="No notebooks found"):
        lab.prepare_notebooks()


def test_command_opens_the_tour(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def call(command: list[str]) -> int:
        seen.append(command)
        return 0

    monkeypatch.setattr(lab.subprocess, "call", call)
    assert lab.main(["--no-browser", "--port", "8123", "--LabApp.extension_manager=readonly"]) == 0
    assert seen[0][:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--LabApp.default_url=/lab/tree/notebooks/{lab.TOUR}" in seen[0]
    assert {"--no-browser", "--ServerApp.port=8123", "--LabApp.extension_manager=readonly"} <= set(seen[0])
