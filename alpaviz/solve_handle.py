"""A solve that runs in the background: it can be awaited, waited for and cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

from alpaviz.plan import Plan

_SLICE_S = 0.2
"""A wait is cut into slices of this length, so that an interrupt (the notebook's stop button) is seen in time."""


class SolveHandle:
    """One running solve. `planner.start()` makes it; every method may be called from any thread.

    `await handle` gives the plan without blocking the notebook; `handle.wait()` blocks; both raise what the solve
    raised. `handle.cancel()` asks it to stop.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], Plan]) -> None:
        self._cancelled = threading.Event()
        self._finished = threading.Event()
        self._plan: Plan | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name="alpaviz-solve", daemon=True)

    def begin(self) -> SolveHandle:
        """Start the work; called once, by the planner."""
        self._thread.start()
        return self

    def _run(self, work: Callable[[Callable[[], bool]], Plan]) -> None:
        try:
            self._plan = work(self._cancelled.is_set)
        except BaseException as error:  # handed to whoever waits
            self._error = error
        finally:
            self._finished.set()

    @property
    def is_done(self) -> bool:
        """Whether the solve has ended, well or not."""
        return self._finished.is_set()

    def cancel(self) -> None:
        """Ask the solve to stop. The planner keeps its last plan."""
        self._cancelled.set()

    def wait(self, timeout: float | None = None) -> Plan:
        """Block until the solve has ended; the plan.

        Args:
            timeout: seconds; None waits for as long as it takes.

        Raises:
            TimeoutError: it has not ended in time (it goes on).
            KeyboardInterrupt: the solve has been cancelled.
            AlpaVizError: what the solve raised.
        """
        waited = 0.0
        try:
            while not self._finished.wait(_SLICE_S if timeout is None else min(_SLICE_S, max(0.0, timeout - waited))):
                waited += _SLICE_S
                if timeout is not None and waited >= timeout:
                    raise TimeoutError(f"The solve has not ended after {timeout:g} s; it goes on in the background.")
        except KeyboardInterrupt:
            self.cancel()
            self._finished.wait(10.0)
            raise
        return self._get()

    def _get(self) -> Plan:
        if self._error is not None:
            raise self._error
        assert self._plan is not None, "a finished solve has a plan or an error"
        return self._plan

    def __await__(self) -> Generator[Any, None, Plan]:
        return self._wait_without_blocking().__await__()

    async def _wait_without_blocking(self) -> Plan:
        try:
            while not self._finished.is_set():
                await asyncio.sleep(_SLICE_S / 4)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._get()

    def __repr__(self) -> str:
        return f"SolveHandle({'done' if self.is_done else 'running'})"
