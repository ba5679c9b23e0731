"""Where each op of a whole program is drawn: layers side by side, and in each forward, backward and update beside.

A cell is the ops of one layer and one role, a strand the ops of a cell that hang together: the update of one weight is
one. In a strand an op is one row below the last of the ops that it reads from (longest path), backward strands turned
upside down so that they run against forward ones; rows are ordered by barycentre sweeps (Sugiyama, Tagawa and Toda
1981). Strands are then put beside and below each other in their cell, and layers in columns like a newspaper's, close
to the shape of a screen. Linear in ops and edges but for sorting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from alpaviz.plan import OpPlan

CELL_GAP = 1.0
"""Columns between the roles of a layer, and rows between layers."""
LAYER_GAP = 3.0
STRAND_GAP = 0.5
SWEEPS = 4
MOST_BELOW = 24
"""Layers of the greatest height that stand below each other at most."""
ASPECT = 0.56
"""Columns to rows of the whole: an op takes 150 by 56 pixels, the picture is 1.5 times as wide as high."""

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_ROLES = {"forward": 0, "backward": 1, "update": 2}


@dataclass(frozen=True, slots=True)
class OpPositions:
    """Column and row of each op, in the order of `Plan.ops`; not all of them whole numbers."""

    columns: npt.NDArray[np.float32]
    rows: npt.NDArray[np.float32]


def place_ops(ops: Sequence[OpPlan]) -> OpPositions:
    """Positions of `ops`, which come in an order in which each reads only from those before."""
    if not ops:
        return OpPositions(np.zeros(0, np.float32), np.zeros(0, np.float32))
    layers = np.array([op.layer for op in ops])
    roles = np.array([_ROLES[op.role] for op in ops])
    _, cells = np.unique(np.stack([layers, roles]), axis=1, return_inverse=True)
    cells = cells.reshape(-1)
    sources, targets = _find_edges(ops, cells)
    strands = _find_strands(len(ops), sources, targets)
    ranks = _rank(len(ops), sources, targets)
    places = _order(strands, ranks, sources, targets)
    x, y = _place_in_strands(strands, ranks, places, roles == _ROLES["backward"])
    _pack_strands(layers, cells, strands, x, y)
    return _pack_cells(layers, roles, cells, x, y)


def _find_edges(ops: Sequence[OpPlan], cells: _Ints) -> tuple[_Ints, _Ints]:
    """(source, target) of every value that an op reads from an op of its own cell, as positions in `ops`."""
    producers: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    of = cells.tolist()
    for position, op in enumerate(ops):
        for value in op.inputs:
            source = None if value is None else producers.get(value)
            if source is not None and of[source] == of[position]:
                pairs.append((source, position))
        for value in op.outputs:
            if value is not None:
                producers[value] = position
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]


def _find_strands(count: int, sources: _Ints, targets: _Ints) -> _Ints:
    """The strand of each op, numbered from 0 in program order: connected components by union and find."""
    above = list(range(count))

    def find(op: int) -> int:
        while above[op] != op:
            above[op] = above[above[op]]
            op = above[op]
        return op

    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        first, second = find(source), find(target)
        above[max(first, second)] = min(first, second)
    return np.unique(np.array([find(op) for op in range(count)]), return_inverse=True)[1].reshape(-1)


def _rank(count: int, sources: _Ints, targets: _Ints) -> _Ints:
    """The row of each op in its cell. A plain loop: edges come in order, and a sweep for each row would take longer."""
    ranks = [0] * count
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        if ranks[source] >= ranks[target]:
            ranks[target] = ranks[source] + 1
    # An op that reads nothing in its cell (a constant, a cast weight) moves down to just above the first that needs it.
    nearest = np.full(count, np.iinfo(np.int64).max)
    placed = np.array(ranks)
    np.minimum.at(nearest, sources, placed[targets])
    is_source = np.ones(count, dtype=bool)
    is_source[targets] = False
    is_source &= nearest < np.iinfo(np.int64).max
    placed[is_source] = nearest[is_source] - 1
    return placed


def _order(strands: _Ints, ranks: _Ints, sources: _Ints, targets: _Ints) -> _Floats:
    """The place of each op in its row, the middle of which is 0."""
    count = len(ranks)
    rows = strands * (int(ranks.max()) + 1) + ranks
    places = _settle(rows, np.arange(count, dtype=np.float64))
    for sweep in range(SWEEPS):
        here, there = (targets, sources) if sweep % 2 == 0 else (sources, targets)
        sums = np.bincount(here, weights=places[there], minlength=count)
        degrees = np.bincount(here, minlength=count)
        wanted = np.where(degrees > 0, sums / np.maximum(degrees, 1), places)
        places = _settle(rows, wanted)
    return places


def _settle(rows: _Ints, wanted: _Floats) -> _Floats:
    """Whole steps apart in each row, in the order of `wanted`; ties stay in program order."""
    order = np.lexsort((wanted, rows))
    sorted_rows = rows[order]
    starts = np.flatnonzero(np.r_[True, sorted_rows[1:] != sorted_rows[:-1]])
    lengths = np.diff(np.r_[starts, len(rows)])
    index = np.arange(len(rows)) - np.repeat(starts, lengths)
    places = np.empty(len(rows))
    places[order] = index - (np.repeat(lengths, lengths) - 1) / 2
    return places


def _measure(groups: _Ints, x: _Floats, y: _Floats) -> tuple[_Floats, _Floats]:
    """Columns and rows that each group takes, the least column and row of which are 0."""
    width, height = np.zeros(int(groups.max()) + 1), np.zeros(int(groups.max()) + 1)
    np.maximum.at(width, groups, x + 1)
    np.maximum.at(height, groups, y + 1)
    return width, height


def _place_in_strands(
    strands: _Ints, ranks: _Ints, places: _Floats, is_backward: npt.NDArray[np.bool_]
) -> tuple[_Floats, _Floats]:
    """Column and row of each op in its strand, both from 0."""
    count = int(strands.max()) + 1
    left, top, bottom = np.full(count, np.inf), np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(left, strands, places)
    np.minimum.at(top, strands, ranks)
    np.maximum.at(bottom, strands, ranks)
    rows = np.where(is_backward, bottom[strands] - ranks, ranks - top[strands])
    return places - left[strands], rows


def _pack_strands(layers: _Ints, cells: _Ints, strands: _Ints, x: _Floats, y: _Floats) -> None:
    """Move `x` and `y` so that the strands of a cell stand in shelves, about as high as the highest of their layer."""
    width, height = _measure(strands, x, y)
    firsts = np.unique(strands, return_index=True)[1]
    tallest: dict[int, float] = {}
    for layer, rows in zip(layers[firsts].tolist(), height.tolist(), strict=True):
        tallest[layer] = max(rows, tallest.get(layer, 0.0))
    left, top = np.zeros(len(width)), np.zeros(len(width))
    for cell in range(int(cells.max()) + 1):
        members = np.flatnonzero(cells[firsts] == cell).tolist()
        area = sum((width[i] + STRAND_GAP) * (height[i] + STRAND_GAP) for i in members)
        depth = max((area / ASPECT) ** 0.5, tallest[int(layers[firsts[members[0]]])])
        # A shelf is rarely full: one more strand has room.
        limit = area / depth + max(width[i] for i in members)
        shelf_x, shelf_y, deepest = 0.0, 0.0, 0.0
        for i in sorted(members, key=lambda i: -height[i]):
            if shelf_x > 0 and shelf_x + width[i] > limit:
                shelf_x, shelf_y, deepest = 0.0, shelf_y + deepest + STRAND_GAP, 0.0
            left[i], top[i] = shelf_x, shelf_y
            shelf_x += width[i] + STRAND_GAP
            deepest = max(deepest, height[i])
    x += left[strands]
    y += top[strands]


def _pack_cells(layers: _Ints, roles: _Ints, cells: _Ints, x: _Floats, y: _Floats) -> OpPositions:
    """Cells beside each other in a layer, layers below each other in as many columns as suits a screen."""
    width, height = _measure(cells, x, y)
    firsts = np.unique(cells, return_index=True)[1]
    cell_layers, cell_roles = layers[firsts], roles[firsts]
    # The shared layer, -1, comes last.
    names = sorted(set(cell_layers.tolist()), key=lambda layer: (layer < 0, layer))
    offsets = np.zeros(len(width))
    sizes: list[tuple[float, float]] = []
    for layer in names:
        at = 0.0
        members = np.flatnonzero(cell_layers == layer)
        for cell in members[np.argsort(cell_roles[members])]:
            offsets[cell] = at
            at += width[cell] + CELL_GAP
        sizes.append((at - CELL_GAP, float(height[members].max())))
    corners = dict(zip(names, _wrap(sizes), strict=True))
    x0 = np.array([corners[layer][0] for layer in cell_layers.tolist()]) + offsets
    y0 = np.array([corners[layer][1] for layer in cell_layers.tolist()])
    return OpPositions((x0[cells] + x).astype(np.float32), (y0[cells] + y).astype(np.float32))


def _wrap(sizes: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The upper left corner of each block of (width, height), in columns from left to right: nearest to a screen."""
    tallest = max(height for _, height in sizes) + LAYER_GAP
    found = [_wrap_within(sizes, count * tallest) for count in range(1, min(len(sizes), MOST_BELOW) + 1)]
    return min(found, key=lambda wrapped: abs(np.log(wrapped[1] / ASPECT)))[0]


def _wrap_within(sizes: Sequence[tuple[float, float]], limit: float) -> tuple[list[tuple[float, float]], float]:
    """Corners in columns of at most `limit` rows, and columns to rows of the whole."""
    corners, x, y, widest, deepest = [], 0.0, 0.0, 0.0, 0.0
    for width, height in sizes:
        if y > 0 and y + height > limit:
            x, y, widest = x + widest + LAYER_GAP, 0.0, 0.0
        corners.append((x, y))
        y += height + LAYER_GAP
        widest, deepest = max(widest, width), max(deepest, y)
    return corners, (x + widest) / deepest
