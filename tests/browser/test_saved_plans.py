"""Plans without a planner: files in the read-only view, notebooks that are opened again."""

from __future__ import annotations

import json

import msgspec
import nbformat

from alpaviz.widget import PLAN_MIME
from tests.browser.jupyter import Lab, Notebook
from tests.browser.test_widget import SETUP, SOLVED
from tests.widget.synthetic_plan import EXAMPLE_PINS, make_plan


def write_plan(lab: Lab, name: str) -> None:
    (lab.root / name).write_bytes(msgspec.json.encode(make_plan(num_layers=6, pins=EXAMPLE_PINS)))


def test_plan_file_opens_read_only(lab: Lab, notebook: Notebook) -> None:
    write_plan(lab, "gpt.alpaplan.json")
    notebook.open_file("gpt.alpaplan.json")
    page = notebook.page
    page.wait_for_selector(".alpaviz[data-state=read-only] .ap-device", timeout=60_000)
    assert "saved plan, read-only" in page.inner_text(".ap-chip")
    assert page.locator(".ap-layer").count() == 6
    assert page.locator(".ap-actions").is_hidden()
    assert page.locator(".ap-control select").count() == 0
    assert page.locator(".ap-pin-text").all_inner_texts() == [str(pin) for pin in EXAMPLE_PINS]
    page.locator(".ap-costliest button").first.click()
    page.wait_for_selector(".ap-tensor-picture")
    notebook.screenshot("plan-file-light")


def test_palette_command_opens_any_plan_file(lab: Lab, notebook: Notebook) -> None:
    write_plan(lab, "plan.json")
    notebook.open("palette.ipynb", ["1"])
    page = notebook.page
    notebook.command("apputils:activate-command-palette")
    page.wait_for_selector(".lm-CommandPalette-input")
    page.fill(".lm-CommandPalette-input", "Open plan file")
    page.locator(".lm-CommandPalette-item >> text=Open plan file").first.wait_for()
    page.keyboard.press("Escape")
    notebook.command("alpaviz:open-plan", {"path": "plan.json"})
    page.wait_for_selector(".alpaviz[data-state=read-only] .ap-device")


def test_file_that_is_no_plan_says_so(lab: Lab, notebook: Notebook) -> None:
    (lab.root / "other.alpaplan.json").write_text(json.dumps({"schema_version": 99}))
    notebook.open_file("other.alpaplan.json")
    notebook.page.wait_for_selector(
        "text=This plan has schema version 99; this AlpaViz reads version 1.", timeout=60_000
    )


def test_saved_notebook_shows_the_plan_without_a_kernel(lab: Lab, notebook: Notebook) -> None:
    notebook.open("saved.ipynb", [SOLVED])
    notebook.run_cell(0)
    page = notebook.page
    page.wait_for_selector(".alpaviz[data-state=solved] .ap-device")
    notebook.save()
    size = (lab.root / "saved.ipynb").stat().st_size
    assert size < 250_000, f"the saved notebook takes {size} bytes"
    notebook.shut_down_kernel()
    notebook.open("saved.ipynb", has_kernel=False)
    page.wait_for_selector(".alpaviz[data-state=read-only] .ap-device", timeout=30_000)
    assert page.locator(".alpaviz").count() == 1
    assert "model not found" not in page.inner_text(".jp-Notebook")
    assert page.locator(".ap-layer").count() == 24
    notebook.screenshot("saved-notebook-light")


def test_plan_that_comes_later_is_in_the_saved_notebook(lab: Lab, notebook: Notebook) -> None:
    cells = [f"{SETUP}\np = FakePlanner(seconds=0.5, num_layers=4)\nw = PlannerWidget(p)\nw", "p.start(); None"]
    notebook.open("later.ipynb", cells)
    notebook.run_cell(0)
    page = notebook.page
    page.wait_for_selector(".ap-empty-plan")
    page.evaluate("() => { document.querySelector('.alpaviz').dataset.mine = 'yes' }")
    notebook.run_cell(1)
    page.wait_for_selector(".alpaviz[data-state=solved] .ap-device")
    page.wait_for_timeout(300)
    assert page.locator(".alpaviz[data-mine=yes]").count() == 1, "the live view was not drawn anew"
    notebook.save()
    outputs = nbformat.read(lab.root / "later.ipynb", 4).cells[0].outputs
    assert outputs[0].data[PLAN_MIME]["plan"]
    assert "layers 0–1" in outputs[0].data["text/html"]


def test_page_that_is_loaded_again_finds_the_live_widget(notebook: Notebook) -> None:
    notebook.open("reload.ipynb", [SOLVED, "print(len(p.pins))"])
    notebook.run_cell(0)
    notebook.page.wait_for_selector(".alpaviz[data-state=solved] .ap-device")
    notebook.save()
    notebook.open("reload.ipynb")
    notebook.page.wait_for_selector(".alpaviz[data-state=solved] .ap-device", timeout=30_000)
    notebook.page.locator("[data-control=num_stages] button").click()
    notebook.page.wait_for_selector(".ap-pin")
    assert notebook.ask(1) == "1"


def test_planner_that_is_a_last_line_is_saved_with_the_plan_that_came_later(lab: Lab, notebook: Notebook) -> None:
    wrapped = (
        "class Shown:\n    def _repr_mimebundle_(self, **kwargs):\n        return w._repr_mimebundle_(**kwargs)\n"
        "Shown()"
    )
    cells = [
        f"{SETUP}\np = FakePlanner(seconds=0.5, num_layers=4)\nw = PlannerWidget(p)\n{wrapped}",
        "p.start(); None",
    ]
    notebook.open("last.ipynb", cells)
    notebook.run_cell(0)
    page = notebook.page
    page.wait_for_selector(".ap-empty-plan")
    notebook.run_cell(1)
    page.wait_for_selector(".alpaviz[data-state=solved] .ap-device")
    page.wait_for_timeout(800)
    assert page.locator(".alpaviz").count() == 1
    notebook.save()
    outputs = nbformat.read(lab.root / "last.ipynb", 4).cells[0].outputs
    assert outputs[0].data[PLAN_MIME]["plan"]
    assert "layers 0–1" in outputs[0].data["text/html"]
