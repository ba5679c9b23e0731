"""What things cost, in seconds and bytes: collectives, resharding, compute.

In: numbers of bytes and FLOP, shapes, specs, a `DeviceType` or a `LogicalMesh`. Out: seconds of a collective from an
alpha-beta model (`price_collective`), of an op from a roofline (`price_compute`), and of a change of spec
(`price_resharding`, for many at once `price_resharding_matrix`), whose steps `plan_resharding` gives one by one, each
with its `Collective` and the spec that it leads to. Nothing here depends on JAX or remembers anything but caches.
"""

from alpaviz.cost.collectives import Collective, price_collective
from alpaviz.cost.compute import price_compute
from alpaviz.cost.resharding import (
    ReshardingStep,
    plan_resharding,
    price_resharding,
    price_resharding_matrix,
)

__all__ = [
    "Collective",
    "ReshardingStep",
    "plan_resharding",
    "price_collective",
    "price_compute",
    "price_resharding",
    "price_resharding_matrix",
]
