"""Time against memory: what each byte of one memory row is worth, as a front of choices with proven bounds.

The ends come first: the least bytes that any legal choice takes, and the optimum with as many as it likes. Between two
points of the front, memory is priced at the slope between them: the cheapest choice then lies as far below the line as
any, and its cost bounds the whole front. Where nothing is below the line, the rest is found by limiting the bytes.

Source: the two phases are those of Visée, Teghem, Pirlot and Ulungu, Two-phases method and branch and bound procedures
to solve the bi-objective knapsack problem, 1998.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from alpaviz.errors import SolverError
from alpaviz.intra.problem import FloatArray, MemoryRow, ShardingProblem, ShardingSolution, SolveStatus
from alpaviz.intra.solvers.large.rows import spell_out_small
from alpaviz.intra.solvers.memory import list_barriers
from alpaviz.intra.solvers.messages import MessagePassing
from alpaviz.intra.solvers.network import build_network
from alpaviz.intra.solvers.solve import solve_problem
from alpaviz.intra.solvers.sparse import grow_tree
from alpaviz.intra.solvers.watch import Watch

_TOLERANCE = 1e-12
_PROVEN = 1e-9
"""Relative difference up to which an objective counts as its bound, and two objectives as equal."""
_NUDGE = 1e-6
"""Bytes cost at least this share of the front's height over its whole width, so that ties go to the fewest bytes.

