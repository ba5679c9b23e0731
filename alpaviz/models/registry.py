"""Models by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from alpaviz.errors import AlpaVizError
from alpaviz.models.attention import AttentionConfig
from alpaviz.models.bert import BERTConfig
from alpaviz.models.convnet import ConvNetConfig
from alpaviz.models.gpt import GPTConfig
from alpaviz.models.llama import LlamaConfig
from alpaviz.models.mlp import MLPConfig
from alpaviz.models.moe import MoEConfig
from alpaviz.models.ragged_moe import RaggedMoEConfig
from alpaviz.models.t5 import T5Config
from alpaviz.models.training import ModelConfig, Training, make_training_step
from alpaviz.models.unet import UNetConfig
from alpaviz.models.vit import ViTConfig
from alpaviz.models.wide_resnet import WideResNetConfig

MODELS: dict[str, ModelConfig] = {
    "mlp-2": MLPConfig(num_layers=2),
    "mlp-4": MLPConfig(num_layers=4),
    "mlp-8": MLPConfig(num_layers=8),
    # Teaching sizes: they launch in seconds on virtual devices of a laptop.
    "gpt-tiny": GPTConfig(hidden=64, num_layers=2, num_heads=4, vocab=256, seq=32, dtype="float32"),
    "gpt-mini": GPTConfig(hidden=128, num_layers=8, num_heads=8, vocab=512, seq=64, dtype="float32"),
    # Zheng et al. 2022, table 6; 125M, 760M, 76B and the 40 heads of 15B from the public benchmark code.
    "gpt-125m": GPTConfig(hidden=768, num_layers=12, num_heads=12),
    "gpt-350m": GPTConfig(hidden=1024, num_layers=24, num_heads=16),
    "gpt-760m": GPTConfig(hidden=1536, num_layers=24, num_heads=16),
    "gpt-1.3b": GPTConfig(hidden=2048, num_layers=24, num_heads=32),
    "gpt-2.6b": GPTConfig(hidden=2560, num_layers=32, num_heads=32),
    "gpt-6.7b": GPTConfig(hidden=4096, num_layers=32, num_heads=32),
    "gpt-15b": GPTConfig(hidden=5120, num_layers=48, num_heads=40),
    "gpt-39b": GPTConfig(hidden=8192, num_layers=48, num_heads=64),
    "gpt-76b": GPTConfig(hidden=10240, num_layers=60, num_heads=80),
    "moe-tiny": MoEConfig(64, 2, 4, num_heads=4, vocab=256, seq=32, group=64, dtype="float32"),
    # Zheng et al. 2022, table 7; 690M and 7.1B from the public benchmark code.
    "moe-380m": MoEConfig(hidden=768, num_layers=8, num_experts=8),
    "moe-690m": MoEConfig(hidden=768, num_layers=8, num_experts=16),
    "moe-1.3b": MoEConfig(hidden=768, num_layers=16, num_experts=16),
    "moe-2.4b": MoEConfig(hidden=1024, num_layers=16, num_experts=16),
    "moe-7.1b": MoEConfig(hidden=1280, num_layers=16, num_experts=32),
    "moe-10b": MoEConfig(hidden=1536, num_layers=16, num_experts=32),
    "moe-27b": MoEConfig(hidden=2048, num_layers=16, num_experts=48),
    "moe-70b": MoEConfig(hidden=2048, num_layers=32, num_experts=64),
    "ragged-moe-tiny": RaggedMoEConfig(64, 96, 2, 4, num_heads=4, vocab=256, seq=32, dtype="float32"),
    "ragged-moe-1b": RaggedMoEConfig(1024, 2304, 16, 8, num_heads=16),
    # The size of Mixtral 8x7B (Jiang et al. 2024, table 1), but with as many key as query heads.
    "ragged-moe-8x7b": RaggedMoEConfig(4096, 14336, 32, 8, num_heads=32, seq=4096),
    "bert-tiny": BERTConfig(hidden=64, num_layers=2, num_heads=4, vocab=128, seq=32),
    # Devlin et al. 2019, section 3.
    "bert-base": BERTConfig(hidden=768, num_layers=12, num_heads=12),
    "bert-large": BERTConfig(hidden=1024, num_layers=24, num_heads=16),
    "vit-tiny": ViTConfig(hidden=64, num_layers=2, num_heads=4, patch=4, image=16, num_classes=8),
    # Dosovitskiy et al. 2021, table 1.
    "vit-b16": ViTConfig(hidden=768, num_layers=12, num_heads=12),
    "vit-l16": ViTConfig(hidden=1024, num_layers=24, num_heads=16),
    "vit-h14": ViTConfig(hidden=1280, num_layers=32, num_heads=16, patch=14),
    "llama-tiny": LlamaConfig(64, 160, 2, 4, 2, vocab=256, seq=32, dtype="float32"),
    # The published configuration files of TinyLlama, Llama 2 (Touvron et al. 2023b, appendix) and Llama 3.
    "llama-1b": LlamaConfig(2048, 5632, 22, 32, 4),
    "llama-7b": LlamaConfig(4096, 11008, 32, 32, 32, seq=4096),
    "llama-8b": LlamaConfig(4096, 14336, 32, 32, 8, vocab=128256, seq=8192, theta=500000.0),
    "llama-70b": LlamaConfig(8192, 28672, 80, 64, 8, seq=4096),
    "t5-tiny": T5Config(64, 128, 2, 4, head_size=16, vocab=256, source=32, target=16, dtype="float32"),
    # Raffel et al. 2020, section 3.7.
    "t5-small": T5Config(512, 2048, 6, 8),
    "t5-base": T5Config(768, 3072, 12, 12),
    "t5-large": T5Config(1024, 4096, 24, 16),
    "t5-3b": T5Config(1024, 16384, 24, 32, head_size=128),
    "wide-resnet-tiny": WideResNetConfig(14, 8, 2, image=32, num_classes=8),
    # Zheng et al. 2022, table 8; 500M from the public benchmark code.
    "wide-resnet-250m": WideResNetConfig(50, 160, 2),
    "wide-resnet-500m": WideResNetConfig(50, 224, 2),
    "wide-resnet-1b": WideResNetConfig(50, 320, 2),
    "wide-resnet-2b": WideResNetConfig(50, 448, 2),
    "wide-resnet-4b": WideResNetConfig(50, 640, 2),
    "wide-resnet-6.8b": WideResNetConfig(50, 320, 16),
    "wide-resnet-13b": WideResNetConfig(101, 320, 16),
    "unet-tiny": UNetConfig(8, 3, 16),
    "unet-base": UNetConfig(64, 5, 512),
    # Teaching sizes, like those of the MLP and the smallest of the other families.
    "convnet-tiny": ConvNetConfig(16, 3),
    "attention-tiny": AttentionConfig(32, 4),
}
"""Configurations by name."""


def get_model_config(name: str, **changes: Any) -> ModelConfig:
    """The configuration called `name`, with fields replaced by `changes` (`remat=True`, `dtype="bfloat16"`).

    Raises:
        AlpaVizError: no model has this name, or its configuration has no such field; the message lists what there is.
    """
    config = MODELS.get(name.lower())
    if config is None:
        raise AlpaVizError(f"No model is called {name!r}. Models: {', '.join(MODELS)}.")
    fields = [field.name for field in dataclasses.fields(config)]
    unknown = [change for change in changes if change not in fields]
    if unknown:
        raise AlpaVizError(f"Model {name!r} has no field {unknown[0]!r} to change. Fields: {', '.join(fields)}.")
    return dataclasses.replace(config, **changes)


def get_model(name: str, batch_size: int = 8, *, abstract: bool = True, **changes: Any) -> Training:
    """Training step, state and batch of the model called `name`.

    Args:
        batch_size: examples of the whole batch, all microbatches together.
        abstract: shapes instead of arrays.
        changes: fields of the configuration to replace.

    Raises:
        AlpaVizError: no model has this name.
    """
    return make_training_step(get_model_config(name, **changes), batch_size, abstract=abstract)
