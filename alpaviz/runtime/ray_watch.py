"""Watching Ray workers while they work: which of them does not answer, and which differs from the driver."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from importlib import metadata
from typing import Any

from alpaviz.errors import LaunchError

LOOK_S = 0.5
"""How often the driver looks after workers that it waits for."""


class WorkerWatch:
    """Pings workers while the driver waits for them. A ping is answered beside whatever a worker is busy with, so that
    only a process that is stopped, stuck or gone is silent.
    """

    def __init__(self, ray: Any, workers: Sequence[Any], limit_s: float) -> None:
        self._ray, self._workers, self._limit_s = ray, workers, limit_s
        self._pings: dict[int, tuple[Any, float]] = {}

    def find_silent(self, hosts: Collection[int]) -> int | None:
        """The first of `hosts` that has not answered for the time limit; others are pinged."""
        for host in hosts:
            ping, sent = self._pings.get(host, (None, 0.0))
            if ping is None or self._ray.wait([ping], timeout=0)[0]:
                self._pings[host] = (self._workers[host].ping.remote(), time.monotonic())
            elif time.monotonic() - sent > self._limit_s:
                return host
        return None


def count_living(ray: Any, workers: Sequence[Any], limit_s: float = 5.0) -> int:
    """How many of `workers` answer within a time."""
    pings = [worker.ping.remote() for worker in workers]
    answered = 0
    for ping in ray.wait(pings, num_returns=len(pings), timeout=limit_s)[0]:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(ping)
            answered += 1
    return answered


def list_versions() -> dict[str, str]:
    """Versions in this process of what a driver and its workers must have in common."""
    from alpaviz import __version__

    return {"alpaviz": __version__, **{name: metadata.version(name) for name in ("jax", "jaxlib")}}


def refuse_other_versions(theirs: Mapping[str, str], where: str) -> None:
    """Raise where a worker's versions are not those of this process."""
    for name, ours in list_versions().items():
        found = theirs.get(name, "of an unknown version")
        if found != ours:
            raise LaunchError(
                f"The worker of {where} has {name} {found}, this process has {name} {ours}: install the same version "
                "on all hosts."
            )
