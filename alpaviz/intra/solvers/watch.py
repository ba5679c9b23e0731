"""What a running solve owes its caller: progress at a bearable rate, the time limit, and an ear for cancel."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_REPORT_EVERY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class SolveProgress:
    """State of a running solve: best objective so far (inf where none), proven bound, seconds since the start."""

    objective: float
    bound: float
    seconds: float
    solver: str


class Watch:
    """Clock of one solve. Not shared between threads; `should_stop` may be set from any thread."""

    def __init__(
        self,
        solver: str,
        time_limit: float | None = None,
        on_progress: Callable[[SolveProgress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.solver = solver
        self._start = time.perf_counter()
        self._deadline = float("inf") if time_limit is None else self._start + time_limit
        self._on_progress = on_progress
        self._should_stop = should_stop
        self._reported = -float("inf")
        self.is_cancelled = False

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.perf_counter()

    def is_over(self) -> bool:
        """True once the time limit has passed or the caller asked to stop."""
        if not self.is_cancelled and self._should_stop is not None and self._should_stop():
            self.is_cancelled = True
        return self.is_cancelled or time.perf_counter() >= self._deadline

    def take(self, seconds: float) -> Watch:
        """A watch for a part of the work: at most `seconds`, and no more than what is left; same ear, same reports."""
        part = Watch(self.solver, None, self._on_progress, self._should_stop)
        part._start = self._start
        part._deadline = min(self._deadline, time.perf_counter() + seconds)
        return part

    def report(self, objective: float, bound: float) -> None:
        """Tell the caller, at most ten times a second."""
        now = time.perf_counter()
        if self._on_progress is not None and now - self._reported >= _REPORT_EVERY_SECONDS:
            self._reported = now
            self._on_progress(SolveProgress(objective, bound, now - self._start, self.solver))
