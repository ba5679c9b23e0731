"""The sharding problem and its answer: what every intra-operator solver takes and gives.

A problem is a pairwise cost function network: each variable picks one of its candidates; cost is the sum of unary
costs and of one matrix entry per edge; each memory row limits a sum of per-candidate usages (paper section 4.2,
equations 1 to 3, with the memory limit of the authors' code). Where the candidates come from is `intra/build.py`'s
business; solvers see numbers only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from alpaviz.intra.pair_costs import PairCosts

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Edge:
    """Costs between two variables, u != v, in the objective's unit; `inf` forbids a pair.

    Args:
        cost: (candidates of u, candidates of v), as a matrix or with equal rows and columns kept once.
    """

    u: int
    v: int
    costs: PairCosts

    def __init__(self, u: int, v: int, cost: FloatArray | PairCosts) -> None:
        object.__setattr__(self, "u", u)
        object.__setattr__(self, "v", v)
        object.__setattr__(self, "costs", cost if isinstance(cost, PairCosts) else PairCosts(cost))

    @property
    def cost(self) -> FloatArray:
        """The whole matrix."""
        return self.costs.expand()


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRow:
    """One memory constraint: the sum over `variables` of `usage[k][choice]` is at most `limit` (bytes).

    `usage[k]` is (candidates of variables[k],), never negative.
    """

    name: str
    variables: tuple[int, ...]
    usage: tuple[FloatArray, ...]
    limit: float


@dataclass(frozen=True, slots=True, eq=False)
class MemoryProfile:
    """Memory over time, for problems with thousands of memory rows: one limit at every time.

    At each time the usages of the variables alive then sum to at most `limit`.

    Attributes:
        starts: (variables,), first time at which each variable is alive.
        ends: (variables,), first time at which it is no longer.
        usage: per variable (candidates,), bytes, never negative.
        limit: bytes.
    """

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    usage: tuple[FloatArray, ...]
    limit: float


@dataclass(frozen=True, slots=True, eq=False)
class ShardingProblem:
    """Candidates' costs of one stage on one logical mesh.

    Attributes:
        unary: per variable (candidates,), seconds; `inf` forbids a candidate.
        edges: resharding costs between pairs of variables.
        memory: constraints; empty where memory is not limited.
        names: per variable, for messages.
        profile: memory over time, in addition to the rows of `memory`; None where there is none.
    """

    unary: tuple[FloatArray, ...]
    edges: tuple[Edge, ...] = ()
    memory: tuple[MemoryRow, ...] = ()
    names: tuple[str, ...] = ()
    profile: MemoryProfile | None = None

    @property
    def num_variables(self) -> int:
        return len(self.unary)

    def price(self, choice: tuple[int, ...] | list[int]) -> float:
        """Objective of `choice` (one candidate index per variable), memory not looked at."""
        total = sum(float(cost[k]) for cost, k in zip(self.unary, choice, strict=True))
        return total + sum(edge.costs.at(choice[edge.u], choice[edge.v]) for edge in self.edges)

    def measure_memory(self, choice: tuple[int, ...] | list[int]) -> tuple[float, ...]:
        """Bytes of each memory row under `choice`."""
        return tuple(
            sum(float(usage[choice[v]]) for v, usage in zip(row.variables, row.usage, strict=True))
            for row in self.memory
        )


class SolveStatus(enum.StrEnum):
    """Foreseen outcomes of a solve."""

    OPTIMAL = "optimal"
    """`bound` equals `objective` within the tolerance asked for."""
    FEASIBLE = "feasible"
    """A legal choice with a proven gap (time limit reached, or cancelled with an incumbent)."""
    INFEASIBLE = "infeasible"
    """Proven that no choice is legal, or none was found below the memory limits (see `bytes_short`)."""
    CANCELLED = "cancelled"
    """Stopped from outside before a legal choice was found."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardingSolution:
    """Answer of a solver.

    Attributes:
        status: outcome.
        choice: candidate index per variable; empty unless OPTIMAL or FEASIBLE.
        objective: cost of `choice`; inf where there is none.
        bound: proven lower limit on the objective of every legal choice.
        solver: which method answered, for instance `"exact"` or `"ilp (HiGHS)"`.
        seconds: wall time.
        bytes_short: for INFEASIBLE, how far the least possible memory of the worst row is over its limit; 0 where
            the reason is not memory.
    """

    status: SolveStatus
    choice: tuple[int, ...]
    objective: float
    bound: float
    solver: str
    seconds: float
    bytes_short: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def gap(self) -> float:
        """(objective - bound) / |objective|; 0 where both are equal, inf where there is no choice."""
        if not self.choice:
            return float("inf")
        difference = max(0.0, self.objective - self.bound)
        return 0.0 if difference == 0.0 else difference / max(abs(self.objective), 1e-300)
