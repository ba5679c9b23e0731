"""A plan as few bytes: what goes to the page and what a saved notebook keeps.

Ops and values become columns, and a column with few distinct cells a table with an index. Names that follow from scope
and primitive and numbers that follow from the row before are written as differences, so that equal layers look equal
and zlib folds them. Behind the JSON text and a zero byte comes a binary buffer: where each op of the whole program is
drawn. `extension/src/logic/unpack.ts` is the way back.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
import numpy as np

from alpaviz.plan import OpPlan, Plan, ValuePlan
from alpaviz.widget.op_positions import place_ops

PACKED_FORMAT = "alpaviz.packed-plan.v2"

POSITION_STEP = 0.25
"""Columns and rows are sent as whole multiples of this: finer than a person sees."""

_STEM = "\x01"
"""Stands for what the row's other cells say already; no name contains it."""

_Column = dict[str, Any]


def pack_plan(plan: Plan, *, with_ops: bool = True) -> bytes:
    """`plan` as zlib-compressed JSON with op positions behind it; without ops and values if not `with_ops`."""
    fields: dict[str, Any] = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
    ops, values = (plan.ops, plan.values) if with_ops else ((), ())
    fields["format"] = PACKED_FORMAT
    fields["ops"] = _pack_ops(ops)
    fields["values"] = _pack_values(values)
    return zlib.compress(msgspec.json.encode(fields) + b"\0" + _pack_positions(ops), 6)


def _pack_positions(ops: Sequence[OpPlan]) -> bytes:
    """All columns, then all rows, each as the difference to the op before: little-endian int16."""
    positions = place_ops(ops)
    parts = []
    for axis in (positions.columns, positions.rows):
        steps = np.rint(axis / POSITION_STEP).astype(np.int64)
        # Differences wrap around 2**16; so does their sum, and no picture is larger than that.
        parts.append(np.diff(steps, prepend=0).astype("<i2").tobytes())
    return b"".join(parts)


def _pack_ops(ops: Sequence[OpPlan]) -> dict[str, Any]:
    outputs: list[tuple[int | None, ...]] = []
    inputs: list[tuple[int | None, ...]] = []
    last = 0
    for op in ops:
        steps: list[int | None] = []
        for value in op.outputs:
            steps.append(None if value is None else value - last)
            last = last if value is None else value
        outputs.append(tuple(steps))
        inputs.append(tuple(None if value is None else last - value for value in op.inputs))
    columns: dict[str, _Column] = {
        name: _pack_column([getattr(op, name) for op in ops])
        for name in OpPlan.__dataclass_fields__
        if name not in ("id", "name", "inputs", "outputs")
    }
    columns["id"] = _pack_ids([op.id for op in ops])
    columns["name"] = _pack_column([_shorten_name(op) for op in ops])
    columns["outputs"] = _pack_column(outputs)
    columns["inputs"] = _pack_column(inputs)
    return {"count": len(ops), "columns": columns}


def _shorten_name(op: OpPlan) -> str:
    stem = f"{op.scope}/{op.primitive}" if op.scope else op.primitive
    return op.name if _STEM in op.name else op.name.replace(stem, _STEM, 1)


def _pack_values(values: Sequence[ValuePlan]) -> dict[str, Any]:
    columns: dict[str, _Column] = {
        name: _pack_column([getattr(value, name) for value in values])
        for name in ValuePlan.__dataclass_fields__
        if name not in ("id", "name")
    }
    columns["id"] = _pack_ids([value.id for value in values])
    columns["name"] = _pack_column([_STEM if v.name == f"v{v.id}" else v.name for v in values])
    return {"count": len(values), "columns": columns}


def _pack_ids(ids: Sequence[int]) -> _Column:
    return {"rows": True} if list(ids) == list(range(len(ids))) else {"cells": ids}


def _pack_column(cells: Sequence[Hashable]) -> _Column:
    positions: dict[Hashable, int] = {}
    index = [positions.setdefault(cell, len(positions)) for cell in cells]
    # True and 1, or 1 and 1.0, are one key; a column holds cells of one type, so none is lost.
    if len(positions) * 2 > len(cells):
        return {"cells": cells}
    return {"table": list(positions), "index": index}
