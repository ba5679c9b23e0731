"""One door to all solvers: picks the method, keeps the time limit, and words the outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from alpaviz.errors import SolverError
from alpaviz.intra.problem import ShardingProblem, ShardingSolution, SolveStatus
from alpaviz.intra.solvers.exact import ExactResult, offer_legally, solve_exact
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.integer import solve_integer
from alpaviz.intra.solvers.large.rows import is_large, spell_out
from alpaviz.intra.solvers.large.solve import solve_large
from alpaviz.intra.solvers.memory import measure_shortage
from alpaviz.intra.solvers.messages import MessageMemo
from alpaviz.intra.solvers.network import Network, build_network
from alpaviz.intra.solvers.watch import SolveProgress, Watch

SOLVERS = ("auto", "exact", "ilp", "ilp-highs", "ilp-cbc", "paper")
"""Names that `solve_problem` takes; "ilp" is HiGHS, or CBC where HiGHS is missing."""

_SECONDS_TO_CLOSE = 10.0
"""What "auto" gives to the integer solver, where there is no time limit, once the exact method has left a gap."""
_PAIRS_TO_CLOSE = 60_000
_GAP_LEFT_OPEN = 1e-3
_MOST_ROWS_TO_PRICE = 8
_PAIRS_TO_START_WITH = 400_000


def solve_problem(
    problem: ShardingProblem,
    *,
    solver: str = "auto",
    time_limit: float | None = None,
    tolerance: float = 1e-9,
    warm_start: tuple[int, ...] | None = None,
    on_progress: Callable[[SolveProgress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    memo: MessageMemo | None = None,
) -> ShardingSolution:
    """The cheapest choice of `problem` that keeps its memory limits, with a proven bound.

    Args:
        solver: one of `SOLVERS`. "exact" needs numpy only; "auto" is "exact", then the integer programme on what is
            left where memory limits leave a gap of more than 1e-3; where more than eight rows may bind, the integer
            programme at once; where a memory profile over time is too large for rows, prices on memory (needs numba).
        time_limit: seconds of wall time; the best choice so far is given as FEASIBLE when it passes.
        tolerance: relative gap up to which a choice counts as the optimum.
        warm_start: a choice to start from, legal or not.
        on_progress: called at most ten times a second, from the calling thread.
        should_stop: asked often; the solve ends soon after it gives True.
        memo: messages to start from, and where those of this solve are left; for "auto" and "exact".

    Raises:
        SolverError: unknown `solver`, a malformed problem, or an integer solver that is missing or died.
    """
    if solver not in SOLVERS:
        raise SolverError(f"solver {solver!r} is not known; the solvers are {', '.join(SOLVERS)}")
    if warm_start is not None and len(warm_start) != problem.num_variables:
        raise SolverError(f"warm_start has {len(warm_start)} entries for {problem.num_variables} variables")
    watch = Watch(solver, time_limit, on_progress, should_stop)
    if solver == "auto" and not problem.memory and is_large(problem):
        return solve_large(problem, watch, tolerance, warm_start, has_limit=time_limit is not None)
    problem = spell_out(problem)
    network = build_network(problem)
    if network is None:
        return ShardingSolution(SolveStatus.INFEASIBLE, (), float("inf"), float("inf"), solver, watch.seconds)
    if network.num_variables == 0:
        return ShardingSolution(SolveStatus.OPTIMAL, (), 0.0, 0.0, solver, watch.seconds)
    if solver == "auto" and len(network.limits) > _MOST_ROWS_TO_PRICE:
        answer = _solve_many_rows(network, watch, tolerance, warm_start)
    elif solver in ("auto", "exact"):
        answer = _solve_exactly(network, watch, tolerance, warm_start, may_close=solver == "auto", memo=memo)
    else:
        answer = _solve_by_integers(network, watch, solver, tolerance, warm_start)
    return _word(problem, answer, watch)


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    incumbent: Incumbent
    bound: float
    is_closed: bool
    solver: str
    notes: tuple[str, ...] = ()


def _solve_exactly(
    network: Network,
    watch: Watch,
    tolerance: float,
    warm_start: tuple[int, ...] | None,
    *,
    may_close: bool,
    memo: MessageMemo | None = None,
) -> _Answer:
    result = solve_exact(network, watch, tolerance, warm_start, memo)
    answer = _Answer(result.incumbent, result.bound, result.open_network is None, "exact")
    if not may_close or answer.is_closed or watch.is_over() or _gap(answer) <= _GAP_LEFT_OPEN:
        return answer
    return _close_by_integers(answer, result, watch)


def _solve_many_rows(network: Network, watch: Watch, tolerance: float, warm_start: tuple[int, ...] | None) -> _Answer:
    """Many memory rows make most candidates fractional and prices slow to find: the integer programme goes first."""
    pairs = network.num_pairs
    if pairs <= _PAIRS_TO_START_WITH:
        try:
            return _note(
                _solve_by_integers(network, watch, "ilp", tolerance, warm_start),
                f"ilp picked, as {len(network.limits)} memory rows may bind",
            )
        except SolverError as error:
            answer = _solve_exactly(network, watch, tolerance, warm_start, may_close=False)
            return _note(answer, f"exact picked: {error}")
    return _solve_exactly(network, watch, tolerance, warm_start, may_close=False)


def _close_by_integers(answer: _Answer, result: ExactResult, watch: Watch) -> _Answer:
    """What the integer programme makes of the network that the exact method left open, where that is small."""
    network = result.open_network
    assert network is not None, "only an open gap is closed"
    pairs = network.num_pairs
    if pairs > _PAIRS_TO_CLOSE:
        return _note(answer, f"left open: {pairs} pairs are too many for the integer solver to close the gap soon")
    try:
        closing = solve_integer(network, result.incumbent, watch.take(_SECONDS_TO_CLOSE))
    except SolverError as error:
        return _note(answer, f"gap left open: {error}")
    bound = max(answer.bound, min(closing.bound, result.incumbent.objective))
    name = f"exact, then ilp ({closing.backend})"
    return _Answer(result.incumbent, bound, closing.is_closed, name, (f"gap left by exact, closed with {name}",))


def _note(answer: _Answer, note: str) -> _Answer:
    return _Answer(answer.incumbent, answer.bound, answer.is_closed, answer.solver, (*answer.notes, note))


def _gap(answer: _Answer) -> float:
    incumbent = answer.incumbent
    if not incumbent.choice:
        return float("inf")
    return (incumbent.objective - answer.bound) / max(abs(incumbent.objective), 1e-300)


def _solve_by_integers(
    network: Network, watch: Watch, solver: str, tolerance: float, warm_start: tuple[int, ...] | None
) -> _Answer:
    incumbent = Incumbent(network.ceiling, tolerance)
    start = None if warm_start is None else network.find_choice(warm_start)
    if start is not None:
        offer_legally(network, start, incumbent)
    if solver == "paper":
        form, backend = "paper", "cbc,highs"
    else:
        form, backend = "tight", {"ilp": "highs,cbc", "ilp-highs": "highs", "ilp-cbc": "cbc"}[solver]
    result = solve_integer(network, incumbent, watch, form=form, backend=backend)
    name = "paper" if solver == "paper" else "ilp"
    return _Answer(incumbent, result.bound, result.is_closed, f"{name} ({result.backend})")


def _word(problem: ShardingProblem, answer: _Answer, watch: Watch) -> ShardingSolution:
    """Outcome in the words of `SolveStatus`."""
    incumbent, bound = answer.incumbent, answer.bound
    if not incumbent.choice:
        if answer.is_closed:
            short = measure_shortage(problem, watch if watch.seconds_left < float("inf") else None)
            nothing = float("inf")
            status = SolveStatus.INFEASIBLE
            return ShardingSolution(status, (), nothing, nothing, answer.solver, watch.seconds, short, answer.notes)
        return _word_nothing(problem, answer, watch)
    objective = problem.price(incumbent.choice)
    # A bound within the tolerance is a proof, whichever way it came.
    is_proven = answer.is_closed or objective - bound <= incumbent.tolerance * abs(objective)
    status = SolveStatus.OPTIMAL if is_proven else SolveStatus.FEASIBLE
    if is_proven:
        # Integer solvers have tolerances of their own; theirs may be a little wider than the bound they state.
        bound = max(bound, objective - incumbent.tolerance * abs(objective))
    bound = min(objective, bound)
    return ShardingSolution(status, incumbent.choice, objective, bound, answer.solver, watch.seconds, 0.0, answer.notes)


def _word_nothing(problem: ShardingProblem, answer: _Answer, watch: Watch) -> ShardingSolution:
    """No legal choice found, and none excluded: cancelled or out of time, else infeasible below the limits."""
    is_stopped = watch.is_over()
    status = SolveStatus.CANCELLED if is_stopped else SolveStatus.INFEASIBLE
    short = 0.0 if is_stopped else measure_shortage(problem)
    reason = "stopped before a legal choice was found" if is_stopped else "no choice within the memory limits was found"
    return ShardingSolution(
        status, (), float("inf"), answer.bound, answer.solver, watch.seconds, short, (*answer.notes, reason)
    )
