"""What a step that is cut into microbatches should give, from the step itself."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def average_over_halves(step: Any, state: Any, batch: Any) -> Any:
    """First moments after one step from zero, and the metrics, averaged over two halves of the batch.

    The first moment is then linear in the gradient, so this is what two microbatches give, also where a loss (of
    balance, of batch statistics) is not the mean of those of the examples.
    """
    halves = [jax.tree.map(lambda leaf, i=i: np.split(np.asarray(leaf), 2)[i], batch) for i in range(2)]
    results = [jax.jit(step)(state, half) for half in halves]
    return jax.tree.map(lambda *leaves: sum(leaves) / 2, *[(new["mu"], metrics) for new, metrics in results])
