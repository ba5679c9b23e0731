"""Each step of a resharding is what XLA makes of it: one collective of the predicted kind and bytes."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpaviz.cluster import SubmeshShape, make_logical_mesh, parse_cluster
from alpaviz.cost import plan_resharding, price_resharding, price_resharding_matrix
from alpaviz.program.strategy import iterate_specs
from alpaviz.types import ShardingSpec

SHAPE = (16, 16, 16)
MESH = make_logical_mesh(parse_cluster("virtual:8"), SubmeshShape(1, 8), (4, 2))
AXES = MESH.axis_sizes
SPECS = sorted(iterate_specs(SHAPE, AXES))


def shard(spec: ShardingSpec) -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
    return NamedSharding(mesh, PartitionSpec(*[axes or None for axes in spec]))


def find_collectives(held: ShardingSpec, wanted: ShardingSpec) -> list[tuple[str, int]]:
    """(kind, bytes of the result) of each collective that XLA makes for one change of layout."""
    function = jax.jit(lambda a: a, in_shardings=shard(held), out_shardings=shard(wanted))
    text = function.lower(jax.ShapeDtypeStruct(SHAPE, np.float32)).compile().as_text()
    pattern = r"= (\(?f32\[.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
    found = []
    for result, kind in re.findall(pattern, text):
        sizes = [[int(n) for n in dims.split(",")] for dims in re.findall(r"f32\[([\d,]*)\]", result)]
        found.append((kind, 4 * sum(int(np.prod(dims)) for dims in sizes)))
    return found


@pytest.mark.parametrize("seed", range(14))
def test_every_step_of_a_plan_is_one_collective_of_the_predicted_bytes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    held, wanted = (SPECS[int(i)] for i in rng.choice(len(SPECS), 2, replace=False))
    current = held
    for step in plan_resharding(SHAPE, 4, held, wanted, MESH):
        found = find_collectives(current, step.spec_after)
        expected = [] if step.collective is None else [(step.collective.kind, int(step.collective.num_bytes))]
        assert found == expected, f"{current} to {step.spec_after}"
        current = step.spec_after
    assert current == wanted


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
