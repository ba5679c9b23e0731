"""The recorded step in the live timeline, in a browser."""

from __future__ import annotations

from tests.browser.jupyter import Notebook
from tests.browser.test_widget import SOLVED

RECORDED = """from alpaviz.schedule import Task, TaskKind, Timeline, TimelineEvent
def row(stage):
    kinds = [TaskKind.FORWARD, TaskKind.BACKWARD]
    return tuple(TimelineEvent(Task(k, stage, 0), 0.2 * i + 0.1 * stage, 0.2 * i + 0.1 * stage + 0.09)
                 for i, k in enumerate(kinds))
p.recording = Timeline(tuple(row(s) for s in range(len(p.plan.stages))), (), 0.39)
p._notify()"""


def test_a_recorded_step_is_shown_below_the_predicted_one_and_can_be_hidden(notebook: Notebook) -> None:
    notebook.open("recorded.ipynb", [SOLVED, RECORDED])
    notebook.run_cell(0)
    page = notebook.page
    page.wait_for_selector(".alpaviz .ap-device")
    notebook.run_cell(1)
    page.wait_for_selector(".ap-timeline canvas[aria-label*='recorded: 390']")
    notebook.screenshot("widget-recorded", ".ap-panel-timeline")
    page.locator(".ap-toggle-measured").click()
    page.wait_for_selector(".ap-timeline canvas:not([aria-label*='recorded'])")
