"""The live view of a planner. What the page asks for becomes a call of one of the planner's methods."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from alpaviz.errors import AlpaVizError, PinError, PlanMismatchError
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.plan_explanation import list_costly_decisions
from alpaviz.planner_state import PlannerState
from alpaviz.widget.bundle import make_bundle
from alpaviz.widget.loop_hop import LoopHop
from alpaviz.widget.packed_plan import pack_plan
from alpaviz.widget.plan_widget import PlanWidget, list_events, to_page, word_pins
from alpaviz.widget.questions import Questions, Work
from alpaviz.widget.variant_offers import VariantOffers, drop_infinities

if TYPE_CHECKING:
    from alpaviz.planner import Planner

MAX_CHANGED_ROWS = 500
VARIANT_TOPICS = ("front", "cheapest")


def _read_pin(params: dict[str, Any]) -> Pin:
    return Pin(PinKind(params["kind"]), params["subject"], params["choice"])


def _refuse(error: AlpaVizError) -> Work:
    """Work that tells of `error`."""

    def work(should_stop: Callable[[], bool]) -> Any:
        raise error

    return work


class PlannerWidget(PlanWidget):
    """Shows `planner` live: progress, plan, alternatives, pins, what changed.

    Traits are set on the kernel's event loop only, at most ten times a second. The page's requests run one after the
    other in a thread of the widget's own, so the kernel stays free; questions that take the solver seconds have
    another, and end when a solve begins or the plan they are about is left. `cancel` runs at once.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._sent_plan: Plan | None = None
        self._compared: tuple[Plan | None, Plan | None] = (None, None)
        self._display_id: str | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._questions = Questions()
        self._offers = VariantOffers(planner)
        super().__init__(is_read_only=False)
        self._hop = LoopHop(self._take_over)
        self._take_over()
        self.on_msg(self._receive)
        self._unsubscribe: Callable[[], None] | None = planner.subscribe(self._hop.request)

    def close(self) -> None:
        """End the view; the planner goes on."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
            self._worker = None
        self._questions.close()
        super().close()

    # From the planner to the page.

    def _take_over(self) -> None:
        """Bring the traits in line with the planner."""
        planner = self._planner
        plan = planner.plan
        if planner.state == PlannerState.SOLVING:
            self._questions.stop()
        elif plan is not self._sent_plan:
            # Variants stay variants of the plan that was asked about while the plan is one of them.
            self._questions.stop(VARIANT_TOPICS if self._offers.find_key(plan) is not None else ())
        with self.hold_sync():
            if plan is not self._sent_plan:
                self._sent_plan = self._plan = plan
                self.plan_data = b"" if plan is None else pack_plan(plan)
                self._show_anew()
            self.pins = word_pins(planner.pins)
            self.changes = self._find_changes()
            self.measured = to_page(planner.measured)
            self.recording = list_events(planner.recording)
            self.status = {
                "state": str(planner.state.value if hasattr(planner.state, "value") else planner.state),
                "message": planner.message,
                "progress": to_page(planner.progress),
                "can_undo": planner.can_undo,
                "can_redo": planner.can_redo,
                "last_change": planner.last_change,
                "variant": self._offers.find_key(plan),
                "history": to_page(planner.history_entries),
                "history_position": planner.history_position,
            }

    def _find_changes(self) -> dict[str, Any] | None:
        before, plan = self._planner.previous_plan, self._sent_plan
        if before is None or plan is None:
            return None
        if before is self._compared[0] and plan is self._compared[1]:
            return self.changes  # type: ignore[no-any-return]
        self._compared = (before, plan)
        difference = self._planner.compare()
        if difference is None:
            return None
        data = to_page(difference)
        data["rows"] = data["rows"][:MAX_CHANGED_ROWS]
        return data  # type: ignore[no-any-return]

    # From the page to the planner.

    def _receive(self, widget: PlannerWidget, content: dict[str, Any], buffers: list[bytes]) -> None:
        method, params, number = content.get("method"), content.get("params") or {}, content.get("id")
        if method == "cancel":
            self._answer(number, self._cancel)
            return
        question = self._find_question(str(method), params)
        if question is not None:
            topic, work = question
            self._questions.ask(topic, work, lambda answer: self._answer(number, answer))
            return
        actions: dict[str, Callable[[], Any]] = {
            "solve": lambda: self._planner.start() and None,
            "pin": lambda: self._planner.pin(_read_pin(params)),
            "unpin": lambda: self._planner.unpin(_read_pin(params)),
            "clear_pins": self._planner.clear_pins,
            "undo": self._planner.undo,
            "redo": self._planner.redo,
            "go_to": lambda: self._planner.go_to(int(params["position"])),
            "take": lambda: self._offers.take(params["variant"]),
            "bundle": lambda: make_bundle(self._sent_plan),
            "explanation": lambda: self._explain(False, lambda: False),
            "alternatives": lambda: to_page(self._planner.alternatives(params["op"])),
        }
        action = actions.get(str(method))
        if action is None:
            self._reply({"id": number, "error": f"The widget knows no request {method!r}."})
            return
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="alpaviz-widget")
        self._worker.submit(self._answer, number, action)

    def _cancel(self) -> None:
        self._questions.stop()
        self._planner.cancel()

    def _find_question(self, method: str, params: dict[str, Any]) -> tuple[str, Work] | None:
        """Topic and work of a request that the solver answers; None for others."""
        if method not in ("regrets", "explanation", *VARIANT_TOPICS):
            return None
        if params.get("with_regrets") is False:  # an explanation without them takes no solver
            return None
        if self._planner.state == PlannerState.SOLVING:
            return method, _refuse(PinError("A solve is running: ask again when it has ended."))
        if method == "regrets":
            return method, lambda should_stop: self._find_regrets(params["op"], should_stop)
        if method == "explanation":
            return method, lambda should_stop: self._explain(True, should_stop)
        return method, self._find_variants(method, params["stage"])

    def _find_regrets(self, op: str, should_stop: Callable[[], bool]) -> list[dict[str, Any]]:
        plan = self._planner.plan
        stage = next((planned.stage for planned in plan.ops if planned.name == op), 0) if plan is not None else 0
        rows = self._planner.variants(stage).regrets(op, should_stop)
        return [drop_infinities(row) for row in to_page(rows)]

    def _explain(self, with_regrets: bool, should_stop: Callable[[], bool]) -> Any:
        """The sentences on the plan, those of costly decisions with their regrets on request."""
        plan, planner = self._planner.plan, self._planner
        if plan is None:
            raise PlanMismatchError("There is no plan to explain yet: solve first.")
        regrets = {}
        for name in list_costly_decisions(plan) if with_regrets else ():
            stage = next(op.stage for op in plan.ops if op.name == name)
            regrets[name] = planner.variants(stage).regrets(name, should_stop)
        return to_page(plan.explain(regrets))

    def _find_variants(self, kind: str, stage: int) -> Work:
        """The search about the plan that the page shows now, whatever is taken meanwhile."""
        try:
            find = self._offers.prepare(kind, stage)
        except AlpaVizError as error:
            return _refuse(error)

        def work(should_stop: Callable[[], bool]) -> Any:
            offered = to_page(find(should_stop))
            self._hop.request()  # which of them is the plan has changed
            return offered

        return work

    def _answer(self, number: Any, action: Callable[[], Any]) -> None:
        try:
            reply = {"id": number, "result": action()}
        except AlpaVizError as error:
            reply = {"id": number, "error": str(error)}
        except Exception as error:  # a view never takes the kernel down; the page shows what went wrong
            reply = {"id": number, "error": f"{type(error).__name__}: {error}"}
        self._hop.call(lambda: self._reply(reply))

    def _reply(self, reply: dict[str, Any]) -> None:
        self.send(reply)

    # The output that a saved notebook keeps.

    def _ipython_display_(self, **kwargs: Any) -> None:
        """Display with an id, so that the static picture of the plan can follow the plan."""
        from IPython.display import display

        self._display_id = self._display_id or f"alpaviz-{self.session_id}"
        data, metadata = self._make_bundle()
        display(data, metadata=metadata, raw=True, display_id=self._display_id)

    def _show_anew(self) -> None:
        if self._display_id is None:
            return
        from IPython.display import update_display

        data, metadata = self._make_bundle()
        update_display(data, metadata=metadata, raw=True, display_id=self._display_id)
