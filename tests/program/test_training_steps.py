"""Kinds of training steps that people write, each planned and launched with the single-device result."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import alpaviz
from alpaviz.errors import InvalidStepError, LaunchError
from alpaviz.planner import Planner
from tests.program.planned_steps import (
    apply_network,
    assert_close,
    assert_launched_like_jax,
    init_network,
    make_rows,
    network_loss,
)

both_stages = pytest.mark.parametrize("stages", [1, 2])


def descend(params: Any, grads: Any) -> Any:
    """Gradient descent."""
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def run_one_by_one(step: Any, microbatches: int = 2) -> Any:
    """A reference for steps that differ by microbatch: each starts from the same state, floating results are averaged,
    others are the last's. Right only for steps that are linear in the gradient.
    """

    def run(state: Any, *batch: Any) -> Any:
        parts = [jax.tree.map(lambda a, i=i: jnp.split(a, microbatches)[i], batch) for i in range(microbatches)]
        found = [step(state, *part) for part in parts]
        return jax.tree.map(lambda *a: sum(a) / len(a) if jnp.issubdtype(a[0].dtype, jnp.floating) else a[-1], *found)

    return run


def drop(key: Any, x: Any) -> Any:
    """Dropout with a mask per element."""
    return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0)


def dropout_loss(params: Any, key: Any, x: Any, y: Any) -> Any:
    """The network with dropout after each layer."""
    for i, p in enumerate(params.values()):
        x = drop(jax.random.fold_in(key, i), jnp.tanh(x @ p["w"] + p["b"]))
    return jnp.mean((x - y) ** 2)


# Random numbers


@both_stages
@pytest.mark.parametrize("make_key", [jax.random.PRNGKey, jax.random.key], ids=["raw", "typed"])
def test_a_dropout_key_in_the_state_gives_each_microbatch_the_same_numbers(make_key: Any, stages: int) -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        key, use = jax.random.split(state["key"])
        loss, grads = alpaviz.value_and_grad(dropout_loss)(state["params"], use, x, y)
        return {"params": descend(state["params"], grads), "key": key}, loss

    state = {"params": init_network(), "key": make_key(5)}
    assert_launched_like_jax(step, state, *make_rows(), stages=stages, reference=run_one_by_one(step))


@both_stages
@pytest.mark.parametrize("make_key", [jax.random.PRNGKey, jax.random.key], ids=["raw", "typed"])
def test_a_key_per_row_of_the_batch_gives_the_single_device_result(make_key: Any, stages: int) -> None:
    def loss_fn(params: Any, keys: Any, x: Any, y: Any) -> Any:
        for i, p in enumerate(params.values()):
            x = jax.vmap(drop)(jax.vmap(jax.random.fold_in, (0, None))(keys, i), jnp.tanh(x @ p["w"] + p["b"]))
        return jnp.mean((x - y) ** 2)

    def step(params: Any, keys: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(params, keys, x, y)
        return descend(params, grads), loss

    keys = jax.vmap(make_key)(jnp.arange(8))
    assert_launched_like_jax(step, init_network(), keys, *make_rows(), stages=stages)


@both_stages
@pytest.mark.parametrize("make_key", [jax.random.PRNGKey, jax.random.key], ids=["raw", "typed"])
def test_a_key_that_is_not_sliced_is_given_whole_to_each_microbatch(make_key: Any, stages: int) -> None:
    def step(params: Any, key: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(dropout_loss)(params, key, x, y)
        return descend(params, grads), loss

    def reference(params: Any, key: Any, x: Any, y: Any) -> Any:
        return run_one_by_one(lambda params, x, y: step(params, key, x, y))(params, x, y)

    assert_launched_like_jax(
        step, init_network(), make_key(5), *make_rows(), stages=stages, reference=reference, batch_axes=(-1, 0, 0)
    )


# State beside parameters


@both_stages
def test_statistics_of_batchnorm_are_averaged_over_microbatches(stages: int) -> None:
    def loss_fn(params: Any, statistics: Any, x: Any, y: Any) -> Any:
        found = {}
        for name, p in params.items():
            x = jnp.tanh(x @ p["w"] + p["b"])
            mean, variance = x.mean(0), x.var(0)
            x = (x - mean) * jax.lax.rsqrt(variance + 1e-2)
            old = statistics[name]
            found[name] = {"mean": 0.9 * old["mean"] + 0.1 * mean, "var": 0.9 * old["var"] + 0.1 * variance}
        return jnp.mean((x - y) ** 2), found

    def step(state: Any, x: Any, y: Any) -> Any:
        grad_fn = alpaviz.value_and_grad(loss_fn, has_aux=True)
        (loss, statistics), grads = grad_fn(state["params"], state["statistics"], x, y)
        return {"params": descend(state["params"], grads), "statistics": statistics}, loss

    params = init_network()
    statistics = {name: {"mean": jnp.zeros(16), "var": jnp.ones(16)} for name in params}
    state = {"params": params, "statistics": statistics}
    assert_launched_like_jax(step, state, *make_rows(), stages=stages, reference=run_one_by_one(step), rtol=1e-3)


# Losses and metrics


@both_stages
def test_auxiliary_losses_and_metrics_give_the_single_device_result(stages: int) -> None:
    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        outputs = []
        for p in params.values():
            x = jnp.tanh(x @ p["w"] + p["b"])
            outputs.append(x)
        main = jnp.mean((x - y) ** 2)
        activity = sum(jnp.mean(jnp.abs(out)) for out in outputs)
        decay = sum(jnp.sum(p["w"] ** 2) for p in params.values())
        metrics = {"main": main, "activity": activity, "decay": decay, "first": outputs[0].mean(), "rows": x.shape[0]}
        return main + 0.1 * activity + 1e-3 * decay, metrics

    def step(params: Any, x: Any, y: Any) -> Any:
        (loss, metrics), grads = alpaviz.value_and_grad(loss_fn, has_aux=True)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        del metrics["rows"]
        return descend(params, grads), {"loss": loss, "norm": norm, **metrics}

    assert_launched_like_jax(step, init_network(), *make_rows(), stages=stages)


@both_stages
def test_several_losses_one_after_another_give_the_single_device_result(stages: int) -> None:
    def second_loss(params: Any, x: Any) -> Any:
        return jnp.mean(apply_network(params, x) ** 2)

    def step(state: Any, x: Any, y: Any) -> Any:
        a, ga = alpaviz.value_and_grad(network_loss)(state["a"], x, y)
        b, gb = alpaviz.value_and_grad(second_loss)(state["b"], x)
        return {"a": descend(state["a"], ga), "b": descend(state["b"], gb)}, {"a": a, "b": b}

    state = {"a": init_network(), "b": init_network(seed=1)}
    assert_launched_like_jax(step, state, *make_rows(), stages=stages)


@both_stages
def test_two_losses_of_the_same_parameters_give_the_single_device_result(stages: int) -> None:
    def step(params: Any, x: Any, y: Any) -> Any:
        a, ga = alpaviz.value_and_grad(network_loss)(params, x, y)
        b, gb = alpaviz.value_and_grad(network_loss)(params, y, x)
        return descend(params, jax.tree.map(lambda g, h: g + 0.5 * h, ga, gb)), (a, b)

    assert_launched_like_jax(step, init_network(), *make_rows(), stages=stages)


# Parameters in unusual places


@both_stages
def test_parameters_frozen_by_stop_gradient_give_the_single_device_result(stages: int) -> None:
    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        frozen = {name: jax.lax.stop_gradient(p) if name == "layer_1" else p for name, p in params.items()}
        return network_loss(frozen, x, y)

    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(params, x, y)
        return descend(params, grads), loss

    assert_launched_like_jax(step, init_network(), *make_rows(), stages=stages)


@both_stages
@pytest.mark.parametrize("trained", ["first", "last"])
def test_training_a_subset_of_the_arguments_gives_the_single_device_result(trained: str, stages: int) -> None:
    def loss_fn(head: Any, body: Any, x: Any, y: Any) -> Any:
        parts = {**head, **body} if trained == "first" else {**body, **head}
        return network_loss(parts, x, y)

    def step(state: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn, argnums=0)(state["trained"], state["frozen"], x, y)
        return {"trained": descend(state["trained"], grads), "frozen": state["frozen"]}, loss

    params = init_network()
    names = list(params)
    chosen = names[:2] if trained == "first" else names[2:]
    state = {
        "trained": {name: params[name] for name in chosen},
        "frozen": {name: params[name] for name in names if name not in chosen},
    }
    assert_launched_like_jax(step, state, *make_rows(), stages=stages)


@both_stages
def test_two_differentiated_arguments_give_the_single_device_result(stages: int) -> None:
    def loss_fn(x: Any, body: Any, y: Any, head: Any) -> Any:
        return network_loss({**body, **head}, x, y)

    def step(state: Any, x: Any, y: Any) -> Any:
        loss, (body, head) = alpaviz.value_and_grad(loss_fn, argnums=(1, 3))(x, state["body"], y, state["head"])
        return {"body": descend(state["body"], body), "head": descend(state["head"], head)}, loss

    params = init_network()
    state = {"body": {k: params[k] for k in list(params)[:2]}, "head": {k: params[k] for k in list(params)[2:]}}
    assert_launched_like_jax(step, state, *make_rows(), stages=stages)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_an_embedding_tied_to_the_last_layer_gives_the_single_device_result(stages: int) -> None:
    def loss_fn(params: Any, ids: Any) -> Any:
        x = apply_network(params["body"], params["table"][ids[:, :-1]])
        logits = x @ params["table"].T
        chosen = jnp.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    def step(params: Any, ids: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(params, ids)
        return descend(params, grads), loss

    params = {"table": jax.random.normal(jax.random.key(4), (32, 16)), "body": init_network()}
    ids = np.asarray(jax.random.randint(jax.random.key(5), (8, 9), 0, 32))
    assert_launched_like_jax(step, params, ids, stages=stages, num_layers=max(stages, 2))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_u_net_whose_skips_pass_over_stages_gives_the_single_device_result(stages: int) -> None:
    def convolve(x: Any, w: Any, stride: int = 1) -> Any:
        return jax.nn.relu(
            jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )

    def enlarge(x: Any) -> Any:
        return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        one = convolve(x, params["down1"])
        two = convolve(one, params["down2"], 2)
        three = convolve(two, params["middle"], 2)
        up = convolve(jnp.concatenate([enlarge(three), two], -1), params["up2"])
        up = convolve(jnp.concatenate([enlarge(up), one], -1), params["up1"])
        return jnp.mean((up - y) ** 2)

    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(params, x, y)
        return descend(params, grads), loss

    channels = {"down1": (4, 4), "down2": (4, 4), "middle": (4, 4), "up2": (8, 4), "up1": (8, 4)}
    keys = jax.random.split(jax.random.key(0), 5)
    params = {n: 0.3 * jax.random.normal(k, (3, 3, *c)) for k, (n, c) in zip(keys, channels.items(), strict=True)}
    x, y = (np.asarray(jax.random.normal(jax.random.key(i), (4, 8, 8, 4))) for i in (7, 8))
    assert_launched_like_jax(step, params, x, y, stages=stages, num_layers=max(stages, 2))


@both_stages
def test_an_encoder_and_a_decoder_with_cross_attention_give_the_single_device_result(stages: int) -> None:
    def attend(p: Any, x: Any, memory: Any) -> Any:
        q, k, v = x @ p["q"], memory @ p["k"], memory @ p["v"]
        return x + jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / 4, -1) @ v @ p["o"]

    def loss_fn(params: Any, source: Any, target: Any) -> Any:
        memory = source
        for p in params["encoder"]:
            memory = attend(p, memory, memory)
        x = target[:, :-1]
        for p in params["decoder"]:
            x = attend(p["cross"], attend(p["self"], x, x), memory)
        return jnp.mean((x - target[:, 1:]) ** 2)

    def step(params: Any, source: Any, target: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(params, source, target)
        return descend(params, grads), loss

    keys = iter(jax.random.split(jax.random.key(0), 24))

    def make() -> Any:
        return {name: 0.2 * jax.random.normal(next(keys), (16, 16)) for name in "qkvo"}

    params = {"encoder": [make(), make()], "decoder": [{"self": make(), "cross": make()} for _ in range(2)]}
    source, target = (np.asarray(jax.random.normal(jax.random.key(i), (8, n, 16))) for i, n in ((7, 6), (8, 5)))
    assert_launched_like_jax(step, params, source, target, stages=stages)


# How the step is called


def plain_step(params: Any, x: Any, y: Any) -> Any:
    """Gradient descent on the small network."""
    loss, grads = alpaviz.value_and_grad(network_loss)(params, x, y)
    return descend(params, grads), loss


@both_stages
def test_a_jitted_step_that_donates_its_state_gives_the_single_device_result(stages: int) -> None:
    donating = functools.partial(jax.jit, donate_argnums=(0,))(plain_step)
    params = init_network()
    assert_launched_like_jax(donating, params, *make_rows(), stages=stages, reference=plain_step)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


@both_stages
def test_a_step_with_static_arguments_bound_gives_the_single_device_result(stages: int) -> None:
    def step(rate: float, name: str, params: Any, x: Any, y: Any, *, power: int) -> Any:
        loss, grads = alpaviz.value_and_grad(network_loss)(params, x, y)
        assert isinstance(rate, float)
        assert isinstance(power, int)
        return jax.tree.map(lambda p, g: p - rate**power * g, params, grads), {name: loss}

    bound = functools.partial(step, 0.1, "loss", power=2)
    assert_launched_like_jax(bound, init_network(), *make_rows(), stages=stages)


@both_stages
def test_static_arguments_of_a_jitted_step_give_the_single_device_result(stages: int) -> None:
    @functools.partial(jax.jit, static_argnums=(3, 4))
    def step(params: Any, x: Any, y: Any, power: int, names: tuple[str, ...]) -> Any:
        assert isinstance(power, int)
        loss, grads = alpaviz.value_and_grad(network_loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1**power * g, params, grads), dict.fromkeys(names, loss)

    x, y = make_rows()
    planner = assert_launched_like_jax(
        step, init_network(), x, y, 2, ("a", "b"), stages=stages, jit=lambda function: function
    )
    with planner.launch() as executable, pytest.raises(LaunchError, match="batch2 was 2 and is 3"):
        executable(init_network(), x, y, 3, ("a", "b"))


def test_a_step_that_takes_its_arguments_by_keyword_is_told_how_to_wrap_itself() -> None:
    def step(*, params: Any, batch: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(network_loss)(params, *batch)
        return {"params": descend(params, grads)}, loss

    with pytest.raises(InvalidStepError, match=r"params, batch by keyword only: wrap it, .*\(\*\*state, batch"):
        Planner(step, {"params": init_network()}, make_rows(), cluster="virtual:4")
    assert_launched_like_jax(
        lambda state, batch: step(**state, batch=batch), {"params": init_network()}, make_rows(), stages=2
    )


def test_a_step_with_another_number_of_arguments_is_refused() -> None:
    with pytest.raises(InvalidStepError, match=r"with 1 batch argument: missing a required argument: 'y'"):
        Planner(plain_step, init_network(), make_rows()[0], cluster="virtual:4")


@both_stages
def test_leaves_that_are_no_arrays_give_the_single_device_result(stages: int) -> None:
    def loss_fn(model: Any, x: Any, y: Any) -> Any:
        for p in model["params"].values():
            x = model["activation"](x @ p["w"] + p["b"])
        return jnp.mean((x - y) ** 2)

    def step(state: Any, batch: Any) -> Any:
        def measure(params: Any) -> Any:
            return loss_fn({**state["model"], "params": params}, batch["x"], batch["y"])

        loss, grads = alpaviz.value_and_grad(measure)(state["model"]["params"])
        params = descend(state["model"]["params"], grads)
        return {**state, "model": {**state["model"], "params": params}}, {state["name"]: loss}

    model = {"params": init_network(), "activation": jax.nn.gelu, "norm": None}
    state = {"model": model, "name": "mean squared error", "dtype": np.dtype("float32")}
    x, y = make_rows()

    def reference(state: Any, batch: Any) -> Any:
        params, metrics = jax.jit(lambda params: _keep_params(step, state, params, batch))(state["model"]["params"])
        return {**state, "model": {**state["model"], "params": params}}, metrics

    assert_launched_like_jax(
        step, state, {"x": x, "y": y}, stages=stages, reference=reference, jit=lambda function: function
    )


def _keep_params(step: Any, state: Any, params: Any, batch: Any) -> Any:
    new, metrics = step({**state, "model": {**state["model"], "params": params}}, batch)
    return new["model"]["params"], metrics


# Microbatches


@both_stages
@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_a_loss_that_sums_over_the_batch_gives_the_single_device_result(microbatches: int, stages: int) -> None:
    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        squares = (apply_network(params["net"], x) - y) ** 2
        shift = params["shift"].sum() * x.shape[0]  # its gradient depends on nothing but the number of rows
        scale = params["net"]["layer_0"]["w"][0, 0] * 2  # depends on the state alone
        return jnp.sum(squares) / 100 + shift, {"worst": jnp.sum(jnp.max(squares, -1)), "scale": scale}

    def step(params: Any, x: Any, y: Any) -> Any:
        (loss, metrics), grads = alpaviz.value_and_grad(loss_fn, has_aux=True, reduction="sum")(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), {"loss": loss, **metrics}

    params = {"net": init_network(), "shift": jnp.zeros(3)}
    assert_launched_like_jax(step, params, *make_rows(), stages=stages, microbatches=microbatches)


@both_stages
def test_a_tied_parameter_under_a_summed_loss_gives_the_single_device_result(stages: int) -> None:
    def loss_fn(params: Any, x: Any) -> Any:
        return jnp.sum((apply_network(params["net"], x @ params["tied"]) @ params["tied"].T - x) ** 2)

    def step(params: Any, x: Any) -> Any:
        grads = alpaviz.grad(loss_fn, reduction="sum")(params, x)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), None

    params = {"net": init_network(), "tied": 0.3 * jax.random.normal(jax.random.key(3), (16, 16))}
    assert_launched_like_jax(step, params, make_rows()[0], stages=stages)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(InvalidStepError, match="reduction must be 'mean' or 'sum', not 'max'"):
        alpaviz.value_and_grad(network_loss, reduction="max")


@both_stages
def test_values_that_do_not_depend_on_the_batch_give_the_single_device_result(stages: int) -> None:
    def loss_fn(params: Any, table: Any, x: Any, y: Any) -> Any:
        smooth = jnp.tanh(table["w"] @ table["w"].T)
        decay = sum(jnp.sum(p["w"] ** 2) for p in params.values())
        return network_loss(params, x @ smooth, y) + 1e-3 * decay, {"decay": decay, "count": table["count"] + 1}

    def step(state: Any, x: Any, y: Any) -> Any:
        grad_fn = alpaviz.value_and_grad(loss_fn, has_aux=True)
        (loss, aux), grads = grad_fn(state["params"], state["table"], x, y)
        table = {"w": state["table"]["w"] * 0.9, "count": aux["count"]}
        return {"params": descend(state["params"], grads), "table": table}, {"loss": loss, "decay": aux["decay"]}

    table = {"w": 0.3 * jax.random.normal(jax.random.key(3), (16, 16)), "count": jnp.int32(0)}
    assert_launched_like_jax(step, {"params": init_network(), "table": table}, *make_rows(), stages=stages)


@both_stages
def test_batch_leaves_with_their_own_axes_give_the_single_device_result(stages: int) -> None:
    def loss_fn(params: Any, batch: Any, mask: Any) -> Any:
        out = apply_network(params, batch["x"].T * batch["scale"])
        return jnp.mean((out - batch["y"]) ** 2 * mask[0][:, None])

    def step(params: Any, batch: Any, mask: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(params, batch, mask)
        return descend(params, grads), loss

    x, y = make_rows()
    batch = {"x": x.T.copy(), "y": y, "scale": np.linspace(0.5, 1.5, 16, dtype=np.float32), "none": None, "name": "a"}
    mask = (np.asarray([1.0, 0.0] * 4, np.float32),)
    axes = ({"x": 1, "y": 0, "scale": None, "none": 0, "name": 0}, 0)

    def reference(params: Any, batch: Any, mask: Any) -> Any:
        arrays = {name: batch[name] for name in ("x", "y", "scale")}
        return jax.jit(step)(params, arrays, mask)

    assert_launched_like_jax(
        step, init_network(), batch, mask, stages=stages, batch_axes=axes, reference=reference, jit=lambda f: f
    )


def test_batch_axes_that_do_not_fit_name_the_leaf() -> None:
    def step(params: Any, batch: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(network_loss)(params, batch["x"], batch["y"])
        return descend(params, grads), loss

    x, y = make_rows()
    state, batch = init_network(), {"x": x, "y": y}

    def plan(batch: Any = batch, **options: Any) -> Any:
        return Planner(step, state, batch, cluster="virtual:4", **options).program

    with pytest.raises(InvalidStepError, match=r"batch\['y'\] has 6 rows .*, batch\['x'\] has 8\. .*batch_axes"):
        plan({"x": x, "y": y[:6]}, num_microbatches=2)
    with pytest.raises(InvalidStepError, match=r"batch\['x'\] has 8 rows in dimension 0, which 3 microbatches do not"):
        plan(num_microbatches=3)
    with pytest.raises(InvalidStepError, match=r"batch\['x'\] of shape \(8, 16\) has no dimension 2: set batch_axes"):
        plan(num_microbatches=2, batch_axes=({"x": 2, "y": 0},))
    with pytest.raises(InvalidStepError, match=r"batch_axes has 2 entries, the step takes 1 batch argument"):
        plan(num_microbatches=2, batch_axes=(0, 0))
    with pytest.raises(InvalidStepError, match=r"batch_axes does not fit the batch: it has no entry for batch\['y'\]"):
        plan(num_microbatches=2, batch_axes=({"x": 0},))
    with pytest.raises(InvalidStepError, match=r"batch_axes does not fit the batch: it has an entry at \['z'\]"):
        plan(num_microbatches=2, batch_axes=({"x": 0, "y": 0, "z": 0},))
    with pytest.raises(InvalidStepError, match=r"batch_axes .*'rows' for batch\['x'\]"):
        plan(num_microbatches=2, batch_axes=({"x": "rows", "y": 0},))


def test_a_result_with_a_value_for_each_row_is_refused() -> None:
    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        out = apply_network(params, x)
        return jnp.mean((out - y) ** 2), {"out": out}

    def step(params: Any, x: Any, y: Any) -> Any:
        (loss, aux), grads = alpaviz.value_and_grad(loss_fn, has_aux=True)(params, x, y)
        return descend(params, grads), {"loss": loss, **aux}

    with pytest.raises(InvalidStepError, match=r"result \[1\]\['out'\] has the shape \(8, 16\) .* and \(4, 16\) for"):
        assert_launched_like_jax(step, init_network(), *make_rows(), stages=1, microbatches=2)
    assert_launched_like_jax(step, init_network(), *make_rows(), stages=2, microbatches=1)


def test_a_result_as_long_as_a_microbatch_is_not_taken_for_one_of_rows() -> None:
    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        out = apply_network(params, x)
        return jnp.mean((out - y) ** 2), out.reshape(-1, 4, 4).mean(0)

    def step(params: Any, x: Any, y: Any) -> Any:
        (_, means), grads = alpaviz.value_and_grad(loss_fn, has_aux=True)(params, x, y)
        return descend(params, grads), means

    assert_launched_like_jax(step, init_network(), *make_rows(), stages=1, microbatches=2)


def test_a_count_over_the_batch_has_a_warning_with_its_line_and_none_as_a_float() -> None:
    def make(dtype: Any) -> Any:
        def loss_fn(params: Any, x: Any, y: Any) -> Any:
            out = apply_network(params, x)
            return jnp.mean((out - y) ** 2), jnp.sum(out > y, dtype=dtype)

        def step(params: Any, x: Any, y: Any) -> Any:
            (_, count), grads = alpaviz.value_and_grad(loss_fn, has_aux=True)(params, x, y)
            return descend(params, grads), count

        return step

    def list_warnings(dtype: Any, microbatches: int) -> tuple[str, ...]:
        planner = Planner(make(dtype), init_network(), *make_rows(), cluster="virtual:2", num_microbatches=microbatches)
        return planner.program.warnings

    (warning,) = list_warnings(jnp.int32, 2)
    assert re.match(r"At test_training_steps.py:\d+ the step makes a result of type int32 from the batch", warning)
    assert not list_warnings(jnp.int32, 1)
    assert not list_warnings(jnp.float32, 2)


# Buffers


@both_stages
def test_an_array_that_is_twice_in_a_donated_state_gives_the_single_device_result(stages: int) -> None:
    def step(state: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(network_loss)(state["params"], x, y)
        params = descend(state["params"], grads)
        return {"params": params, "slow": jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, state["slow"], params)}, loss

    params, batch = init_network(), make_rows()
    mine = {"params": params, "slow": params}
    planner = Planner(step, mine, *batch, cluster="virtual:4", num_microbatches=2)
    planner.pin_num_stages(stages)
    planner.solve(on_progress=lambda _: None)
    with planner.launch(donate_state=True) as executable:
        placed = executable.place(mine)
        for state in (placed, mine):
            got, _ = executable(state, *batch)
            assert_close(executable.fetch(got), jax.jit(step)(mine, *batch)[0])
        assert any(leaf.is_deleted() for leaf in jax.tree.leaves(placed))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


@both_stages
def test_inner_functions_that_donate_what_is_used_again_give_the_single_device_result(stages: int) -> None:
    double = jax.jit(lambda x: x * 2, donate_argnums=0)

    def loss_fn(params: Any, x: Any, y: Any) -> Any:
        return network_loss(params, double(x) + x, y)

    def step(params: Any, x: Any, y: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(params, x, y)
        return jax.tree.map(lambda p, g: double(p) - p - 0.1 * g, params, grads), loss

    assert_launched_like_jax(step, init_network(), *make_rows(), stages=stages)
