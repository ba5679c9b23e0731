"""How often each computation of a compiled module runs, from the trip counts that XLA writes beside its loops."""

from __future__ import annotations

import functools
import re
from collections import defaultdict

_HEAD = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) .*\{$")
_CALLED = re.compile(
    r"\b(?P<role>body|condition|calls|to_apply|true_computation|false_computation)=%?(?P<name>[\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def count_runs(text: str) -> dict[str, int]:
    """Computation name -> how often one call of the module `text` runs it.

    A loop whose trip count XLA does not know counts as one trip, and each branch of a conditional as taken.
    """
    callers: dict[str, list[tuple[str, int]]] = defaultdict(list)
    names: list[str] = []
    entries: set[str] = set()
    for line in text.splitlines():
        if head := _HEAD.match(line):
            names.append(head["name"])
            if line.startswith("ENTRY"):
                entries.add(head["name"])
            continue
        if not names:
            continue
        trips = int(match[1]) if (match := _TRIPS.search(line)) else 1
        for called in _CALLED.finditer(line):
            callers[called["name"]].append((names[-1], trips if called["role"] == "body" else 1))
        for branches in _BRANCHES.findall(line):
            for name in branches.split(","):
                callers[name.strip().lstrip("%")].append((names[-1], 1))

    @functools.cache
    def runs(name: str) -> int:
        return 1 if name in entries else sum(runs(caller) * trips for caller, trips in callers[name])

    return {name: runs(name) for name in names}
