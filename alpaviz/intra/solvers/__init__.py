"""Solvers of the sharding problem: numbers in, a choice with a proven bound out.

In comes a `ShardingProblem` (unary costs, edge costs, memory rows), out goes a `ShardingSolution`. The "exact" method
is ours and needs numpy only; "ilp" and "paper" are integer programmes built with PuLP and solved in a process of their
own. Nothing here knows what a candidate stands for.
"""

from alpaviz.intra.solvers.k_best import find_best_choices
from alpaviz.intra.solvers.marginals import find_forced_optima, minimise_marginals
from alpaviz.intra.solvers.memory import least_memory, measure_shortage
from alpaviz.intra.solvers.pareto import FrontPoint, ParetoFront, find_pareto_front
from alpaviz.intra.solvers.solve import SOLVERS, solve_problem
from alpaviz.intra.solvers.watch import SolveProgress

__all__ = [
    "SOLVERS",
    "FrontPoint",
    "ParetoFront",
    "SolveProgress",
    "find_best_choices",
    "find_forced_optima",
    "find_pareto_front",
    "least_memory",
    "measure_shortage",
    "minimise_marginals",
    "solve_problem",
]
