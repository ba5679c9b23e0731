"""Any JAX training step becomes a program that the solver understands.

In: a JAX callable and abstract arguments. Out: a `Program`: ops with roles, sharding rules and layers.
"""

from alpaviz.program.gradient import grad, layer_boundary, value_and_grad
from alpaviz.program.program import SHARED_LAYER, Accumulation, Op, Program, Role, Value, ValueKind
from alpaviz.program.rule import Factor, FactorKind, ShardingRule, parse_rule
from alpaviz.program.rules import register_sharding_rule
from alpaviz.program.strategy import Strategy, enumerate_strategies, follow_result_spec, follow_spec
from alpaviz.program.trace import TraceRecipe, retrace, trace_program

__all__ = [
    "SHARED_LAYER",
    "Accumulation",
    "Factor",
    "FactorKind",
    "Op",
    "Program",
    "Role",
    "ShardingRule",
    "Strategy",
    "TraceRecipe",
    "Value",
    "ValueKind",
    "enumerate_strategies",
    "follow_result_spec",
    "follow_spec",
    "grad",
    "layer_boundary",
    "parse_rule",
    "register_sharding_rule",
    "retrace",
    "trace_program",
    "value_and_grad",
]
