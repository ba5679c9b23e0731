"""Calibrations on disk, one a device kind, in the cache folder.

Files are JSON with a checksum, written whole or not at all. One of another device, another version or a damaged one is
refused with the reason, and stays as it is until a new calibration is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from os import PathLike
from pathlib import Path

import msgspec

from alpaviz import __version__
from alpaviz.calibration.fit import Calibration
from alpaviz.calibration.samples import Sample
from alpaviz.errors import CalibrationError
from alpaviz.stage_cache import choose_folder

FORMAT = 2
"""Of the files, and of what is measured: raised with every change of either."""


class Setup(msgspec.Struct, frozen=True):
    """On what something was measured, and with which versions."""

    device_kind: str
    num_devices: int
    alpaviz_version: str
    jax_version: str


class _File(msgspec.Struct):
    format: int
    setup: Setup
    checksum: str
    body: msgspec.Raw


def find_setup(device_kind: str, num_devices: int) -> Setup:
    """That of this process."""
    from importlib.metadata import version

    return Setup(device_kind, num_devices, __version__, version("jax"))


def find_path(device_kind: str, num_devices: int, folder: str | PathLike[str] | None = None) -> Path:
    """Where the calibration of `num_devices` devices of a kind is kept.

    Raises:
        CalibrationError: the user's cache is off and no folder is given.
    """
    chosen = Path(folder) if folder is not None else choose_folder()
    if chosen is None:
        raise CalibrationError("The cache is off (ALPAVIZ_CACHE), so there is no folder for calibrations: give one.")
    name = re.sub(r"[^A-Za-z0-9]+", "-", device_kind).strip("-").lower()
    return chosen / f"{name}-x{num_devices}.calibration.json"


def save_calibration(calibration: Calibration, path: str | PathLike[str]) -> None:
    """Write `calibration`, whole or not at all."""
    setup = Setup(
        calibration.device_kind, calibration.num_devices, calibration.alpaviz_version, calibration.jax_version
    )
    _write(Path(path), setup, calibration)


def load_calibration(path: str | PathLike[str], setup: Setup | None = None) -> Calibration:
    """Read a calibration.

    Args:
        setup: the devices and versions that it must be of; by default the versions of this process and any devices.

    Raises:
        CalibrationError: there is no such file, it is damaged, or it is of other devices or versions.
    """
    where, found, body = _read(Path(path))
    wanted = setup or find_setup(found.device_kind, found.num_devices)
    _check_setup(where, found, wanted)
    try:
        return msgspec.json.decode(body, type=Calibration)
    except msgspec.ValidationError as error:
        raise CalibrationError(f"{where} is damaged ({error}). Measure again.") from None


def save_samples(samples: list[Sample], setup: Setup, path: Path) -> None:
    """Keep what has been measured so far."""
    _write(path, setup, samples)


def load_samples(path: Path, setup: Setup) -> list[Sample]:
    """What an interrupted measurement left; nothing where it cannot be gone on with."""
    try:
        where, found, body = _read(path)
        _check_setup(where, found, setup)
        return msgspec.json.decode(body, type=list[Sample])
    except (CalibrationError, msgspec.ValidationError):
        return []


def _check_setup(where: str, found: Setup, wanted: Setup) -> None:
    for name, what in (
        ("device_kind", "devices of kind"), ("num_devices", "a number of devices of"),
        ("alpaviz_version", "AlpaViz"), ("jax_version", "JAX"),
    ):  # fmt: skip
        was, now = getattr(found, name), getattr(wanted, name)
        if was != now:
            raise CalibrationError(f"{where} was measured with {what} {was}, here it is {now}. Measure again.")


def _write(path: Path, setup: Setup, body: object) -> None:
    data = msgspec.json.encode(body)
    file = _File(FORMAT, setup, hashlib.sha256(data).hexdigest(), msgspec.Raw(data))
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    except OSError as error:
        raise CalibrationError(f"{os.fspath(path)!r} cannot be written: {error.strerror}.") from None
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(msgspec.json.encode(file))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _read(path: Path) -> tuple[str, Setup, bytes]:
    """(what the file is called in messages, its setup, its body)."""
    where = f"calibration file {os.fspath(path)!r}"
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise CalibrationError(f"{where} cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise CalibrationError(f"{where} is damaged or no calibration ({error}). Measure again.") from None
    body = bytes(file.body)
    if file.format != FORMAT:
        raise CalibrationError(f"{where} has format {file.format}, this AlpaViz reads {FORMAT}. Measure again.")
    if hashlib.sha256(body).hexdigest() != file.checksum:
        raise CalibrationError(f"{where} is damaged: its checksum is wrong. Measure again.")
    return where, file.setup, body
