"""Plans as files: JSON with a schema version, read back exactly."""

from __future__ import annotations

import os
import tempfile
from os import PathLike
from pathlib import Path

import msgspec

from alpaviz.errors import PlanFormatError
from alpaviz.plan import PLAN_SCHEMA_VERSION, Plan

PLAN_SUFFIX = ".alpaplan.json"
"""Suffix of plan files that JupyterLab opens as a view."""


def plan_to_json(plan: Plan) -> bytes:
    """`plan` as UTF-8 JSON."""
    return msgspec.json.encode(plan)


def plan_from_json(data: bytes | str, where: str = "the data") -> Plan:
    """The plan that `data` holds; `where` names it in messages.

    Raises:
        PlanFormatError: damaged JSON, another schema version, or not a plan.
    """
    try:
        header = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise PlanFormatError(f"{where} is not JSON ({error}): it is damaged or not a plan file.") from None
    version = header.get("schema_version") if isinstance(header, dict) else None
    if version is None:
        raise PlanFormatError(f"{where} is JSON but not a plan: it has no 'schema_version'.")
    if version != PLAN_SCHEMA_VERSION:
        raise PlanFormatError(
            f"{where} has plan schema version {version}, this AlpaViz reads version {PLAN_SCHEMA_VERSION}. Plan again, "
            "or use the version of AlpaViz that wrote it."
        )
    try:
        return msgspec.json.decode(data, type=Plan)
    except msgspec.ValidationError as error:
        raise PlanFormatError(f"{where} is a damaged plan: {error}.") from None


def save_plan(plan: Plan, path: str | PathLike[str]) -> None:
    """Write `plan` to `path`, whole or not at all."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(plan_to_json(plan))
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_plan(path: str | PathLike[str]) -> Plan:
    """Read a plan.

    Raises:
        PlanFormatError: there is no such file, or it holds no plan of this schema version.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlanFormatError(f"plan file {os.fspath(path)!r} cannot be read: {error.strerror}.") from None
    return plan_from_json(data, f"plan file {os.fspath(path)!r}")
