"""A scan over stacked layers is planned as that many layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxpr_as_fun

import alpaviz
from alpaviz.errors import LaunchError
from alpaviz.models import get_model
from alpaviz.planner import Planner
from alpaviz.program import trace_program
from alpaviz.program.flatten import inline_calls
from alpaviz.program.layer_scans import unstack_layers
from alpaviz.program.program import Program, Role, ValueKind
from alpaviz.runtime.stacked import StackedArray

LAYERS, WIDTH = 4, 32
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2))


def make_step(
    *, remat: bool = False, reverse: bool = False, boundary: bool = False
) -> tuple[Callable[..., Any], Any, np.ndarray]:
    """Step, state and batch of a residual MLP whose blocks are scanned; each block also gives an auxiliary loss."""

    def block(x: Any, w: Any) -> Any:
        x = alpaviz.layer_boundary(x) if boundary else x
        with jax.named_scope("mlp"):
            up = jax.nn.gelu(x @ w["up"].astype(jnp.float32))
            return x + up @ w["down"] + w["bias"], jnp.mean(up)

    def loss_fn(params: Any, x: Any) -> Any:
        body = jax.checkpoint(block) if remat else block
        hidden, extra = jax.lax.scan(body, x @ params["in"], params["blocks"], reverse=reverse)
        return jnp.mean((hidden @ params["out"] - x) ** 2) + 0.1 * jnp.sum(extra)

    def step(state: Any, x: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(state["params"], x)
        updates, inner = OPTIMIZER.update(grads, state["optimizer"], state["params"])
        new = {"params": optax.apply_updates(state["params"], updates), "optimizer": inner}
        return new, {"loss": loss, "norm": optax.global_norm(grads)}

    keys = jax.random.split(jax.random.key(0), 5)

    def weight(key: Any, *shape: int) -> Any:
        return jax.random.normal(key, shape) * 0.1

    params = {
        "in": weight(keys[0], WIDTH, WIDTH),
        "out": weight(keys[1], WIDTH, WIDTH),
        "blocks": {
            "up": weight(keys[2], LAYERS, WIDTH, 4 * WIDTH),
            "down": weight(keys[3], LAYERS, 4 * WIDTH, WIDTH),
            "bias": jnp.zeros((LAYERS, WIDTH)),
        },
    }
    state = {"params": params, "optimizer": OPTIMIZER.init(params)}
    return step, state, np.asarray(jax.random.normal(keys[4], (8, WIDTH)))


def trace(**options: Any) -> Program:
    step, state, x = make_step(**options)
    return trace_program(step, state, x, num_microbatches=2)


@pytest.mark.parametrize(("stages", "remat"), [(1, False), (2, False), (2, True), (3, False)])
def test_a_scanned_model_gives_the_single_device_result(stages: int, remat: bool) -> None:
    step, state, x = make_step(remat=remat)
    expected, metrics = jax.jit(step)(*jax.jit(step)(state, x)[:1], x)
    planner = Planner(step, state, x, cluster="virtual:4", num_microbatches=2)
    planner.pin_num_stages(stages)
    planner.solve()
    with planner.launch() as executable:
        placed = executable.place(state)
        new, _ = executable(placed, x)
        new, found = executable(new, x)
        got = executable.fetch(new)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    np.testing.assert_allclose(found["norm"], metrics["norm"], rtol=1e-4)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("remat", [False, True])
def test_forward_and_backward_of_an_iteration_are_in_one_layer_of_their_own(remat: bool) -> None:
    program = trace(remat=remat)
    for role in (Role.FORWARD, Role.BACKWARD):
        layers = {
            int(op.scope.split("/")[0].removeprefix("layer_")): op.layer
            for op in program.ops
            if op.role is role and op.primitive == "dot_general" and op.scope.startswith("layer_")
        }
        first = layers[0]
        assert layers == {i: first + i for i in range(LAYERS)}


def test_no_op_of_a_scan_over_layers_is_opaque_or_reads_a_whole_stack() -> None:
    program = trace()
    assert not [op.name for op in program.ops if op.rule.is_opaque]
    assert not [v for v in program.values if v.shape[:2] == (LAYERS, WIDTH) and len(v.shape) == 3]


def test_stacked_parameters_and_their_optimizer_state_are_one_input_per_layer() -> None:
    program = trace()
    names = {v.name for v in program.values if v.kind is ValueKind.STATE}
    assert {f"state['params']['blocks']['up'][{i}]" for i in range(LAYERS)} <= names
    assert {f"state['optimizer'][1][0].nu['blocks']['up'][{i}]" for i in range(LAYERS)} <= names
    owners = {program.values[v].name: layer for v, layer in zip(program.inputs, program.input_layers, strict=True)}
    for i in range(LAYERS):
        moment = f"state['optimizer'][1][0].nu['blocks']['up'][{i}]"
        assert owners[f"state['params']['blocks']['up'][{i}]"] == owners[moment]


def test_a_boundary_inside_the_body_cuts_every_iteration() -> None:
    assert trace(boundary=True).num_layers == LAYERS + 1


def test_a_reversed_scan_runs_its_layers_backwards() -> None:
    step, state, x = make_step(reverse=True)
    planner = Planner(step, state, x, cluster="virtual:2", num_microbatches=1)
    planner.pin_num_stages(2)
    planner.solve()
    with planner.launch() as executable:
        got = executable.fetch(executable(state, x)[0])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(step)(state, x)[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_a_state_whose_stack_has_another_length_is_refused_by_name() -> None:
    step, state, x = make_step()
    planner = Planner(step, state, x, cluster="virtual:1")
    planner.solve()
    shorter = jax.tree.map(lambda a: a[:-1], state["params"]["blocks"])
    wrong = {**state, "params": {**state["params"], "blocks": shorter}}
    message = r"\['blocks'\]\['bias'\] has shape \(3, 32\)"
    with planner.launch() as executable, pytest.raises(LaunchError, match=message):
        executable(wrong, x)


def test_a_stacked_array_reads_like_the_array_that_it_stands_for() -> None:
    lanes = [np.full((2, 3), float(i)) for i in range(4)]
    stack = StackedArray(lanes)
    assert stack.shape == (4, 2, 3)
    np.testing.assert_array_equal(stack[2], lanes[2])
    np.testing.assert_array_equal(np.asarray(stack), np.stack(lanes))
    assert float(jnp.asarray(stack).sum()) == 36.0


def test_a_scan_over_the_batch_stays_a_loop() -> None:
    def loss_fn(w: Any, x: Any) -> Any:
        return jnp.mean(jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row), None), jnp.zeros(WIDTH), x)[0] ** 2)

    def step(w: Any, x: Any) -> Any:
        loss, grad = alpaviz.value_and_grad(loss_fn)(w, x)
        return w - 0.1 * grad, loss

    program = trace_program(step, jnp.ones((WIDTH, WIDTH)), jnp.ones((6, WIDTH)))
    assert sum(op.primitive == "scan" for op in program.ops) == 2


def test_a_scanned_gpt_is_planned_like_one_that_is_written_out() -> None:
    times = []
    for scan in (False, True):
        planner = Planner(*get_model("gpt-mini", batch_size=16, scan=scan), cluster="p3.16xlarge:2", num_microbatches=4)
        plan = planner.solve()
        times.append(plan.estimate.step_s)
        assert plan.program.num_layers == 9
    assert times[1] == pytest.approx(times[0], rel=0.02)


UPDATES: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda w: jnp.where(w > 0, 2 * w, jnp.exp(w)),
    "clamped": lambda w: jnp.clip(w, -0.5, 0.5),
    "whole norm": lambda w: w / (1 + jnp.sqrt(jnp.sum(w * w))),
    "largest": lambda w: w - jnp.max(w),
    "rows": lambda w: w - w.mean(-1, keepdims=True),
    "columns": lambda w: w / (1 + jnp.sum(w * w, axis=1))[:, None, :],
    "softmax": lambda w: jax.nn.softmax(w, axis=-1),
    "over layers": lambda w: w - w.mean(0),
    "cumulative over layers": lambda w: jnp.cumsum(w, axis=0),
    "cumulative": lambda w: jnp.cumsum(w, axis=2),
    "transposed": lambda w: jnp.swapaxes(jnp.swapaxes(w, 1, 2) * 2, 1, 2),
    "flattened": lambda w: (w.reshape(w.shape[0], -1) + 1).reshape(w.shape),
    "ravelled": lambda w: (w.ravel() * 3).reshape(w.shape),
    "sorted": lambda w: jnp.sort(w, axis=-1),
    "rolled": lambda w: jnp.roll(w, 1, axis=0),
    "padded": lambda w: jnp.pad(w, ((0, 0), (1, 0), (0, 1)))[:, 1:, :-1],
    "joined": lambda w: jnp.concatenate([w, w], axis=1)[:, : w.shape[1]],
    "one layer": lambda w: w + w[1],
    "squared": lambda w: w + jnp.einsum("lij,lkj->lik", w, w) @ w,
    "counted": lambda w: w + jnp.arange(w.shape[0])[:, None, None],
    "lowest": lambda w: jnp.minimum(w, w.min((0, 2), keepdims=True)),
    "all finite": lambda w: jnp.where(jnp.all(jnp.isfinite(w)), w, 0.0),
}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(UPDATES)), st.sampled_from(sorted(UPDATES)), st.integers(2, 4), st.integers(1, 3),
    st.booleans(),
)  # fmt: skip
def test_what_is_written_out_computes_the_same(first: str, second: str, layers: int, width: int, reverse: bool) -> None:
    def step(w: Any, x: Any) -> Any:
        h, ys = jax.lax.scan(lambda h, v: (jnp.tanh(h @ v), h.sum()), x, w, reverse=reverse)
        return UPDATES[second](UPDATES[first](w)), h, ys

    w = jax.random.normal(jax.random.key(layers), (layers, width, width))
    x = jnp.ones((2, width))
    closed = inline_calls(jax.make_jaxpr(step)(w, x))
    done = unstack_layers(closed, [(0, 0)], 1)
    assert done.input_lanes == (layers, 0)
    assert done.output_lanes == (layers, 0, 0)
    assert not [eqn for eqn in done.closed.jaxpr.eqns if eqn.primitive.name == "scan"]
    got = jaxpr_as_fun(done.closed)(*w, x)
    expected = step(w, x)
    np.testing.assert_allclose(np.stack(got[:layers]), expected[0], rtol=1e-4, atol=1e-5)
    for a, b in zip(got[layers:], expected[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
