"""Which layers form which stage, on which submesh.

In: the cost of every run of layers on every submesh and logical mesh. Out: the stages of least step time.
"""

from alpaviz.inter.stages import ChosenRange, StageChoice, StageConstraints, StageCostTable, choose_stages

__all__ = ["ChosenRange", "StageChoice", "StageConstraints", "StageCostTable", "choose_stages"]
