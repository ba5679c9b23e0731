"""The kernel's side of the widget: traits, requests, threads, and what an output keeps."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from alpaviz.pins import Pin, PinKind
from alpaviz.schedule import Task, TaskKind, Timeline, TimelineEvent
from alpaviz.widget import PLAN_MIME, PlannerWidget, PlanWidget
from alpaviz.widget.bundle import MAX_PACKED_BYTES, make_bundle
from alpaviz.widget.packed_plan import PACKED_FORMAT, pack_plan
from tests.widget.fake_planner import FakePlanner
from tests.widget.synthetic_plan import EXAMPLE_PINS, make_plan

OP = "block_3/mlp/dot_general.0"


class Sent(PlannerWidget):
    """Keeps replies instead of sending them."""

    def __init__(self, planner: Any) -> None:
        self.replies: list[dict[str, Any]] = []
        super().__init__(planner)

    def send(self, content: Any, buffers: Any = None) -> None:
        self.replies.append(content)


def ask(widget: Sent, method: str, **params: Any) -> dict[str, Any]:
    """What the page gets for a request."""
    number = len(widget.replies) + 1
    widget._receive(widget, {"id": number, "method": method, "params": params}, [])
    end = time.monotonic() + 5
    while len(widget.replies) < number and time.monotonic() < end:
        time.sleep(0.005)
    reply = widget.replies[-1]
    assert reply["id"] == number
    return reply


@pytest.fixture
def widget() -> Iterator[Sent]:
    made = Sent(FakePlanner(num_layers=4, is_solved=True, seconds=0.05))
    yield made
    made.close()


def unpack(data: bytes) -> dict[str, Any]:
    return json.loads(zlib.decompress(data).partition(b"\0")[0])


def test_traits_follow_the_planner(widget: Sent) -> None:
    assert widget.status["state"] == "solved"
    assert unpack(widget.plan_data)["program"]["num_layers"] == 4
    widget._planner.pin(Pin(PinKind.NUM_STAGES, None, 2))
    assert widget.status["state"] == "stale"
    assert widget.status["can_undo"]
    assert widget.pins == [{"kind": "num_stages", "subject": None, "choice": 2, "text": "there are 2 stages"}]


def test_pin_of_the_page_reaches_the_planner(widget: Sent) -> None:
    reply = ask(widget, "pin", kind="strategy", subject=OP, choice="b:x")
    assert "error" not in reply
    assert widget._planner.pins == (Pin(PinKind.STRATEGY, OP, "b:x"),)
    ask(widget, "unpin", kind="strategy", subject=OP, choice="b:x")
    assert widget._planner.pins == ()
    ask(widget, "undo")
    assert len(widget._planner.pins) == 1


def test_alternatives_are_answered_as_data(widget: Sent) -> None:
    rows = ask(widget, "alternatives", op=OP)["result"]
    assert rows[0]["strategy"] == "b:x n:y"
    assert rows[0]["is_chosen"]
    assert rows[1]["delta_s"] == pytest.approx(1.3e-3)
    json.dumps(rows)


def test_exact_regrets_are_answered_as_data(widget: Sent) -> None:
    rows = ask(widget, "regrets", op=OP)["result"]
    assert rows[1]["delta_s"] == pytest.approx(0.032 * 6 * widget._planner.plan.estimate.step_s)
    assert rows[1]["stage_bytes"] == 10.7e9


def test_what_never_fits_has_no_time_in_json(widget: Sent) -> None:
    never = ask(widget, "regrets", op=OP)["result"][-1]
    assert (never["stage_s"], never["delta_s"], never["stage_bytes"]) == (None, None, None)
    json.dumps(never, allow_nan=False)


def test_regrets_of_what_follows_a_neighbour_are_refused_with_a_sentence(widget: Sent) -> None:
    follower = next(op.name for op in widget._planner.plan.ops if not op.is_decision)
    assert "nothing to decide" in ask(widget, "regrets", op=follower)["error"]


def wait_for(widget: Sent, number: int) -> dict[str, Any]:
    """The reply to request `number`."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        for reply in widget.replies:
            if reply["id"] == number:
                return reply
        time.sleep(0.005)
    raise AssertionError(f"request {number} was not answered: {widget.replies}")


def test_other_requests_do_not_wait_for_a_question(widget: Sent) -> None:
    widget._planner.question_s = 60.0
    widget._receive(widget, {"id": 1, "method": "regrets", "params": {"op": OP}}, [])
    widget._receive(widget, {"id": 2, "method": "alternatives", "params": {"op": OP}}, [])
    assert "result" in wait_for(widget, 2)
    widget.close()


def test_a_newer_question_takes_the_place_of_the_one_before(widget: Sent) -> None:
    widget._planner.question_s = 60.0
    widget._receive(widget, {"id": 1, "method": "regrets", "params": {"op": OP}}, [])
    widget._planner.question_s = 0.0
    widget._receive(widget, {"id": 2, "method": "regrets", "params": {"op": OP}}, [])
    assert wait_for(widget, 1)["error"] == "The search was stopped: ask again."
    assert "result" in wait_for(widget, 2)


