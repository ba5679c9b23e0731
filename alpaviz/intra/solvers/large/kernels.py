"""Compiled loops over a `Layout`: message passing, memory on the timeline, decoding and local search.

Plain functions here; `load_kernels` compiles them with numba at the first use, and keeps the result on disk where that
can be written. Arrays are named as in `Layout`; `nodes` are the variables in play, in order, `is_in` marks them, and
arcs to others are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from alpaviz.errors import SolverError
from alpaviz.intra.problem import FloatArray
from alpaviz.intra.solvers.network import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Kernels:
    """The compiled functions of this module."""

    sweep: Callable[..., float]
    price_items: Callable[..., None]
    measure: Callable[..., None]
    evaluate: Callable[..., float]
    fix_outside: Callable[..., None]
    decode_within: Callable[..., bool]
    improve: Callable[..., float]


@cache
def load_kernels() -> Kernels:
    """Compiled on first call of each.

    Raises:
        SolverError: numba is missing.
    """
    try:
        import numba
    except ImportError as error:
        raise SolverError(f"large sharding problems need numba, which cannot be imported: {error}") from error

    def build(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
        except RuntimeError:
            # No folder for the cache can be written.
            return numba.njit(function, nogil=True)  # type: ignore[no-any-return]

    functions = (_sweep, _price_items, _measure, _evaluate, _fix_outside, _decode_within, _improve)
    return Kernels(*(build(function) for function in functions))


def _sweep(
    nodes: IntArray,
    is_in: BoolArray,
    offsets: IntArray,
    arc_starts: IntArray,
    heads: IntArray,
    reverses: IntArray,
    cost_offsets: IntArray,
    costs: FloatArray,
    message_offsets: IntArray,
    priced: FloatArray,
    messages: FloatArray,
    is_forward: bool,
    choice: IntArray,
    total: FloatArray,
    decoded: FloatArray,
) -> float:
    """One pass of sequential tree-reweighted message passing (Kolmogorov, PAMI 2006); gives its bound.

    Each variable spreads its cost evenly over the arcs ahead; what a message takes off an edge goes into the bound:
    sum over variables of the least cost not spread, and over arcs of the least of spread cost and edge together. Both
    are exact reparametrisations, so the bound holds after every pass, whatever the messages were. `choice` is decoded
    on the way: each variable takes its best candidate given those before, and messages for those ahead.
    """
    bound = 0.0
    count = len(nodes)
    for step in range(count):
        i = nodes[step] if is_forward else nodes[count - 1 - step]
        first, size = offsets[i], offsets[i + 1] - offsets[i]
        for k in range(size):
            total[k] = priced[first + k]
            decoded[k] = priced[first + k]
        ahead, behind = 0, 0
        for a in range(arc_starts[i], arc_starts[i + 1]):
            j = heads[a]
            if not is_in[j]:
                continue
            back = reverses[a]
            at = message_offsets[back]
            if (j > i) == is_forward:
                ahead += 1
                for k in range(size):
                    total[k] += messages[at + k]
                    decoded[k] += messages[at + k]
            else:
                behind += 1
                row = cost_offsets[back] + choice[j] * size
                for k in range(size):
                    total[k] += messages[at + k]
                    decoded[k] += costs[row + k]
        best, low = 0, total[0]
        for k in range(1, size):
            low = min(low, total[k])
            if decoded[k] < decoded[best]:
                best = k
        choice[i] = best
        share = 1.0 / max(1, max(ahead, behind))
        bound += low * (1.0 - share * ahead)
        for a in range(arc_starts[i], arc_starts[i + 1]):
            j = heads[a]
            if not is_in[j] or (j > i) != is_forward:
                continue
            width = offsets[j + 1] - offsets[j]
            to = message_offsets[a]
            back = message_offsets[reverses[a]]
            for m in range(width):
                messages[to + m] = np.inf
            row = cost_offsets[a]
            for k in range(size):
                base = share * total[k] - messages[back + k]
                for m in range(width):
                    value = base + costs[row + m]
                    if value < messages[to + m]:
                        messages[to + m] = value
                row += width
            low = np.inf
            for m in range(width):
                low = min(low, messages[to + m])
            for m in range(width):
                messages[to + m] -= low
            bound += low
    return bound


def _price_items(
    nodes: IntArray,
    offsets: IntArray,
    item_starts: IntArray,
    item_firsts: IntArray,
    item_lasts: IntArray,
    usage_offsets: IntArray,
    usages: FloatArray,
    sums: FloatArray,
    unary: FloatArray,
    priced: FloatArray,
) -> None:
    """`unary` plus usage at the prices whose running sums are `sums`."""
    for step in range(len(nodes)):
        i = nodes[step]
        first, size = offsets[i], offsets[i + 1] - offsets[i]
        for k in range(size):
            priced[first + k] = unary[first + k]
        for m in range(item_starts[i], item_starts[i + 1]):
            price = sums[item_lasts[m]] - sums[item_firsts[m]]
            if price > 0.0:
                for k in range(size):
                    priced[first + k] += price * usages[usage_offsets[m] + k]


def _measure(
    nodes: IntArray,
    item_starts: IntArray,
    item_firsts: IntArray,
    item_lasts: IntArray,
    usage_offsets: IntArray,
    usages: FloatArray,
    choice: IntArray,
    used: FloatArray,
) -> None:
    """Bytes at every step of the timeline; `used` has one entry more."""
    used[:] = 0.0
    for step in range(len(nodes)):
        i = nodes[step]
        for m in range(item_starts[i], item_starts[i + 1]):
            usage = usages[usage_offsets[m] + choice[i]]
            used[item_firsts[m]] += usage
            used[item_lasts[m]] -= usage
    running = 0.0
    for t in range(len(used)):
        running += used[t]
        used[t] = running


def _evaluate(
    nodes: IntArray,
    is_in: BoolArray,
    offsets: IntArray,
    arc_starts: IntArray,
    heads: IntArray,
    cost_offsets: IntArray,
    costs: FloatArray,
    unary: FloatArray,
    choice: IntArray,
) -> float:
    """Cost of `choice` over the variables in play and the edges among them."""
    total = 0.0
    for step in range(len(nodes)):
        i = nodes[step]
        total += unary[offsets[i] + choice[i]]
        for a in range(arc_starts[i], arc_starts[i + 1]):
            j = heads[a]
            if j > i and is_in[j]:
                total += costs[cost_offsets[a] + choice[i] * (offsets[j + 1] - offsets[j]) + choice[j]]
    return total


def _fix_outside(
    nodes: IntArray,
    is_in: BoolArray,
    offsets: IntArray,
    arc_starts: IntArray,
    heads: IntArray,
    reverses: IntArray,
    cost_offsets: IntArray,
    costs: FloatArray,
    unary: FloatArray,
    choice: IntArray,
    fixed: FloatArray,
) -> None:
    """Into `fixed`: unary costs of `nodes` with the edges to variables outside, which keep their `choice`."""
    for step in range(len(nodes)):
        i = nodes[step]
        first, size = offsets[i], offsets[i + 1] - offsets[i]
        for k in range(size):
            fixed[first + k] = unary[first + k]
        for a in range(arc_starts[i], arc_starts[i + 1]):
            j = heads[a]
            if not is_in[j]:
                row = cost_offsets[reverses[a]] + choice[j] * size
                for k in range(size):
                    fixed[first + k] += costs[row + k]


def _decode_within(
    nodes: IntArray,
    is_in: BoolArray,
    offsets: IntArray,
    arc_starts: IntArray,
    heads: IntArray,
    reverses: IntArray,
    cost_offsets: IntArray,
    costs: FloatArray,
    message_offsets: IntArray,
    item_starts: IntArray,
    item_firsts: IntArray,
    item_lasts: IntArray,
    usage_offsets: IntArray,
    usages: FloatArray,
    priced: FloatArray,
    messages: FloatArray,
    is_forward: bool,
    choice: IntArray,
    free: FloatArray,
    decoded: FloatArray,
) -> bool:
    """Decode as `_sweep` does, but each variable takes the best candidate that fits into what memory is `free`.

    Those ahead count with their least usage. False as soon as a variable finds nothing that fits.
    """
    count = len(nodes)
    for step in range(count):
        i = nodes[step] if is_forward else nodes[count - 1 - step]
        first, size = offsets[i], offsets[i + 1] - offsets[i]
        for k in range(size):
            decoded[k] = priced[first + k]
        for a in range(arc_starts[i], arc_starts[i + 1]):
            j = heads[a]
            if not is_in[j]:
                continue
            back = reverses[a]
            if (j > i) == is_forward:
                at = message_offsets[back]
                for k in range(size):
                    decoded[k] += messages[at + k]
            else:
                row = cost_offsets[back] + choice[j] * size
                for k in range(size):
                    decoded[k] += costs[row + k]
        is_placed = False
        while not is_placed:
            best = 0
            for k in range(1, size):
                if decoded[k] < decoded[best]:
                    best = k
            if decoded[best] == np.inf:
                return False
            decoded[best] = np.inf
            is_placed = True
            for m in range(item_starts[i], item_starts[i + 1]):
                usage = usages[usage_offsets[m] + best]
                if usage > 0.0:
                    for t in range(item_firsts[m], item_lasts[m]):
                        if free[t] < usage:
                            is_placed = False
                            break
                    if not is_placed:
                        break
            if is_placed:
                choice[i] = best
                for m in range(item_starts[i], item_starts[i + 1]):
                    usage = usages[usage_offsets[m] + best]
                    if usage > 0.0:
                        for t in range(item_firsts[m], item_lasts[m]):
                            free[t] -= usage
    return True


def _improve(
    nodes: IntArray,
    offsets: IntArray,
    arc_starts: IntArray,
    heads: IntArray,
    reverses: IntArray,
    cost_offsets: IntArray,
    costs: FloatArray,
    item_starts: IntArray,
    item_firsts: IntArray,
    item_lasts: IntArray,
    usage_offsets: IntArray,
    usages: FloatArray,
    unary: FloatArray,
    choice: IntArray,
    free: FloatArray,
    decoded: FloatArray,
) -> float:
    """Give each variable in turn its best candidate that fits, all others fixed; gives the cost saved."""
    saved = 0.0
    for step in range(len(nodes)):
        i = nodes[step]
        first, size = offsets[i], offsets[i + 1] - offsets[i]
        for k in range(size):
            decoded[k] = unary[first + k]
        for a in range(arc_starts[i], arc_starts[i + 1]):
            row = cost_offsets[reverses[a]] + choice[heads[a]] * size
            for k in range(size):
                decoded[k] += costs[row + k]
        now = choice[i]
        here = decoded[now]
        while True:
            best = now
            for k in range(size):
                if decoded[k] < decoded[best]:
                    best = k
            if best == now or not decoded[best] < here - 1e-12 * abs(here):
                break
            fits = True
            for m in range(item_starts[i], item_starts[i + 1]):
                more = usages[usage_offsets[m] + best] - usages[usage_offsets[m] + now]
                if more > 0.0:
                    for t in range(item_firsts[m], item_lasts[m]):
                        if free[t] < more:
                            fits = False
                            break
                    if not fits:
                        break
            if fits:
                for m in range(item_starts[i], item_starts[i + 1]):
                    more = usages[usage_offsets[m] + best] - usages[usage_offsets[m] + now]
                    if more != 0.0:
                        for t in range(item_firsts[m], item_lasts[m]):
                            free[t] -= more
                saved += here - decoded[best]
                choice[i] = best
                break
            decoded[best] = np.inf
    return saved
