"""Kinds of faults that users of planners and of JAX have reported, each provoked on a small input of ours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

import alpaviz
from alpaviz.errors import InvalidStepError, LaunchError, PinError
from alpaviz.planner import Planner
from alpaviz.program import Program, Role, enumerate_strategies
from alpaviz.program.rules import OpSignature, make_rule
from tests.program.planned_steps import (
    apply_network,
    assert_close,
    assert_launched_like_jax,
    init_network,
    make_rows,
    network_loss,
)


def descend(params: Any, grads: Any) -> Any:
    """Gradient descent."""
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def network_step(params: Any, x: Any, y: Any) -> Any:
    """Gradient descent on the small network."""
    loss, grads = alpaviz.value_and_grad(network_loss)(params, x, y)
    return descend(params, grads), loss


def solve(planner: Planner) -> Any:
    """The plan, without printing."""
    return planner.solve(on_progress=lambda _: None)


# alpa-projects/alpa#875


def test_stages_of_a_function_without_gradients_are_refused_in_words() -> None:
    params, (x, _) = init_network(), make_rows()
    planner = Planner(apply_network, params, x, cluster="virtual:4", num_microbatches=2)
    with pytest.raises(PinError, match=r"at most 1 stage.*alpaviz\.value_and_grad"):
        planner.pin_num_stages(2)
    solve(planner)
    with planner.launch() as executable:
        assert_close(executable.fetch(executable(params, x)), apply_network(params, x))


# meta-pytorch/autoparallel#348


def attention_loss(params: Any, x: Any) -> Any:
    """Multi-query attention as in Falcon: 8 query heads, 1 key head, 1 value head, fused."""
    fused = (x @ params["w"]).reshape(x.shape[0], 12, 10, 16)
    q, k, v = fused[..., :-2, :], fused[..., [-2], :], fused[..., [-1], :]
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkgd->bhqk", q, k))
    return jnp.mean(jnp.einsum("bhqk,bkgd->bqhd", weights, v) ** 2)


def attention_step(params: Any, x: Any) -> Any:
    """Gradient descent on it."""
    loss, grads = alpaviz.value_and_grad(attention_loss)(params, x)
    return descend(params, grads), loss


ATTENTION = {"w": 0.1 * jax.random.normal(jax.random.key(0), (64, 160))}
SEQUENCES = np.asarray(jax.random.normal(jax.random.key(1), (8, 12, 64)))


def list_gathers() -> list[tuple[str, str]]:
    """(name, primitive) of the gathers and scatters of the step."""
    program = Planner(attention_step, ATTENTION, SEQUENCES, cluster="virtual:8").program
    return [(op.name, op.primitive) for op in program.ops if "gather" in op.primitive or "scatter" in op.primitive]


def test_lists_of_indices_are_gathers_forward_and_scatters_backward() -> None:
    kinds = [primitive for _, primitive in list_gathers()]
    assert kinds.count("gather") >= 2
    assert sum("scatter" in kind for kind in kinds) >= 2


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("number", range(4))
def test_every_strategy_of_a_gather_or_scatter_gives_the_single_device_result(number: int, part: int) -> None:
    name, _ = list_gathers()[number]
    expected = jax.jit(attention_step)(ATTENTION, SEQUENCES)
    planner = Planner(attention_step, ATTENTION, SEQUENCES, cluster="virtual:8")
    planner.pin_num_stages(1)
    planner.pin_logical_mesh("4x2")
    solve(planner)
    labels = [alternative.strategy for alternative in planner.alternatives(name)]
    assert len(labels) >= 4
    for label in labels[part::4]:
        planner.pin_strategy(name, label)
        plan = solve(planner)
        op = next(op for op in planner.program.ops if op.name == name)
        assert plan.ops[op.id].strategy == label
        with planner.launch() as executable:
            assert_close(executable.fetch(executable(ATTENTION, SEQUENCES)), expected)
        planner.unpin(planner.pins[-1])


# meta-pytorch/autoparallel#423


def nested_step(params: Any, batch: Any) -> Any:
    """A step whose batch is nested, with a Python int among its leaves."""

    def loss_fn(params: Any) -> Any:
        scale, (pairs,) = batch["aux"][0]["m"], batch["aux"][1]
        hidden = params["table"][batch["tok"]].mean(1) * scale[:, None]
        return jnp.mean((hidden @ params["w"] - pairs @ params["v"]) ** 2) * batch["n"]

    loss, grads = alpaviz.value_and_grad(loss_fn)(params)
    return descend(params, grads), loss


NESTED_PARAMS = {
    "table": jax.random.normal(jax.random.key(0), (32, 16)),
    "w": 0.1 * jnp.ones((16, 16)),
    "v": 0.1 * jnp.ones((4, 16)),
}
NESTED_BATCH = {
    "tok": np.arange(128).reshape(8, 16) % 32,
    "aux": ({"m": np.linspace(0, 1, 8, dtype=np.float32)}, [np.ones((8, 4), np.float32)]),
    "n": 3,
}


@pytest.mark.parametrize("stages", [1, 2])
def test_every_leaf_of_a_nested_batch_is_sliced_and_an_int_is_not(stages: int) -> None:
    planner = assert_launched_like_jax(nested_step, NESTED_PARAMS, NESTED_BATCH, stages=stages, num_layers=2)
    axes = {planner.program.values[v].name: a for v, a in zip(planner.program.inputs, planner.program.batch_axes)}
    assert axes["batch['tok']"] == axes["batch['aux'][0]['m']"] == axes["batch['aux'][1][0]"] == 0
    assert axes["batch['n']"] is None


def test_a_wrong_batch_axis_names_the_nested_leaf() -> None:
    axes = ({"tok": 0, "aux": ({"m": 1}, [0]), "n": -1},)
    planner = Planner(nested_step, NESTED_PARAMS, NESTED_BATCH, cluster="virtual:4", batch_axes=axes)
    with pytest.raises(InvalidStepError, match=r"batch\['aux'\]\[0\]\['m'\] of shape \(8,\) has no dimension 1"):
        solve(planner)


# meta-pytorch/autoparallel#22, #23


@pytest.mark.parametrize(
    ("left", "right", "mesh"),
    [
        ((32, 4096), (4096, 64), {"x": 32, "y": 8}),
        ((6, 10), (10, 6), {"x": 4, "y": 2}),
        ((1, 8), (8, 1), {"x": 4, "y": 2}),
    ],
)
def test_no_dimension_is_split_into_more_or_uneven_parts(left: Any, right: Any, mesh: dict[str, int]) -> None:
    result = (left[0], right[1])
    params = {"dimension_numbers": (((1,), (0,)), ((), ()))}
    rule = make_rule(OpSignature("dot_general", (left, right), (result,), params))
    strategies = enumerate_strategies(rule, mesh)  # type: ignore[arg-type]
    assert strategies
    for strategy in strategies:
        shapes = zip((*strategy.input_specs, *strategy.output_specs), (left, right, result), strict=True)
        for spec, shape in shapes:
            for axes, size in zip(spec, shape, strict=True):
                parts = int(np.prod([mesh[axis] for axis in axes], dtype=int))
                assert size % parts == 0, (strategy.label, size, parts)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("[x, -]", "dimension 0 of state has 6 elements, which do not divide into 4 parts"),
        ("[-, xy]", "dimension 1 of state has 10 elements, which do not divide into 8 parts"),
        ("[x]", "state has 2 dimensions"),
        ("x, y", "state has 2 dimensions"),
    ],
)
def test_a_pin_to_an_uneven_split_is_refused_with_both_numbers(spec: str, words: str) -> None:
    def step(w: Any, x: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - grads, loss

    planner = Planner(step, jnp.ones((6, 10)), np.ones((8, 6), np.float32), cluster="virtual:8")
    planner.pin_logical_mesh("4x2")
    with pytest.raises(PinError, match=words):
        planner.pin_spec("state", spec)
    planner.pin_spec("state", "[y, -]")
    assert solve(planner).values[planner.program.inputs[0]].spec == (("y",), ())


# talmolab/track-mjx#192, jax-ml/jax#12514


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("donate_state", [False, True])
def test_a_cell_that_is_run_again_finds_its_arrays(donate_state: bool, stages: int) -> None:
    params, (x, y) = init_network(), make_rows()
    x, y = jnp.asarray(x), jnp.asarray(y)
    planner = Planner(network_step, params, x, y, cluster="virtual:4", num_microbatches=2)
    planner.pin_num_stages(stages)
    solve(planner)
    found = []
    for _ in range(2):
        with planner.launch(donate_state=donate_state) as executable:
            found.append(executable.fetch(executable(params, x, y)))
        jax.tree.map(jnp.sum, (params, x, y))
    assert_close(*found, rtol=0, atol=0)


# jax-ml/jax#7826


def test_a_static_field_that_holds_an_array_is_compared_by_its_numbers() -> None:
    struct = pytest.importorskip("flax.struct")

    class State(struct.PyTreeNode):  # type: ignore[misc,name-defined]
        w: Any
        c: Any = struct.field(pytree_node=False)

    def make(scale: float = 1.0) -> Any:
        return State(0.1 * jnp.ones((16, 16)), scale * np.arange(16, dtype=np.float32))

    def step(state: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(lambda w: jnp.mean((x @ w * state.c - y) ** 2))(state.w)
        return state.replace(w=state.w - 1e-3 * grads), loss

    x, y = make_rows()
    planner = Planner(step, make(), x, y, cluster="virtual:4", num_microbatches=2)
    solve(planner)
    assert planner.program.state_outputs
    with planner.launch() as executable:
        first, _ = executable(make(), x, y)
        again, _ = executable(make(), x, y)
        np.testing.assert_array_equal(executable.fetch(first.w), executable.fetch(again.w))
        np.testing.assert_allclose(executable.fetch(first.w), step(make(), x, y)[0].w, rtol=1e-5)
        with pytest.raises(LaunchError, match="planned for arguments of another structure"):
            executable(make(2.0), x, y)


# meta-pytorch/autoparallel#420


@contextmanager
def rules_given(rules: dict[str, str]) -> Iterator[None]:
    """Register rules, and take them out again."""
    from alpaviz.program.rules import registry

    before = dict(registry._RULES)
    for name, rule in rules.items():
        alpaviz.register_sharding_rule(name, rule)
    yield
    registry._RULES.clear()
    registry._RULES.update(before)


def make_product() -> Any:
    """A matrix product of the user's own whose forward and backward are primitives that nobody else knows."""

    def make_primitive(name: str, function: Any) -> Any:
        primitive = jax.extend.core.Primitive(name)
        primitive.def_impl(function)
        primitive.def_abstract_eval(lambda *avals: jax.core.ShapedArray(*_infer(function, avals)))
        mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
        return primitive

    forward = make_primitive("our_product", lambda x, w: x @ w)
    backward = make_primitive("our_product_gradient", lambda x, g: x.T @ g)

    @jax.custom_vjp
    def product(x: Any, w: Any) -> Any:
        return forward.bind(x, w)

    product.defvjp(
        lambda x, w: (forward.bind(x, w), (x, w)), lambda kept, g: (g @ kept[1].T, backward.bind(kept[0], g))
    )
    return product


