"""Collectives are read from each form in which HLO prints their groups."""

from __future__ import annotations

import pytest

from alpaviz.runtime.collectives_in_hlo import count_collective_bytes

LINES = {
    "lists": "%a = f32[8,4]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0,2,4,6},{1,3,5,7}}, to_apply=%add",
    "iota": "%a = f32[8,4]{1,0} all-reduce(%p), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=%add",
    "mesh": "%a = f32[8,4]{1,0} all-reduce(%p), replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}, to_apply=%add",
    "ordered mesh": (
        "%a = f32[8,4]{1,0} all-reduce(%p), replica_groups=mesh['axis_0'=2,'axis_1'=4], "
        "device_ids=([4,2]T(1,0)) {'axis_1'}, to_apply=%add"
    ),
}


@pytest.mark.parametrize("form", sorted(LINES))
def test_groups_along_the_first_axis_are_recognised(form: str) -> None:
    assert count_collective_bytes("ENTRY %main\n  " + LINES[form], (4, 2), ("x", "y")) == {
        ("all-reduce", ("x",)): 128.0
    }


def test_a_tuple_result_counts_all_its_parts() -> None:
    line = "  %a = (bf16[2,4]{1,0}, bf16[2,4]{1,0}) all-to-all(%p, %q), replica_groups={{0,1},{2,3},{4,5},{6,7}}"
    assert count_collective_bytes(line, (4, 2), ("x", "y")) == {("all-to-all", ("y",)): 32.0}


def test_a_reduce_scatter_counts_its_input() -> None:
    line = "  %a = f32[2,4]{1,0} reduce-scatter(%p), replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={0}"
    assert count_collective_bytes(line, (4, 2), ("x", "y")) == {("reduce-scatter", ("x",)): 128.0}


def test_permutes_and_whole_meshes_are_recognised() -> None:
    text = (
        "  %a = f32[4]{0} collective-permute(%p), source_target_pairs={{0,2},{2,4},{4,6},{6,0}}\n"
        "  %b = u8[16]{0} all-gather(%q), replica_groups=[1,8]<=[8], dimensions={0}"
    )
    assert count_collective_bytes(text, (4, 2), ("x", "y")) == {
        ("collective-permute", ("x",)): 16.0,
        ("all-gather", ("x", "y")): 16.0,
    }


def test_what_a_loop_repeats_is_counted_as_often() -> None:
    text = "%body (p: f32[4]) -> f32[4] {\n  %a = f32[4]{0} all-reduce(%p), replica_groups={{0,1,2,3,4,5,6,7}}\n}"
    assert count_collective_bytes(text, (8,), ("x",), {"body": 3}) == {("all-reduce", ("x",)): 48.0}
