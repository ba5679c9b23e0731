"""What things cost, in seconds and bytes: collectives, resharding, compute.

In: shapes, specs and a `LogicalMesh`. Out: seconds from an alpha-beta and roofline model, and the collectives behind
them.
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
