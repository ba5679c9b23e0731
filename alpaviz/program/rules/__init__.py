"""One sharding rule per JAX primitive. In: an `OpSignature`; out: a `ShardingRule`.

Each module registers a family of primitives; importing the package registers them all.
"""

from alpaviz.program.rules import (
    contraction,
    control,
    elementwise,
    indexing,
    linear_algebra,
    ragged,
    randomness,
    reduction,
    shape,
    window,
)
from alpaviz.program.rules.registry import (
    OpSignature,
    list_primitives,
    list_rule_families,
    make_rule,
    register_rule,
    register_sharding_rule,
    sign_equation,
)

__all__ = [
    "OpSignature",
    "contraction",
    "control",
    "elementwise",
    "indexing",
    "linear_algebra",
    "list_primitives",
    "list_rule_families",
    "make_rule",
    "ragged",
    "randomness",
    "reduction",
    "register_rule",
    "register_sharding_rule",
    "shape",
    "sign_equation",
    "window",
]
