"""The picture of a plan that needs no kernel and no script."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from alpaviz.widget.static_view import (
    MAX_HTML_BYTES,
    list_step_parts,
    render_plan_html,
)
from tests.widget.synthetic_plan import EXAMPLE_PINS, make_plan

VOID = {"rect"}


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> _Checker:
    checker = _Checker()
    checker.feed(html)
    assert not checker.open
    return checker


def test_html_is_well_formed_without_script_or_network() -> None:
    checker = read(render_plan_html(make_plan(pins=EXAMPLE_PINS)))
    assert not checker.tags & {"script", "style", "link", "iframe", "img"}
    text = " ".join(checker.text)
    for expected in ("gpt-1.3b", "2.31 s", "layers 12–23 (block_12 to block_23)", "2x2 (x=2, y=2)", "block_7",
                     "pinned: layer 11 is in stage 0", "warning: 1 op (custom_call) has no sharding rule"):  # fmt: skip
        assert expected in text


@pytest.mark.parametrize(("num_layers", "num_stages"), [(1, 1), (24, 2), (48, 8), (600, 4)])
def test_html_stays_small(num_layers: int, num_stages: int) -> None:
    assert len(render_plan_html(make_plan(num_layers, num_stages)).encode()) <= MAX_HTML_BYTES


def test_names_are_escaped() -> None:
    plan = make_plan(num_layers=2)
    evil = replace(plan, program=replace(plan.program, name="<script>alert(1)</script>"), warnings=("a < b & c",))
    html = render_plan_html(evil)
    assert "<script" not in html
    assert "a &lt; b &amp; c" in html


def test_parts_add_up_to_the_step() -> None:
    estimate = make_plan(num_layers=2).estimate
    assert sum(seconds for _, seconds in list_step_parts(estimate)) == pytest.approx(estimate.step_s)
