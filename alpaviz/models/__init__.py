"""Plain JAX models to plan, to teach with and to compare with the paper.

In: a name such as `"gpt-1.3b"` or a configuration. Out: a training step with its state and a batch, as arrays or as
shapes only.
"""

from alpaviz.models.adam import AdamOptions, apply_adam, init_adam
from alpaviz.models.attention import (
    AttentionConfig,
    abstract_attention,
    attention_loss,
    init_attention,
    make_attention_batch,
)
from alpaviz.models.bert import BERTConfig, abstract_bert, bert_loss, init_bert, make_bert_batch
from alpaviz.models.convnet import ConvNetConfig, abstract_convnet, convnet_loss, init_convnet, make_convnet_batch
from alpaviz.models.gpt import GPTConfig, abstract_gpt, gpt_loss, init_gpt, make_gpt_batch
from alpaviz.models.llama import LlamaConfig, abstract_llama, init_llama, llama_loss, make_llama_batch
from alpaviz.models.mlp import MLPConfig, init_mlp, make_mlp_batch, mlp_loss
from alpaviz.models.moe import MoEConfig, abstract_moe, init_moe, make_moe_batch, moe_loss
from alpaviz.models.ragged_moe import (
    RaggedMoEConfig,
    abstract_ragged_moe,
    init_ragged_moe,
    make_ragged_moe_batch,
    ragged_moe_loss,
)
from alpaviz.models.registry import MODELS, get_model, get_model_config
from alpaviz.models.t5 import T5Config, abstract_t5, init_t5, make_t5_batch, t5_loss
from alpaviz.models.training import Training, count_parameters, make_training_step
from alpaviz.models.unet import UNetConfig, abstract_unet, init_unet, make_unet_batch, unet_loss
from alpaviz.models.vit import ViTConfig, abstract_vit, init_vit, make_vit_batch, vit_loss
from alpaviz.models.wide_resnet import (
    WideResNetConfig,
    abstract_wide_resnet,
    init_wide_resnet,
    make_wide_resnet_batch,
    wide_resnet_loss,
)

__all__ = [
    "MODELS",
    "AdamOptions",
    "AttentionConfig",
    "BERTConfig",
    "ConvNetConfig",
    "GPTConfig",
    "LlamaConfig",
    "MLPConfig",
    "MoEConfig",
    "RaggedMoEConfig",
    "T5Config",
    "Training",
    "UNetConfig",
    "ViTConfig",
    "WideResNetConfig",
    "abstract_attention",
    "abstract_bert",
    "abstract_convnet",
    "abstract_gpt",
    "abstract_llama",
    "abstract_moe",
    "abstract_ragged_moe",
    "abstract_t5",
    "abstract_unet",
    "abstract_vit",
    "abstract_wide_resnet",
    "apply_adam",
    "attention_loss",
    "bert_loss",
    "convnet_loss",
    "count_parameters",
    "get_model",
    "get_model_config",
    "gpt_loss",
    "init_adam",
    "init_attention",
    "init_bert",
    "init_convnet",
    "init_gpt",
    "init_llama",
    "init_mlp",
    "init_moe",
    "init_ragged_moe",
    "init_t5",
    "init_unet",
    "init_vit",
    "init_wide_resnet",
    "llama_loss",
    "make_attention_batch",
    "make_bert_batch",
    "make_convnet_batch",
    "make_gpt_batch",
    "make_llama_batch",
    "make_mlp_batch",
    "make_moe_batch",
    "make_ragged_moe_batch",
    "make_t5_batch",
    "make_training_step",
    "make_unet_batch",
    "make_vit_batch",
    "make_wide_resnet_batch",
    "mlp_loss",
    "moe_loss",
    "ragged_moe_loss",
    "t5_loss",
    "unet_loss",
    "vit_loss",
    "wide_resnet_loss",
]
