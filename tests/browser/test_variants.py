"""Variants of a stage in a real JupyterLab: found, taken by click and by key, undone; what the chart says is data."""

from __future__ import annotations

from tests.browser.jupyter import Notebook
from tests.browser.test_widget import open_solved

STAGE_S = "print(p.plan.stages[1].objective)"


def test_a_point_of_the_front_is_taken_by_click_and_by_key_and_undone(notebook: Notebook) -> None:
    open_solved(notebook, "front.ipynb", STAGE_S)
    page = notebook.page
    before = float(notebook.ask(1))
    page.select_option(".ap-variants select", "1")
    page.locator(".ap-find-variants").click()
    page.wait_for_selector(".ap-pareto")
    points = page.locator(".ap-point")
    labels = points.evaluate_all("nodes => nodes.map(n => n.getAttribute('aria-label').split(',')[0])")
    assert [label.replace("\u202f", " ") for label in labels] == [
        f"{size} GB a device" for size in ("6.2", "7.4", "8.8", "10.1", "10.7", "16.2")
    ]
    assert points.nth(4).get_attribute("aria-current") == "true", "the present plan is marked"
    assert points.nth(5).get_attribute("aria-disabled") == "true", "what does not fit cannot be taken"
    page.locator("[data-variant='front 1'] .ap-point-dot").click()
    page.wait_for_selector(".ap-point-now[data-variant='front 1']")
    assert float(notebook.ask(1)) == 1.16 * before
    page.locator("[data-variant='front 1'].ap-point").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_selector(".ap-point-now[data-variant='front 0']")
    assert float(notebook.ask(1)) == 1.31 * before
    assert "take a variant of stage 1" in (page.locator(".ap-undo").get_attribute("title") or "")
    for _ in range(2):
        page.locator(".ap-undo").click()
        page.wait_for_timeout(400)
    page.wait_for_selector(".ap-point-now[data-variant='front 4']")
    assert float(notebook.ask(1)) == before
    page.wait_for_selector(".ap-variants-cheapest tbody tr")
    row = page.locator(".ap-variants-cheapest tr[data-variant='cheapest 2']")
    row.locator("summary").click()
    assert row.locator("li").inner_text() == "block_3/mlp/dot_general.0 b:x n:y → b:xy"
    row.locator("li button").click()
    page.wait_for_selector(".ap-op-name:has-text('block_3/mlp/dot_general.0')")
    row.locator("button:has-text('Take')").click()
    page.wait_for_selector(".ap-variants-cheapest tr.ap-chosen[data-variant='cheapest 2']")
    assert float(notebook.ask(1)) == 1.002 * before
