"""A traced program's recipe on its way to workers: the user's step pickled so that they need not import it."""

from __future__ import annotations

import functools
import sys
from typing import Any


def pickle_recipe(recipe: Any) -> bytes:
    """`recipe` with the step's own module pickled by value, unless it is an installed package."""
    return pickle_by_value(recipe, recipe.step)


def pickle_by_value(data: Any, function: Any) -> bytes:
    """`data` with the module of `function`, which is in it, pickled by value unless workers can import it."""
    from ray import cloudpickle

    module = find_own_module(function)
    if module is None:
        return bytes(cloudpickle.dumps(data))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(data))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def find_own_module(step: Any) -> Any | None:
    """The module that defines `step`, or None where workers can import it or it is `__main__`, which goes by value."""
    while isinstance(step, functools.partial):
        step = step.func
    name = getattr(step, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    return None if module is None or name == "__main__" or _is_installed(module) else module


def _is_installed(module: Any) -> bool:
    package = module.__name__.split(".")[0]
    path = getattr(module, "__file__", None) or ""
    return "site-packages" in path or package == "alpaviz" or package in sys.stdlib_module_names
