"""Plan files: read back exactly, refused with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alpaviz.errors import PlanFormatError
from alpaviz.plan import Plan
from alpaviz.plan_file import load_plan, plan_from_json, plan_to_json, save_plan


def test_a_saved_plan_is_read_back_exactly(gpt_plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "gpt.alpaplan.json"
    save_plan(gpt_plan, path)
    assert load_plan(path) == gpt_plan
    assert [file.name for file in tmp_path.iterdir()] == ["gpt.alpaplan.json"]


def test_saving_replaces_the_plan_that_was_there(gpt_plan: Plan, mlp_plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(gpt_plan, path)
    save_plan(mlp_plan, str(path))
    assert load_plan(path) == mlp_plan


def test_saving_to_a_missing_folder_fails_and_leaves_nothing(gpt_plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_plan(gpt_plan, tmp_path / "missing" / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_text_and_bytes_are_read_alike(mlp_plan: Plan) -> None:
    data = plan_to_json(mlp_plan)
    assert plan_from_json(data) == plan_from_json(data.decode()) == mlp_plan


def test_a_missing_file_is_named() -> None:
    with pytest.raises(PlanFormatError, match=r"plan file 'nowhere\.json' cannot be read: No such file or directory"):
        load_plan("nowhere.json")


def test_half_a_file_is_called_damaged(gpt_plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "half.json"
    data = plan_to_json(gpt_plan)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(PlanFormatError, match=r"half\.json' is not JSON .* it is damaged or not a plan file"):
        load_plan(path)


@pytest.mark.parametrize("text", ["{}", "[1, 2]", "3", '{"stages": []}'])
def test_json_that_is_no_plan_is_called_so(text: str) -> None:
    with pytest.raises(PlanFormatError, match="the data is JSON but not a plan: it has no 'schema_version'"):
        plan_from_json(text)


def test_another_schema_version_is_refused_with_both_numbers(mlp_plan: Plan) -> None:
    data = json.loads(plan_to_json(mlp_plan)) | {"schema_version": 99}
    with pytest.raises(PlanFormatError, match="has plan schema version 99, this AlpaViz reads version 1"):
        plan_from_json(json.dumps(data))


def test_a_missing_field_is_named(mlp_plan: Plan) -> None:
    data = json.loads(plan_to_json(mlp_plan))
    del data["stages"][0]["memory"]
    with pytest.raises(PlanFormatError, match=r"is a damaged plan: .*`memory`.*stages"):
        plan_from_json(json.dumps(data))


def test_a_field_of_the_wrong_type_is_named(mlp_plan: Plan) -> None:
    data = json.loads(plan_to_json(mlp_plan)) | {"num_microbatches": "four"}
    with pytest.raises(PlanFormatError, match=r"is a damaged plan: .*num_microbatches"):
        plan_from_json(json.dumps(data))
