"""What is measured: cases, and the samples that they become."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import get_args

from alpaviz.types import CollectiveKind

COLLECTIVES: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Work:
    """What the cost model counts of a sample: FLOP or bytes of ops of one class, and how many ops they are."""

    op_class: str
    size: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """Something to measure.

    Attributes:
        name: what it is: an op class, `"attention"`, a kind of collective, `"transfer"` or `"call"`.
        shape: of one device's array.
        num_devices: that do it at once.
        group_size: of the groups of a collective; 1 for others.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_devices: int
    group_size: int = 1

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> float:
        """Bytes of one device's array."""
        return float(self.num_elements * BYTES[self.dtype])

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        group = f" in groups of {self.group_size}" if self.group_size > 1 else ""
        return f"{self.name} of {self.dtype} {shape} on {self.num_devices} device{'s'[: self.num_devices > 1]}{group}"


@dataclass(frozen=True, slots=True)
class Sample:
    """`seconds` that one `case` takes, the least of several runs."""

    case: Case
    seconds: float

    @property
    def works(self) -> tuple[Work, ...]:
        return list_works(self.case)


CHAIN = 8
"""Elementwise ops of a chain."""
UPDATE_OPS, UPDATE_LEAVES = 12, 16
"""Elementwise ops of Adam for one parameter, and how many parameters are updated at once: more than caches hold."""


def list_works(case: Case) -> tuple[Work, ...]:
    """The ops of a case as the cost model counts them; none for what is no computation."""
    size, shape = case.num_bytes, case.shape
    match case.name:
        case "matmul":
            rows, inner = shape
            return (Work("matmul", 2.0 * rows * inner * inner),)
        case "convolution":
            batch, height, width, channels = shape
            return (Work("convolution", 2.0 * batch * height * width * channels * channels * 9),)
        case "elementwise":
            return (Work("elementwise", size, CHAIN),)
        case "update":
            return (Work("update", size, UPDATE_OPS * UPDATE_LEAVES),)
        case "transcendental":
            return (Work("transcendental", size), Work("elementwise", size))
        case "reduction":
            return (Work("reduction", size), Work("elementwise", size, 2))
        case "gather":
            # Reads rows and writes them; the indices are few.
            return (Work("gather", 2 * size), Work("elementwise", size))
        case "attention":
            heads, length, width = shape
            scores = size / width * length
            product = Work("matmul", 2.0 * heads * length * length * width, 2)
            reductions = Work("reduction", scores, 2)
            return product, reductions, Work("transcendental", scores), Work("elementwise", scores, 3)
        case _:
            return ()


def list_cases(num_devices: int, *, is_cpu: bool) -> tuple[Case, ...]:
    """Everything to measure, first the least and the most of each, so that what is left out in haste lies between."""
    found: list[list[Case]] = []
    counts = _list_divisors(num_devices)
    for dtype in ("float32",) if is_cpu else ("bfloat16", "float32"):
        for count in dict.fromkeys((num_devices, 1)):
            found += _list_compute_cases(dtype, count, is_cpu=is_cpu)
    for kind in COLLECTIVES:
        for group in counts[1:]:
            sizes = _grow(1 << 4, 1 << (20 if is_cpu else 26), 4)
            found.append([Case(kind, "float32", (n,), num_devices, group) for n in sizes])
            if group < num_devices:
                found.append([Case(kind, "float32", (n,), group, group) for n in sizes[1::2]])
    if num_devices > 1:
        sizes = _grow(1 << 8, 1 << (20 if is_cpu else 26), 4)
        found.append([Case("transfer", "float32", (n,), num_devices) for n in sizes])
    found.append([Case("call", "float32", (64,), count) for count in counts])
    rounds = itertools.zip_longest(*map(_put_ends_first, found))
    return tuple(case for cases in rounds for case in cases if case is not None)


def _list_compute_cases(dtype: str, count: int, *, is_cpu: bool) -> list[list[Case]]:
    matrices = (32, 64, 128, 256, 512, 768) if is_cpu else (128, 256, 512, 1024, 2048, 4096, 8192)
    images = (4, 8, 16) if is_cpu else (8, 16, 32, 64)
    lengths = (32, 64, 128, 256) if is_cpu else (128, 256, 512, 1024, 2048)
    arrays = _grow(1 << 10, 1 << (20 if is_cpu else 27), 5)

    def case(name: str, *shape: int) -> Case:
        return Case(name, dtype, shape, count)

    return [
        [case("matmul", n, n) for n in matrices],
        [case("matmul", 8 * n, n) for n in matrices[:4]],
        [case("convolution", 4, n, n, 2 * n) for n in images],
        [case("attention", 8, n, 32) for n in lengths],
        *([case(name, n // 128, 128) for n in arrays] for name in ("elementwise", "transcendental", "reduction")),
        [case("gather", n // 128, 128) for n in arrays],
        [case("update", n // 128, 128) for n in arrays[2:4]],
    ]


def _put_ends_first(cases: list[Case]) -> list[Case]:
    return [*cases[:1], *cases[:0:-1][:1], *cases[1:-1]]


def _grow(least: int, most: int, count: int) -> list[int]:
    """`count` powers of two, about equally far apart."""
    low, high = math.log2(least), math.log2(most)
    return [1 << round(low + (high - low) * k / (count - 1)) for k in range(count)]


def _list_divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
