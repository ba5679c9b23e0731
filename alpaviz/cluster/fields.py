"""Reading TOML so that every error names the file, the field and its unit."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from alpaviz.errors import InvalidClusterError


def suggest(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'a' or 'b'?"`, or nothing where no known name is close."""
    by_lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    close += [other for other in by_lower if name and other.startswith(name.lower()) and other not in close][:3]
    return f" Did you mean {' or '.join(repr(by_lower[other]) for other in close[:3])}?" if close else ""


def read_toml(path: str | Path) -> Table:
    """The whole file as a table.

    Raises:
        InvalidClusterError: there is no such file, or it is no TOML; the message names the file and the line.
    """
    path = Path(path)
    try:
        return Table(path.name, "", tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidClusterError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidClusterError(f"{path.name}: is not TOML: {error}.") from None


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a TOML file. A figure is a number, or `{ value = ..., source = "..." }`.

    Attributes:
        file: its name, for errors.
        path: dotted name of this table in the file; empty for the file itself.
    """

    file: str
    path: str
    entries: Mapping[str, object]

    def __contains__(self, field: str) -> bool:
        return field in self.entries

    def fail(self, field: str, problem: str) -> NoReturn:
        """Raise an error about `field`."""
        name = ".".join(filter(None, (self.path, field)))
        raise InvalidClusterError(f"{self.file}: {name} {problem}.")

    def check_fields(self, known: Iterable[str]) -> None:
        """Refuse a field that is none of `known`, as a misspelt one would be ignored in silence."""
        known = tuple(known)
        for field in self.entries:
            if field not in known:
                self.fail(field, f"is no field of it; fields: {', '.join(known)}.{suggest(field, known)}".rstrip(".?"))

    def table(self, field: str, what: str) -> Table:
        """The table `field`; `what` says what it should hold, units included."""
        value = self.entries.get(field)
        if value is None:
            self.fail(field, f"is missing: {what}")
        if not isinstance(value, dict):
            self.fail(field, f"must be a table: {what}; it is {value!r}")
        return Table(self.file, ".".join(filter(None, (self.path, field))), value)

    def number(self, field: str, unit: str, *, may_be_zero: bool = False) -> float:
        """A figure above 0 (from 0 on with `may_be_zero`) in `unit`."""
        what = f"a number of {unit} {'of at least' if may_be_zero else 'above'} 0"
        value = self._value(field, what)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(field, f"must be {what}, not {value!r}")
        if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
            self.fail(field, f"must be {what}, not {value!r}")
        return float(value)

    def whole(self, field: str, unit: str) -> int:
        """A whole figure above 0."""
        what = f"a whole number of {unit} above 0"
        value = self._value(field, what)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            self.fail(field, f"must be {what}, not {value!r}")
        return value

    def flag(self, field: str, what: str) -> bool:
        """`true` or `false`."""
        value = self._value(field, what)
        if not isinstance(value, bool):
            self.fail(field, f"must be true or false ({what}), not {value!r}")
        return value

    def text(self, field: str, what: str) -> str:
        """A string that is not empty."""
        value = self._value(field, what)
        if not isinstance(value, str) or not value:
            self.fail(field, f"must be text: {what}; it is {value!r}")
        return value

    def rows(self, field: str, what: str) -> list[object]:
        """An array."""
        value = self._value(field, what)
        if not isinstance(value, list):
            self.fail(field, f"must be an array: {what}; it is {value!r}")
        return value

    def source(self, field: str) -> str:
        """What `field` says of where its figure is from; empty where it says nothing."""
        value = self.entries.get(field)
        found = value.get("source", "") if isinstance(value, dict) else ""
        return found if isinstance(found, str) else ""

    def _value(self, field: str, what: str) -> object:
        value = self.entries.get(field)
        if isinstance(value, dict) and "value" in value:
            value = value["value"]
        if value is None:
            self.fail(field, f"is missing: {what}")
        return value
