"""Solves problems with thousands of memory rows: exact reduction, then priced memory for bounds and choices."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from alpaviz.errors import SolverError
from alpaviz.intra.problem import MemoryProfile, ShardingProblem, ShardingSolution, SolveStatus
from alpaviz.intra.solvers.large.ascent import Ascent
from alpaviz.intra.solvers.large.kernels import load_kernels
from alpaviz.intra.solvers.large.layout import Layout, lay_out
from alpaviz.intra.solvers.large.loops import Loops
from alpaviz.intra.solvers.large.pieces import PieceSearch
from alpaviz.intra.solvers.large.reduce import Core, reduce_problem
from alpaviz.intra.solvers.network import IntArray, check_problem
from alpaviz.intra.solvers.watch import Watch

NAME = "prices"
SECONDS_WITHOUT_LIMIT = 60.0
_GAP_TO_STOP_AT = 1e-3
_SECONDS_WITHOUT_PROGRESS = 15.0
_SHARE_OF_ASCENT = 0.6
"""Of the time there is; the rest is for pieces."""
_PROGRESS = 1e-4
_PROGRESS_OF_PIECES = 1e-5
_STEPS_BETWEEN_REPAIRS = 5
_WORST_TO_IMPROVE = 1.2
"""Repaired choices that cost more than this much of the incumbent are not worth a local search."""
_SAFETY = 1e-9
"""Relative to the sizes that go into a bound: what rounding may add to it."""


@dataclass(slots=True)
class _Best:
    """Incumbent of the core; `room` is what it must leave free at every time, as rounding may have hidden as much."""

    room: float = 0.0
    choice: IntArray | None = None
    cost: float = float("inf")
    progress_at: float = 0.0
    progress_bound: float = -float("inf")


def solve_large(
    problem: ShardingProblem, watch: Watch, tolerance: float, warm_start: tuple[int, ...] | None, *, has_limit: bool
) -> ShardingSolution:
    """The best choice found in time, with a proven bound; memory is that of `problem.profile` alone.

    Prices and messages come first, then pieces are solved anew. Either ends after 15 s without progress; without a time
    limit all ends at a gap of 1e-3, or after a minute.

    Raises:
        SolverError: malformed problem, or numba is missing.
    """
    check_problem(problem)
    check_profile(problem)
    core = reduce_problem(problem)
    if core is None:
        return _word_nothing(watch, True, float("inf"), 0.0)
    if len(core.limits) and core.limits.min() < 0.0:
        return _word_nothing(watch, True, float("inf"), float(-core.limits.min()))
    layout = lay_out(core)
    watch = watch if has_limit else watch.take(SECONDS_WITHOUT_LIMIT)
    loops = Loops(layout, load_kernels())
    ascent = Ascent(loops)
    best = _Best(_find_room(problem.profile))
    if warm_start is not None:
        _try_start(core, ascent, warm_start, best)
    gap = tolerance if has_limit else max(tolerance, _GAP_TO_STOP_AT)
    _run(ascent, layout, best, watch.take(_SHARE_OF_ASCENT * watch.seconds_left), gap)
    _improve_pieces(ascent, loops, best, watch, gap)
    return _word(problem, core, layout, ascent, best, watch, tolerance)


def check_profile(problem: ShardingProblem) -> None:
    """Raise SolverError where the memory profile is malformed."""
    sizes = [len(cost) for cost in problem.unary]
    profile = problem.profile
    if profile is None:
        return
    if not len(profile.usage) == len(profile.starts) == len(profile.ends) == len(sizes):
        raise SolverError(f"memory profile should have one interval and usage for each of {len(sizes)} variables")
    for v, usage in enumerate(profile.usage):
        if usage.shape != (sizes[v],) or not (np.isfinite(usage).all() and (usage >= 0.0).all()):
            raise SolverError(f"memory profile, variable {v}: usage should be {sizes[v]} finite numbers of at least 0")


def _find_room(profile: MemoryProfile | None) -> float:
    """0 where sums of usages are exact, as those of whole bytes are."""
    if profile is None or all((usage == np.rint(usage)).all() for usage in profile.usage):
        return 0.0
    return 1e-12 * profile.limit


def _run(ascent: Ascent, layout: Layout, best: _Best, watch: Watch, gap: float) -> None:
    best.progress_at = watch.seconds
    step = 0
    while layout.size and not watch.is_over():
        step += 1
        bound = ascent.try_prices()
        decoded, excess = ascent.choice.copy(), ascent.excess.copy()
        _offer(ascent, best, watch)
        if step % _STEPS_BETWEEN_REPAIRS == 0 and ascent.decode_within():
            ascent.measure()
            if ascent.evaluate() < best.cost + (_WORST_TO_IMPROVE - 1.0) * abs(best.cost):
                ascent.improve()
                _offer(ascent, best, watch)
        ascent.choice[:], ascent.excess[:] = decoded, excess
        ascent.move(bound, best.cost if best.choice is not None else bound + 0.3 * abs(bound))
        whole = best.cost + layout.constant
        watch.report(whole, ascent.bound + layout.constant)
        is_closed = best.choice is not None and best.cost - ascent.bound <= gap * abs(whole)
        if is_closed or _is_stuck(ascent, best, watch):
            return


def _improve_pieces(ascent: Ascent, loops: Loops, best: _Best, watch: Watch, gap: float) -> None:
    """Large neighbourhood search from the best choice, at the best prices."""
    layout = loops.layout
    if best.choice is None or not layout.size:
        return
    search = PieceSearch(loops, best.choice, best.cost, ascent.prices, best.room)
    best.progress_at, before = watch.seconds, best.cost
    while not watch.is_over() and best.cost - ascent.bound > gap * abs(best.cost + layout.constant):
        if search.attempt():
            best.choice, best.cost = search.choice, search.cost
            watch.report(best.cost + layout.constant, ascent.bound + layout.constant)
        if best.cost < before - _PROGRESS_OF_PIECES * abs(before):
            best.progress_at, before = watch.seconds, best.cost
        elif watch.seconds - best.progress_at > _SECONDS_WITHOUT_PROGRESS:
            return


def _is_stuck(ascent: Ascent, best: _Best, watch: Watch) -> bool:
    if ascent.bound > best.progress_bound + _PROGRESS * abs(best.progress_bound) or best.progress_bound == -np.inf:
        best.progress_bound, best.progress_at = ascent.bound, watch.seconds
    return watch.seconds - best.progress_at > _SECONDS_WITHOUT_PROGRESS


def _offer(ascent: Ascent, best: _Best, watch: Watch) -> None:
    if len(ascent.excess) and ascent.excess.max() > -best.room:
        return
    cost = ascent.evaluate()
    if cost < best.cost:
        if best.choice is None or cost < best.cost - _PROGRESS * abs(best.cost):
            best.progress_at = watch.seconds
        best.choice, best.cost = ascent.choice.copy(), cost


def _try_start(core: Core, ascent: Ascent, named: tuple[int, ...], best: _Best) -> None:
    """Take the problem's choice `named` as the incumbent, where the core still holds it and it is legal."""
    at = [np.flatnonzero(kept == k) for kept, k in zip(core.kept, named, strict=True)]
    if any(len(found) == 0 for found in at):
        return
    full = {v: int(found[0]) for v, found in enumerate(at)}
    for u, leaders, table in core.folded:
        if leaders == (u,):
            found = np.flatnonzero(table == full[u])
            if len(found) == 0:
                return
            full[u] = int(found[0])
    ascent.choice[:] = [full[int(v)] for v in np.flatnonzero(core.is_left)]
    ascent.measure()
    if not len(ascent.excess) or ascent.excess.max() <= -best.room:
        cost = ascent.evaluate()
        if np.isfinite(cost):
            best.choice, best.cost = ascent.choice.copy(), cost


