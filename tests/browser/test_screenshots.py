"""Pictures of every view, light and dark, for people to look at: build/screenshots/."""

from __future__ import annotations

import pytest

from tests.browser.jupyter import Notebook
from tests.browser.test_widget import OP, SETUP, SOLVED, select_op, wait_state

MEASURED = """p.measured = {i: dict(forward_s=0.047, backward_s=0.081, update_s=0.011, step_s=2.4) for i in range(2)}
p._notify()"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_views(notebook: Notebook, theme: str) -> None:
    notebook.open(f"views-{theme}.ipynb", [SOLVED, MEASURED])
    notebook.set_theme(theme == "light")
    notebook.run_cell(0)
    page = notebook.page
    page.set_viewport_size({"width": 1500, "height": 2100})
    page.wait_for_selector(".alpaviz .ap-device")
    page.wait_for_timeout(300)
    notebook.screenshot(f"widget-plan-{theme}", ".alpaviz")
    select_op(notebook)
    page.wait_for_selector(".ap-alternatives tbody tr")
    page.locator(".ap-ask-regrets").click()
    page.wait_for_selector(".ap-alternatives th >> text=exact")
    page.locator(".ap-inspector").evaluate("e => { e.scrollTop = 1000 }")
    notebook.screenshot(f"widget-regrets-{theme}", ".ap-panel-inspector")
    page.locator(".ap-find-variants").click()
    page.wait_for_selector(".ap-variants-cheapest tbody tr")
    page.locator("[data-variant='front 2'] .ap-point-dot").click()
    page.wait_for_selector(".ap-point-now[data-variant='front 2']")
    page.locator(".ap-variants-cheapest summary").first.click()
    page.locator("[data-variant='front 3'].ap-point").focus()
    notebook.screenshot(f"widget-variants-{theme}", ".ap-panel-variants")
    page.locator(".ap-explain").click()
    page.locator(".ap-explain >> text=Add exact regrets").click()
    page.wait_for_selector(".ap-chapter >> text=no other strategy costs less")
    notebook.screenshot(f"widget-explanation-{theme}", ".ap-panel-explanation")
    page.locator(".ap-alternatives tr[data-strategy='b:xy'] button").click()
    wait_state(notebook, "stale")
    page.select_option("[data-control=num_stages] select", "1")
    page.locator("[data-control=num_stages] button").click()
    page.locator(".ap-inspector").evaluate("e => { e.scrollTop = 1000 }")
    page.wait_for_timeout(300)
    notebook.screenshot(f"widget-stale-{theme}", ".alpaviz")
    page.locator(".ap-solve").click()
    page.wait_for_selector(".ap-progress >> text=best step so far")
    notebook.screenshot(f"widget-solving-{theme}", ".ap-header")
    wait_state(notebook, "solved")
    notebook.run_cell(1)
    page.wait_for_selector(".ap-measured")
    page.fill(".ap-search", "all-gather")
    page.wait_for_timeout(500)
    notebook.screenshot(f"widget-compared-{theme}", ".alpaviz")
    page.set_viewport_size({"width": 760, "height": 2600})
    page.wait_for_timeout(500)
    notebook.screenshot(f"widget-narrow-{theme}", ".alpaviz")


def test_infeasible_and_static(notebook: Notebook) -> None:
    message = (
        "No plan fits: stage 1 needs 18.2 GB a device and a V100-16GB has 16 GB (2.2 GB short).\n"
        "Remove the pin 'there is 1 stage', or use 32 microbatches."
    )
    fail = f"""from alpaviz.planner_state import PlannerState
p.state, p.message = PlannerState.INFEASIBLE, {message!r}
p._notify()"""
    html = (
        "from IPython.display import HTML\nfrom alpaviz.widget import render_plan_html\nHTML(render_plan_html(p.plan))"
    )
    notebook.open("infeasible.ipynb", [SOLVED, fail, html])
    notebook.set_theme(True)
    notebook.run_cell(0)
    notebook.page.set_viewport_size({"width": 1500, "height": 1900})
    notebook.page.wait_for_selector(".alpaviz .ap-device")
    notebook.run_cell(1)
    wait_state(notebook, "infeasible")
    notebook.page.wait_for_timeout(300)
    notebook.screenshot("widget-infeasible-light", ".alpaviz")
    notebook.run_cell(2)
    notebook.page.wait_for_selector(".alpaviz-static")
    notebook.page.locator(".alpaviz-static summary").click()
    notebook.screenshot("static-light", ".alpaviz-static")
    notebook.set_theme(False)
    notebook.screenshot("static-dark", ".alpaviz-static")


def test_many_stages(notebook: Notebook) -> None:
    cell = f"{SETUP}\np = FakePlanner(is_solved=True, num_layers=48, num_stages=8, num_hosts=8)\nPlannerWidget(p)"
    notebook.open("many.ipynb", [cell])
    notebook.set_theme(True)
    notebook.run_cell(0)
    notebook.page.set_viewport_size({"width": 1900, "height": 1900})
    notebook.page.wait_for_selector(".alpaviz .ap-device")
    select_op(notebook, OP)
    notebook.page.wait_for_timeout(300)
    notebook.screenshot("widget-many-light", ".alpaviz")
