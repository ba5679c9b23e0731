"""From a configuration to a training step with state and batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from alpaviz.errors import AlpaVizError
from alpaviz.models.adam import AdamOptions, apply_adam, init_adam
from alpaviz.models.attention import AttentionConfig, attention_loss, init_attention, make_attention_batch
from alpaviz.models.bert import BERTConfig, bert_loss, init_bert, make_bert_batch
from alpaviz.models.convnet import ConvNetConfig, convnet_loss, init_convnet, make_convnet_batch
from alpaviz.models.gpt import GPTConfig, gpt_loss, init_gpt, make_gpt_batch
from alpaviz.models.llama import LlamaConfig, init_llama, llama_loss, make_llama_batch
from alpaviz.models.mlp import MLPConfig, init_mlp, make_mlp_batch, mlp_loss
from alpaviz.models.moe import MoEConfig, init_moe, make_moe_batch, moe_loss
from alpaviz.models.ragged_moe import RaggedMoEConfig, init_ragged_moe, make_ragged_moe_batch, ragged_moe_loss
from alpaviz.models.t5 import T5Config, init_t5, make_t5_batch, t5_loss
from alpaviz.models.unet import UNetConfig, init_unet, make_unet_batch, unet_loss
from alpaviz.models.vit import ViTConfig, init_vit, make_vit_batch, vit_loss
from alpaviz.models.wide_resnet import WideResNetConfig, init_wide_resnet, make_wide_resnet_batch, wide_resnet_loss

ModelConfig = (
    AttentionConfig
    | BERTConfig
    | ConvNetConfig
    | GPTConfig
    | LlamaConfig
    | MLPConfig
    | MoEConfig
    | RaggedMoEConfig
    | T5Config
    | UNetConfig
    | ViTConfig
    | WideResNetConfig
)


class Training(NamedTuple):
    """What a planner takes: `step(state, batch) -> (new state, metrics)`; state and batch are arrays or shapes."""

    step: Callable[[Any, Any], tuple[Any, dict[str, Any]]]
    state: Any
    batch: Any


@dataclass(frozen=True, slots=True)
class _Family:
    """The functions of one kind of model; each takes its configuration."""

    init: Callable[[Any, jax.Array], Any]
    loss: Callable[[Any, Any, Any], jax.Array]
    make_batch: Callable[[Any, int, jax.Array], Any]


_FAMILIES: dict[type, _Family] = {
    AttentionConfig: _Family(init_attention, attention_loss, make_attention_batch),
    BERTConfig: _Family(init_bert, bert_loss, make_bert_batch),
    ConvNetConfig: _Family(init_convnet, convnet_loss, make_convnet_batch),
    GPTConfig: _Family(init_gpt, gpt_loss, make_gpt_batch),
    LlamaConfig: _Family(init_llama, llama_loss, make_llama_batch),
    MLPConfig: _Family(init_mlp, mlp_loss, make_mlp_batch),
    MoEConfig: _Family(init_moe, moe_loss, make_moe_batch),
    RaggedMoEConfig: _Family(init_ragged_moe, ragged_moe_loss, make_ragged_moe_batch),
    T5Config: _Family(init_t5, t5_loss, make_t5_batch),
    UNetConfig: _Family(init_unet, unet_loss, make_unet_batch),
    ViTConfig: _Family(init_vit, vit_loss, make_vit_batch),
    WideResNetConfig: _Family(init_wide_resnet, wide_resnet_loss, make_wide_resnet_batch),
}


def make_training_step(
    config: ModelConfig,
    batch_size: int = 8,
    *,
    abstract: bool = True,
    key: jax.Array | None = None,
    adam: AdamOptions | None = None,
) -> Training:
    """A step of Adam on the model's loss, its state (see `init_adam`) and one batch.

    Args:
        batch_size: examples of the whole batch, all microbatches together.
        abstract: state and batch are `jax.ShapeDtypeStruct`, nothing is allocated; else arrays drawn from `key`.
        key: seed of parameters and batch; `jax.random.key(0)` if None.

    Raises:
        AlpaVizError: `batch_size` is below 1.

    The step's metrics are `{"loss": float32 scalar}`. Its gradient is `alpaviz.value_and_grad`, so it can be cut into
    microbatches and stages.
    """
    if batch_size < 1:
        raise AlpaVizError(f"batch_size must be at least 1, not {batch_size}.")
    family = _FAMILIES[type(config)]
    options = adam or AdamOptions()

    def step(state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        from alpaviz.program import value_and_grad

        loss, gradients = value_and_grad(lambda params, b: family.loss(params, b, config))(state["params"], batch)
        with jax.named_scope("adam"):
            return apply_adam(state, gradients, options), {"loss": loss}

    def init(seed: jax.Array) -> tuple[Any, Any]:
        params_key, batch_key = jax.random.split(seed)
        return init_adam(family.init(config, params_key)), family.make_batch(config, batch_size, batch_key)

    def init_from_key() -> tuple[Any, Any]:
        return init(jax.random.key(0) if key is None else key)

    # The key is made inside, so that shapes alone compile nothing.
    state, batch = jax.eval_shape(init_from_key) if abstract else init_from_key()
    return Training(step, state, batch)


def count_parameters(params: Any) -> int:
    """Number of scalars in a tree of parameters, arrays or shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
