"""Exact regrets in a real JupyterLab: asked for by button or key, shown beside the alternatives, pinned, cancelled.

A notebook takes seconds to open, so each test goes through the gestures that follow on one another.
"""

from __future__ import annotations

from tests.browser.jupyter import Notebook
from tests.browser.test_widget import OP, SOLVED, open_solved, select_op, wait_state

EXACT = ".ap-alternatives th >> text=exact"


def list_strategies(notebook: Notebook) -> list[str]:
    return list(
        notebook.page.locator(".ap-alternatives tbody tr").evaluate_all("rows => rows.map(r => r.dataset.strategy)")
    )


def test_exact_regrets_are_asked_for_read_and_pinned_by_keyboard(notebook: Notebook) -> None:
    open_solved(
        notebook, "regrets.ipynb",
        f"print(*[r.strategy for r in sorted(p.variants(0).regrets({OP!r}, lambda: False), key=lambda r: r.delta_s) "
        "if r.stage_bytes], sep=',')",
        "print(p.pins[0])",
    )  # fmt: skip
    select_op(notebook)
    page = notebook.page
    page.locator(".ap-ask-regrets").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(EXACT)
    assert list_strategies(notebook) == notebook.ask(1).split(","), "sorted by what they really cost"
    shown = page.locator(".ap-alternatives tr[data-strategy='b:x']").inner_text().replace("\u202f", " ")
    for part in ("+16 %", "gap 0.4 %", "−1.1 GB"):
        assert part in shown
    page.locator(".ap-alternatives tr[data-strategy='whole'] button").focus()
    page.keyboard.press("Enter")
    wait_state(notebook, "stale")
    assert notebook.ask(2) == f"op {OP} runs as whole"


def test_a_search_for_regrets_is_left_or_cancelled_and_blocks_no_cell(notebook: Notebook) -> None:
    notebook.open("stop.ipynb", [SOLVED.replace("\nw = ", "\np.question_s = 1.5\nw = "), "p.question_s = 60"])
    notebook.run_cell(0)
    page = notebook.page
    page.wait_for_selector(".alpaviz .ap-device")
    select_op(notebook)
    page.locator(".ap-ask-regrets").click()
    page.wait_for_selector(".ap-question >> text=Solving the stage once")
    select_op(notebook, "block_4/mlp/dot_general.0")
    page.wait_for_selector(".ap-ask-regrets")
    page.wait_for_timeout(1800)
    assert page.locator(EXACT).count() == 0, "the answer for the op that was left is not shown"
    notebook.run_cell(1)
    page.locator(".ap-ask-regrets").click()
    page.wait_for_selector(".ap-question >> text=Solving the stage once")
    notebook.run_cell(1)
    page.locator(".ap-alternatives .ap-question button").click()
    page.wait_for_selector(".ap-question >> text=The search was stopped")
    assert page.locator(".ap-ask-regrets").inner_text() == "Ask again"
