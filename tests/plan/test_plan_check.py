"""Checking plans: each kind of damage is found and said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from alpaviz.cluster import parse_cluster
from alpaviz.errors import PlanFormatError, PlanMismatchError
from alpaviz.plan import Plan
from alpaviz.plan_check import validate_plan
from alpaviz.planner import Planner


def change_stage(plan: Plan, index: int, **fields: Any) -> Plan:
    stages = list(plan.stages)
    stages[index] = replace(stages[index], **fields)
    return replace(plan, stages=tuple(stages))


def change_value(plan: Plan, name: str, **fields: Any) -> Plan:
    return replace(plan, values=tuple(replace(v, **fields) if v.name == name else v for v in plan.values))


def test_a_solved_plan_passes_without_warnings(gpt_plan: Plan, gpt_planner: Planner) -> None:
    assert validate_plan(gpt_plan, gpt_planner.program, gpt_planner.cluster) == ()


def test_no_stages_is_an_error(gpt_plan: Plan) -> None:
    with pytest.raises(PlanFormatError, match="has no stages"):
        validate_plan(replace(gpt_plan, stages=()))


def test_a_layer_that_is_in_no_stage_is_an_error(gpt_plan: Plan) -> None:
    damaged = change_stage(gpt_plan, 1, first_layer=gpt_plan.stages[1].first_layer + 1)
    with pytest.raises(PlanFormatError, match=r"not each of 0 to .* once, in order"):
        validate_plan(damaged)


def test_a_layer_in_two_stages_is_an_error(gpt_plan: Plan) -> None:
    damaged = change_stage(gpt_plan, 1, first_layer=gpt_plan.stages[0].last_layer)
    with pytest.raises(PlanFormatError, match=r"not each of 0 to .* once, in order"):
        validate_plan(damaged)


def test_stages_out_of_order_are_an_error(gpt_plan: Plan) -> None:
    with pytest.raises(PlanFormatError, match=r"not each of 0 to .* once, in order"):
        validate_plan(replace(gpt_plan, stages=gpt_plan.stages[::-1]))


def test_a_mesh_larger_than_its_devices_is_an_error(gpt_plan: Plan) -> None:
    damaged = change_stage(gpt_plan, 0, mesh_shape=(3,))
    with pytest.raises(PlanFormatError, match="stage 0: a mesh of 3 devices lies on 2 devices"):
        validate_plan(damaged)


def test_a_device_in_two_stages_is_an_error(gpt_plan: Plan) -> None:
    damaged = change_stage(gpt_plan, 1, devices=gpt_plan.stages[0].devices)
    with pytest.raises(PlanFormatError, match="device 0 of host 0 is in two stages"):
        validate_plan(damaged)


def test_a_device_that_the_cluster_lacks_is_an_error(gpt_plan: Plan) -> None:
    damaged = change_stage(gpt_plan, 1, devices=((0, 2), (0, 9)))
    with pytest.raises(PlanFormatError, match=r"stage 1: cluster 'virtual:4' has no device \(0, 9\)"):
        validate_plan(damaged)


def test_a_value_in_a_stage_that_is_not_there_is_an_error(gpt_plan: Plan) -> None:
    damaged = change_value(gpt_plan, "state['params']['wte']", stage=2)
    with pytest.raises(PlanFormatError, match=r"value \"state\['params'\]\['wte'\]\" is in stage 2, of 2"):
        validate_plan(damaged)


def test_an_op_in_a_stage_that_is_not_there_is_an_error(gpt_plan: Plan) -> None:
    ops = (replace(gpt_plan.ops[0], stage=-1), *gpt_plan.ops[1:])
    with pytest.raises(PlanFormatError, match="is in stage -1, of 2"):
        validate_plan(replace(gpt_plan, ops=ops))


@pytest.mark.parametrize("spec", [(("z",), ()), (("x",), ("x",)), ((),), ((), (), ())])
def test_a_spec_that_is_none_is_an_error(gpt_plan: Plan, spec: Any) -> None:
    damaged = change_value(gpt_plan, "state['params']['wte']", spec=spec)
    with pytest.raises(PlanFormatError, match=r"is no spec of 2 dimensions on a mesh with axes \('x',\)"):
        validate_plan(damaged)


def test_a_dimension_that_the_mesh_does_not_divide_is_an_error(gpt_plan: Plan) -> None:
    damaged = change_value(gpt_plan, "state['params']['wte']", shape=(255, 64), spec=(("x",), ()))
    with pytest.raises(PlanFormatError, match="dimension 0 of size 255 cannot be split in 2"):
        validate_plan(damaged)


def test_a_result_of_an_op_with_a_wrong_spec_is_an_error(gpt_plan: Plan) -> None:
    op = next(op for op in gpt_plan.ops if op.primitive == "dot_general")
    ops = tuple(replace(o, output_specs=((),) * len(o.output_specs)) if o is op else o for o in gpt_plan.ops)
    with pytest.raises(PlanFormatError, match=f"a result of op '{op.name}': .* is no spec of"):
        validate_plan(replace(gpt_plan, ops=ops))


def test_a_plan_of_another_program_is_refused_with_reasons(mlp_plan: Plan, gpt_planner: Planner) -> None:
    message = r"made for program 'mlp-2' .* not for 'gpt-tiny' .*1 microbatches against 4"
    with pytest.raises(PlanMismatchError, match=message):
        validate_plan(mlp_plan, gpt_planner.program)


def test_a_plan_for_another_cluster_is_refused(gpt_plan: Plan) -> None:
    message = r"for 'virtual:4' \(1 x 4 devices\), the cluster is 'virtual:2x4' \(2 x 4\)"
    with pytest.raises(PlanMismatchError, match=message):
        validate_plan(gpt_plan, cluster=parse_cluster("virtual:2x4"))


def test_memory_over_capacity_is_a_warning_not_an_error(gpt_plan: Plan) -> None:
    memory = replace(gpt_plan.stages[1].memory, activations_bytes=5e9)
    (warning,) = validate_plan(change_stage(gpt_plan, 1, memory=memory))
    assert warning == "stage 1 needs 5.00 GB of 4.00 GB"
