"""Compute time by a roofline with the efficiencies that real kernels reach."""

from __future__ import annotations

from alpaviz.cluster.description import DeviceType

_EFFICIENCY = {"matmul": 0.7, "convolution": 0.55, "gather": 0.3, "elementwise": 0.3}
"""Share of the peak FLOP/s that large kernels reach. Best shapes found by search reach 0.73 to 0.87 for matrix
products on NVIDIA devices (stas00/ml-engineering, MAMF table); ordinary layers get less."""
_BANDWIDTH_EFFICIENCY = 0.8
"""Share of the memory bandwidth that streaming kernels reach."""
_FILL_S = 2e-5
"""A matrix product whose ideal time is this many seconds fills the device and runs at full efficiency; the shorter a
product, the nearer to half of it. About the ideal time of a 1024-cubed product in float16 on a V100. An assumption."""
_KERNEL_S = 3e-6
"""Least time of a kernel that is not fused into another (launch and drain)."""


def price_compute(
    flops: float, bytes_moved: float, dtype: str, device_type: DeviceType, op_class: str = "elementwise"
) -> float:
    """Seconds of one op on one device.

    The longer of computing and moving bytes, at least `_KERNEL_S`.

    Args:
        flops, bytes_moved: of this device's share.
        dtype: of the operands, as numpy names it; a device that has no rate for it computes at its float32 rate.
        op_class: `"matmul"`, `"convolution"`, `"gather"` or `"elementwise"`. Elementwise ops are fused by XLA, so they
            have no floor.
    """
    memory_s = bytes_moved / (device_type.memory_bandwidth * _BANDWIDTH_EFFICIENCY)
    if op_class == "elementwise":
        return memory_s
    ideal = flops / device_type.peak_flops(dtype)
    compute_s = ideal / _EFFICIENCY.get(op_class, 0.3)
    if op_class in ("matmul", "convolution"):
        compute_s += min(compute_s, _FILL_S) * (1 - min(1.0, ideal / _FILL_S))
    return max(compute_s, memory_s, _KERNEL_S)