@pytest.mark.parametrize("happening", ["solve", "cancel", "take"])
def test_a_question_ends_when_its_plan_is_left(widget: Sent, happening: str) -> None:
    widget._planner.question_s = 0.0
    ask(widget, "front", stage=0)
    widget._planner.question_s = 60.0
    widget._receive(widget, {"id": 7, "method": "regrets", "params": {"op": OP}}, [])
    widget._receive(widget, {"id": 8, "method": happening, "params": {"variant": "front 0"}}, [])
    assert "stopped" in wait_for(widget, 7)["error"]


def test_taking_a_variant_leaves_the_search_for_others_of_the_same_plan_open(widget: Sent) -> None:
    widget._planner.question_s = 0.0
    ask(widget, "front", stage=0)
    before = widget._planner.plan.stages[0].objective
    widget._planner.question_s = 1.0
    widget._receive(widget, {"id": 7, "method": "cheapest", "params": {"stage": 0}}, [])
    ask(widget, "take", variant="front 1")
    offered = wait_for(widget, 7)["result"]
    assert offered["present"]["stage_s"] == before, "what was asked about, not what was taken meanwhile"
    assert widget.status["variant"] == "front 1"


def test_a_question_while_a_solve_runs_is_refused(widget: Sent) -> None:
    widget._planner.seconds = 60.0
    widget._planner.start()
    reply = ask(widget, "front", stage=0)
    widget._planner.cancel()
    assert reply["error"] == "A solve is running: ask again when it has ended."


def test_closing_ends_the_thread_of_questions(widget: Sent) -> None:
    widget._planner.question_s = 60.0
    widget._receive(widget, {"id": 1, "method": "regrets", "params": {"op": OP}}, [])
    widget.close()
    end = time.monotonic() + 5
    while time.monotonic() < end and any("questions" in thread.name for thread in threading.enumerate()):
        time.sleep(0.01)
    assert not [thread.name for thread in threading.enumerate() if "questions" in thread.name]


def test_the_front_is_answered_as_data(widget: Sent) -> None:
    offered = ask(widget, "front", stage=1)["result"]
    assert [v["stage_bytes"] for v in offered["variants"]] == [6.2e9, 7.4e9, 8.8e9, 10.1e9, 10.7e9, 16.2e9]
    assert [v["fits"] for v in offered["variants"]] == [True] * 5 + [False]
    assert offered["present"]["stage_s"] == widget._planner.plan.stages[1].objective
    json.dumps(offered, allow_nan=False)


def test_cheapest_plans_say_what_they_decide_otherwise(widget: Sent) -> None:
    offered = ask(widget, "cheapest", stage=0)["result"]["variants"]
    assert not offered[0]["differences"]
    assert list(offered[1]["differences"]) == [{"kind": "op", "subject": OP, "before": "b:x n:y", "after": "b:xy"}]


def test_a_variant_is_taken_and_marked(widget: Sent) -> None:
    ask(widget, "front", stage=0)
    reply = ask(widget, "take", variant="front 1")
    assert "error" not in reply
    assert widget._planner.plan.stages[0].objective == pytest.approx(0.1243 * 1.16)
    assert widget.status["variant"] == "front 1"
    assert widget.status["last_change"].startswith("take a variant of stage 0")


def test_undo_of_a_variant_marks_the_plan_that_was_asked_about(widget: Sent) -> None:
    ask(widget, "front", stage=0)
    ask(widget, "take", variant="front 1")
    ask(widget, "undo")
    assert widget.status["variant"] == "present"


def test_a_variant_of_another_plan_cannot_be_taken(widget: Sent) -> None:
    assert "ask for variants again" in ask(widget, "take", variant="front 1")["error"]


def test_no_variant_is_taken_while_a_solve_runs(widget: Sent) -> None:
    ask(widget, "front", stage=0)
    widget._planner.seconds = 60.0
    widget._planner.start()
    reply = ask(widget, "take", variant="front 1")
    widget._planner.cancel()
    assert reply["error"] == "A solve is running: take a variant when it has ended."


def read_sentence(sentence: dict[str, Any]) -> str:
    return "".join(fragment["text"] for fragment in sentence["fragments"])


def test_explanations_are_sentences_with_links(widget: Sent) -> None:
    sentences = ask(widget, "explanation", with_regrets=False)["result"]
    expected = widget._planner.plan.explain()
    assert [read_sentence(s) for s in sentences] == [s.text for s in expected]
    ops = {f["text"] for s in sentences for f in s["fragments"] if f["kind"] == "op"}
    assert ops <= {op.name for op in widget._planner.plan.ops}
    json.dumps(sentences, allow_nan=False)


def test_explanations_tell_regrets_on_request(widget: Sent) -> None:
    widget._planner.question_s = 0.0
    sentences = ask(widget, "explanation", with_regrets=True)["result"]
    told = [s for s in sentences if read_sentence(s).startswith("If ")]
    assert len(told) == 6, "three ops of each of two stages"


def test_without_a_plan_there_is_nothing_to_explain() -> None:
    empty = Sent(FakePlanner())
    assert "no plan to explain" in ask(empty, "explanation", with_regrets=False)["error"]
    empty.close()


