"""Frame times of the op graph while it is moved: every op of a program of 10,000 in a headless Chromium, no GPU.

    python -m tests.benchmarks.panning [--layers 27] [--seconds 3] [--json FILE] [--check]

Prints, of the widget alone in a page: milliseconds from the press of "Graph" to the first picture of folded layers,
from "All ops" to the first picture of all of them, and frames a second with the slowest of a hundred (99th percentile)
while the picture is dragged, seen whole, with ops of 20 pixels, and with legible ops. Frames come 60 times a second at
most.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from alpaviz.plan import Plan
from alpaviz.widget.assets import read_module, read_styles
from alpaviz.widget.packed_plan import pack_plan
from tests.browser.jupyter import FLAGS
from tests.install_browser import MISSING, ensure_chromium
from tests.widget.synthetic_plan import make_plan

PAGE = """<!doctype html><html><head><style>body { margin: 0 } STYLES</style></head>
<body data-jp-theme-light="true"><div id="el"></div><script type="module">
const url = URL.createObjectURL(new Blob([MODULE], { type: 'text/javascript' }));
const widget = (await import(url)).default;
const bytes = Uint8Array.from(atob('DATA'), (c) => c.charCodeAt(0));
const status = { state: 'solved', message: '', progress: null, can_undo: false, can_redo: false };
const traits = { plan_data: new DataView(bytes.buffer), status, pins: [], changes: null, measured: null,
  is_read_only: true, session_id: 'page' };
const model = { get: (name) => traits[name], on() {}, off() {}, send() {} };
widget.initialize({ model });
widget.render({ model, el: document.getElementById('el') });
</script></body></html>"""

# Each frame moves the picture by some pixels, to and fro, and notes when it came.
DRAG = """async (seconds) => {
  const canvas = document.querySelector('.ap-graph-canvas');
  canvas.setPointerCapture = () => {};
  const { left, top } = canvas.getBoundingClientRect();
  const send = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type,
    { clientX: left + x, clientY: top + y, button: 0, pointerId: 1, bubbles: true }));
  const times = [];
  send('pointerdown', 300, 200);
  const start = performance.now();
  await new Promise((resolve) => {
    const step = (now) => {
      times.push(now);
      const turn = (now - start) / 250;
      send('pointermove', 300 + 600 * Math.sin(turn), 200 + 400 * Math.cos(turn / 1.7));
      if (now - start < seconds * 1000) requestAnimationFrame(step);
      else resolve();
    };
    requestAnimationFrame(step);
  });
  send('pointerup', 300, 200);
  return times.slice(1).map((time, i) => time - times[i]);
}"""

# From a press to two frames after the number of boxes has changed: by then what was drawn is seen.
PRESS = """async (label) => {
  const graph = document.querySelector('.ap-graph');
  const before = graph.dataset.boxes;
  const button = [...document.querySelectorAll('button')].find((each) => each.textContent === label);
  const start = performance.now();
  button.click();
  while (graph.dataset.boxes === before) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and what it is held to; `is_least` where more is better."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    is_least: bool = False

    @property
    def is_met(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.is_least else self.value <= self.limit


def make_page(plan: Plan) -> str:
    """The widget with `plan`, alone in a page."""
    module = json.dumps(read_module()).replace("</", "<\\/")
    data = base64.b64encode(pack_plan(plan)).decode()
    return PAGE.replace("STYLES", read_styles()).replace("DATA", data).replace("MODULE", module)


def measure_drag(page: Page, name: str, seconds: float) -> list[Figure]:
    frames = page.evaluate(DRAG, seconds)
    slowest = statistics.quantiles(frames, n=100)[98]
    return [
        Figure(f"{name}: frames a second", 1000 * len(frames) / sum(frames), "1/s", 50.0, is_least=True),
        Figure(f"{name}: slowest of a hundred frames", slowest, "ms"),
    ]


def measure(page: Page, plan: Plan, seconds: float) -> list[Figure]:
    page.set_content(make_page(plan))
    page.wait_for_selector(".ap-row")
    found = [Figure("first picture, layers folded", page.evaluate(PRESS, "Graph"), "ms", 300.0)]
    page.get_by_role("button", name="Larger").click()
    found.append(Figure("first picture of all ops", page.evaluate(PRESS, "All ops"), "ms", 1000.0))
    found += measure_drag(page, "all ops seen whole", seconds)
    scales = (("ops of 20 pixels", 10), ("legible ops", 8))
    for name, turns in scales:
        for _ in range(turns):
            page.locator(".ap-graph-tools button[aria-label='Zoom in']").click()
        found += measure_drag(page, name, seconds)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=27, help="layers of the synthetic GPT (default: 27, 10,000 ops)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each picture is dragged")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a target is missed")
    options = parser.parse_args(argv)
    browser_path = ensure_chromium()
    if browser_path is None:
        print(MISSING, file=sys.stderr)
        return 2
    plan = make_plan(options.layers, num_stages=1)
    print(f"{len(plan.ops):,} ops")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=list(FLAGS))
        found = measure(browser.new_page(viewport={"width": 1400, "height": 1000}), plan, options.seconds)
        browser.close()
    for figure in found:
        target = "" if figure.limit is None else f"  ({'at least' if figure.is_least else 'at most'} {figure.limit:g})"
        print(f"{figure.name:<48} {figure.value:8.1f} {figure.unit}{target}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(figure) for figure in found], indent=2))
    return 1 if options.check and not all(figure.is_met for figure in found) else 0


if __name__ == "__main__":
    sys.exit(main())
