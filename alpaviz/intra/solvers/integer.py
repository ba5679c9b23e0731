"""The "ilp" and "paper" methods: an integer linear programme built with PuLP, solved by HiGHS or CBC.

"ilp" is the tight form: pair variables are continuous and each row and column of an edge sums to its variable's pick,
so the LP relaxation is (nearly) integral without memory limits. "paper" is the formulation as published, kept for
comparison: pair variables are one-hot integers, at most the picks.

Source: Zheng et al. 2022, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from alpaviz.errors import SolverError
from alpaviz.intra.solvers.incumbent import Incumbent
from alpaviz.intra.solvers.network import IntArray, Network
from alpaviz.intra.solvers.process import run_child
from alpaviz.intra.solvers.search import Assignment
from alpaviz.intra.solvers.watch import Watch

_TYPICAL_OBJECTIVE = 1e4
"""Objectives are scaled to about this: solvers' tolerances are absolute, and costs here start at 1e-7."""


@dataclass(frozen=True, slots=True)
class IntegerResult:
    """Bound on every legal choice of the network, whether the incumbent is proven best, and which solver ran."""

    bound: float
    is_closed: bool
    backend: str


def solve_integer(
    network: Network, incumbent: Incumbent, watch: Watch, *, form: str = "tight", backend: str = "highs,cbc"
) -> IntegerResult:
    """Improve `incumbent` by the integer programme of `network`, memory limits included.

    Raises:
        SolverError: no solver is installed, or its process died.
    """
    scale = _TYPICAL_OBJECTIVE / max(_guess_objective(network), 1e-300)
    for tightening in (0.0, 4e-6):
        request = _make_request(network, scale, watch, form, backend, incumbent, tightening)
        offers = _Offers(network, incumbent, watch, scale)
        answer = run_child(request, watch, offers.hear)
        if answer is None:
            return IntegerResult(offers.bound, False, backend)
        if answer["status"] == "infeasible":
            return IntegerResult(incumbent.target, True, answer["backend"])
        bound = max(offers.bound, float(answer["bound"]) / scale)
        if answer["choice"] is None:
            return IntegerResult(bound, False, answer["backend"])
        choice = np.array(answer["choice"], dtype=np.int64)
        if Assignment(network, choice).is_legal():
            incumbent.offer(network, choice)
            # A solver that is done before its first word is heard of too.
            watch.report(incumbent.objective, min(bound, incumbent.objective))
            is_closed = answer["status"] == "optimal"
            return IntegerResult(min(bound, incumbent.objective), is_closed, answer["backend"])
        # Solvers keep rows to a relative 1e-6 or so: leave that much room and ask again.
    raise SolverError(
        f"the integer solver ({backend}) gave a choice that breaks a memory limit twice; use solver='exact'"
    )


@dataclass(slots=True)
class _Offers:
    """Takes what the solver reports while it runs."""

    network: Network
    incumbent: Incumbent
    watch: Watch
    scale: float
    bound: float = -float("inf")

    def hear(self, progress: dict[str, Any]) -> None:
        self.bound = max(self.bound, float(progress["bound"]) / self.scale)
        if progress["choice"] is not None:
            choice = np.array(progress["choice"], dtype=np.int64)
            if Assignment(self.network, choice).is_legal():
                self.incumbent.offer(self.network, choice)
        self.watch.report(self.incumbent.objective, min(self.bound, self.incumbent.objective))


def _make_request(
    network: Network,
    scale: float,
    watch: Watch,
    form: str,
    backend: str,
    incumbent: Incumbent,
    tightening: float,
) -> dict[str, Any]:
    unit = np.maximum(network.limits, network.usage.max(axis=1, initial=0.0))
    unit = np.where(unit > 0.0, unit, 1.0)
    left = watch.seconds_left
    return {
        "form": form,
        "backend": backend,
        "time_limit": left if np.isfinite(left) else None,
        "tolerance": max(incumbent.tolerance, 1e-9),
        "offsets": network.offsets,
        "unary": network.unary * scale,
        "edges": [(e.u, e.v, cost * scale) for e, cost in zip(network.edges, _forbid(network), strict=True)],
        "usage": network.usage / unit[:, None],
        "limits": network.limits / unit * (1.0 - tightening),
    }


def _forbid(network: Network) -> list[Any]:
    """Edge costs with `inf` again where no legal choice can take the pair."""
    starts = network.offsets[:-1]
    low = float(np.minimum.reduceat(network.unary, starts).sum()) + sum(float(e.cost.min()) for e in network.edges)
    return [np.where(e.cost - e.cost.min() + low > network.ceiling, np.inf, e.cost) for e in network.edges]


def _guess_objective(network: Network) -> float:
    """Rough size of the optimum, from local search; the largest cost where that is 0."""
    starts = network.offsets[:-1]
    cheapest: IntArray = np.array(
        [int(network.unary[a:b].argmin()) for a, b in zip(starts, network.offsets[1:], strict=True)], dtype=np.int64
    )
    assignment = Assignment(network, cheapest)
    assignment.descend(most_moves=2000)
    price = abs(assignment.price())
    largest = max([float(np.abs(network.unary).max()), *(float(np.abs(e.cost).max()) for e in network.edges)])
    return price if price > 1e-9 * largest else max(largest, 1e-300)
