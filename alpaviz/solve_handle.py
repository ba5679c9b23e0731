"""A solve that runs in the background: it can be awaited, waited for and cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

_SLICE_S = 0.2
"""A wait is cut into slices of this length, so that an interrupt (the notebook's stop button) is seen in time."""

Result = TypeVar("Result")


class SolveHandle(Generic[Result]):
    """One running solve. `planner.start()` makes it; every method may be called from any thread.

    `await handle` gives the result, a plan, without blocking the notebook; `handle.wait()` blocks; both raise what the
    solve raised. `handle.cancel()` asks it to stop.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], Result]) -> None:
        self._cancelled = threading.Event()
        self._finished = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name="alpaviz-solve", daemon=True)

    def begin(self) -> SolveHandle[Result]:
        """Start the work; called once, by the planner."""
        self._thread.start()
        return self

    def _run(self, work: Callable[[Callable[[], bool]], Result]) -> None:
        try:
            self._result = work(self._cancelled.is_set)
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

    def wait(self, timeout: float | None = None) -> Result:
        """Block until the solve has ended; its result.

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

    def _get(self) -> Result:
        if self._error is not None:
            raise self._error
        assert self._result is not None, "a finished solve has a result or an error"
        return self._result

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait_without_blocking().__await__()

    async def _wait_without_blocking(self) -> Result:
        try:
            while not self._finished.is_set():
                await asyncio.sleep(_SLICE_S / 4)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._get()

    def __repr__(self) -> str:
        return f"SolveHandle({'done' if self.is_done else 'running'})"
