"""A planner that solves nothing: the protocol that `PlannerWidget` needs, with plans from `synthetic_plan`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from alpaviz.errors import PinError
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import Plan
from alpaviz.planner_history import HistoryEntry
from alpaviz.planner_state import Alternative, PlannerState, SolveProgress
from alpaviz.schedule import Timeline
from alpaviz.stage_variants import FrontPlan, Regret
from alpaviz.types import to_spec
from tests.widget.synthetic_plan import make_plan

STRATEGIES = ("b:x n:y", "b:x k:y", "b:x", "n:x k:y", "b:xy", "n:xy", "whole")
CHANGED = "block_3/mlp/dot_general.0"
"""The op that the slower variants decide another way."""


@dataclass(frozen=True)
class FakeDiff:
    step_before_s: float
    step_after_s: float
    summary: tuple[str, ...]
    rows: tuple[dict[str, str], ...]


@dataclass(frozen=True)
class FakeVariants:
    """Answers after `seconds`, or when it is stopped."""

    plan: Plan
    index: int
    seconds: float
    memory_limit: float = 15e9

    def _work(self, should_stop: Callable[[], bool]) -> None:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and not should_stop():
            time.sleep(0.01)

    def regrets(self, op: str, should_stop: Callable[[], bool]) -> tuple[Regret, ...]:
        self._work(should_stop)
        found = next(o for o in self.plan.ops if o.name == op)
        if not found.is_decision:
            raise PinError(f"op {op} follows a neighbour: there is nothing to decide.")
        others = [name for name in STRATEGIES if name != found.strategy]
        step_s = self.plan.estimate.step_s
        rows = [Regret(found.strategy, 0.12, 0.0, 0.0, True, True, 0.0, 10.7e9)]
        for i, name in enumerate(others):
            # From the last to the first, so that the order of exact regrets is not that of the quick ones.
            share, is_exact = 0.032 * (len(others) - i), i != 1
            gap = 0.0 if is_exact else 0.004
            rows.append(
                Regret(name, 0.12 * (1 + share), share * step_s, share, False, is_exact, gap, 10.7e9 - 1.1e9 * i)
            )
        return (*rows, Regret("never", math.inf, math.inf, math.inf, False, True, 0.0, None))

    def _make(self, factor: float, num_bytes: float) -> Plan:
        stage = self.plan.stages[self.index]
        more = num_bytes - (stage.memory.total_bytes - stage.memory.temporary_bytes)
        memory = replace(stage.memory, activations_bytes=stage.memory.activations_bytes + more)
        changed = replace(stage, objective=stage.objective * factor, memory=memory)
        stages = (*self.plan.stages[: self.index], changed, *self.plan.stages[self.index + 1 :])
        ops = tuple(replace(op, strategy="b:xy") if factor > 1 and op.name == CHANGED else op for op in self.plan.ops)
        estimate = replace(self.plan.estimate, step_s=self.plan.estimate.step_s * factor)
        return replace(self.plan, stages=stages, ops=ops, estimate=estimate)

    def front(self, count: int, should_stop: Callable[[], bool]) -> tuple[FrontPlan, ...]:
        self._work(should_stop)
        points = [(1.31, 6.2e9), (1.16, 7.4e9), (1.07, 8.8e9), (1.02, 10.1e9), (1.0, 10.7e9), (0.97, 16.2e9)]
        stage_s = self.plan.stages[self.index].objective
        return tuple(FrontPlan(self._make(f, size), f * stage_s, size, f != 1.07) for f, size in points)

    def cheapest(self, count: int, should_stop: Callable[[], bool]) -> tuple[Plan, ...]:
        self._work(should_stop)
        return tuple(self._make(1 + 0.001 * i, 10.7e9 + 2e7 * i) for i in range(count))


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
        self.recording: Timeline | None = None
        self.calls: list[str] = []
        self.question_s = 0.2
        self._history: list[tuple[Pin, ...]] = [()]
        self._taken: dict[int, tuple[Plan, str]] = {}
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
    def last_change(self) -> str:
        return self._taken[self._position][1] if self._position in self._taken else "a pin"

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

    def take(self, plan: Plan, label: str) -> None:
        self.calls.append(label)
        if self._position == 0 and self.plan is not None:
            self._taken[0] = self.plan, "solve"
        self.previous_plan, self.plan = self.plan, plan
        self._taken[self._position + 1] = plan, label
        self._change(self.pins)

    def _settle(self) -> None:
        if self._position in self._taken:
            self.plan = self._taken[self._position][0]
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

    @property
    def history_entries(self) -> tuple[HistoryEntry, ...]:
        labels = [self._taken[i][1] if i in self._taken else "a pin" for i in range(len(self._history))]
        return tuple(HistoryEntry(label if i else "start", 1.7e9 + 60 * i, i == 0) for i, label in enumerate(labels))

    @property
    def history_position(self) -> int:
        return self._position

    def go_to(self, position: int) -> None:
        self._position = position
        self._settle()

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
        names = [found.strategy, *(s for s in STRATEGIES if s != found.strategy)]
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

    def variants(self, stage: int) -> FakeVariants:
        assert self.plan is not None
        return FakeVariants(self.plan, stage, self.question_s)

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
