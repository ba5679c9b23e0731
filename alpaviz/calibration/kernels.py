"""The programs that are timed.

An op is repeated in a loop inside one compiled program on all devices at once, and what the loop takes beyond an empty
one is divided by the number of ops: the time that a compiled step needs for it, without the time to call it. Every
body gives back values of the size that it is given, so that nothing overflows, however often it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpaviz.calibration.samples import CHAIN, COLLECTIVES, UPDATE_LEAVES, Case
from alpaviz.cluster.measured import CALL_ARRAYS

Body = Callable[[Any, Any], Any]
"""(array, weight) -> an array of the same shape."""

_SHORTEST_S = 3e-3
"""A loop is made at least so long, which is much against the time of a call."""
_MOST_TURNS = 2000
_RUNS = 5
"""The least time of so many runs counts: others are disturbed by whatever else the machine does."""
_ARGUMENTS = CALL_ARRAYS // 2


def time_case(case: Case, devices: Sequence[Any]) -> float:
    """Seconds of one `case` on `devices`, which are as many as it asks for."""
    if case.name == "call":
        return _time_call(case, devices)
    if case.name == "update":
        return _time_update(case, devices)
    if case.name == "transfer":
        return _time_transfer(case, devices)
    return _time_loop(case, devices)


def _time_loop(case: Case, devices: Sequence[Any]) -> float:
    mesh = Mesh(np.array(devices, dtype=object).reshape(-1, case.group_size), ("others", "group"))
    split = PartitionSpec(("others", "group"))
    body, weight = _make_body(case, devices[0].platform)

    def run(turns: Any, array: Any, weight: Any) -> Any:
        return jax.lax.fori_loop(0, turns, lambda _, x: body(x, weight), array[0])[None]

    specs = (PartitionSpec(), split, PartitionSpec())
    mapped = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    array = _fill((len(devices), *case.shape), case.dtype, NamedSharding(mesh, split))
    weight = jax.device_put(weight, NamedSharding(mesh, PartitionSpec()))
    compiled = jax.jit(mapped)

    def time_turns(turns: int) -> float:
        number = np.int32(turns)
        return _time(lambda: compiled(number, array, weight))

    jax.block_until_ready(compiled(np.int32(1), array, weight))
    empty, turns = time_turns(0), 4
    while True:
        took = time_turns(turns) - empty
        if took >= _SHORTEST_S or turns >= _MOST_TURNS:
            return max(took, 1e-9) / turns
        turns = min(_MOST_TURNS, int(turns * max(2.0, 1.3 * _SHORTEST_S / max(took, _SHORTEST_S / 16))))


def _time(call: Callable[[], Any]) -> float:
    least = float("inf")
    for _ in range(_RUNS):
        began = time.perf_counter()
        jax.block_until_ready(call())
        least = min(least, time.perf_counter() - began)
    return least


def _fill(shape: tuple[int, ...], dtype: str, sharding: NamedSharding) -> Any:
    """Numbers between 0 and 1, made where they belong."""

    def make() -> Any:
        ramp = jax.lax.broadcasted_iota(jnp.float32, shape, len(shape) - 1)
        return (ramp % 7 / 8).astype(dtype)

    return jax.block_until_ready(jax.jit(make, out_shardings=sharding)())


def _fill_many(shape: tuple[int, ...], dtype: str, sharding: NamedSharding, count: int) -> list[Any]:
    """Arrays of their own memory."""
    values = np.full(shape, 0.5, np.float32).astype(dtype)
    return [jax.block_until_ready(jax.device_put(values.copy(), sharding)) for _ in range(count)]


def _make_body(case: Case, platform: str) -> tuple[Body, Any]:
    """What is repeated, and the weight that it is given."""
    none = np.zeros((1,), np.float32)
    match case.name:
        case "matmul":
            return lambda x, w: x @ w, jnp.eye(case.shape[1], dtype=case.dtype)
        case "convolution":
            channels = case.shape[-1]
            kernel = np.zeros((3, 3, channels, channels), np.float32)
            kernel[1, 1] = np.eye(channels)
            return _convolve, jnp.asarray(kernel, case.dtype)
        case "gather":
            rows = np.random.default_rng(0).permutation(case.shape[0]).astype(np.int32)
            return lambda x, w: x[w] * 0.999, rows
        case "elementwise":
            return _chain, none
        case "transcendental":
            return lambda x, _: jnp.tanh(x) + 0.1, none
        case "reduction":
            return lambda x, _: x - jnp.sum(x, -1, keepdims=True) * (1e-3 / case.shape[-1]), none
        case "attention":
            return _attend, none
        case _:
            return _make_collective(case, platform), none


def _convolve(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _chain(x: Any, _: Any) -> Any:
    for _ in range(CHAIN // 4):
        x = jnp.maximum(x * 0.9 + 0.05, 1.0 - x)
    return x


def _attend(x: Any, _: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", x, x) * x.shape[-1] ** -0.5
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores), x)


def _make_collective(case: Case, platform: str) -> Body:
    size, length = case.group_size, case.shape[0]

    def gather(x: Any, _: Any) -> Any:
        return jax.lax.all_gather(x, "group", tiled=True)[length // 2 : length // 2 + length]

    def scatter(x: Any, _: Any) -> Any:
        if platform == "cpu":  # for which XLA's partitioner makes an all-reduce and a slice of it
            return jax.lax.psum(x, "group") * (1 / size)
        part = jax.lax.psum_scatter(x, "group", tiled=True) * (1 / size)
        return jnp.tile(part, size)

    bodies: dict[str, Body] = {
        "all-reduce": lambda x, _: jax.lax.psum(x, "group") * (1 / size),
        "all-gather": gather,
        "reduce-scatter": scatter,
        "all-to-all": lambda x, _: jax.lax.all_to_all(x, "group", 0, 0, tiled=True),
        "collective-permute": lambda x, _: jax.lax.ppermute(x, "group", [(k, (k + 1) % size) for k in range(size)]),
    }
    assert case.name in COLLECTIVES, case.name
    return bodies[case.name]


def _time_call(case: Case, devices: Sequence[Any]) -> float:
    """A compiled function of many small arrays, as a stage is."""
    sharding = NamedSharding(Mesh(np.array(devices, dtype=object), ("group",)), PartitionSpec())
    arrays = _fill_many(case.shape, case.dtype, sharding, _ARGUMENTS)
    compiled = jax.jit(lambda given: [x + 1 for x in given])
    jax.block_until_ready(compiled(arrays))
    return _time(lambda: compiled(arrays))


def _time_update(case: Case, devices: Sequence[Any]) -> float:
    """Adam, as a step ends: arrays that no cache holds any more go in, and others come out."""
    sharding = NamedSharding(Mesh(np.array(devices, dtype=object), ("group",)), PartitionSpec())
    leaves, small = (
        [_fill_many(shape, case.dtype, sharding, 4) for _ in range(UPDATE_LEAVES)] for shape in (case.shape, (1, 1))
    )

    def update(weight: Any, mean: Any, square: Any, gradient: Any) -> tuple[Any, Any, Any]:
        mean = mean * 0.9 + gradient * 0.1
        square = square * 0.99 + gradient * gradient * 0.01
        return weight - 1e-3 * (mean / (jnp.sqrt(square) + 1e-6)), mean, square

    compiled = jax.jit(lambda given: [update(*leaf) for leaf in given])
    jax.block_until_ready((compiled(leaves), compiled(small)))
    whole = _time(lambda: compiled(leaves))
    return max(whole - _time(lambda: compiled(small)), whole / 10)


def _time_transfer(case: Case, devices: Sequence[Any]) -> float:
    """From the first half of the devices to the second, as one stage sends to the next."""
    half = len(devices) // 2
    source, target = (
        NamedSharding(Mesh(np.array(part, dtype=object), ("group",)), PartitionSpec("group"))
        for part in (devices[:half], devices[half : 2 * half])
    )
    array = _fill((half * 2 * case.shape[0],), case.dtype, source)
    jax.block_until_ready(jax.device_put(array, target))
    return _time(lambda: jax.device_put(array, target))
