"""The drawn op graph in a real JupyterLab: what it shows, what unfolds, selection both ways, keys."""

from __future__ import annotations

import msgspec
import pytest
from playwright.sync_api import Page

from tests.browser.jupyter import Lab, Notebook
from tests.browser.test_widget import OP, SOLVED, open_solved, select_op
from tests.widget.synthetic_plan import make_plan

MARK_PINNED = "from alpaviz.pins import Pin, PinKind\np.pin(Pin(PinKind.STRATEGY, 'block_3/mlp/dot_general.0', 'b:xy'))"


def show_graph(page: Page) -> None:
    page.locator(".ap-switch button", has_text="Graph").click()
    page.wait_for_function("() => document.querySelector('.ap-graph').dataset.boxes > 0")


def open_graph(notebook: Notebook, name: str, *more: str) -> Page:
    open_solved(notebook, name, *more)
    show_graph(notebook.page)
    return notebook.page


def wait_active(page: Page, text: str) -> None:
    """Wait until the item that the keyboard is on, as screen readers see it, holds `text`."""
    page.wait_for_function(
        """text => { const graph = document.querySelector('.ap-graph');
        const item = document.getElementById(graph.getAttribute('aria-activedescendant'));
        return item?.textContent.includes(text) }""",
        arg=text,
    )


def count_boxes(page: Page) -> int:
    return int(page.locator(".ap-graph").get_attribute("data-boxes") or 0)


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
        page.wait_for_timeout(80)


def count_colours(page: Page) -> int:
    return int(
        page.evaluate(
            """() => { const canvas = document.querySelector('.ap-graph-canvas');
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            return new Set(new Uint32Array(data.buffer)).size }"""
        )
    )


def test_draws_layers_folded(notebook: Notebook) -> None:
    page = open_graph(notebook, "folded.ipynb")
    assert page.locator(".ap-list").is_hidden()
    # 24 layers on two stages: four runs of five equal layers and four single ones, three roles each.
    assert count_boxes(page) == 4 + 8 * 3
    assert count_colours(page) > 50


def test_unfolds_by_key_and_by_double_click(notebook: Notebook) -> None:
    page = open_graph(notebook, "unfold.ipynb")
    folded = count_boxes(page)
    page.locator(".ap-graph").focus()
    press(page, "Home", "Enter")
    page.wait_for_function(f"() => document.querySelector('.ap-graph').dataset.boxes > {folded}")
    press(page, "Enter")
    page.wait_for_function(f"() => document.querySelector('.ap-graph').dataset.boxes == {folded}")
    page.locator(".ap-graph-tools button[aria-label=Fit]").click()
    page.mouse.dblclick(*find_box(page))
    page.wait_for_function(f"() => document.querySelector('.ap-graph').dataset.boxes > {folded}")


def find_box(page: Page) -> tuple[float, float]:
    """A point on some box, found as a person does: where the pointer becomes a hand."""
    area = page.locator(".ap-graph-canvas").bounding_box()
    assert area
    for down in range(5, 100, 5):
        for across in range(5, 100, 5):
            x, y = area["x"] + area["width"] * across / 100, area["y"] + area["height"] * down / 100
            page.mouse.move(x, y)
            if page.locator(".ap-graph-canvas").evaluate("e => e.style.cursor") == "pointer":
                return x, y
    raise AssertionError("there is no box to be seen")


def test_a_click_selects_the_layer_everywhere(notebook: Notebook) -> None:
    page = open_graph(notebook, "click.ipynb")
    page.mouse.click(*find_box(page))
    page.wait_for_selector(".ap-layer.ap-selected")


def test_an_op_selected_in_the_list_is_unfolded_and_centred(notebook: Notebook) -> None:
    open_solved(notebook, "reveal.ipynb")
    select_op(notebook)
    show_graph(notebook.page)
    wait_active(notebook.page, "dot_general")
    listed = notebook.page.locator(".ap-graph [role=treeitem][aria-selected=true]").text_content()
    assert listed is not None
    assert listed.startswith("dot_general")
    assert "stage 0" in listed


def test_an_op_selected_in_another_pane_is_brought_into_sight(notebook: Notebook) -> None:
    page = open_graph(notebook, "costliest.ipynb")
    folded = count_boxes(page)
    chosen = page.locator(".ap-costliest button").first
    name = chosen.locator(".ap-label").inner_text()
    chosen.click()
    page.wait_for_function(f"() => document.querySelector('.ap-graph').dataset.boxes > {folded}")
    wait_active(page, name.rsplit("/", 1)[-1].split(".")[0])
    assert page.inner_text(".ap-op-name") == name


def test_walking_onto_an_op_shows_it_in_the_inspector(notebook: Notebook) -> None:
    open_solved(notebook, "walk-graph.ipynb")
    select_op(notebook)
    page = notebook.page
    show_graph(page)
    wait_active(page, "dot_general")
    page.locator(".ap-graph").focus()
    press(page, "ArrowDown")
    page.wait_for_function(f"() => document.querySelector('.ap-op-name').textContent !== '{OP}'")
    name = page.inner_text(".ap-op-name")
    assert name.startswith("block_3/mlp/")
    primitive = name.rsplit("/", 1)[-1].split(".")[0]
    wait_active(page, primitive)


