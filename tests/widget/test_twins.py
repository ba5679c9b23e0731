"""TypeScript models have the fields of the Python dataclasses that they are twins of."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from alpaviz import plan, plan_explanation, planner_history, planner_state, stage_variants
from alpaviz.cluster import description, measured
from alpaviz.pins import Pin, PinKind
from alpaviz.planner_state import PlannerState
from alpaviz.widget import variant_offers

MODEL = Path(__file__).parents[2] / "extension/src/model"
TWINS = [
    ("plan.ts", plan, ("PlannedCollective", "PlannedResharding", "OpPlan", "ValuePlan", "MemoryEstimate", "StagePlan",
                       "Transfer", "StepEstimate", "ProgramSummary", "PlanTry", "SolverReport", "Plan")),
    ("cluster.ts", description, ("DeviceType", "Link", "Host", "Cluster")),
    ("cluster.ts", measured, ("MeasuredRate", "MeasuredCollective", "MeasuredCosts")),
    ("planner-state.ts", planner_state, ("SolveProgress", "Alternative")),
    ("planner-state.ts", planner_history, ("HistoryEntry",)),
    ("variants.ts", stage_variants, ("Regret",)),
    ("variants.ts", variant_offers, ("OfferedVariant", "OfferedVariants")),
    ("explanation.ts", plan_explanation, ("Fragment", "Sentence")),
]  # fmt: skip


def read_fields(file: str, name: str) -> list[str]:
    text = (MODEL / file).read_text()
    match = re.search(rf"export interface {name} \{{(.*?)\n\}}", text, re.S)
    assert match, f"{file} has no interface {name}"
    return re.findall(r"^  (\w+):", match[1], re.M)


@pytest.mark.parametrize(("file", "module", "name"), [(f, m, n) for f, m, names in TWINS for n in names])
def test_fields_agree(file: str, module: object, name: str) -> None:
    fields = [field.name for field in dataclasses.fields(getattr(module, name))]
    assert read_fields(file, name) == fields


def test_pin_kinds_and_states_agree() -> None:
    assert read_fields("pin.ts", "Pin") == [field.name for field in dataclasses.fields(Pin)]
    kinds = re.search(r"PinKind =(.*?);", (MODEL / "pin.ts").read_text(), re.S)
    assert kinds
    assert set(re.findall(r"'(\w+)'", kinds[1])) == {kind.value for kind in PinKind}
    states = re.search(r"PlannerState =(.*?);", (MODEL / "planner-state.ts").read_text(), re.S)
    assert states
    assert set(re.findall(r"'([\w-]+)'", states[1])) == {state.value for state in PlannerState} | {"read-only"}


def test_fragment_kinds_agree() -> None:
    kinds = re.search(r"FragmentKind =(.*?);", (MODEL / "explanation.ts").read_text(), re.S)
    assert kinds
    assert set(re.findall(r"'(\w+)'", kinds[1])) == {kind.value for kind in plan_explanation.FragmentKind}


def test_schema_version_and_format_agree() -> None:
    unpack = (MODEL.parent / "logic/unpack.ts").read_text()
    from alpaviz.widget.packed_plan import PACKED_FORMAT

    assert f"PLAN_SCHEMA_VERSION = {plan.PLAN_SCHEMA_VERSION};" in unpack
    assert f"PACKED_FORMAT = '{PACKED_FORMAT}';" in unpack
