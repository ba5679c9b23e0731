"""The live widget in a real JupyterLab, with a planner that solves nothing."""

from __future__ import annotations

import re

from tests.browser.jupyter import Notebook

SETUP = "from tests.widget.fake_planner import FakePlanner\nfrom alpaviz.widget import PlannerWidget"
SOLVED = f"{SETUP}\np = FakePlanner(is_solved=True, seconds=0.5)\nw = PlannerWidget(p); w"


def open_solved(notebook: Notebook, name: str, *more: str) -> None:
    notebook.open(name, [SOLVED, *more])
    notebook.run_cell(0)
    notebook.page.wait_for_selector(".alpaviz .ap-device")


def test_screenshots(notebook: Notebook) -> None:
    open_solved(notebook, "shots.ipynb")
    page = notebook.page
    page.set_viewport_size({"width": 1500, "height": 1500})
    for light in (True, False):
        notebook.set_theme(light)
        notebook.screenshot(f"widget-start-{'light' if light else 'dark'}", ".alpaviz")
    page.locator(".ap-costliest button").first.click()
    page.wait_for_selector(".ap-alternatives tbody tr")
    for light in (True, False):
        notebook.set_theme(light)
        page.wait_for_timeout(300)
        notebook.screenshot(f"widget-op-{'light' if light else 'dark'}", ".alpaviz")
