"""Operator clustering: the forward pass cut into layers (paper section 5.2).

In: the forward pass as a list of op groups in order, with their FLOP and the values that pass between them. Out: the
layer of each group. The cuts minimise the largest number of bytes that a layer receives from those before it, under a
balance limit on FLOP; among equal ones the FLOP are spread most evenly.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IMBALANCE = 0.5
"""A layer may have (1 + IMBALANCE) times its even share of the FLOP; delta in the paper."""
MAX_AUTOMATIC_LAYERS = 16
_HEAVY_SHARE = 1e-2
"""A group with less than this share of the largest group's FLOP is light."""


_FEWEST_MODULES = 5
_MODULE_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class FlowValue:
    """A value made by one group and read by later ones; `num_bytes` is its whole size."""

    producer: int
    consumers: tuple[int, ...]
    num_bytes: float


@dataclass(frozen=True, slots=True)
class ForwardGroups:
    """The forward pass: per group its FLOP, a signature (equal for structurally equal groups) and the scopes of the
    module that it belongs to (`("decoder", "block_3", "mlp")`)."""

    flops: tuple[float, ...]
    signatures: tuple[str, ...]
    values: tuple[FlowValue, ...]
    scopes: tuple[tuple[str, ...], ...] = ()


def cluster_layers(groups: ForwardGroups, num_layers: int | None = None) -> list[int]:
    """The layer of each group, not decreasing.

    Args:
        num_layers: how many layers; None chooses the number (at most `MAX_AUTOMATIC_LAYERS`) that gives the most
            repeated layers, then the best balance.

    Raises:
        ValueError: fewer groups with work in them than `num_layers`.
    """
    segment_of_group = _merge_into_segments(groups)
    num_segments = max(segment_of_group, default=0) + 1
    problem = _SegmentProblem.build(groups, segment_of_group, num_segments)
    if num_layers is not None:
        if num_layers > num_segments:
            raise ValueError(
                f"{num_layers} layers were asked for, but the forward pass has only {num_segments} heavy ops"
            )
        cuts = problem.cut(num_layers) or problem.cut(num_layers, imbalance=float("inf"))
    else:
        cuts = _choose_cuts(problem, find_module_starts(groups, segment_of_group) or _find_block_starts(problem))
    layer_of_segment = np.zeros(num_segments, dtype=int)
    for cut in cuts or []:
        layer_of_segment[cut:] += 1
    return [int(layer_of_segment[s]) for s in segment_of_group]


def _merge_into_segments(groups: ForwardGroups) -> list[int]:
    """One segment per heavy group; light groups between two heavy ones are split where the fewest bytes pass."""
    largest = max(groups.flops, default=0.0)
    heavy = [i for i, flops in enumerate(groups.flops) if flops > 0 and flops >= _HEAVY_SHARE * largest]
    passing = _count_passing_bytes(groups)
    segments = np.zeros(len(groups.flops), dtype=int)
    for left, right in itertools.pairwise(heavy):
        cut = left + 1 + int(np.argmin(passing[left + 1 : right + 1]))
        # A bias that is added after a product belongs to it: go on while nothing more passes.
        while cut < right and passing[cut + 1] == passing[cut]:
            cut += 1
        segments[cut:] += 1
    return [int(s) for s in segments]


def _count_passing_bytes(groups: ForwardGroups) -> npt.NDArray[np.float64]:
    """Bytes that are made before group i and read by it or later, per i."""
    passing = np.zeros(len(groups.flops) + 1)
    for value in groups.values:
        if value.consumers:
            passing[value.producer + 1 : max(value.consumers) + 1] += value.num_bytes
    return passing


@dataclass(frozen=True, slots=True)
class _SegmentProblem:
    flops: npt.NDArray[np.float64]  # (segments,)
    received: npt.NDArray[np.float64]  # (first segment of a layer, last segment), bytes from before the first
    signatures: tuple[str, ...]

    @classmethod
    def build(cls, groups: ForwardGroups, segment_of_group: Sequence[int], num_segments: int) -> _SegmentProblem:
        flops = np.zeros(num_segments)
        signatures = [""] * num_segments
        for position, segment in enumerate(segment_of_group):
            flops[segment] += groups.flops[position]
            signatures[segment] += groups.signatures[position] + ";"
        received = np.zeros((num_segments, num_segments))
        for value in groups.values:
            producer = segment_of_group[value.producer]
            consumers = sorted({segment_of_group[c] for c in value.consumers if segment_of_group[c] > producer})
            start = producer + 1
            for consumer in consumers:
                # A layer that starts after the previous consumer and no later than this one receives it here first.
                received[start : consumer + 1, consumer:] += value.num_bytes
                start = consumer + 1
        return cls(flops, received, tuple(signatures))

    def cut(
        self, num_layers: int, imbalance: float = IMBALANCE, starts: Sequence[int] | None = None
    ) -> list[int] | None:
        """First segments of layers 1 .. num_layers - 1; None where the balance limit allows no cut.

        Args:
            starts: segments at which a layer may start; None allows all.
        """
        prefix = np.concatenate([[0.0], np.cumsum(self.flops)])
        work = prefix[None, 1:] - prefix[:-1, None]  # (first, last)
        limit = (1 + imbalance) * prefix[-1] / num_layers
        legal = np.triu(np.ones_like(work, dtype=bool)) & ((work <= limit) | np.eye(len(work), dtype=bool))
        if starts is not None:
            allowed = np.zeros(len(work), dtype=bool)
            allowed[[0, *starts]] = True
            legal &= allowed[:, None]
        largest = self._least_largest(num_layers, legal)
        if not np.isfinite(largest):
            return None
        return self._most_even(num_layers, legal & (self.received <= largest), work)

    def _least_largest(self, num_layers: int, legal: npt.NDArray[np.bool_]) -> float:
        cost = np.where(legal, self.received, np.inf)
        best = cost[0].copy()  # (last,)
        for _ in range(num_layers - 1):
            before = np.concatenate([[np.inf], best[:-1]])  # best that ends before `first`
            best = np.min(np.maximum(before[:, None], cost), axis=0)
        return float(best[-1])

    def _most_even(self, num_layers: int, legal: npt.NDArray[np.bool_], work: npt.NDArray[np.float64]) -> list[int]:
        cost = np.where(legal, work**2, np.inf)
        best = cost[0].copy()
        choices = []
        for _ in range(num_layers - 1):
            before = np.concatenate([[np.inf], best[:-1]])
            total = before[:, None] + cost
            choices.append(np.argmin(total, axis=0))
            best = np.min(total, axis=0)
        cuts, last = [], len(work) - 1
        for choice in reversed(choices):
            first = int(choice[last])
            cuts.append(first)
            last = first - 1
        return cuts[::-1]


