"""What a planner did: pins and plans in order, and the place in them that undo and redo move.

In: changes of pins, plans that were found or taken. Out: the present pins and plan, and the plan to compare with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from alpaviz.pins import Pin
from alpaviz.plan import Plan


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What undo and redo go back to: pins, and the plan that was found for them (None if none was).

    Attributes:
        time_s: when it was made, in seconds since 1970.
    """

    pins: tuple[Pin, ...]
    plan: Plan | None
    label: str
    time_s: float = field(default_factory=time.time, compare=False)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A snapshot as people see it.

    Attributes:
        time_s: when it was made, in seconds since 1970.
        has_plan: whether a plan was found for its pins.
    """

    label: str
    time_s: float
    has_plan: bool


@dataclass(slots=True)
class PlannerHistory:
    """Snapshots, oldest first; `position` is the present one. Not safe to change from two threads at a time.

    Attributes:
        previous_plan: the plan before the last one that was found, taken or gone back from.
    """

    snapshots: list[Snapshot] = field(default_factory=lambda: [Snapshot((), None, "start")])
    position: int = 0
    previous_plan: Plan | None = None

    @property
    def present(self) -> Snapshot:
        """Pins and plan of now; the plan is None where pins have changed since one was found."""
        return self.snapshots[self.position]

    @property
    def can_undo(self) -> bool:
        return self.position > 0

    @property
    def can_redo(self) -> bool:
        return self.position + 1 < len(self.snapshots)

    @property
    def labels(self) -> tuple[str, ...]:
        """What was done, oldest first, up to what redo can reach."""
        return tuple(snapshot.label for snapshot in self.snapshots)

    @property
    def entries(self) -> tuple[HistoryEntry, ...]:
        """As `labels`, with times."""
        return tuple(HistoryEntry(s.label, s.time_s, s.plan is not None) for s in self.snapshots)

    @property
    def last_plan(self) -> Plan | None:
        """The plan of now or the last one before; where there is none, the first one that redo can reach."""
        for snapshot in reversed(self.snapshots[: self.position + 1]):
            if snapshot.plan is not None:
                return snapshot.plan
        return next((s.plan for s in self.snapshots if s.plan is not None), None)

    def push(self, pins: tuple[Pin, ...], plan: Plan | None, label: str) -> None:
        """Go on with these pins, and with `plan` where one comes with them; what redo could reach is gone."""
        if plan is not None:
            self.previous_plan = self.last_plan
        del self.snapshots[self.position + 1 :]
        self.snapshots.append(Snapshot(pins, plan, label))
        self.position += 1

    def accept(self, plan: Plan, pins: tuple[Pin, ...]) -> bool:
        """Note that a solve for `pins` found `plan`; whether those are the present pins still."""
        before = self.last_plan
        if self.present.pins != pins:
            # Pins changed while the solve ran: the plan is shown, but it is not for the present pins.
            self.previous_plan = before
            self.snapshots.insert(self.position, Snapshot(pins, plan, "solve"))
            self.position += 1
            return False
        self.previous_plan = before if before is not None and before is not plan else self.previous_plan
        self.snapshots[self.position] = replace(self.present, plan=plan)
        return True

    def move(self, by: int) -> bool:
        """Go `by` snapshots back (negative) or forth; False where there are none."""
        target = self.position + by
        if not 0 <= target < len(self.snapshots):
            return False
        before = self.last_plan
        self.position = target
        after = self.present.plan
        if after is not None and before is not None and after is not before:
            self.previous_plan = before
        return True
