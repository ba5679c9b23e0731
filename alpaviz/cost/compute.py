"""Compute time by a roofline with the efficiencies that real kernels reach."""

from __future__ import annotations

from alpaviz.cluster.catalogue import load_catalogue
from alpaviz.cluster.description import DeviceType
from alpaviz.cluster.measured import COUNTED_IN_FLOPS, MeasuredCosts, slow_down

_BEST_MATMUL = {
    (name, dtype): share for name, entry in load_catalogue().devices.items() for dtype, share in entry.matmul_efficiency
}
"""Share of the peak FLOP/s that the best matrix product found reaches, by device type and dtype: the catalogue's
figures. A dtype without one has that of bfloat16, a device type without any 0.82."""
_ORDINARY = 0.85
"""What the shapes of ordinary layers reach of that: an assumption, not measured."""
_EFFICIENCY = {"convolution": 0.55, "gather": 0.3, "elementwise": 0.3}
"""Share of the peak for other ops: assumptions. That of convolutions is near what the paper measured of a Wide-ResNet
in float32 on one V100 (8.3 of 15.7 TFLOP/s, figure 7)."""
_BANDWIDTH_EFFICIENCY = 0.8
"""Share of the memory bandwidth that streaming kernels reach."""
_KERNEL_S = 4e-6
"""Time of a kernel beside its work: launch, fill and drain. It makes small products inefficient: one of 1024 cubed in
bfloat16 reaches half of an A100's peak, one of 256 cubed a fortieth."""


def price_compute(
    flops: float,
    bytes_moved: float,
    dtype: str,
    device_type: DeviceType,
    op_class: str = "elementwise",
    num_devices: int = 1,
) -> float:
    """Seconds of one op on one device.

    The longer of computing and moving bytes, and what a kernel takes beside that. Elementwise ops have no kernel of
    their own, as XLA fuses them. Nothing to do takes no time.

    Args:
        flops, bytes_moved: of this device's share.
        dtype: of the operands, as numpy names it; a device that has no rate for it computes at its float32 rate.
        op_class: `"matmul"`, `"convolution"`, `"gather"`, `"transcendental"`, `"reduction"`, `"update"` (elementwise on
            the state, which no cache holds) or `"elementwise"`; any other is taken for elementwise. The last four
            differ only where costs were measured.
        num_devices: that do the same at once: virtual devices share what the hardware has.
    """
    if flops <= 0 and bytes_moved <= 0:
        return 0.0
    if device_type.measured is not None:
        seconds = _price_measured(device_type.measured, flops, bytes_moved, dtype, device_type, op_class, num_devices)
        if seconds is not None:
            return seconds
    memory_s = bytes_moved / (device_type.memory_bandwidth * _BANDWIDTH_EFFICIENCY)
    compute_s = flops / (device_type.peak_flops(dtype) * find_efficiency(op_class, device_type, dtype))
    has_kernel = op_class in ("matmul", "convolution", "gather")
    return max(memory_s, compute_s) + (_KERNEL_S if has_kernel else 0.0)


def _price_measured(
    measured: MeasuredCosts,
    flops: float,
    bytes_moved: float,
    dtype: str,
    device_type: DeviceType,
    op_class: str,
    num_devices: int,
) -> float | None:
    """By what was measured of this class; None if nothing was."""
    rate = measured.find_rate(op_class, dtype) or measured.find_rate("elementwise", dtype)
    if rate is None:
        return None
    if rate.op_class not in COUNTED_IN_FLOPS:
        return rate.price(bytes_moved, num_devices)
    # A dtype that was not measured runs as many times quicker as its peak is higher.
    other = 1.0 if rate.dtype == dtype else device_type.peak_flops(rate.dtype) / device_type.peak_flops(dtype)
    memory_s = bytes_moved / device_type.memory_bandwidth * slow_down(num_devices, rate.parallel_devices)
    return max(rate.price(flops, num_devices) * other, memory_s)


def find_efficiency(op_class: str, device_type: DeviceType, dtype: str = "bfloat16") -> float:
    """Share of the peak FLOP/s that a large op of this class reaches."""
    if op_class == "matmul":
        usual = _BEST_MATMUL.get((device_type.name, "bfloat16"), 0.82)
        return _ORDINARY * _BEST_MATMUL.get((device_type.name, dtype), usual)
    return _EFFICIENCY.get(op_class, _EFFICIENCY["elementwise"])
