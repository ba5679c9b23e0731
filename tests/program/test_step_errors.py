"""What cannot be planned is refused with the user's own line first."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import alpaviz
from alpaviz.errors import InvalidStepError
from alpaviz.planner import Planner
from alpaviz.program import trace_program
from tests.program.planned_steps import apply_network, init_network, make_rows, network_loss

X, Y = make_rows()


def refuse(change: Callable[[Any], Any], inside: bool) -> str:
    """The message for a step that applies `change` to its inputs, inside of `value_and_grad` or to its results."""

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        return network_loss(params, change(x) if inside else x, y)

    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(params, x, y)
        if not inside:
            loss = change(loss)
        return jax.tree.map(lambda p, g: p - g, params, grads), loss

    with pytest.raises(InvalidStepError) as caught:
        trace_program(step, init_network(), X, Y)
    return str(caught.value)


def line_of(function: Callable[..., Any], offset: int = 1) -> str:
    """`test_step_errors.py:41: ` of a line in a function."""
    return f"test_step_errors.py:{function.__code__.co_firstlineno + offset}: "


def print_it(x: Any) -> Any:
    jax.debug.print("x is {}", x)
    return x


def call_back(x: Any) -> Any:
    io_callback(lambda value: None, None, x)
    return x


def call_back_in_order(x: Any) -> Any:
    io_callback(lambda value: None, None, x, ordered=True)
    return x


def print_in_a_loop(x: Any) -> Any:
    def body(i: Any, x: Any) -> Any:
        jax.debug.print("x is {}", x)
        return x

    return jax.lax.fori_loop(0, 3, body, x)


def find_nonzero(x: Any) -> Any:
    rows = jnp.nonzero(jnp.atleast_1d(x) > 0)
    return x * len(rows)


def mask_rows(x: Any) -> Any:
    kept = x[x > 0]
    return x * kept.sum()


def branch_on_a_value(x: Any) -> Any:
    if x.sum() > 0:
        return x
    return -x


def read_a_number(x: Any) -> Any:
    return x * float(x.sum())


def convert_to_numpy(x: Any) -> Any:
    return x * np.asarray(x).sum()


def raise_an_error(x: Any) -> Any:
    raise KeyError("no such layer")


def mismatch(x: Any) -> Any:
    return x.sum() * (jnp.ones((3, 2)) @ jnp.ones((3, 3)))


inside_or_not = pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])


@inside_or_not
@pytest.mark.parametrize("change", [print_it, call_back, call_back_in_order], ids=lambda f: f.__name__)
def test_side_effects_are_refused_with_their_line(change: Any, inside: bool) -> None:
    message = refuse(change, inside)
    assert message.startswith(f"{line_of(change)}the training step has a side effect")
    assert "Remove the callback or print" in message


@inside_or_not
def test_a_print_in_a_loop_is_refused(inside: bool) -> None:
    assert "the training step has a side effect" in refuse(print_in_a_loop, inside)


@inside_or_not
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (find_nonzero, "ConcretizationTypeError: .*size argument"),
        (mask_rows, "NonConcreteBooleanIndexError"),
        (branch_on_a_value, "TracerBoolConversionError"),
        (read_a_number, "ConcretizationTypeError"),
        (convert_to_numpy, "TracerArrayConversionError"),
        (raise_an_error, "KeyError: 'no such layer'"),
        (mismatch, "TypeError: "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_step_that_cannot_be_traced_is_refused_with_the_users_line(change: Any, words: str, inside: bool) -> None:
    message = refuse(change, inside)
    assert message.startswith(line_of(change))
    assert re.search(f"the training step cannot be traced: {words}", message)


@inside_or_not
def test_an_error_inside_of_a_library_comes_with_the_users_line(inside: bool) -> None:
    linen = pytest.importorskip("flax.linen")
    layer = linen.Dense(4)

    def apply_layer(x: Any) -> Any:
        return layer.apply({"params": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}, x[..., None])

    assert refuse(apply_layer, inside).startswith(line_of(apply_layer))


CELL = """
def step(params, x, y):
    def loss_fn(params):
        LINE
        return network_loss(params, x, y)
    loss, grads = alpaviz.value_and_grad(loss_fn)(params)
    return params, loss
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("jax.debug.print('{}', x)", "the training step has a side effect"),
        ("[][1]", "the training step cannot be traced: IndexError"),
    ],
    ids=["effect", "exception"],
)
def test_a_line_of_a_notebook_cell_is_called_so(line: str, words: str) -> None:
    name = "/tmp/ipykernel_4242/1234567.py"
    source = CELL.replace("LINE", line)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Any] = {"jax": jax, "alpaviz": alpaviz, "network_loss": network_loss}
    exec(compile(source, name, "exec"), names)
    with pytest.raises(InvalidStepError, match=f"^cell:4: {words}"):
        trace_program(names["step"], init_network(), X, Y)


def test_the_line_is_in_the_error_of_a_solve_too() -> None:
    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(lambda p: jnp.mean(mask_rows(apply_network(p, x)) - y))(params)
        return jax.tree.map(lambda p, g: p - g, params, grads), loss

    planner = Planner(step, init_network(), X, Y, cluster="virtual:4")
    with pytest.raises(InvalidStepError, match=f"^{line_of(mask_rows)}"):
        planner.solve(on_progress=lambda _: None)


def test_a_result_of_an_unknown_class_is_named() -> None:
    class Bag:
        """No pytree."""

    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(network_loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - g, params, grads), {"loss": loss, "bag": Bag()}

    with pytest.raises(InvalidStepError, match=r"returns a Bag at \[1\]\['bag'\]"):
        trace_program(step, init_network(), X, Y)
