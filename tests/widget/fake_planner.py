"""A planner that solves nothing: the protocol that `PlannerWidget` needs, with plans from `synthetic_plan`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from alpaviz.errors import PinError
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.planner_state import Alternative, PlannerState, SolveProgress
from alpaviz.types import to_spec
from tests.widget.synthetic_plan import make_plan


@dataclass(frozen=True)
class FakeDiff:
    step_before_s: float
    step_after_s: float
    summary: tuple[str, ...]
    rows: tuple[dict[str, str], ...]


class FakePlanner:
    """Solves in `seconds` with a plan of `num_layers` layers; each pin makes the step 3 % slower."""

    def __init__(
        self,
        seconds: float = 1.0,
        num_layers: int = 24,
        num_stages: int = 2,
        is_solved: bool = False,
        num_hosts: int = 1,
    ) -> None:
        self.seconds, self.num_layers, self.num_stages = seconds, num_layers, num_stages
        self.num_hosts = num_hosts
        self.state = PlannerState.IDLE
        self.message = "Nothing planned yet: solve to find a plan."
        self.progress: SolveProgress | None = None
        self.plan: Plan | None = None
        self.previous_plan: Plan | None = None
        self.measured: dict[int, dict[str, float]] | None = None
        self.calls: list[str] = []
        self._history: list[tuple[Pin, ...]] = [()]
        self._position = 0
        self._subscribers: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if is_solved:
            self._accept()

    @property
    def pins(self) -> tuple[Pin, ...]:
        return self._history[self._position]

    @property
    def can_undo(self) -> bool:
        return self._position > 0

    @property
    def can_redo(self) -> bool:
        return self._position + 1 < len(self._history)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def _notify(self) -> None:
        for callback in tuple(self._subscribers):
            callback()

    def start(self) -> threading.Thread:
        self.calls.append("start")
        self._stop.clear()
        self.state, self.message = PlannerState.SOLVING, "Solving."
        self.progress = SolveProgress("tracing", 0, 1, None, None, 0.0)
        self._notify()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self._thread

    def _run(self) -> None:
        began, steps = time.monotonic(), 40
        for i in range(steps):
            if self._stop.wait(self.seconds / steps):
                self.state, self.message, self.progress = (
                    PlannerState.CANCELLED,
                    "Cancelled; the last plan is kept.",
                    None,
                )
                self._notify()
                return
            elapsed = time.monotonic() - began
            self.progress = SolveProgress("solving stages", i, steps, 2.9 - i * 0.01, 2.0 + i * 0.005, elapsed)
            self._notify()
        self._accept()

    def _accept(self) -> None:
        made = make_plan(self.num_layers, self.num_stages, pins=self.pins, num_hosts=self.num_hosts)
        factor = 1.03 ** len(self.pins)
        step = made.estimate.step_s * factor
        estimate = replace(made.estimate, step_s=step, compute_s=made.estimate.compute_s + step - made.estimate.step_s)
        self.previous_plan, self.plan = self.plan, replace(made, estimate=estimate)
        self.state, self.message, self.progress = (
            PlannerState.SOLVED,
            f"{self.num_stages} stages, step {step:.3g} s, proven best for the cost model.",
            None,
        )
        self._notify()

    def cancel(self) -> None:
        self.calls.append("cancel")
        self._stop.set()

    def _change(self, pins: tuple[Pin, ...]) -> None:
        del self._history[self._position + 1 :]
        self._history.append(pins)
        self._position += 1
        self._settle()

    def _settle(self) -> None:
        if self.plan is not None:
            is_same = self.plan.pins == self.pins
            self.state = PlannerState.SOLVED if is_same else PlannerState.STALE
            self.message = "" if is_same else "Pins changed since this plan was found: solve again."
        self._notify()

    def pin(self, pin: Pin) -> None:
        self.calls.append(f"pin {pin}")
        if pin.kind is PinKind.LAYER_STAGE and pin.subject == 0 and pin.choice != 0:
            raise PinError(f"layer 0 cannot be in stage {pin.choice}: stages hold layers in order.")
        kept = tuple(p for p in self.pins if (p.kind, p.subject) != (pin.kind, pin.subject))
        self._change((*kept, pin))

    def unpin(self, pin: Pin) -> None:
        self.calls.append(f"unpin {pin}")
        self._change(tuple(p for p in self.pins if p != pin))

    def clear_pins(self) -> None:
        self._change(())

    def undo(self) -> None:
        self._position = max(0, self._position - 1)
        self._settle()

    def redo(self) -> None:
        self._position = min(len(self._history) - 1, self._position + 1)
        self._settle()

    def alternatives(self, op: str) -> tuple[Alternative, ...]:
        assert self.plan is not None
        found = next(o for o in self.plan.ops if o.name == op)
        if not found.is_decision:
            raise PinError(f"op {op} follows a neighbour: there is nothing to decide.")
        names = [
            found.strategy,
            *(s for s in ("b:x n:y", "b:x k:y", "b:x", "n:x k:y", "b:xy", "n:xy", "whole") if s != found.strategy),
        ]
        pinned = {p.choice for p in self.pins if p.subject == op}
        return tuple(
            Alternative(
                name, found.compute_s * (1 + i), 4.1e-4 * (i % 3),
                11.4e9 + 7.1e8 * i * (1 if i % 2 else -1) + (6e9 if name == "whole" else 0),
                i * 1.3e-3, i == 0, name in pinned,
                (to_spec(("x", None, None)), to_spec((None, "y"))), (to_spec(("x", None, "y")),),
            )
            for i, name in enumerate(names)
        )  # fmt: skip

    def compare(self) -> Any:
        if self.previous_plan is None or self.plan is None:
            return None
        before, after = self.previous_plan.estimate.step_s, self.plan.estimate.step_s
        word = "slower" if after > before else "faster"
        return FakeDiff(
            before, after, (f"A step is {abs(after / before - 1):.1%} {word}.", "1 op runs another way."),
            ({"kind": "strategy", "subject": "block_3/mlp/dot_general.0", "before": "b:x n:y", "after": "b:xy"},
             {"kind": "memory", "subject": "stage 0", "before": "11.4 GB", "after": "12.1 GB"}),
        )  # fmt: skip