def _infer(function: Any, avals: Any) -> tuple[Any, Any]:
    made = jax.eval_shape(function, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))
    return made.shape, made.dtype


@pytest.mark.parametrize("spec", ["[x, -]", "[-, x]", "[y, x]", "[xy, -]", "[-, -]"])
def test_a_parameter_and_a_gradient_of_other_layouts_are_brought_together(spec: str) -> None:
    product = make_product()

    def step(w: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(lambda w: jnp.mean((product(x, w) - y) ** 2))(w)
        return w - 0.1 * grads, loss

    x, y = make_rows(rows=16)
    w = 0.1 * jax.random.normal(jax.random.key(0), (16, 16))
    with rules_given({"our_product": "b k, k n -> b n", "our_product_gradient": "b 1, b 1 -> 1 1"}):
        planner = Planner(step, w, x, y, cluster="virtual:8", num_microbatches=2)
        planner.pin_logical_mesh("4x2")
        planner.pin_spec("state", spec)
        solve(planner)
        with planner.launch() as executable:
            assert_close(executable.fetch(executable(w, x, y)), jax.jit(step)(w, x, y))


# jax-ml/jax#39309, #31799


@pytest.mark.parametrize("mesh", [{"x": 1, "y": 4}, {"x": 4, "y": 1}])
def test_axes_of_size_one_are_in_no_strategy(mesh: dict[str, int]) -> None:
    params = {"dimension_numbers": (((1,), (0,)), ((), ()))}
    rule = make_rule(OpSignature("dot_general", ((8, 8), (8, 8)), ((8, 8),), params))
    real = {axis: size for axis, size in mesh.items() if size > 1}
    assert enumerate_strategies(rule, mesh) == enumerate_strategies(rule, real)


def test_a_pin_to_an_axis_of_size_one_is_refused_in_words() -> None:
    params, batch = init_network(), make_rows()
    planner = Planner(network_step, params, *batch, cluster="virtual:4", num_microbatches=2)
    with pytest.raises(PinError, match=r"no such shape .*Possible: 1, 2, 4, 2x2"):
        planner.pin_logical_mesh("1x4")
    planner.pin_logical_mesh("4")
    with pytest.raises(PinError, match="the logical mesh 4 has no axis y of more than one device"):
        planner.pin_spec("state['layer_0']['w']", "[x, y]")
    planner.pin_spec("state['layer_0']['w']", "[x, -]")
    solve(planner)
    with planner.launch() as executable:
        assert_close(executable.fetch(executable(params, *batch)), jax.jit(network_step)(params, *batch))


# openxla/xla#42481


def embedding_step(params: Any, ids: Any) -> Any:
    """The gradient of a table by which both ends of a small model work."""

    def loss_fn(params: Any) -> Any:
        x = params["table"][ids]
        x = x + jax.nn.gelu(x @ params["up"]) @ params["down"]
        logits = x[:, :-1] @ params["table"].T
        chosen = jnp.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    loss, grads = alpaviz.value_and_grad(loss_fn)(params)
    return descend(params, grads), loss


EMBEDDING = {
    "table": jax.random.normal(jax.random.key(0), (32, 16)),
    "up": 0.2 * jax.random.normal(jax.random.key(1), (16, 32)),
    "down": 0.2 * jax.random.normal(jax.random.key(2), (32, 16)),
}
IDS = np.asarray(jax.random.randint(jax.random.key(3), (16, 9), 0, 8))  # few different ones: many rows meet


@pytest.mark.parametrize(
    ("table", "ids"), list(itertools.product(["[x, -]", "[-, y]", "[xy, -]", "[y, x]"], ["[x, -]", "[-, -]"]))
)
def test_the_gradient_of_an_embedding_is_right_in_each_layout(table: str, ids: str) -> None:
    planner = Planner(embedding_step, EMBEDDING, IDS, cluster="virtual:8", num_microbatches=2)
    planner.pin_num_stages(1)
    planner.pin_logical_mesh("4x2")
    planner.pin_spec("state['table']", table)
    planner.pin_spec("batch", ids)
    solve(planner)
    with planner.launch() as executable:
        got = executable.fetch(executable(EMBEDDING, IDS))
    assert_close(got, jax.jit(embedding_step)(EMBEDDING, IDS))


# openxla/xla#49143


@pytest.mark.parametrize("stages", [1, 2])
def test_gradients_of_an_embedding_summed_over_microbatches_are_right(stages: int) -> None:
    planner = assert_launched_like_jax(
        embedding_step, EMBEDDING, IDS, stages=stages, microbatches=4, num_layers=2, cluster="virtual:4"
    )
    assert _count_scatters(planner.program) >= 1


def _count_scatters(program: Program) -> int:
    return sum("scatter" in op.primitive and op.role is Role.BACKWARD for op in program.ops)
