"""Questions of the page that take the solver seconds: one at a time in a thread of their own, and never for nothing.

In: a topic and the work that answers it, which asks now and then whether to stop. Out: the work's result, or an error
that says why there is none. Other requests are not kept waiting, and the kernel is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from alpaviz.errors import SolveCancelledError

Work = Callable[[Callable[[], bool]], Any]
Deliver = Callable[[Callable[[], Any]], None]


class Questions:
    """Runs what `ask` is given. A newer question of the same topic takes the place of the one before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._open: dict[str, threading.Event] = {}

    def ask(self, topic: str, work: Work, deliver: Deliver) -> None:
        """Have `deliver(answer)` called in the thread; `answer()` does the work.

        `answer` raises SolveCancelledError where the question was stopped, before its turn or after.
        """
        is_stopped = threading.Event()

        def answer() -> Any:
            if not is_stopped.is_set():
                result = work(is_stopped.is_set)
                if not is_stopped.is_set():  # a search that is stopped may give what it has by then
                    return result
            raise SolveCancelledError("The search was stopped: ask again.")

        with self._lock:
            before = self._open.get(topic)
            if before is not None:
                before.set()
            self._open[topic] = is_stopped
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="alpaviz-widget-questions")
            self._worker.submit(deliver, answer)

    def stop(self, kept: Collection[str] = ()) -> None:
        """Stop all that are open, but for those of the topics in `kept`; their answers say so."""
        with self._lock:
            for topic in [topic for topic in self._open if topic not in kept]:
                self._open.pop(topic).set()

    def close(self) -> None:
        """`stop`, and end the thread."""
        self.stop()
        with self._lock:
            if self._worker is not None:
                self._worker.shutdown(wait=False)
                self._worker = None
