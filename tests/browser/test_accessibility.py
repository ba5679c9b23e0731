"""axe-core finds nothing in any view, light or dark: of a live planner, of a saved plan, of the static picture."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.browser.accessibility import find_violations
from tests.browser.jupyter import Lab, Notebook
from tests.browser.test_saved_plans import write_plan
from tests.browser.test_widget import OP, SOLVED, select_op, wait_state

STATIC = "from IPython.display import HTML\nfrom alpaviz.widget import render_plan_html\nHTML(render_plan_html(p.plan))"


def find_in_both_themes(notebook: Notebook, root: str = ".alpaviz") -> list[str]:
    found = []
    for theme in ("light", "dark"):
        notebook.set_theme(theme == "light")
        found += [f"{theme}: {violation}" for violation in find_violations(notebook.page, root)]
    return found


def open_every_view(page: Page, notebook: Notebook) -> None:
    page.locator(".ap-find-variants").click()
    page.locator(".ap-explain").click()
    select_op(notebook, OP)
    page.locator(".ap-ask-regrets").click()
    page.wait_for_selector(".ap-alternatives th >> text=exact")
    page.wait_for_selector(".ap-variants-cheapest tbody tr")


def test_axe_finds_no_violation_in_the_live_widget(notebook: Notebook) -> None:
    notebook.open("axe.ipynb", [SOLVED, STATIC])
    notebook.run_cell(0)
    page = notebook.page
    page.wait_for_selector(".alpaviz .ap-device")
    open_every_view(page, notebook)
    page.locator(".ap-alternatives tr[data-strategy='b:xy'] button").click()
    page.wait_for_selector(".ap-pin")
    stale = find_in_both_themes(notebook)
    page.locator(".ap-solve").click()
    wait_state(notebook, "solved")
    page.wait_for_selector(".ap-compare >> text=slower")
    notebook.run_cell(1)
    page.wait_for_selector(".alpaviz-static")
    found = stale + find_in_both_themes(notebook) + find_violations(page, ".alpaviz-static")
    assert not found, "\n".join(found)


def test_axe_finds_no_violation_in_a_saved_plan(lab: Lab, notebook: Notebook) -> None:
    write_plan(lab, "axe.alpaplan.json")
    notebook.open_file("axe.alpaplan.json")
    page = notebook.page
    page.wait_for_selector(".alpaviz[data-state=read-only] .ap-device", timeout=60_000)
    page.locator(".ap-costliest button").first.click()
    page.wait_for_selector(".ap-tensor-picture")
    found = find_in_both_themes(notebook)
    assert not found, "\n".join(found)
