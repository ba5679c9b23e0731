"""The tour notebook in a real JupyterLab: plan, pin from the page, solve again, check in Python."""

from __future__ import annotations

import nbformat
import pytest

from tests.browser.jupyter import REPOSITORY, SCREENSHOTS, Notebook

CHECK = "print([str(p) for p in planner.pins], planner.state.value, planner.plan.num_stages)"


@pytest.mark.slow
def test_the_tour_is_planned_pinned_from_the_page_and_solved_again(notebook: Notebook) -> None:
    cells = nbformat.read(REPOSITORY / "notebooks/00_tour.ipynb", as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    last = next(i for i, source in enumerate(code) if "await solving" in source)
    notebook.open("tour.ipynb", [*code[: last + 1], CHECK])
    for i in range(last + 1):
        notebook.run_cell(i)
    page = notebook.page
    page.wait_for_selector(".alpaviz[data-state='solved']", timeout=60_000)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.locator(".alpaviz").first.scroll_into_view_if_needed()
    page.screenshot(path=SCREENSHOTS / "tour-plan-light.png")

    widget = page.locator(".alpaviz").first
    widget.locator(".ap-search").fill("block_0/mlp/dot_general.0")
    widget.locator(".ap-row-op[data-op='block_0/mlp/dot_general.0']").click()
    widget.locator(".ap-alternatives tbody tr").first.wait_for()
    page.screenshot(path=SCREENSHOTS / "tour-op-light.png")
    widget.locator("[data-control=num_stages] select").select_option("2")
    widget.locator("[data-control=num_stages] button").click()
    page.wait_for_selector(".alpaviz[data-state='stale']")
    widget.locator(".ap-solve").click()
    page.wait_for_selector(".alpaviz[data-state='solved']", timeout=60_000)
    assert notebook.ask(last + 1) == "['there are 2 stages'] solved 2"
    widget.scroll_into_view_if_needed()
    page.screenshot(path=SCREENSHOTS / "tour-pinned-light.png")
    notebook.set_theme(is_light=False)
    widget.scroll_into_view_if_needed()
    page.screenshot(path=SCREENSHOTS / "tour-pinned-dark.png")
    notebook.set_theme(is_light=True)
    widget.locator(".ap-undo").click()
    page.wait_for_function("document.querySelectorAll('.alpaviz .ap-pin').length === 0")
    assert notebook.ask(last + 1).startswith("[] solved")