Gains in time that are smaller may be left out of the front.
"""
_STEP = 1e-9
"""Share of the front's width by which a limit is set below a point that is known."""
_MOST_ROWS = 40_000
_MOST_SWEEPS = 60
_MOST_ROWS_TO_PRICE = 8
"""With more memory rows than these, `solve_problem` is left to pick the integer programme."""


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A legal choice; `bound` (seconds) holds for every legal choice that takes no more than its `usage` (bytes).

    `status` is OPTIMAL where it is proven that no choice is both as cheap and as small, and better in one of the two
    (up to a relative 1e-9 of time).
    """

    choice: tuple[int, ...]
    objective: float
    bound: float
    usage: float
    status: SolveStatus


@dataclass(frozen=True, slots=True)
class FrontPlane:
    """Every legal choice of at most `limit` bytes costs at least `height - price * (usage - origin)` seconds."""

    price: float
    height: float
    origin: float
    limit: float

    def measure(self, usage: float) -> float:
        return self.height - self.price * (usage - self.origin) if usage <= self.limit else -np.inf


@dataclass(frozen=True, slots=True)
class ParetoFront:
    """Non-dominated choices between the least bytes of a memory row and the unlimited optimum.

    Attributes:
        row: index into the problem's `memory`.
        points: from the fewest bytes, and the most time, to the least time; empty where nothing is legal.
        planes: what has been proven of the whole front.
        least_usage: no legal choice takes fewer bytes; inf where none is legal.
        is_complete: False where time ran out, or the caller stopped the search; more points may then exist.
        seconds: wall time.
    """

    row: int
    points: tuple[FrontPoint, ...]
    planes: tuple[FrontPlane, ...]
    least_usage: float
    is_complete: bool
    seconds: float

    def bound(self, usage: float) -> float:
        """Proven lower limit on the objective of every legal choice that takes at most `usage` bytes."""
        if usage < self.least_usage:
            return np.inf
        return max((plane.measure(usage) for plane in self.planes), default=-np.inf)


def find_pareto_front(
    problem: ShardingProblem,
    row: int,
    *,
    count: int = 12,
    best: ShardingSolution | None = None,
    time_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
    on_progress: Callable[[ParetoFront], None] | None = None,
) -> ParetoFront:
    """Up to `count` non-dominated choices of seconds against bytes of `problem.memory[row]`.

    That row's limit is not looked at; all other memory rows and the memory profile stay limits. Points are spread by
    splitting the widest gap of the front, both axes scaled to its extent; fewer are given where there are no more.

    Args:
        best: a solution of `problem` to start from, if there is one already.
        time_limit: seconds of wall time.
        on_progress: called from the calling thread with the front so far, after each new point.

    Raises:
        SolverError: a malformed problem, a memory profile too large for rows, no such row, or a `count` under 2.
    """
    if not 0 <= row < len(problem.memory):
        raise SolverError(f"memory row {row} does not exist; the problem has {len(problem.memory)}")
    if count < 2:
        raise SolverError(f"count is {count}; a front has two ends, so ask for at least 2 points")
    problem = spell_out_small(problem)
    watch = Watch("pareto", time_limit, None, should_stop)
    search = _FrontSearch(problem, row, watch, should_stop, on_progress)
    is_complete = search.find_ends(best.choice if best is not None and best.choice else None)
    return search.list_points(is_complete=is_complete and search.fill(count))


@dataclass(frozen=True, slots=True)
class _Point:
    usage: float
    objective: float
    choice: tuple[int, ...]


class _FrontSearch:
    """Points and planes found so far, and what is known of the gaps between points."""

    def __init__(
        self,
        problem: ShardingProblem,
        row: int,
        watch: Watch,
        should_stop: Callable[[], bool] | None,
        on_progress: Callable[[ParetoFront], None] | None,
    ) -> None:
        self._problem, self._row, self._watch = problem, row, watch
        self._should_stop, self._on_progress = should_stop, on_progress
        self._others = tuple(r for i, r in enumerate(problem.memory) if i != row)
        self._usage, self._origin = _measure_beyond_least(problem, row)
        self._points: list[_Point] = []
        self._planes: list[FrontPlane] = []
        self._least_usage = -np.inf
        self._nudge = 0.0
        self._straight: set[tuple[_Point, _Point]] = set()
        """Neighbours with no choice below the line between them."""
        self._clear_to: dict[_Point, float] = {}
        """Up to how many bytes each point is the cheapest."""
        self._is_given_up: set[tuple[_Point, _Point]] = set()

    def find_ends(self, hint: tuple[int, ...] | None) -> bool:
        """The points of least bytes and of least time; whether the search for them ended by itself."""
        least = self._find_least_usage()
        if not least.choice:
            return least.status is SolveStatus.INFEASIBLE and not self._watch.is_over()
        smallest = self._add(least.choice)
        fastest = self._solve_priced(0.0, hint)
        if fastest is None or self._watch.is_over():
            return False
        self._solve_smallest(smallest)
        height, width = self._measure_extent()
        if height > _PROVEN * abs(self._points[-1].objective):
            self._nudge = max(_NUDGE * height, 1e-10 * abs(self._points[-1].objective)) / width
            self._solve_priced(self._nudge, fastest.choice)
        return not self._watch.is_over()

    def fill(self, count: int) -> bool:
        """Split the widest gap until there are `count` points or no gap is left; False where time ran out."""
        while 0 < len(self._points) < count:
            if self._watch.is_over():
                return False
            gap = self._find_widest_gap()
            if gap is None:
                return True
            if gap in self._straight:
                self._split_by_limit(*gap)
            else:
                self._split_by_price(*gap)
        return True

    def list_points(self, *, is_complete: bool) -> ParetoFront:
        front = ParetoFront(self._row, (), tuple(self._planes), self._least_usage, is_complete, self._watch.seconds)
        return replace(front, points=tuple(self._word(point, front) for point in self._points))

    def _word(self, point: _Point, front: ParetoFront) -> FrontPoint:
        slack = _PROVEN * abs(point.objective)
        # Only where a byte has a price is it proven that no other choice is as cheap and smaller.
        tight = max((p.measure(point.usage) for p in self._planes if p.price > 0.0), default=-np.inf)
        bound = front.bound(point.usage)
        is_least = point.usage <= self._least_usage and point.objective - bound <= slack
        is_proven = is_least or point.objective - tight <= slack
        bound = point.objective if point.objective - bound <= slack else bound
        status = SolveStatus.OPTIMAL if is_proven else SolveStatus.FEASIBLE
        return FrontPoint(point.choice, point.objective, bound, point.usage, status)

    def _find_least_usage(self) -> ShardingSolution:
        """A choice of the fewest bytes that the other rows and the forbidden candidates leave."""
        unary = tuple(
            np.where(np.isfinite(cost), usage, np.inf)
            for cost, usage in zip(self._problem.unary, self._usage, strict=True)
        )
        barriers = list_barriers(self._problem)
        solution = self._solve(replace(self._problem, unary=unary, edges=barriers, memory=self._others), None)
        # Rounding apart, the bytes of a choice that is proven to take the fewest are the fewest.
        is_proven = solution.status is SolveStatus.OPTIMAL
        measured = self._problem.measure_memory(solution.choice)[self._row] if is_proven else np.inf
        self._least_usage = measured if is_proven else self._origin + solution.bound
        return solution

    def _solve_smallest(self, smallest: _Point) -> None:
        """The cheapest choice of the least bytes: only candidates that take little can be in it, which leaves few."""
        room = smallest.usage - self._origin + 1e-9 * abs(smallest.usage)
        unary = tuple(
            np.where(usage <= room, cost, np.inf) for cost, usage in zip(self._problem.unary, self._usage, strict=True)
        )
        row = replace(self._problem.memory[self._row], limit=smallest.usage)
        network = build_network(replace(self._problem, unary=unary, memory=(*self._others, row)))
        assert network is not None, "the smallest choice is legal"
        grown = None
        if len(network.limits) == 0:
            target = network.ceiling
            grown = grow_tree(MessagePassing(network), target, self._watch, _MOST_ROWS, _MOST_SWEEPS, whole=False)
        if grown is None or not np.isfinite(grown.optimum):
            self._solve_limited(smallest.usage, 0.0, smallest.choice)
            return
        self._planes.append(FrontPlane(0.0, grown.optimum, self._origin, smallest.usage))
        self._add(network.name_choice(grown.tree.find_choice()))

    def _split_by_price(self, left: _Point, right: _Point) -> None:
        price = (left.objective - right.objective) / (right.usage - left.usage)
        found = self._solve_priced(price, left.choice)
        height = left.objective + price * (left.usage - self._origin)
        is_below = found is not None and (
            found.objective + price * (found.usage - self._origin) < height - _PROVEN * abs(height)
        )
        # The cheapest may lie outside, where one of the two is above the line between its own neighbours.
        is_between = found is not None and left.usage < found.usage < right.usage
        if not (is_below and is_between):
            self._straight.add((left, right))
            if found is not None and is_between:
                # A third point on the line: nothing is below its halves either.
                self._straight |= {(left, found), (found, right)}

    def _split_by_limit(self, left: _Point, right: _Point) -> None:
        """Look for points above the line: up to half of the gap first, then up to just below its right end."""
        _, width = self._measure_extent()
        last = right.usage - max(_STEP * width, 4e-12 * abs(right.usage))
        known = self._clear_to.get(left, left.usage)
        limit = min(0.5 * (known + right.usage), last) if known == left.usage else last
        found = self._solve_limited(limit, self._nudge, left.choice)
        if found is None:
            self._is_given_up.add((left, right))
        elif found.usage <= left.usage:
            self._clear_to[left] = limit
        else:
            self._clear_to[found] = limit
            # No choice is below the line to either side, as none is below the whole.
            self._straight |= {(left, found), (found, right)}

    def _find_widest_gap(self) -> tuple[_Point, _Point] | None:
        height, width = self._measure_extent()
        widest, gap = 0.0, None
        for left, right in zip(self._points, self._points[1:], strict=False):
            known = self._clear_to.get(left, left.usage)
            last = right.usage - max(_STEP * width, 4e-12 * abs(right.usage))
            if known >= last or (left, right) in self._is_given_up:
                continue
            size = float(np.hypot((right.usage - known) / width, (left.objective - right.objective) / height))
            if size > widest:
                widest, gap = size, (left, right)
        return gap

    def _measure_extent(self) -> tuple[float, float]:
        """Seconds and bytes from end to end."""
        first, last = self._points[0], self._points[-1]
        return first.objective - last.objective, last.usage - first.usage

    def _solve_priced(self, price: float, hint: tuple[int, ...] | None) -> _Point | None:
        """The cheapest choice with bytes paid for, as many as it likes."""
        solution = self._solve(replace(self._problem, unary=self._price(price), memory=self._others), hint)
        self._planes.append(FrontPlane(price, solution.bound, self._origin, np.inf))
        return self._add(solution.choice) if solution.choice else None

    def _solve_limited(self, limit: float, price: float, hint: tuple[int, ...]) -> _Point | None:
        """The cheapest choice of at most `limit` bytes, None where it is not proven to be."""
        row = replace(self._problem.memory[self._row], limit=limit)
        solution = self._solve(replace(self._problem, unary=self._price(price), memory=(*self._others, row)), hint)
        self._planes.append(FrontPlane(price, solution.bound, self._origin, limit))
        found = self._add(solution.choice) if solution.choice else None
        return found if solution.status is SolveStatus.OPTIMAL else None

    def _price(self, price: float) -> tuple[FloatArray, ...]:
        return tuple(cost + price * usage for cost, usage in zip(self._problem.unary, self._usage, strict=True))

    def _solve(self, problem: ShardingProblem, hint: tuple[int, ...] | None) -> ShardingSolution:
        left = self._watch.seconds_left
        return solve_problem(
            problem,
            solver="exact" if len(problem.memory) <= _MOST_ROWS_TO_PRICE else "auto",
            time_limit=max(0.0, left) if np.isfinite(left) else None,
            tolerance=_TOLERANCE,
            warm_start=hint,
            should_stop=self._should_stop,
        )

    def _add(self, choice: tuple[int, ...]) -> _Point:
        """The point of `choice`, or the one known that is as good; takes it up unless it is dominated."""
        new = _Point(self._problem.measure_memory(choice)[self._row], self._problem.price(choice), choice)
        for known in self._points:
            if _is_as_good(known, new):
                return known
        self._points = sorted(
            [*(known for known in self._points if not _is_as_good(new, known)), new], key=lambda p: p.usage
        )
        if self._on_progress is not None:
            self._on_progress(self.list_points(is_complete=False))
        return new


def _is_as_good(one: _Point, other: _Point) -> bool:
    """Whether `one` is as small and as fast as `other`, times that differ by rounding taken as equal."""
    return one.usage <= other.usage and one.objective <= other.objective + 1e-12 * abs(other.objective)


def _measure_beyond_least(problem: ShardingProblem, row: int) -> tuple[tuple[FloatArray, ...], float]:
    """Per variable and candidate the bytes beyond the variable's least, and the sum of the least.

    What all candidates take alike is left out of prices, so that rounding is that of the differences.
    """
    memory: MemoryRow = problem.memory[row]
    usage: list[FloatArray] = [np.zeros(len(cost)) for cost in problem.unary]
    for v, size in zip(memory.variables, memory.usage, strict=True):
        usage[v] = usage[v] + size
    least = [
        float(size[np.isfinite(cost)].min(initial=np.inf)) for size, cost in zip(usage, problem.unary, strict=True)
    ]
    least = [size if np.isfinite(size) else 0.0 for size in least]
    return tuple(np.maximum(size - low, 0.0) for size, low in zip(usage, least, strict=True)), sum(least)
