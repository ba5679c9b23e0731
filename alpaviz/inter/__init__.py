"""Which layers form which stage, on which submesh.

In: a `StageCostTable`, what every run of layers costs on every option (a submesh shape seen as a logical mesh) with
every number of microbatches in flight, and the `StageConstraints` that pins make. Out: a `StageChoice`, the stages of
least step time with a proven bound, or the `Obstacle` that stands in the way of any. Submeshes are placed by
`alpaviz.cluster.place_submeshes`.
"""

from alpaviz.inter.by_count import choose_stages_by_count
from alpaviz.inter.programme import ChosenRange
from alpaviz.inter.stages import (
    Obstacle,
    ObstacleKind,
    StageChoice,
    StageConstraints,
    StageCostTable,
    choose_stages,
)

__all__ = [
    "ChosenRange",
    "Obstacle",
    "ObstacleKind",
    "StageChoice",
    "StageConstraints",
    "StageCostTable",
    "choose_stages",
    "choose_stages_by_count",
]
