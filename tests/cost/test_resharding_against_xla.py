"""Each step of a resharding is what XLA makes of it: one collective of the predicted kind and bytes."""

from __future__ import annotations

import itertools
import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpaviz.cluster import LogicalMesh, SubmeshShape, make_logical_mesh, parse_cluster
from alpaviz.cost import (
    Collective,
    plan_resharding,
    price_collective,
    price_resharding,
    price_resharding_matrix,
)
from alpaviz.errors import IndivisibleShardError
from alpaviz.program.strategy import iterate_specs
from alpaviz.types import ShardingSpec

SHAPE = (16, 16, 16)
MESH = make_logical_mesh(parse_cluster("virtual:8"), SubmeshShape(1, 8), (4, 2))
CUBE = make_logical_mesh(parse_cluster("virtual:8"), SubmeshShape(1, 8), (2, 2, 2))
AXES = MESH.axis_sizes
SPECS = sorted(iterate_specs(SHAPE, AXES))
CUBE_SPECS = sorted(iterate_specs(SHAPE, CUBE.axis_sizes))


def shard(spec: ShardingSpec, mesh: LogicalMesh) -> NamedSharding:
    devices = Mesh(np.array(jax.devices()[:8]).reshape(mesh.shape), mesh.axis_names)
    return NamedSharding(devices, PartitionSpec(*[axes or None for axes in spec]))


def find_collectives(held: ShardingSpec, wanted: ShardingSpec, mesh: LogicalMesh) -> list[tuple[str, int]]:
    """(kind, bytes of the result) of each collective that XLA makes for one change of layout."""
    function = jax.jit(lambda a: a, in_shardings=shard(held, mesh), out_shardings=shard(wanted, mesh))
    text = function.lower(jax.ShapeDtypeStruct(SHAPE, np.float32)).compile().as_text()
    pattern = r"= (\(?f32\[.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
    found = []
    for result, kind in re.findall(pattern, text):
        sizes = [[int(n) for n in dims.split(",")] for dims in re.findall(r"f32\[([\d,]*)\]", result)]
        found.append((kind, 4 * sum(int(np.prod(dims)) for dims in sizes)))
    return found


def check_every_step(held: ShardingSpec, wanted: ShardingSpec, mesh: LogicalMesh) -> None:
    current = held
    for step in plan_resharding(SHAPE, 4, held, wanted, mesh):
        found = find_collectives(current, step.spec_after, mesh)
        expected = [] if step.collective is None else [(step.collective.kind, int(step.collective.num_bytes))]
        assert found == expected, f"{current} to {step.spec_after}"
        current = step.spec_after
    assert current == wanted


@pytest.mark.parametrize("seed", range(14))
def test_every_step_of_a_plan_is_one_collective_of_the_predicted_bytes(seed: int) -> None:
    held, wanted = (SPECS[int(i)] for i in np.random.default_rng(seed).choice(len(SPECS), 2, replace=False))
    check_every_step(held, wanted, MESH)


@pytest.mark.parametrize("seed", range(6))
def test_so_it_is_on_a_mesh_of_three_axes(seed: int) -> None:
    held, wanted = (CUBE_SPECS[int(i)] for i in np.random.default_rng(seed).choice(len(CUBE_SPECS), 2, replace=False))
    check_every_step(held, wanted, CUBE)


def test_two_axes_move_together_in_one_all_to_all() -> None:
    held, wanted = (("x", "y"), (), ()), ((), ("x", "y"), ())
    (step,) = plan_resharding(SHAPE, 4, held, wanted, MESH)
    assert step.collective == Collective("all-to-all", ("x", "y"), 4 * 16**3 / 8)
    check_every_step(held, wanted, MESH)


def test_swapping_two_axes_is_an_all_to_all_and_a_permute_of_shards() -> None:
    # Where it pays to move bytes rather than to start few messages.
    steps = plan_resharding((1024, 1024), 4, (("x",), ("y",)), (("y",), ("x",)), MESH)
    assert {step.collective.kind for step in steps if step.collective} <= {"all-to-all", "collective-permute"}
    assert all(step.collective is None or step.collective.num_bytes <= 4 * 1024**2 / 4 for step in steps)


def test_a_change_that_xla_makes_by_full_replication_has_a_cheaper_plan() -> None:
    # jax-ml/jax#21562: XLA alone gathers the whole tensor here.
    held, wanted = (("y",), (), ("x",)), ((), ("x", "y"), ())
    whole = 4 * int(np.prod(SHAPE))
    steps = plan_resharding(SHAPE, 4, held, wanted, MESH)
    assert max(step.collective.num_bytes for step in steps if step.collective) < whole / 2


def test_splitting_further_and_staying_cost_nothing() -> None:
    assert price_resharding(SHAPE, 4, (("x",), (), ()), (("x",), (), ()), MESH) == 0
    assert price_resharding(SHAPE, 4, (("x",), (), ()), (("x",), ("y",), ()), MESH) == 0


def test_axes_of_one_device_cost_nothing() -> None:
    thin = make_logical_mesh(parse_cluster("virtual:4"), SubmeshShape(1, 4), (1, 4))
    assert price_resharding(SHAPE, 4, (("x",), ("y",), ()), ((), ("y",), ()), thin) == 0
    assert plan_resharding(SHAPE, 4, (("x",), ("y",), ()), ((), ("y",), ()), thin) == ()


def test_the_matrix_holds_the_price_of_each_pair() -> None:
    some = SPECS[::3]
    matrix = price_resharding_matrix(SHAPE, 4, some, SPECS, MESH)
    for i, held in enumerate(some):
        for j, wanted in enumerate(SPECS):
            assert matrix[i, j] == pytest.approx(price_resharding(SHAPE, 4, held, wanted, MESH), rel=1e-9, abs=1e-9)


def test_going_through_a_third_layout_is_never_cheaper() -> None:
    matrix = price_resharding_matrix(SHAPE, 4, SPECS, SPECS, MESH)
    for middle in range(len(SPECS)):
        assert (matrix <= matrix[:, middle, None] + matrix[None, middle, :] + 1e-8).all()


def test_a_price_is_the_sum_of_its_steps() -> None:
    for held, wanted in itertools.product(SPECS, SPECS):
        steps = plan_resharding(SHAPE, 4, held, wanted, MESH)
        total = sum(
            price_collective(step.collective.kind, step.collective.num_bytes, MESH, step.collective.axes)
            for step in steps
            if step.collective
        )
        assert price_resharding(SHAPE, 4, held, wanted, MESH) == pytest.approx(total)


def test_a_value_without_dimensions_or_elements_costs_nothing() -> None:
    assert price_resharding((), 4, (), (), MESH) == 0
    assert plan_resharding((0, 8), 4, (("x",), ()), (("x",), ()), MESH) == ()


def test_an_indivisible_spec_is_named() -> None:
    with pytest.raises(IndivisibleShardError, match=r"spec \[x, -\] does not split a value of shape \(6, 8\)"):
        plan_resharding((6, 8), 4, ((), ()), (("x",), ()), MESH)
