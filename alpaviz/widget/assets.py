"""The browser code that hatch_build.py builds from extension/."""

from __future__ import annotations

from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent.parent / "static"

_MISSING = """
function render({ el }) {
  el.textContent = 'The browser code of AlpaViz has not been built: run `pip install .` in its repository.';
}
export default { render };
"""


@cache
def read_module() -> str:
    """The ES module of the widget; one that says what to do where it has not been built."""
    path = STATIC / "widget.js"
    return path.read_text(encoding="utf-8") if path.exists() else _MISSING


@cache
def read_styles() -> str:
    path = STATIC / "widget.css"
    return path.read_text(encoding="utf-8") if path.exists() else ""
