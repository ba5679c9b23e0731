"""Solved stages on disk, so that the next session need not solve them again.

In: a program's structure, a mesh, a solver. Out: a file for each such triple with the answers known for it. A file is
named by a hash of all that its answers depend on, this package's cost model and solvers included, so files of another
version are never looked at; they go when the folder is full. A file holds numbers only (MessagePack with a checksum):
reading one runs no code, and a damaged one counts as absent. Nothing here fails a solve.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path

import msgspec

from alpaviz import __version__
from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.intra.stage_records import SolvedStage, StageRecords
from alpaviz.intra.stage_solver import TOLERANCE

FOLDER_VARIABLE = "ALPAVIZ_CACHE"
"""Environment variable: the folder of the cache, or `off` for none."""

MOST_BYTES = 256_000_000
"""The folder is kept below this; what was not read or written for longest goes."""

MOST_FILE_BYTES = 8_000_000
"""A file is kept below this; what was found first goes. A stage takes 100 bytes to a few kilobytes."""

_ROOT = Path(__file__).parent
_SUFFIX = ".stages"
_CHECKSUM_BYTES = 32
_SOURCES = ("cluster/**/*.py", "cost/**/*.py", "hardware/**/*.toml", "intra/**/*.py", "program/**/*.py")
"""Files of this package that decide what a stage costs: code, and the figures of devices and links."""


class _File(msgspec.Struct, array_like=True):
    """What a file holds: its own key, so that a file under another name is not taken for it, and the answers."""

    key: str
    stages: dict[str, SolvedStage]
    least_bytes: dict[str, float]
    least_s: dict[str, float]


def open_cache(wanted: str | PathLike[str] | None = "auto") -> StageCache | None:
    """The cache in the folder `wanted`; `"auto"` is the user's (`choose_folder`), None for no cache."""
    folder = choose_folder() if wanted == "auto" else wanted
    return None if folder is None else StageCache(folder)


def choose_folder() -> Path | None:
    """The user's cache folder: `ALPAVIZ_CACHE`, else `alpaviz` in `XDG_CACHE_HOME` or `~/.cache`; None if off."""
    wanted = os.environ.get(FOLDER_VARIABLE)
    if wanted is not None:
        return None if wanted.strip().lower() in ("", "off") else Path(wanted)
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "alpaviz"
    except RuntimeError:  # a process without a home directory
        return None


class StageCache:
    """Records of stages in `folder`; several processes may use one folder at once.

    Two that write one file at the same time both leave a whole one, and at most lose some of each other's answers.
    """

    def __init__(self, folder: str | PathLike[str], most_bytes: int = MOST_BYTES) -> None:
        self.folder = Path(folder)
        self._most_bytes = most_bytes
        self._has_warned = False

    def load(self, key: str) -> StageRecords:
        """What is known under `key`; nothing where there is no file, or none that can be read."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return StageRecords()
        except OSError as error:
            self._warn(error)
            return StageRecords()
        with contextlib.suppress(OSError):  # a folder that is only read keeps its times
            os.utime(path)  # it was used: others go first
        return _decode(data, key) or StageRecords()

    def save(self, key: str, records: StageRecords) -> None:
        """Write `records` with what other processes have added under `key` meanwhile."""
        known = self.load(key)
        stages, least_bytes = known.stages | records.stages, known.least_bytes | records.least_bytes
        least_s = known.least_s | records.least_s
        data = _encode(_File(key, stages, least_bytes, least_s))
        while len(data) > MOST_FILE_BYTES and len(stages) > 1:
            stages = dict(list(stages.items())[len(stages) // 2 :])
            data = _encode(_File(key, stages, least_bytes, least_s))
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_whole(self._path(key), data)
            records.is_changed = False
            self._drop_oldest()
        except OSError as error:
            self._warn(error)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _drop_oldest(self) -> None:
        files = []
        for entry in os.scandir(self.folder):
            if entry.name.endswith((_SUFFIX, f"{_SUFFIX}.part")):
                try:
                    status = entry.stat()
                except FileNotFoundError:  # another process dropped it
                    continue
                files.append((status.st_mtime, status.st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._most_bytes:
                return
            Path(path).unlink(missing_ok=True)
            total -= size

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            reason = error.strerror or type(error).__name__
            warnings.warn(
                f"Solved stages cannot be kept in {str(self.folder)!r} ({reason}); planning goes on without. Set "
                f"{FOLDER_VARIABLE} to another folder, or to 'off'.",
                RuntimeWarning,
                stacklevel=3,
            )


def make_key(structure: str, mesh: LogicalMesh, solver: str) -> str:
    """The hash that stands for all that answers depend on besides the stage.

    Args:
        structure: `digest_structure` of the program.
        mesh: with the figures of its links and devices.
    """
    parts = (COST_MODEL_VERSION, structure, solver, repr(TOLERANCE), _write_plainly(mesh))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


def find_cost_model_version(root: Path = _ROOT) -> str:
    """The package's version with a hash of the files in `root` that decide what a stage costs.

    A number kept by hand would be forgotten in some change, and answers of an older cost model are wrong in silence.
    """
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(path for pattern in _SOURCES for path in root.glob(pattern)):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


COST_MODEL_VERSION = find_cost_model_version()
"""Found when this module is loaded, as the code is: in a session that outlives an edit the two stay together.

It takes 3 ms.
"""


def _write_plainly(value: object) -> str:
    """`value` as text that is the same in every process, fields that `repr` leaves out included.

    Raises:
        TypeError: it holds something else than dataclasses, tuples, numbers and strings.
    """
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{f.name}={_write_plainly(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({inside})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_write_plainly, value))})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise TypeError(f"{type(value).__name__} has no plain text")


def _encode(file: _File) -> bytes:
    body = msgspec.msgpack.encode(file)
    return hashlib.sha256(body).digest() + body


def _decode(data: bytes, key: str) -> StageRecords | None:
    """The records, or None where the file is damaged or of another key."""
    checksum, body = data[:_CHECKSUM_BYTES], data[_CHECKSUM_BYTES:]
    if hashlib.sha256(body).digest() != checksum:
        return None
    try:
        found = msgspec.msgpack.decode(body, type=_File)
    except msgspec.DecodeError:
        return None
    return StageRecords(found.stages, found.least_bytes, found.least_s) if found.key == key else None


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=f"{_SUFFIX}.part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
