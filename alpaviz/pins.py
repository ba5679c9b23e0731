"""Decisions taken by a person, which the solver must keep.

A pin is one triple (kind, subject, choice) of plain data, so that the API, the widget and a plan file share it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class PinKind(enum.StrEnum):
    """What a pin decides."""

    STRATEGY = "strategy"
    """subject: op name; choice: a strategy's label, for instance `"m:x n:y"`."""
    SPEC = "spec"
    """subject: name of an input value (`state['w']`); choice: a spec as text, `"[x, -]"`."""
    LAYER_STAGE = "layer_stage"
    """subject: layer number; choice: stage number."""
    STAGE_SUBMESH = "stage_submesh"
    """subject: stage number; choice: submesh shape as text, `"1x4"`."""
    NUM_STAGES = "num_stages"
    """subject: None; choice: how many stages."""
    LOGICAL_MESH = "logical_mesh"
    """subject: stage number, or None for every stage; choice: mesh shape as text, `"4x2"`."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One pinned decision."""

    kind: PinKind
    subject: str | int | None
    choice: str | int

    def __str__(self) -> str:
        match self.kind:
            case PinKind.STRATEGY:
                return f"op {self.subject} runs as {self.choice}"
            case PinKind.SPEC:
                return f"{self.subject} is sharded {self.choice}"
            case PinKind.LAYER_STAGE:
                return f"layer {self.subject} is in stage {self.choice}"
            case PinKind.STAGE_SUBMESH:
                return f"stage {self.subject} has a {self.choice} submesh"
            case PinKind.NUM_STAGES:
                return "there is 1 stage" if self.choice == 1 else f"there are {self.choice} stages"
            case PinKind.LOGICAL_MESH:
                where = "every stage" if self.subject is None else f"stage {self.subject}"
                return f"{where} has logical mesh {self.choice}"