def test_refusals_are_sentences(widget: Sent) -> None:
    assert ask(widget, "pin", kind="layer_stage", subject=0, choice=1)["error"].startswith(
        "layer 0 cannot be in stage 1"
    )
    assert ask(widget, "dance")["error"] == "The widget knows no request 'dance'."
    assert "KeyError" in ask(widget, "alternatives")["error"]


def test_changes_against_the_plan_before(widget: Sent) -> None:
    assert widget.changes is None
    widget._planner.start().join()
    assert widget.changes["summary"][0].startswith("A step is")
    assert widget.changes["rows"][0]["subject"] == OP


def test_measured_times_have_text_keys(widget: Sent) -> None:
    widget._planner.measured = {0: {"forward_s": 1.0, "backward_s": 2.0, "update_s": 0.1, "step_s": 4.0}}
    widget._planner._notify()
    assert widget.measured == {"0": {"forward_s": 1.0, "backward_s": 2.0, "update_s": 0.1, "step_s": 4.0}}


def test_traits_change_on_the_loop_only_and_at_most_ten_times_a_second() -> None:
    changes: list[tuple[float, int]] = []

    async def run() -> None:
        planner = FakePlanner(num_layers=2, seconds=0.7)
        widget = PlannerWidget(planner)
        widget.observe(lambda change: changes.append((time.monotonic(), threading.get_ident())), "status")
        planner.start()
        while planner.state != "solved":
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.15)
        assert widget.status["state"] == "solved", "the last state always arrives"
        widget.close()
        assert not planner._subscribers

    asyncio.run(run())
    assert {thread for _, thread in changes} == {threading.get_ident()}
    assert 3 <= len(changes) <= 12
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(changes)]
    assert min(gaps) > 0.09


def test_packed_plan_is_small_and_whole() -> None:
    plan = make_plan()
    assert len(plan.ops) > 8900
    packed = pack_plan(plan)
    assert len(packed) < 200_000
    data = unpack(packed)
    assert data["format"] == PACKED_FORMAT
    assert unpack_rows(data["ops"]) == json.loads(msgspec.json.encode(plan.ops))
    assert unpack_rows(data["values"]) == json.loads(msgspec.json.encode(plan.values))


def unpack_rows(packed: dict[str, Any]) -> list[dict[str, Any]]:
    """What logic/unpack.ts does."""
    rows: list[dict[str, Any]] = []
    last = 0
    for i in range(packed["count"]):
        row = {}
        for name, column in packed["columns"].items():
            row[name] = (
                i
                if "rows" in column
                else column["cells"][i]
                if "cells" in column
                else column["table"][column["index"][i]]
            )
        if "primitive" in row:
            stem = (f"{row['scope']}/" if row["scope"] else "") + row["primitive"]
            row["name"] = row["name"].replace("\x01", stem, 1)
            outputs = []
            for step in row["outputs"]:
                last = last if step is None else last + step
                outputs.append(None if step is None else last)
            row["outputs"] = outputs
            row["inputs"] = [None if back is None else last - back for back in row["inputs"]]
        elif row["name"] == "\x01":
            row["name"] = f"v{row['id']}"
        rows.append(row)
    names = list(rows[0]) if rows else []
    order = ("id", "name", *(n for n in names if n not in ("id", "name")))
    return [{name: row[name] for name in order} for row in rows]


def test_output_keeps_text_html_and_the_plan(widget: Sent) -> None:
    data, _ = widget._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id
    assert "layers 0–1" in data["text/html"]
    assert "gpt-1.3b" in data["text/plain"]
    assert unpack(base64.b64decode(data[PLAN_MIME]["plan"]))["ops"]["count"] > 100


def test_output_before_any_plan_says_so() -> None:
    data, _ = PlannerWidget(FakePlanner())._repr_mimebundle_()
    assert data["text/plain"] == "AlpaViz planner: no plan yet. Solve to find one."
    assert data[PLAN_MIME] == {"plan": None}


def test_large_plan_is_saved_without_its_ops() -> None:
    plan = make_plan(num_layers=2)
    bundle = make_bundle(plan, b"x" * (MAX_PACKED_BYTES + 1))
    assert not bundle[PLAN_MIME]["has_ops"]
    assert unpack(base64.b64decode(bundle[PLAN_MIME]["plan"]))["ops"]["count"] == 0


def test_plan_alone_has_a_read_only_widget() -> None:
    shown = PlanWidget(make_plan(num_layers=2, pins=EXAMPLE_PINS))
    assert shown.is_read_only
    assert [pin["text"] for pin in shown.pins] == [str(pin) for pin in EXAMPLE_PINS]


def test_a_recorded_step_is_sent_as_events(widget: Sent) -> None:
    event = TimelineEvent(Task(TaskKind.BACKWARD, 1, 3), 0.5, 0.75)
    widget._planner.recording = Timeline(((), (event,)), (), 0.75)
    widget._planner._notify()
    assert widget.recording == [(1, "backward", 3, 0.5, 0.75)]