def test_enter_in_the_search_goes_from_match_to_match(notebook: Notebook) -> None:
    page = open_graph(notebook, "matches.ipynb")
    page.fill(".ap-search", "block_7/attn dot_general")
    page.keyboard.press("Enter")
    page.wait_for_selector(".ap-op-name")
    first = page.inner_text(".ap-op-name")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => document.querySelector('.ap-op-name').textContent !== '{first}'")
    wait_active(page, "dot_general")


def test_groups_are_laid_out_where_workers_are_refused(notebook: Notebook) -> None:
    page = open_graph(notebook, "no-worker.ipynb")
    page.evaluate("() => { window.Worker = class { constructor() { throw new Error('refused') } } }")
    folded = count_boxes(page)
    page.locator(".ap-graph").focus()
    press(page, "Home", "ArrowRight", "Enter")
    page.wait_for_function(f"() => document.querySelector('.ap-graph').dataset.boxes > {folded}")


def test_a_plan_file_has_no_positions_and_is_drawn_all_the_same(lab: Lab, notebook: Notebook) -> None:
    plan = make_plan(num_layers=4)
    (lab.root / "graph.alpaplan.json").write_bytes(msgspec.json.encode(plan))
    notebook.open_file("graph.alpaplan.json")
    page = notebook.page
    page.wait_for_selector(".alpaviz[data-state=read-only] .ap-device", timeout=60_000)
    show_graph(page)
    folded = count_boxes(page)
    page.locator(".ap-graph").focus()
    press(page, "Home", "ArrowRight", "Enter")
    page.wait_for_function(f"() => document.querySelector('.ap-graph').dataset.boxes > {folded}")
    page.get_by_role("button", name="All ops").click()
    cells = {(op.layer, op.role) for op in plan.ops}
    page.wait_for_function(f"() => document.querySelector('.ap-graph').dataset.boxes == {len(plan.ops) + len(cells)}")


def test_keys_stay_in_the_graph(notebook: Notebook) -> None:
    page = open_graph(notebook, "graph-keys.ipynb", "1", "2")
    page.locator(".ap-graph").focus()
    press(page, "x", "d", "d", "a", "Home", "ArrowDown", "Enter", "+", "-", "0", "Escape")
    assert notebook.count_cells() == 3
    assert page.evaluate("() => document.activeElement.className") == "ap-graph"


def test_the_wheel_scrolls_the_notebook_unless_ctrl_is_held(notebook: Notebook) -> None:
    page = open_graph(notebook, "wheel.ipynb")
    prevented = """modifier => { const event = new WheelEvent('wheel',
        { deltaY: -100, ctrlKey: modifier, bubbles: true, cancelable: true });
        document.querySelector('.ap-graph-canvas').dispatchEvent(event); return event.defaultPrevented }"""
    assert page.evaluate(prevented, False) is False
    assert page.evaluate(prevented, True) is True


def test_all_ops_are_drawn_at_once(notebook: Notebook) -> None:
    page = open_graph(notebook, "all.ipynb", "print(len(p.plan.ops) + len({(o.layer, o.role) for o in p.plan.ops}))")
    folded = count_boxes(page)
    page.get_by_role("button", name="All ops").click()
    page.wait_for_function(f"() => document.querySelector('.ap-graph').dataset.boxes != {folded}")
    assert count_boxes(page) == int(notebook.ask(1))


def test_a_pin_is_told_on_the_box_that_holds_it(notebook: Notebook) -> None:
    page = open_graph(notebook, "pinned.ipynb", MARK_PINNED)
    notebook.run_cell(1)
    page.wait_for_selector(".ap-pin-text")
    page.locator(".ap-graph").focus()
    press(page, "Home", "ArrowRight")
    page.wait_for_function(
        """() => [...document.querySelectorAll('.ap-graph [role=treeitem]')]
        .some(item => item.textContent.includes('1 pin'))"""
    )


@pytest.mark.parametrize("is_light", [True, False])
def test_colours_follow_the_theme(notebook: Notebook, is_light: bool) -> None:
    page = open_graph(notebook, f"theme-{is_light}.ipynb")
    notebook.set_theme(not is_light)
    notebook.set_theme(is_light)
    page.wait_for_function(
        f"""() => {{ const canvas = document.querySelector('.ap-graph-canvas');
        const [red] = canvas.getContext('2d').getImageData(3, canvas.height - 4, 1, 1).data;
        return {str(is_light).lower()} ? red > 200 : red < 80 }}"""
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures(notebook: Notebook, theme: str) -> None:
    """For people to look at: build/screenshots/."""
    notebook.open(f"graph-pictures-{theme}.ipynb", [SOLVED])
    notebook.set_theme(theme == "light")
    notebook.run_cell(0)
    page = notebook.page
    page.set_viewport_size({"width": 1500, "height": 1600})
    page.wait_for_selector(".alpaviz .ap-device")
    show_graph(page)
    page.wait_for_timeout(400)
    notebook.screenshot(f"graph-folded-{theme}", ".ap-columns")
    page.get_by_role("button", name="Larger").click()
    page.locator(".ap-graph").focus()
    press(page, "Home", "ArrowDown", "ArrowRight", "Enter", "ArrowDown", "Enter", "ArrowDown")
    page.wait_for_timeout(400)
    notebook.screenshot(f"graph-unfolded-{theme}", ".ap-panel-program")
    page.get_by_role("button", name="All ops").click()
    page.wait_for_timeout(600)
    notebook.screenshot(f"graph-all-{theme}", ".ap-panel-program")
