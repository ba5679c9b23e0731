"""What stages of other hosts have sent to a host, and how the host waits for it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

from alpaviz.errors import LaunchError

MailKey = tuple[int, int, int, int]
"""(step, value, microbatch, target stage)."""


class Mailbox:
    """Mail of one host. `begin`, `take` and `pause` are called by the thread that runs steps, the others by any."""

    def __init__(self) -> None:
        self._mail: dict[MailKey, list[Any]] = defaultdict(list)
        self._changed = threading.Condition()
        self._step = 0
        self._aborted_step, self._reason = -1, ""

    def begin(self, step: int) -> None:
        """Forget what was sent in earlier steps."""
        with self._changed:
            self._step = step
            for key in [key for key in self._mail if key[0] < step]:
                del self._mail[key]

    def deliver(self, key: MailKey, item: Any) -> None:
        """Take in an array, or the pieces of it that one host of the sending stage holds."""
        with self._changed:
            if key[0] >= self._step:
                self._mail[key].append(item)
                self._changed.notify_all()

    def abort(self, step: int, reason: str) -> None:
        """Let the thread that runs `step` wait no longer: another worker has failed."""
        with self._changed:
            self._aborted_step, self._reason = step, reason
            self._changed.notify_all()

    def take(self, key: MailKey, count: int) -> list[Any] | None:
        """All `count` items sent under `key`, or None while some are on their way."""
        with self._changed:
            return self._mail.pop(key) if len(self._mail.get(key, ())) >= count else None

    def pause(self, deadline: float, what: str) -> None:
        """Sleep until something changes, or for a moment.

        Raises:
            LaunchError: the step has been aborted, or `deadline` (of `time.monotonic`) has passed.
        """
        with self._changed:
            if self._aborted_step >= self._step:
                raise LaunchError(f"{what}: given up, because {self._reason}")
            if time.monotonic() > deadline:
                raise LaunchError(f"{what}: nothing came in time. A worker hangs or is overloaded.")
            self._changed.wait(0.05)
