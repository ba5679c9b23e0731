"""What passes between stages: activations, cotangents, tied parameters, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alpaviz.cluster import Cluster
from alpaviz.cluster.mesh import Submesh
from alpaviz.plan import OpPlan, Transfer, ValuePlan
from alpaviz.program.program import SHARED_LAYER, Program, Role, ValueKind
from alpaviz.types import ShardingSpec, replicated_spec


def find_transfers(
    program: Program,
    cluster: Cluster,
    placed: Sequence[Submesh],
    ops: Sequence[OpPlan],
    values: Sequence[ValuePlan],
    arrivals: Sequence[Mapping[int, ShardingSpec]],
) -> tuple[Transfer, ...]:
    """Each value that one stage makes or owns and another reads, once per pair of stages.

    Batch values and constants reach every stage from the host and are not transfers.

    Args:
        arrivals: per stage, value id -> the spec in which it wants a value of another stage.
    """
    shared = {v for op in program.ops if op.layer == SHARED_LAYER for v in op.outputs}
    shared |= {v for v, layer in zip(program.inputs, program.input_layers, strict=True) if layer == SHARED_LAYER}
    once: dict[tuple[int, int], bool] = {}
    for op in ops:
        if op.layer == SHARED_LAYER:
            continue
        for v in op.inputs:
            if v is None or v in shared or values[v].stage == op.stage:
                continue
            kind = program.values[v].kind
            if kind in (ValueKind.BATCH, ValueKind.CONSTANT):
                continue
            is_once = op.role == Role.UPDATE.value or kind is ValueKind.STATE
            once[v, op.stage] = once.get((v, op.stage), True) and is_once
    found = []
    for (v, target), is_once in sorted(once.items()):
        value = program.values[v]
        source = values[v].stage
        spec = arrivals[target].get(v, replicated_spec(len(value.shape)))
        time = price_transfer(cluster, placed[source], placed[target], float(value.num_bytes))
        found.append(Transfer(v, source, target, spec, float(value.num_bytes), time, is_once))
    return tuple(found)


def price_transfer(cluster: Cluster, source: Submesh, target: Submesh, num_bytes: float) -> float:
    """Seconds to send `num_bytes` (a whole value) from one stage's devices to another's.

    Each byte crosses once (paper section 6: the receiver gathers copies on its own fast links). Inside a host the
    devices of the smaller stage send side by side; between hosts each host's network card is shared by its devices.
    """
    source_hosts = {host for host, _ in source.devices}
    target_hosts = {host for host, _ in target.devices}
    if source_hosts == target_hosts and len(source_hosts) == 1:
        link = cluster.hosts[min(source_hosts)].link
        lanes = float(min(len(source.devices), len(target.devices)))
        if cluster.device_type.measured is not None:
            lanes = cluster.device_type.measured.count_lanes(int(lanes))
    else:
        link = cluster.network
        lanes = min(len(source_hosts), len(target_hosts))
    return link.latency + num_bytes / (link.bandwidth * lanes)
