"""Fixtures: one JupyterLab and one Chromium for all browser tests of a worker, a fresh page for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.jupyter import FLAGS, REPOSITORY, Lab, Notebook, run_lab
from tests.install_browser import MISSING, ensure_chromium


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            # One worker of pytest-xdist runs them all (--dist loadgroup): a server and a browser are not cheap.
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if not (REPOSITORY / "alpaviz/static/widget.js").exists():
        pytest.fail(
            "The browser code has not been built: run `pip install .` or (cd extension && npm ci && node build.mjs)."
        )
    with run_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of one file.

    While Playwright is open, an event loop runs in this thread: tests of other files that start their own would fail.
    """
    path = ensure_chromium()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture
def notebook(lab: Lab, browser: Browser) -> Iterator[Notebook]:
    made = Notebook(lab, browser)
    yield made
    outside, errors = made.outside, made.errors
    made.close()
    assert not outside, f"the page asked for something outside this machine: {outside}"
    assert not errors, f"the page threw: {errors}"
