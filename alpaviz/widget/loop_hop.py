"""Brings changes from any thread to the kernel's event loop, a few times a second at most."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

MIN_INTERVAL_S = 0.1
"""The server in front of a kernel drops messages beyond a rate; a page needs no more than ten a second."""


class LoopHop:
    """`request()` from any thread runs `action` on the loop that ran at construction, soon, and once for many calls.

    Without a running loop (a script) `action` runs at once in the caller's thread, one caller at a time.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._lock = threading.RLock()
        self._is_scheduled = False
        self._last_run = float("-inf")
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    def request(self) -> None:
        """Run the action soon."""
        if self._loop is None or self._loop.is_closed():
            with self._lock:
                self._action()
            return
        with self._lock:
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self.call(self._wait_then_run)

    def call(self, function: Callable[[], None]) -> None:
        """Run `function` on the loop, as soon as it is free; at once where there is none."""
        if self._loop is None or self._loop.is_closed():
            function()
            return
        # Closed since we looked: the kernel is going down.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _wait_then_run(self) -> None:
        assert self._loop is not None, "only scheduled on a loop"
        wait = self._last_run + MIN_INTERVAL_S - time.monotonic()
        self._loop.call_later(max(0.0, wait), self._run)

    def _run(self) -> None:
        with self._lock:
            self._is_scheduled = False
        self._last_run = time.monotonic()
        self._action()
