"""Python's garbage collector, paused while a program is made.

Tracing makes some hundred thousand objects that all live on. The collector would walk them again and again and free
nothing: about a quarter of the time that tracing takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """The cyclic collector is off inside, and on again afterwards if it was on before; also when tracing fails."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
