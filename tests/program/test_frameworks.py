"""Training steps of other libraries are planned and launched like plain ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import alpaviz
from alpaviz.planner import Planner

nn = pytest.importorskip("flax.linen")

TOKENS = np.asarray(jax.random.randint(jax.random.key(1), (8, 17), 0, 64))


def make_flax_step(num_blocks: int) -> tuple[Any, Any]:
    """A GPT in Flax Linen with AdamW on a schedule and clipping; (step, state)."""

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        @nn.compact  # type: ignore[misc]
        def __call__(self, x: Any) -> Any:
            mask = nn.make_causal_mask(x[..., 0])
            x = x + nn.MultiHeadDotProductAttention(num_heads=4, name="attention")(nn.LayerNorm()(x), mask=mask)
            return x + nn.Dense(32, name="down")(nn.gelu(nn.Dense(128, name="up")(nn.LayerNorm()(x))))

    class Model(nn.Module):  # type: ignore[misc,name-defined]
        @nn.compact  # type: ignore[misc]
        def __call__(self, tokens: Any) -> Any:
            embed = nn.Embed(64, 32, name="embed")
            x = embed(tokens) + self.param("position", nn.initializers.normal(0.1), (tokens.shape[1], 32))
            for i in range(num_blocks):
                x = Block(name=f"block_{i}")(x)
            return embed.attend(nn.LayerNorm(name="norm")(x))

    model = Model()
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 10)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(schedule, eps=1e-3))

    def loss_fn(params: Any, tokens: Any) -> Any:
        logits = model.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(state: Any, tokens: Any) -> Any:
        loss, grads = alpaviz.value_and_grad(loss_fn)(state["params"], tokens)
        updates, inner = optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": inner}, {"loss": loss}

    params = model.init(jax.random.key(0), jnp.zeros((1, 16), jnp.int32))
    return step, {"params": params, "optimizer": optimizer.init(params)}


@pytest.mark.parametrize("stages", [1, 2])
def test_a_flax_gpt_with_optax_gives_the_single_device_result(stages: int) -> None:
    step, state = make_flax_step(2)
    planner = Planner(step, state, TOKENS, cluster="virtual:4", num_microbatches=2)
    assert not planner.program.warnings
    planner.pin_num_stages(stages)
    planner.solve(on_progress=lambda _: None)
    with planner.launch() as executable:
        ours = theirs = state
        for _ in range(2):
            ours, _ = executable(ours, TOKENS)
            theirs, _ = jax.jit(step)(theirs, TOKENS)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), executable.fetch(ours), theirs
        )


def test_ops_of_a_flax_model_are_named_by_module() -> None:
    step, state = make_flax_step(2)
    planner = Planner(step, state, TOKENS, cluster="virtual:4")
    scopes = {op.scope for op in planner.program.ops if op.primitive == "dot_general"}
    assert any("block_1" in scope and "attention" in scope for scope in scopes)


def test_a_flax_block_is_a_layer() -> None:
    step, state = make_flax_step(4)
    program = Planner(step, state, TOKENS, cluster="virtual:4").program
    layers = {
        next(part for part in op.scope.split("/") if part.startswith("block_")): op.layer
        for op in program.ops
        if op.role == "forward" and op.primitive == "dot_general" and "block_" in op.scope
    }
    assert len(set(layers.values())) == 4