def is_within(profile: MemoryProfile | None, choice: tuple[int, ...]) -> bool:
    """Whether `choice` keeps the limit at every time, in exact arithmetic."""
    if profile is None:
        return True
    used = [float(usage[k]) for usage, k in zip(profile.usage, choice, strict=True)]
    changes: dict[int, Fraction] = {}
    for start, end, size in zip(profile.starts.tolist(), profile.ends.tolist(), used, strict=True):
        if end > start:
            changes[start] = changes.get(start, Fraction(0)) + Fraction(size)
            changes[end] = changes.get(end, Fraction(0)) - Fraction(size)
    limit, running = Fraction(profile.limit), Fraction(0)
    for time in sorted(changes):
        running += changes[time]
        if running > limit:
            return False
    return True


def _word(
    problem: ShardingProblem, core: Core, layout: Layout, ascent: Ascent, best: _Best, watch: Watch, tolerance: float
) -> ShardingSolution:
    bound = ascent.bound + layout.constant if layout.size else layout.constant
    bound -= _SAFETY * (abs(layout.constant) + abs(bound)) if layout.size else 0.0
    if layout.size and best.choice is None:
        return _word_nothing(watch, False, bound, 0.0)
    picked = best.choice if best.choice is not None else np.zeros(0, dtype=np.int64)
    choice = core.unfold({int(v): int(k) for v, k in zip(layout.variables, picked, strict=True)})
    objective = problem.price(choice)
    if not np.isfinite(objective) or not is_within(problem.profile, choice):
        return _word_nothing(watch, False, bound, 0.0)
    is_proven = not layout.size or objective - bound <= max(tolerance, 2.0 * _SAFETY) * abs(objective)
    status = SolveStatus.OPTIMAL if is_proven else SolveStatus.FEASIBLE
    bound = objective if is_proven else min(objective, bound)
    note = f"{layout.size} of {len(core.unary)} variables left after exact reduction"
    return ShardingSolution(status, choice, objective, bound, NAME, watch.seconds, 0.0, (note,))


def _word_nothing(watch: Watch, is_closed: bool, bound: float, short: float) -> ShardingSolution:
    """No choice: proven impossible where `is_closed`, else cancelled, or none found."""
    status = SolveStatus.INFEASIBLE if is_closed or not watch.is_over() else SolveStatus.CANCELLED
    notes = () if is_closed else ("no choice within the memory limit was found",)
    return ShardingSolution(status, (), float("inf"), bound, NAME, watch.seconds, short, notes)
