"""Where the ops of a whole program are drawn."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from alpaviz.plan import Plan
from alpaviz.widget.op_positions import OpPositions, place_ops
from alpaviz.widget.packed_plan import POSITION_STEP, pack_plan
from tests.widget.synthetic_plan import make_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(6, num_stages=2)


@pytest.fixture(scope="module")
def placed(plan: Plan) -> OpPositions:
    return place_ops(plan.ops)


def test_no_two_ops_overlap(placed: OpPositions) -> None:
    by_row: dict[float, list[float]] = {}
    for column, row in zip(placed.columns.tolist(), placed.rows.tolist(), strict=True):
        by_row.setdefault(row, []).append(column)
    for columns in by_row.values():
        assert np.diff(sorted(columns)).min(initial=np.inf) >= 1


def test_an_op_is_below_what_it_reads_in_its_cell_and_above_in_backward(plan: Plan, placed: OpPositions) -> None:
    producers = {value: i for i, op in enumerate(plan.ops) for value in op.outputs if value is not None}
    for i, op in enumerate(plan.ops):
        for value in op.inputs:
            source = None if value is None else producers.get(value)
            if source is None or (plan.ops[source].layer, plan.ops[source].role) != (op.layer, op.role):
                continue
            step = placed.rows[i] - placed.rows[source]
            assert step <= -1 if op.role == "backward" else step >= 1


def test_roles_of_a_layer_are_beside_each_other(plan: Plan, placed: OpPositions) -> None:
    ends: dict[tuple[int, str], list[float]] = {}
    for i, op in enumerate(plan.ops):
        ends.setdefault((op.layer, op.role), []).append(float(placed.columns[i]))
    for layer in range(plan.program.num_layers):
        forward, backward, update = (ends[layer, role] for role in ("forward", "backward", "update"))
        assert max(forward) < min(backward)
        assert max(backward) < min(update)


def test_a_whole_program_has_about_the_shape_of_a_screen() -> None:
    placed = place_ops(make_plan().ops)
    width, height = placed.columns.max() * 150, placed.rows.max() * 56
    assert 0.8 < width / height < 3


def test_a_program_without_ops_has_no_positions() -> None:
    assert len(place_ops(()).columns) == 0


def test_positions_travel_behind_the_json_as_differences(plan: Plan, placed: OpPositions) -> None:
    _, _, buffer = zlib.decompress(pack_plan(plan)).partition(b"\0")
    steps = np.frombuffer(buffer, dtype="<i2").reshape(2, len(plan.ops)).astype(int)
    columns, rows = np.cumsum(steps, axis=1) * POSITION_STEP
    assert np.abs(columns - placed.columns).max() <= POSITION_STEP / 2
    assert np.abs(rows - placed.rows).max() <= POSITION_STEP / 2
