"""Plans that people write (data parallel, ZeRO, Megatron-LM, GPipe, ...), in the form of AlpaViz's own.

`plan("zero-3", planner)` is a `Plan` of the planner's program on its cluster. Its decisions are those of the scheme,
its prices are those of the solver's cost model.
"""

from __future__ import annotations

from alpaviz.baselines.named import NAMES, Baselines, list_pins, plan
from alpaviz.baselines.table import BaselineRow, BaselineTable, compare_with_baselines

__all__ = ["NAMES", "BaselineRow", "BaselineTable", "Baselines", "compare_with_baselines", "list_pins", "plan"]
