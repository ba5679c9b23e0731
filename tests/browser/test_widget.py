"""The live widget in a real JupyterLab, with a planner that solves nothing: gestures in the page, effects in Python."""

from __future__ import annotations

import pytest

from tests.browser.jupyter import Notebook

SETUP = "from tests.widget.fake_planner import FakePlanner\nfrom alpaviz.widget import PlannerWidget"
SOLVED = f"{SETUP}\np = FakePlanner(is_solved=True, seconds=0.6)\nw = PlannerWidget(p)\nw"
OP = "block_3/mlp/dot_general.0"


def open_solved(notebook: Notebook, name: str, *more: str) -> None:
    notebook.open(name, [SOLVED, *more])
    notebook.run_cell(0)
    notebook.page.wait_for_selector(".alpaviz .ap-device")


def select_op(notebook: Notebook, name: str = OP) -> None:
    page = notebook.page
    page.fill(".ap-search", name)
    page.locator(f".ap-row-op[data-op='{name}']").click()
    page.wait_for_selector(f".ap-op-name:has-text('{name}')")


def wait_state(notebook: Notebook, state: str) -> None:
    notebook.page.wait_for_selector(f".alpaviz[data-state='{state}']", timeout=20_000)


def test_shows_the_plan(notebook: Notebook) -> None:
    open_solved(notebook, "plan.ipynb", "print(len(p.plan.ops))")
    page = notebook.page
    assert page.locator(".ap-device").count() == 8
    assert page.locator(".ap-card").count() == 2
    assert page.locator(".ap-layer").count() == 24
    assert page.inner_text(".ap-figure").split() == ["2.31", "s"]
    assert "layers 0–11" in page.locator(".ap-card").first.inner_text()
    labels = page.locator(".ap-legend").first.inner_text()
    for part in ("compute", "all-reduce", "all-gather", "reduce-scatter", "resharding", "transfer", "bubble"):
        assert part in labels
    count = notebook.ask(1)
    assert page.inner_text(".ap-count").split() == [count[0], count[1:], "ops"]
    assert page.locator(".ap-row-op").count() == 0, "layers are folded at first"


def test_pin_of_an_alternative_arrives_in_python(notebook: Notebook) -> None:
    open_solved(notebook, "pin.ipynb", "print(p.pins[0])")
    select_op(notebook)
    page = notebook.page
    page.wait_for_selector(".ap-alternatives tbody tr")
    assert page.locator(".ap-alternatives tr.ap-chosen").get_attribute("data-strategy") == "b:x n:y"
    page.locator(".ap-alternatives tr[data-strategy='b:xy'] button").click()
    wait_state(notebook, "stale")
    assert page.inner_text(".ap-pin-text") == f"op {OP} runs as b:xy"
    assert notebook.ask(1) == f"op {OP} runs as b:xy"


def test_solving_again_shows_what_changed_and_undo_brings_the_pins_back(notebook: Notebook) -> None:
    open_solved(notebook, "again.ipynb", "print(len(p.pins))")
    page = notebook.page
    page.select_option("[data-control=num_stages] select", "4")
    page.locator("[data-control=num_stages] button").click()
    wait_state(notebook, "stale")
    page.locator(".ap-solve").click()
    wait_state(notebook, "solving")
    page.wait_for_selector(".ap-progress:not([hidden]) >> text=gap")
    wait_state(notebook, "solved")
    assert "A step is 3.0% slower." in page.inner_text(".ap-compare")
    page.locator(".ap-undo").click()
    wait_state(notebook, "stale")
    assert page.locator(".ap-pin").count() == 0
    assert notebook.ask(1) == "0"
    page.locator(".ap-redo").click()
    page.wait_for_selector(".ap-pin")
    assert notebook.ask(1) == "1"


@pytest.mark.parametrize(
    ("control", "value", "pinned"),
    [
        (".ap-card:nth-child(2) [data-control=stage_submesh]", "1x2", "stage 1 has a 1x2 submesh"),
        (".ap-card:nth-child(1) [data-control=logical_mesh]", "4", "stage 0 has logical mesh 4"),
    ],
)
def test_stage_shapes_are_pinned_on_their_card(notebook: Notebook, control: str, value: str, pinned: str) -> None:
    open_solved(notebook, "card.ipynb", "print(p.pins[0])")
    notebook.page.select_option(f"{control} select", value)
    notebook.page.locator(f"{control} button").click()
    notebook.page.wait_for_selector(".ap-pin")
    assert notebook.ask(1) == pinned


