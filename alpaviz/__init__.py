"""AlpaViz: an interactive planner for model parallelism in JAX.

`Planner` takes a training step and a cluster and finds a parallel execution plan with Alpa's two-level method (Zheng et
al., OSDI 2022); its widget shows the plan, people pin or override decisions, and the plan is launched on devices. Names
are loaded at first use, so `import alpaviz` starts nothing and imports no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alpaviz import baselines, cost, models, plan_figures
    from alpaviz.cluster import Cluster, DeviceType, Host, Link, describe_cluster, get_cluster, parse_cluster
    from alpaviz.errors import AlpaVizError
    from alpaviz.pins import Pin, PinKind
    from alpaviz.plan import Plan
    from alpaviz.plan_check import validate_plan
    from alpaviz.plan_diff import compare_plans
    from alpaviz.plan_file import load_plan, save_plan
    from alpaviz.planner import Planner
    from alpaviz.planner_state import PlannerState
    from alpaviz.program import (
        grad,
        layer_boundary,
        register_sharding_rule,
        trace_program,
        value_and_grad,
    )
    from alpaviz.runtime import Executable, attached_cluster, list_checkpoints
    from alpaviz.runtime.launch import launch
    from alpaviz.widget import PlannerWidget

__version__ = "0.1.0"

_HOMES = {
    "attached_cluster": "runtime",
    "AlpaVizError": "errors",
    "Cluster": "cluster",
    "DeviceType": "cluster",
    "Executable": "runtime",
    "Host": "cluster",
    "Link": "cluster",
    "Pin": "pins",
    "PinKind": "pins",
    "Plan": "plan",
    "Planner": "planner",
    "PlannerState": "planner_state",
    "PlannerWidget": "widget",
    "compare_plans": "plan_diff",
    "describe_cluster": "cluster",
    "get_cluster": "cluster",
    "grad": "program",
    "launch": "runtime",
    "layer_boundary": "program",
    "list_checkpoints": "runtime",
    "load_plan": "plan_file",
    "parse_cluster": "cluster",
    "register_sharding_rule": "program",
    "save_plan": "plan_file",
    "trace_program": "program",
    "validate_plan": "plan_check",
    "value_and_grad": "program",
}

_MODULES = ("baselines", "cost", "models", "plan_figures")
"""Modules that are loaded when they are named: `alpaviz.models.get_model`."""

__all__ = [
    "AlpaVizError",
    "Cluster",
    "DeviceType",
    "Executable",
    "Host",
    "Link",
    "Pin",
    "PinKind",
    "Plan",
    "Planner",
    "PlannerState",
    "PlannerWidget",
    "attached_cluster",
    "baselines",
    "compare_plans",
    "cost",
    "describe_cluster",
    "get_cluster",
    "grad",
    "launch",
    "layer_boundary",
    "list_checkpoints",
    "load_plan",
    "models",
    "parse_cluster",
    "plan_figures",
    "register_sharding_rule",
    "save_plan",
    "trace_program",
    "validate_plan",
    "value_and_grad",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"alpaviz.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'alpaviz' has no attribute {name!r}")
    return getattr(importlib.import_module(f"alpaviz.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where JupyterLab finds the extension of a development install."""
    return [{"src": "labextension", "dest": "alpaviz-lab"}]
