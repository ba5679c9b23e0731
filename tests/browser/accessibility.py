"""What axe-core says of our part of a page. It is a development dependency of extension/package.json."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import Page

from tests.browser.jupyter import REPOSITORY

AXE = REPOSITORY / "extension/node_modules/axe-core/axe.min.js"

FIND_VIOLATIONS = """async root => {
  const { violations } = await axe.run(root, { resultTypes: ['violations'], rules: { region: { enabled: false } } });
  return violations.map(({ id, nodes }) => `${id} ${nodes.length} of ${nodes[0].html.slice(0, 200)}: `
    + nodes[0].failureSummary.replace(/\\s+/g, ' '));
}"""
"""`region` asks that all content lies in landmarks: that is the notebook's page, not ours."""


def find_violations(page: Page, root: str = ".alpaviz") -> list[str]:
    """Rule, count, first element and remedy of each violation inside the element that `root` selects."""
    if not AXE.exists():
        reason = "axe-core is not installed: run `npm ci` in extension/."
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    if not page.evaluate("() => 'axe' in window"):
        # AMD loaders of the page would catch the script: it is given its own, empty module system.
        page.evaluate(f"() => {{ const define = undefined, module = undefined; {AXE.read_text()} }}")
    return list(page.evaluate(FIND_VIOLATIONS, root))
