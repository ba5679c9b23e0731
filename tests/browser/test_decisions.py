"""The history of decisions, and the list of keys, in a real JupyterLab."""

from __future__ import annotations

from tests.browser.accessibility import find_violations
from tests.browser.jupyter import Notebook
from tests.browser.test_widget import open_solved


def test_the_list_of_keys_opens_and_closes_by_key_and_the_notebook_hears_nothing(notebook: Notebook) -> None:
    open_solved(notebook, "help.ipynb", "1")
    page = notebook.page
    page.locator(".ap-list").focus()
    page.keyboard.press("?")
    page.wait_for_selector(".ap-keys[open]")
    assert page.locator(".ap-keys kbd").count() > 20
    assert not find_violations(page, ".alpaviz")
    notebook.screenshot("widget-keys-light")
    for key in ("x", "d", "d", "a"):
        page.keyboard.press(key)
    page.keyboard.press("Escape")
    page.wait_for_selector(".ap-keys:not([open])", state="attached")
    assert page.evaluate("() => document.activeElement.classList.contains('ap-list')"), "the focus is back"
    page.fill(".ap-search", "")
    page.locator(".ap-search").press_sequentially("?")
    assert page.input_value(".ap-search") == "?", "in the search it is text"
    assert notebook.count_cells() == 2


def test_a_click_in_the_history_goes_back_and_forth(notebook: Notebook) -> None:
    open_solved(notebook, "history.ipynb", "print(len(p.pins))")
    page = notebook.page
    assert page.locator(".ap-history-row").count() == 0, "there is nothing to go back to at first"
    page.locator("[data-control=num_stages] button").click()
    page.wait_for_selector(".ap-history-row:nth-child(1)")
    page.locator(".ap-unpin").click()
    page.wait_for_selector(".ap-history li:nth-child(3) [aria-current=step]")
    rows = page.locator(".ap-history-row")
    assert page.locator(".ap-history-label").all_inner_texts() == ["start", "a pin", "a pin"]
    rows.nth(1).click()
    page.wait_for_selector(".ap-pin")
    page.wait_for_selector(".ap-history li:nth-child(2) [aria-current=step]")
    assert notebook.ask(1) == "1"
    for theme in ("light", "dark"):
        notebook.set_theme(theme == "light")
        assert not find_violations(page, ".alpaviz")
        notebook.screenshot(f"widget-history-{theme}", ".ap-panel-pins")
    rows.nth(0).click()
    page.wait_for_selector(".ap-history li:nth-child(1) [aria-current=step]")
    assert notebook.ask(1) == "0"
