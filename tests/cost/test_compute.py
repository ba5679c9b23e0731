"""The roofline: figures worked out by hand, and what must hold for any work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpaviz.cluster import DEVICES
from alpaviz.cost import price_compute

A100 = DEVICES["A100-80GB"]
CLASSES = st.sampled_from(["matmul", "convolution", "gather", "elementwise"])
DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "int8", "float64"])


def price_product(n: int, dtype: str = "bfloat16", device: str = "A100-80GB") -> float:
    """Seconds of a product of two n x n matrices."""
    return price_compute(2.0 * n**3, 3 * 2.0 * n**2, dtype, DEVICES[device], "matmul")


def test_a_large_product_runs_at_the_share_of_the_peak_that_ordinary_layers_reach() -> None:
    assert 2 * 16384**3 / price_product(16384) == pytest.approx(0.87 * 0.85 * 312e12, rel=0.01)


def test_a_large_product_in_float8_reaches_less_of_its_peak_than_one_in_bfloat16() -> None:
    # 16384 cubed on an H100: 0.71 of 1979 TFLOP/s and 0.80 of 989 are the best that a search finds.
    assert 2 * 16384**3 / price_product(16384, "float8_e4m3fn", "H100-80GB") == pytest.approx(
        0.71 * 0.85 * 1979e12, rel=0.01
    )


def test_a_product_of_1024_cubed_reaches_half_of_the_peak_and_one_of_256_cubed_a_fortieth() -> None:
    assert 2 * 1024**3 / price_product(1024) / 312e12 == pytest.approx(0.52, abs=0.03)
    assert 2 * 256**3 / price_product(256) / 312e12 == pytest.approx(1 / 40, rel=0.1)


def test_a_thin_product_takes_the_time_of_its_bytes() -> None:
    # A vector of 8192 times a square matrix in bfloat16: 134 MB at 0.8 of 2039 GB/s.
    seconds = price_compute(2 * 8192**2, 2 * 8192**2, "bfloat16", A100, "matmul")
    assert seconds == pytest.approx(2 * 8192**2 / (0.8 * 2039e9) + 4e-6)


def test_bfloat16_on_a_v100_takes_as_long_as_float32() -> None:
    assert price_product(4096, "bfloat16", "V100-16GB") == price_product(4096, "float32", "V100-16GB")
    assert price_product(4096, "bfloat16", "V100-16GB") > 5 * price_product(4096, "float16", "V100-16GB")


def test_small_elementwise_work_has_no_floor_as_it_is_fused() -> None:
    assert price_compute(1, 8, "float32", A100, "elementwise") < 1e-9


def test_no_work_takes_no_time() -> None:
    assert price_compute(0, 0, "float32", A100, "matmul") == 0


@given(CLASSES, DTYPES, st.floats(1, 1e16), st.floats(1, 1e12), st.floats(1, 64))
def test_more_work_takes_no_less_and_splitting_it_n_ways_saves_at_most_n_times(
    op_class: str, dtype: str, flops: float, moved: float, ways: float
) -> None:
    whole = price_compute(flops, moved, dtype, A100, op_class)
    part = price_compute(flops / ways, moved / ways, dtype, A100, op_class)
    assert part <= whole * (1 + 1e-12)
    assert whole <= part * ways * (1 + 1e-12)


@given(CLASSES, DTYPES, st.floats(1, 1e16), st.floats(1, 1e12))
def test_nothing_is_quicker_than_the_roofline(op_class: str, dtype: str, flops: float, moved: float) -> None:
    limit = max(flops / A100.peak_flops(dtype), moved / A100.memory_bandwidth)
    assert price_compute(flops, moved, dtype, A100, op_class) >= limit
