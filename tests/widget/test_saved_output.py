"""What is left of a planner in a notebook that was run without a browser."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from alpaviz.widget import PLAN_MIME

REPOSITORY = Path(__file__).parents[2]
CELLS = (
    f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
    "from tests.widget.fake_planner import FakePlanner\nfrom alpaviz.widget import PlannerWidget\n"
    "p = FakePlanner(seconds=0.2, num_layers=4)\nPlannerWidget(p)",
    "import asyncio\np.start()\nwhile p.state != 'solved':\n    await asyncio.sleep(0.05)\nawait asyncio.sleep(0.3)",
)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_plan_that_was_found_after_its_output_is_in_the_notebook_and_its_html() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=60, kernel_name="python3", store_widget_state=False).execute()
    (output,) = notebook.cells[0].outputs
    assert output.data[PLAN_MIME]["plan"]
    assert "layers 0–1 (block_0 to block_1)" in output.data["text/html"]
    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert "layers 0–1 (block_0 to block_1)" in html
    assert "alpaviz-static" in html
