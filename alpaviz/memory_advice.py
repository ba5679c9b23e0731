"""What would help where a model does not fit, with numbers.

In: a program, what its layers hold, a cluster. Out: sentences. Numbers are lower limits: all devices evenly full, one
microbatch in flight, working sets left out. What they rule out cannot fit; what they allow may need a little more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from alpaviz.cluster import Cluster
from alpaviz.intra.recomputation import LayerBytes
from alpaviz.plan_diff import format_bytes, spell_layers
from alpaviz.program.program import Program

_WORST = 3
"""So many layers are named."""


def describe_needs(program: Program, kept: Sequence[LayerBytes]) -> str:
    """Which layers need most, and what for."""
    total = sum(layer.count(1) for layer in kept)
    worst = sorted(sorted(range(len(kept)), key=lambda k: -kept[k].count(1))[:_WORST])
    share = sum(kept[k].count(1) for k in worst) / total if total else 0.0
    state, activations = (sum(parts) for parts in zip(*((k.state, k.activations) for k in kept), strict=True))
    count = program.num_microbatches
    return (
        f"All layers together hold {format_bytes(state)} of parameters, optimizer state, gradients and batch, and "
        f"{format_bytes(activations)} of activations for each of {count} microbatch{'' if count == 1 else 'es'}; "
        f"{share:.0%} of it {'is in' if len(kept) > 1 else 'in its only'} {spell_layers(worst)}."
    )


def list_remedies(
    program: Program,
    cluster: Cluster,
    memory_limit: float,
    kept: Sequence[LayerBytes],
    recomputed: Sequence[LayerBytes] | None,
    *,
    may_recompute: bool,
) -> tuple[str, ...]:
    """What would let the model fit, each with the least number of it.

    Args:
        memory_limit: bytes of a device that a plan may use.
        kept, recomputed: what the layers hold with all activations kept, and with as few as can be; None where
            recomputation frees nothing.
        may_recompute: the planner was allowed to recompute.
    """
    room = memory_limit * cluster.num_devices
    state = sum(layer.state for layer in kept)
    most = sum(layer.activations for layer in kept)
    least = most if recomputed is None else sum(layer.activations for layer in recomputed)
    found = []
    if not may_recompute and least < most:
        found.append(
            f"recompute='auto', which leaves at least {format_bytes(least)} of {format_bytes(most)} of activations"
        )
        least = most  # the others help without
    factor = _find_factor(program, room - state, least)
    if factor is not None:
        found.append(
            f"num_microbatches={factor * program.num_microbatches} or more, which leaves at least "
            f"{format_bytes(least / factor)} of activations for each"
        )
    for name, activations in (("", least), (" and more microbatches", 0.0)):
        hosts = math.ceil((state + activations) / (memory_limit * cluster.devices_per_host))
        if hosts > cluster.num_hosts and (not name or factor is None):
            found.append(f"at least {hosts} hosts{name} instead of {cluster.num_hosts}")
            break
    memory = (state + least) / cluster.num_devices * cluster.device_type.memory_bytes / memory_limit
    if memory > cluster.device_type.memory_bytes:
        found.append(
            f"devices of at least {format_bytes(memory)} instead of {format_bytes(cluster.device_type.memory_bytes)}"
        )
    return tuple(found)


def _find_factor(program: Program, room: float, activations: float) -> int | None:
    """By how much the number of microbatches must grow, at least, for `activations` to fit into `room`."""
    sizes = [
        program.values[v].shape[axis]
        for v, axis in zip(program.inputs, program.batch_axes, strict=True)
        if axis is not None
    ]
    rows = math.gcd(*sizes) if sizes and program.has_gradient_marker else 1
    factors = [k for k in range(2, rows + 1) if rows % k == 0 and activations / k <= room]
    return min(factors, default=None)
