"""What things cost, in seconds and bytes: collectives, resharding, compute.

In: numbers of bytes and FLOP, shapes, specs, a `DeviceType` or a `LogicalMesh`. Out: seconds of a collective from an
alpha-beta model (`price_collective`), of an op from a roofline (`price_compute`), and of a change of spec
(`price_resharding`, for many at once `price_resharding_matrix`), whose steps `plan_resharding` gives one by one, each
with its `Collective` and the spec that it leads to. Nothing here depends on JAX or remembers anything but caches, but
for `measure` (`alpaviz.calibration`), which is loaded when it is named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from alpaviz.cost.collectives import Collective, price_collective
from alpaviz.cost.compute import price_compute
from alpaviz.cost.resharding import (
    ReshardingStep,
    plan_resharding,
    price_resharding,
    price_resharding_matrix,
)

if TYPE_CHECKING:
    from alpaviz.calibration import Calibration, load_calibration, measure

_CALIBRATION = ("Calibration", "load_calibration", "measure")

__all__ = [
    "Calibration",
    "Collective",
    "ReshardingStep",
    "load_calibration",
    "measure",
    "plan_resharding",
    "price_collective",
    "price_compute",
    "price_resharding",
    "price_resharding_matrix",
]


def __getattr__(name: str) -> Any:
    if name in _CALIBRATION:
        return getattr(importlib.import_module("alpaviz.calibration"), name)
    raise AttributeError(f"module 'alpaviz.cost' has no attribute {name!r}")
