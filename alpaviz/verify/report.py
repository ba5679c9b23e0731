"""What `plan.verify` returns: for each stage, what the plan says beside what XLA made of it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from alpaviz.plan_diff import format_bytes, format_seconds
from alpaviz.types import MeshAxis

_MOST_LISTED = 8
"""Unplanned or unused collectives that a table lists; the others are counted."""


@dataclass(frozen=True, slots=True)
class CollectiveCheck:
    """Bytes a step of collectives of `kind` over `axes`, counted as in `PlannedCollective`."""

    kind: str
    axes: tuple[MeshAxis, ...]
    predicted_bytes: float
    compiled_bytes: float


@dataclass(frozen=True, slots=True)
class UnmatchedCollective:
    """Collectives that only one side has: `num_bytes` a step, in `runs` runs.

    `op` and `source` are the plan's name and the source line of the op that they belong to, "" where XLA does not tell.
    """

    kind: str
    axes: tuple[MeshAxis, ...]
    num_bytes: float
    runs: int
    op: str
    source: str

    def __str__(self) -> str:
        where = f"at {self.op}" if self.op else "at an op that XLA does not name"
        place = f" ({self.source})" if self.source else ""
        return f"{self.kind} over {' '.join(self.axes)} of {format_bytes(self.num_bytes)} a step {where}{place}"


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """Bytes on one device of a stage at its fullest.

    Attributes:
        predicted_bytes: the plan's `MemoryEstimate.total_bytes`.
        compiled_bytes: what the runtime holds while a chunk runs, with the buffers that XLA has planned for the chunk.
        state_bytes, batch_bytes: the part of that which is there for the whole step.
        temporary_bytes: the most that XLA planned for one chunk beside its arguments and results.
    """

    predicted_bytes: float
    compiled_bytes: float
    state_bytes: float
    batch_bytes: float
    temporary_bytes: float


@dataclass(frozen=True, slots=True)
class StageCheck:
    """One stage held against XLA.

    Attributes:
        added: collectives that the plan does not have: XLA reshards on its own.
        missing: planned collectives that XLA does without.
        seconds: to lower and compile the stage.
    """

    stage: int
    num_devices: int
    collectives: tuple[CollectiveCheck, ...]
    memory: MemoryCheck
    added: tuple[UnmatchedCollective, ...]
    missing: tuple[UnmatchedCollective, ...]
    seconds: float

    @property
    def predicted_bytes(self) -> float:
        """Of all collectives, a step."""
        return sum(c.predicted_bytes for c in self.collectives)

    @property
    def compiled_bytes(self) -> float:
        """Of all collectives, a step."""
        return sum(c.compiled_bytes for c in self.collectives)


@dataclass(frozen=True, slots=True, repr=False)
class Verification:
    """A plan held against XLA; printed, a table. `seconds` is the whole time, tracing in the child process included."""

    name: str
    stages: tuple[StageCheck, ...]
    seconds: float

    @property
    def collectives_error(self) -> float:
        """How far the bytes of all collectives are from those compiled, as a share of the latter."""
        return _compare(sum(s.predicted_bytes for s in self.stages), sum(s.compiled_bytes for s in self.stages))

    @property
    def memory_error(self) -> float:
        """The same of the peak memory, of the stage where it is worst."""
        errors = (_compare(s.memory.predicted_bytes, s.memory.compiled_bytes) for s in self.stages)
        return max(errors, key=abs, default=0.0)

    @property
    def summary(self) -> str:
        """The verdict in a sentence."""
        added = sum(len(s.added) for s in self.stages)
        extra = f"; XLA adds {added} collective{'s' * (added != 1)} of its own" if added else ""
        return (
            f"Collectives {_describe_error(self.collectives_error)}, peak memory "
            f"{_describe_error(self.memory_error)}{extra}."
        )

    def __str__(self) -> str:
        lines = [f"{self.name} against XLA: {self.summary} {format_seconds(self.seconds)}"]
        for stage in self.stages:
            lines += ["", *_describe_stage(stage)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(self.name)} against XLA.</b> {escape(self.summary)}</p>"]
        for stage in self.stages:
            rows = "".join(
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in _list_rows(stage)
            )
            head = "".join(f"<th>{name}</th>" for name in _HEADER)
            notes = "".join(f"<li>{escape(note)}</li>" for note in _list_notes(stage))
            parts.append(
                f"<p>{escape(_name_stage(stage))}</p><table><thead><tr>{head}</tr></thead>"
                f"<tbody>{rows}</tbody></table><ul>{notes}</ul>"
            )
        return "".join(parts)


_HEADER = ("what", "axes", "predicted", "compiled", "difference")


def _compare(predicted: float, compiled: float) -> float:
    if compiled == 0:
        return 0.0 if predicted == 0 else float("inf")
    return predicted / compiled - 1


def _describe_error(error: float) -> str:
    return "as compiled" if abs(error) < 5e-4 else f"{abs(error):.1%} too {'high' if error > 0 else 'low'}"


def _name_stage(stage: StageCheck) -> str:
    devices = f"{stage.num_devices} device{'s' * (stage.num_devices != 1)}"
    return f"Stage {stage.stage} on {devices}, compiled in {format_seconds(stage.seconds)}"


def _list_rows(stage: StageCheck) -> list[tuple[str, ...]]:
    def row(what: str, axes: str, predicted: float, compiled: float) -> tuple[str, ...]:
        error = _compare(predicted, compiled)
        shown = "-" if abs(error) < 5e-4 else "all" if error == float("inf") else f"{error:+.1%}"
        return what, axes, format_bytes(predicted), format_bytes(compiled), shown

    rows = [row(c.kind, " ".join(c.axes), c.predicted_bytes, c.compiled_bytes) for c in stage.collectives]
    if len(rows) > 1:
        rows.append(row("all collectives", "", stage.predicted_bytes, stage.compiled_bytes))
    return [*rows, row("peak memory", "", stage.memory.predicted_bytes, stage.memory.compiled_bytes)]


def _list_notes(stage: StageCheck) -> list[str]:
    notes = []
    for title, found in (("added by XLA", stage.added), ("planned, not compiled", stage.missing)):
        notes += [f"{title}: {collective}" for collective in found[:_MOST_LISTED]]
        if len(found) > _MOST_LISTED:
            notes.append(f"{title}: {len(found) - _MOST_LISTED} more")
    return notes


def _describe_stage(stage: StageCheck) -> list[str]:
    table = [_HEADER, *_list_rows(stage)]
    widths = [max(len(line[c]) for line in table) for c in range(len(_HEADER))]
    lines = ["  " + "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in table]
    return [_name_stage(stage), *lines, *(f"  {note}" for note in _list_notes(stage))]
