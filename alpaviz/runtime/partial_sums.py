"""Gradients that stay partial sums: an op's result as one share per device, accumulated and summed once a step.

A partial sum of a value of shape (m, n) over mesh axes of 8 devices is an array of shape (8, m, n) whose first
dimension is split over these axes, so each device holds the share that it made and nothing is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from alpaviz.plan import OpPlan, Plan
from alpaviz.program.jax_internals import bind_equation
from alpaviz.runtime.meshes import StageLayouts, to_partition_spec
from alpaviz.types import MeshAxis, ShardingSpec


@dataclass(frozen=True, slots=True)
class PartialSum:
    """How a value is kept until it is summed: shares over `axes`, each in `spec`."""

    axes: tuple[MeshAxis, ...]
    spec: ShardingSpec

    def count_shares(self, layouts: StageLayouts) -> int:
        return math.prod(layouts.mesh.shape[axis] for axis in self.axes)

    def shard(self, layouts: StageLayouts) -> NamedSharding:
        """The sharding of the array of all shares."""
        return layouts.spread((self.axes, *self.spec))

    def hold(self, shares: Any, layouts: StageLayouts) -> Any:
        return jax.lax.with_sharding_constraint(shares, self.shard(layouts))


def list_partial_sums(plan: Plan, values: Sequence[int]) -> dict[int, PartialSum]:
    """Those of `values` that are made as partial sums."""
    wanted = set(values)
    return {
        v: describe_partial_sum(op, k)
        for op in plan.ops
        if op.partial_axes
        for k, v in enumerate(op.outputs)
        if v is not None and v in wanted
    }


def describe_partial_sum(op: OpPlan, result: int) -> PartialSum:
    """How result `result` of `op` is kept: in the layout that it ends in, but for the axes that are not summed yet."""
    spec = tuple(tuple(a for a in axes if a not in op.partial_axes) for axes in op.output_specs[result])
    return PartialSum(op.partial_axes, spec)


def evaluate_partially(op: OpPlan, eqn: Any, operands: Sequence[Any], is_share: bool, layouts: StageLayouts) -> Any:
    """The shares of the one result of `op`.

    Args:
        eqn: the op's equation.
        is_share: the first operand is itself an array of shares.
    """
    partial = describe_partial_sum(op, 0)
    if is_share:
        return partial.hold(jax.vmap(lambda share: bind_equation(eqn, [share])[0])(operands[0]), layouts)

    def run(*local: Any) -> Any:
        return bind_equation(eqn, local)[0][None]

    # Only the summed axes are taken by hand: along all others the op stays XLA's to split.
    specs = tuple(_keep_axes(spec, partial.axes) for spec in op.input_specs)
    mapped = jax.shard_map(
        run, mesh=layouts.mesh, in_specs=specs, out_specs=PartitionSpec(partial.axes), axis_names=set(partial.axes),
        check_vma=False,
    )  # fmt: skip
    return partial.hold(mapped(*operands), layouts)


def _keep_axes(spec: ShardingSpec, axes: Sequence[MeshAxis]) -> PartitionSpec:
    return to_partition_spec(tuple(tuple(a for a in dim if a in axes) for dim in spec))


def add_shares(shares: Any, sharding: NamedSharding) -> Any:
    """The sum of all shares, in `sharding`: one all-reduce or reduce-scatter."""
    return jax.lax.with_sharding_constraint(shares.sum(0, dtype=shares.dtype), sharding)
