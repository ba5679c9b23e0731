"""The best legal choice that a solve has found so far."""

from __future__ import annotations

from alpaviz.intra.solvers.network import IntArray, Network


class Incumbent:
    """Best legal choice, in the problem's candidate indices, so that it outlives networks that drop candidates."""

    def __init__(self, ceiling: float, tolerance: float) -> None:
        self.choice: tuple[int, ...] = ()
        self.objective = float("inf")
        self._ceiling = ceiling
        self.tolerance = tolerance

    @property
    def target(self) -> float:
        """A choice of at least this cost is forbidden, or no better than the incumbent to the tolerance."""
        return min(self._ceiling, self.objective - self.slack)

    @property
    def slack(self) -> float:
        return 0.5 * self.tolerance * abs(self.objective) if self.choice else 0.0

    def offer(self, network: Network, choice: IntArray) -> bool:
        """Take `choice` if it is legal and better; memory limits are the caller's to check."""
        objective = network.price(choice)
        if objective < self.objective and objective <= self._ceiling:
            self.objective = objective
            self.choice = network.name_choice(choice)
            return True
        return False
