"""What was measured on devices of one type: the figures that a calibrated cost model computes with.

All times are those of one device that works alone. Devices that share hardware (virtual devices on the cores of one
processor) slow each other down: `slow_down` says by how much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from alpaviz.errors import InvalidClusterError
from alpaviz.types import CollectiveKind


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """Seconds of an op of one class: `floor_s + size * (seconds a unit at this size)`.

    Attributes:
        op_class: as in `alpaviz.cost.price_compute`.
        dtype: of its operands.
        floor_s: seconds beside the work.
        knots: (size, seconds a unit) pairs by size, interpolated over the logarithm of the size. Sizes are FLOP for
            classes that are counted in FLOP (`COUNTED_IN_FLOPS`), else bytes.
        parallel_devices: so many devices do ops of this class at once at full speed. Of virtual devices that is one
            where an op alone uses all cores, as large matrix products do.
    """

    op_class: str
    dtype: str
    floor_s: float
    knots: tuple[tuple[float, float], ...]
    parallel_devices: float

    def price(self, size: float, num_devices: int = 1) -> float:
        """Seconds of an op of `size` on each of `num_devices` that do it at once."""
        weights = weigh_knots(size, self.sizes)
        slope = sum(weight * at_knot for weight, (_, at_knot) in zip(weights, self.knots, strict=True))
        return slow_down(num_devices, self.parallel_devices) * (self.floor_s + size * slope)

    @property
    def sizes(self) -> tuple[float, ...]:
        return tuple(size for size, _ in self.knots)


COUNTED_IN_FLOPS = ("matmul", "convolution")
"""Classes of ops whose work is FLOP; that of others is bytes."""


CALL_ARRAYS = 64
"""Arrays that the function takes and makes whose start is measured."""


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """A collective over groups of `group_size` devices: `latency_s + num_bytes * seconds_per_byte`.

    `num_bytes` as in `alpaviz.cost.Collective`.
    """

    kind: CollectiveKind
    group_size: int
    latency_s: float
    seconds_per_byte: float
    parallel_devices: float


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """What the cost model takes from a calibration.

    Attributes:
        source: what was measured, and with which versions, for people.
        num_devices: that took part.
        rates: of ops that compute.
        collectives: by kind and size of the group, all devices communicating at once.
        memory_bandwidth: bytes/s of streaming ops.
        call_s, call_device_s: seconds to start one compiled function of `CALL_ARRAYS` arrays, and for each device.
    """

    source: str
    num_devices: int
    rates: tuple[MeasuredRate, ...]
    collectives: tuple[MeasuredCollective, ...]
    memory_bandwidth: float
    call_s: float = 0.0
    call_device_s: float = 0.0

    def __post_init__(self) -> None:
        figures = {
            "floor_s": [rate.floor_s for rate in self.rates],
            "seconds a unit": [slope for rate in self.rates for _, slope in rate.knots],
            "latency_s": [found.latency_s for found in self.collectives],
            "seconds_per_byte": [found.seconds_per_byte for found in self.collectives],
            "memory_bandwidth": (self.memory_bandwidth,),
            "call_s": (self.call_s, self.call_device_s),
        }
        for name, values in figures.items():
            if not all(math.isfinite(value) and value >= 0 for value in values):
                raise InvalidClusterError(f"measured costs: {name} must be numbers of at least 0, not {values}.")
        parallel = [rate.parallel_devices for rate in self.rates]
        parallel += [found.parallel_devices for found in self.collectives]
        if not all(number >= 1 for number in parallel):
            raise InvalidClusterError("measured costs: parallel_devices must be numbers of at least 1.")

    @property
    def parallel_devices(self) -> float:
        """So many devices work at once at full speed; that of matrix products where they were measured."""
        rate = self.find_rate("matmul", "float32") or next(iter(self.rates), None)
        return float(self.num_devices) if rate is None else rate.parallel_devices

    @property
    def shares_hardware(self) -> bool:
        """Whether devices slow each other down, so that stages which work at once do not gain by it."""
        return self.parallel_devices <= self.num_devices / 2

    def price_call(self, num_devices: int, num_arrays: int = CALL_ARRAYS) -> float:
        """Seconds to start a compiled function on `num_devices` that takes and makes `num_arrays` arrays in all."""
        return self.call_s + self.call_device_s * num_devices * num_arrays / CALL_ARRAYS

    def count_lanes(self, num_devices: int) -> float:
        """How many of `num_devices` send at full speed when all do."""
        return min(num_devices, self.parallel_devices) if self.shares_hardware else num_devices

    def scale(self, compute: float, links: float) -> MeasuredCosts:
        """Costs of devices that compute, and communicate, so many times quicker; latencies stay."""
        rates = tuple(
            replace(rate, knots=tuple((size, slope / compute) for size, slope in rate.knots))
            if rate.op_class in COUNTED_IN_FLOPS
            else rate
            for rate in self.rates
        )
        collectives = tuple(
            replace(found, seconds_per_byte=found.seconds_per_byte / links) for found in self.collectives
        )
        return replace(self, rates=rates, collectives=collectives)

    def find_rate(self, op_class: str, dtype: str) -> MeasuredRate | None:
        """That of `op_class`, in `dtype` if it was measured in this one; None if the class was not measured."""
        own = [rate for rate in self.rates if rate.op_class == op_class]
        return next((rate for rate in own if rate.dtype == dtype), own[0] if own else None)

    def find_line(self, kind: CollectiveKind, group_size: int, num_devices: int) -> tuple[float, float] | None:
        """(seconds, seconds/byte) of a collective in groups of `group_size`, all `num_devices` communicating at once.

        None for groups larger than those measured.
        """
        own = sorted((c for c in self.collectives if c.kind == kind), key=lambda c: c.group_size)
        above = next((found for found in own if found.group_size >= group_size), None)
        if above is None:
            return None
        below = next((found for found in reversed(own) if found.group_size <= group_size), above)
        span = above.group_size - below.group_size
        share = (group_size - below.group_size) / span if span else 0.0
        slower = slow_down(num_devices, above.parallel_devices)
        latency = below.latency_s + share * (above.latency_s - below.latency_s)
        per_byte = below.seconds_per_byte + share * (above.seconds_per_byte - below.seconds_per_byte)
        return slower * latency, slower * per_byte


def slow_down(num_devices: int, parallel_devices: float) -> float:
    """How many times longer each of `num_devices` takes that work at once than one alone."""
    return max(1.0, num_devices / parallel_devices)


def weigh_knots(size: float, sizes: tuple[float, ...]) -> tuple[float, ...]:
    """What each knot counts for at `size`: at most two neighbours do, and the weights add up to 1."""
    place = min(max(size, sizes[0]), sizes[-1])
    weights = [0.0] * len(sizes)
    after = next(k for k, knot in enumerate(sizes) if knot >= place)
    if sizes[after] == place or after == 0:
        weights[after] = 1.0
    else:
        low, high = math.log(sizes[after - 1]), math.log(sizes[after])
        weights[after] = (math.log(place) - low) / (high - low)
        weights[after - 1] = 1.0 - weights[after]
    return tuple(weights)
