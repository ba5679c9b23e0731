"""The explanation of a plan in a real JupyterLab: what Python says is read, and its links select."""

from __future__ import annotations

from tests.browser.jupyter import Notebook
from tests.browser.test_widget import open_solved


def test_an_explanation_is_read_and_its_links_select_ops_and_stages(notebook: Notebook) -> None:
    open_solved(notebook, "explanation.ipynb", "print(*(s.text for s in p.plan.explain()), sep='\\n')")
    page = notebook.page
    page.locator(".ap-explain").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".ap-chapter")
    read = page.locator(".ap-chapter li").evaluate_all("items => items.map(item => item.textContent)")
    assert read == notebook.ask(1).splitlines()
    link = page.locator(".ap-chapter[data-stage='1'] .ap-link.ap-code").first
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(f".ap-op-name:has-text('{link.inner_text()}')")
    page.locator(".ap-chapter[data-stage='1'] .ap-link >> text=stage 1").first.click()
    page.wait_for_selector(".ap-card.ap-selected >> text=stage 1")
    page.locator(".ap-explain >> text=Add exact regrets").click()
    page.wait_for_selector(".ap-chapter >> text=no other strategy costs less")
    assert page.locator(".ap-chapter li >> text=no other strategy costs less").count() == 6