def _choose_cuts(problem: _SegmentProblem, starts: Sequence[int] | None) -> list[int] | None:
    """Fewest distinct layers for their number, then the best balance. Repeated blocks of a model are not cut."""
    most = len(starts) + 1 if starts else max(2, len(problem.flops) // 3)
    best: tuple[tuple[float, float, int], list[int]] | None = None
    for num_layers in range(1, min(MAX_AUTOMATIC_LAYERS, most, len(problem.flops)) + 1):
        cuts = problem.cut(num_layers, starts=starts)
        if cuts is None:
            continue
        bounds = [0, *cuts, len(problem.flops)]
        runs = list(itertools.pairwise(bounds))
        classes = len({problem.signatures[a:b] for a, b in runs})
        work = [float(problem.flops[a:b].sum()) for a, b in runs]
        imbalance = max(work) / (sum(work) / len(work)) if sum(work) else 1.0
        # One layer can never be a pipeline: any other cut is worth more.
        share = 1.5 if num_layers == 1 else classes / num_layers + 0.5 * (imbalance - 1)
        score = (round(share, 3), imbalance, -num_layers)
        if best is None or score < best[0]:
            best = (score, cuts)
    return None if best is None else best[1]


def find_module_starts(groups: ForwardGroups, segment_of_group: Sequence[int]) -> list[int] | None:
    """First segments of a model's numbered modules (`block_0`, `block_1`, ...), and of what follows a row of them.

    A module is numbered by the outermost scope that ends in a number; where that makes fewer than `_FEWEST_MODULES`
    (the stages of a ResNet), by the two outermost. None where such modules hold too little of the work.
    """
    for depth in (1, 2):
        modules = [_name_module(scopes, depth) for scopes in groups.scopes]
        if len(set(modules) - {""}) < _FEWEST_MODULES:
            continue
        held = sum(flops for flops, module in zip(groups.flops, modules, strict=True) if module)
        if held < _MODULE_SHARE * sum(groups.flops):
            return None
        starts, current = [], None
        for position, flops in enumerate(groups.flops):
            is_heavy = flops > 0 and flops >= _HEAVY_SHARE * max(groups.flops)
            if is_heavy and modules[position] != current:
                starts.append(segment_of_group[position])
                current = modules[position]
        return sorted({s for s in starts if s > 0}) or None
    return None


def _name_module(scopes: Sequence[str], depth: int) -> str:
    """The path to the `depth`-th scope that ends in a number, or to the last one that does; "" where none does."""
    numbered = [i for i, scope in enumerate(scopes) if scope[-1:].isdigit()][:depth]
    return "/".join(scopes[: numbered[-1] + 1]) if numbered else ""


def _find_block_starts(problem: _SegmentProblem) -> list[int] | None:
    """First segments of a model's repeated blocks, and of what follows the last; None where little repeats.

    A block is a period of the segments' signatures. Of its phases the one with the fewest bytes at the cuts is taken,
    then the one whose first block is most nearly whole.
    """
    signatures, count = problem.signatures, len(problem.signatures)
    for period in range(1, count // 2 + 1):
        equal = [signatures[i] == signatures[i + period] for i in range(count - period)]
        first, length = _longest_run(equal)
        if length < period or length + period < 0.6 * count:
            continue
        phases = [
            [s for s in range(first + phase, first + length + 2 * period, period) if 0 < s < count]
            for phase in range(period)
        ]
        block_flops = float(problem.flops[first : first + period].sum())
        return min(phases, key=functools.partial(_rank_phase, problem, block_flops))
    return None


def _rank_phase(problem: _SegmentProblem, block_flops: float, starts: list[int]) -> tuple[float, int, float]:
    received = max((float(problem.received[s, -1]) for s in starts), default=0.0)
    first_block = float(problem.flops[: starts[0]].sum()) if starts else 0.0
    return received, -len(starts), abs(first_block - block_flops)


def _longest_run(flags: Sequence[bool]) -> tuple[int, int]:
    """(start, length) of the longest run of True."""
    best = (0, 0)
    start = None
    for position, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = position
        elif not flag and start is not None:
            if position - start > best[1]:
                best = (start, position - start)
            start = None
    return best