def test_refused_pin_says_why_and_removing_a_pin_works(notebook: Notebook) -> None:
    open_solved(notebook, "layer.ipynb", "print([str(x) for x in p.pins])")
    page = notebook.page
    page.locator(".ap-layer").first.click()
    page.select_option("[data-control=layer_stage] select", "1")
    page.locator("[data-control=layer_stage] button").click()
    page.wait_for_selector(".ap-notice >> text=stages hold layers in order")
    page.locator(".ap-layer").nth(12).click()
    page.select_option("[data-control=layer_stage] select", "0")
    page.locator("[data-control=layer_stage] button").click()
    page.wait_for_selector(".ap-pin >> text=layer 12 is in stage 0")
    assert page.locator(".ap-notice").is_hidden()
    page.locator(".ap-unpin").click()
    page.wait_for_selector(".ap-pins >> text=No pins")
    assert notebook.ask(1) == "[]"


def test_solve_runs_while_other_cells_do_and_is_cancelled(notebook: Notebook) -> None:
    notebook.open(
        "cancel.ipynb",
        [
            f"{SETUP}\np = FakePlanner(seconds=30)\nw = PlannerWidget(p)\nw",
            "import asyncio\nawait asyncio.sleep(4)",
            "print(p.state)",
        ],
    )
    notebook.run_cell(0)
    page = notebook.page
    page.wait_for_selector(".ap-empty-plan >> text=Press Solve")
    page.locator(".ap-solve").click()
    wait_state(notebook, "solving")
    notebook.run_cell(1, wait=False)
    page.wait_for_selector(".ap-progress >> text=best step so far")
    page.locator(".ap-cancel").click()
    notebook.wait_idle()
    wait_state(notebook, "cancelled")
    assert notebook.ask(2) == "cancelled"


def test_keys_and_shift_click_stay_in_the_widget(notebook: Notebook) -> None:
    open_solved(notebook, "keys.ipynb", "1", "2")
    page = notebook.page
    page.locator(".ap-list").focus()
    for key in ("x", "d", "d", "a", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    page.locator(".ap-panel-title").first.focus()
    page.keyboard.press("x")
    page.locator(".ap-card").first.click(modifiers=["Shift"])
    assert notebook.count_cells() == 3
    assert page.locator(".jp-Notebook .jp-Cell.jp-mod-selected").count() <= 1


def test_program_is_walked_by_keyboard(notebook: Notebook) -> None:
    open_solved(notebook, "walk.ipynb")
    page = notebook.page
    page.locator(".ap-list").focus()
    for key in ("Home", "ArrowRight", "ArrowDown", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert page.locator(".ap-row.ap-active").get_attribute("data-op") == "embed/gather.0"
    assert page.inner_text(".ap-op-name") == "embed/gather.0"
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.locator(".ap-row.ap-active .ap-label").inner_text() == "block_0"
    active = page.locator(".ap-list").get_attribute("aria-activedescendant")
    assert active
    assert page.locator(f"[id='{active}']").get_attribute("role") == "treeitem"
    page.keyboard.press("End")
    page.wait_for_selector(".ap-row.ap-active >> text=23 · block_23")


def test_two_views_of_one_planner_stay_in_step(notebook: Notebook) -> None:
    open_solved(notebook, "two.ipynb", "w")
    notebook.run_cell(1)
    page = notebook.page
    page.wait_for_function("() => document.querySelectorAll('.alpaviz .ap-figure').length === 2")
    page.locator(".ap-layer").first.click()
    page.wait_for_function("() => document.querySelectorAll('.ap-layer.ap-selected').length === 2")


def test_blocked_kernel_is_said(notebook: Notebook) -> None:
    open_solved(notebook, "blocked.ipynb", "import time\ntime.sleep(5)")
    notebook.run_cell(1, wait=False)
    notebook.page.wait_for_timeout(300)
    notebook.page.locator(".ap-layer").first.click()
    notebook.page.locator("[data-control=num_stages] button").click()
    # Some kernels serve the widget beside a blocking cell, some only after it: either the answer or the word comes.
    notebook.page.wait_for_selector(".ap-pin, .ap-notice:not([hidden])", timeout=4500)
    notebook.wait_idle()
    notebook.page.wait_for_selector(".ap-pin")
    assert notebook.page.locator(".ap-notice").is_hidden()
