"""Logical meshes as JAX meshes, and specs as shardings on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpaviz.plan import Plan, StagePlan
from alpaviz.types import DeviceId, ShardingSpec


def to_partition_spec(spec: ShardingSpec) -> PartitionSpec:
    """JAX's form of a spec."""
    return PartitionSpec(*[None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec])


def make_mesh(stage: StagePlan, find_device: Callable[[DeviceId], Any]) -> Mesh:
    """The stage's logical mesh with `Auto` axes; `find_device` turns (host, device) into a JAX device."""
    devices = np.array([find_device(d) for d in stage.devices], dtype=object).reshape(stage.mesh_shape)
    return Mesh(devices, stage.mesh_axes)


@dataclass(frozen=True, slots=True)
class StageLayouts:
    """Shardings of a stage's values.

    `specs` has the spec in which this stage holds each value that it makes, owns or receives.
    """

    mesh: Mesh
    specs: dict[int, ShardingSpec]

    def shard(self, value: int, rank: int) -> NamedSharding:
        """The sharding of a value; whole where the plan says nothing."""
        spec = self.specs.get(value, ((),) * rank)
        return NamedSharding(self.mesh, to_partition_spec(spec))

    def spread(self, spec: ShardingSpec) -> NamedSharding:
        """A spec as a sharding on this mesh."""
        return NamedSharding(self.mesh, to_partition_spec(spec))


def list_layouts(
    plan: Plan, meshes: Sequence[Mesh], state_pairs: Sequence[tuple[int, int]]
) -> tuple[StageLayouts, ...]:
    """Layouts of every stage. New state has the spec in which the state is stored."""
    specs: list[dict[int, ShardingSpec]] = [{} for _ in plan.stages]
    for value in plan.values:
        specs[value.stage][value.id] = value.spec
    for transfer in plan.transfers:
        specs[transfer.target_stage][transfer.value] = transfer.target_spec
    for op in plan.ops:
        for resharding in op.reshardings:
            # What a stage reads of the batch or of constants and does not own arrives as its first reader wants it.
            if resharding.operand >= 0:
                v = op.inputs[resharding.operand]
                if v is not None:
                    specs[op.stage].setdefault(v, resharding.held)
        for v, spec in zip(op.inputs, op.input_specs, strict=True):
            if v is not None:
                specs[op.stage].setdefault(v, spec)
    for made, stored in state_pairs:
        stage = plan.values[stored].stage
        if plan.values[made].stage == stage:
            specs[stage][made] = plan.values[stored].spec
    return tuple(StageLayouts(mesh, found) for mesh, found in zip(meshes, specs, strict=True))


def list_state_pairs(program: Any) -> tuple[tuple[int, int], ...]:
    """(new state value, input value that it replaces)."""
    return tuple(
        (program.outputs[o], program.inputs[i])
        for o, i in program.state_outputs
        if program.outputs[o] is not None and program.outputs[o] != program.inputs[i]
    )


def find_local_device(plan: Plan, devices: Sequence[Any]) -> Callable[[DeviceId], Any]:
    """(host, device) -> the device of this process at that place, hosts laid end to end."""
    starts = _list_starts(plan)
    return lambda place: devices[starts[place[0]] + place[1]]


def count_needed_devices(plan: Plan) -> int:
    """How many devices a process must have to play every host of the plan."""
    starts = _list_starts(plan)
    return 1 + max(starts[host] + device for stage in plan.stages for host, device in stage.devices)


def start_devices() -> list[Any]:
    """This process's JAX devices."""
    return list(jax.devices())


def _list_starts(plan: Plan) -> list[int]:
    """The number of each host's first device, hosts laid end to end."""
    return [0, *itertools.accumulate(host.num_devices for host in plan.cluster.hosts)]
