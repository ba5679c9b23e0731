"""Which line of a traceback is the user's: not JAX's, not ours, and not another library's if there is any other."""

from __future__ import annotations

import functools
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from jax._src import source_info_util

_OWN = str(Path(__file__).parent)
_STANDARD = sysconfig.get_path("stdlib")
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/")


def choose_user_frame(files: Iterable[str]) -> int | None:
    """Position of the user's frame among `files`, innermost first.

    The innermost that lies in no installed package; else the innermost that is neither JAX's nor ours; else None.
    """
    fallback = None
    for position, file in enumerate(files):
        if not _is_internal(file):
            if not _is_installed(file):
                return position
            fallback = position if fallback is None else fallback
    return fallback


@functools.lru_cache(maxsize=4096)
def _is_internal(file: str) -> bool:
    """Whether a file belongs to JAX, to Python or to the tracing of AlpaViz."""
    if file.startswith(("<frozen", "<string>", _OWN)):
        return True
    return not source_info_util.is_user_filename(file) or (
        file.startswith(_STANDARD) and not any(folder in file for folder in _LIBRARY_FOLDERS)
    )


@functools.lru_cache(maxsize=4096)
def _is_installed(file: str) -> bool:
    return any(folder in file.replace("\\", "/") for folder in _LIBRARY_FOLDERS)


def format_line(file: str, line: int) -> str:
    """`train.py:41`, or `cell:41` in a notebook."""
    if "ipykernel_" in file or file.startswith("<ipython"):
        return f"cell:{line}"
    return f"{file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"
