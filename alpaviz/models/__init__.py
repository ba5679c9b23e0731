"""Plain JAX models to plan, to teach with and to compare with the paper.

In: a name such as `"gpt-1.3b"` or a configuration. Out: a training step with its state and a batch, as arrays or as
shapes only.
"""

from alpaviz.models.adam import AdamOptions, apply_adam, init_adam
from alpaviz.models.gpt import GPTConfig, abstract_gpt, gpt_loss, init_gpt, make_gpt_batch
from alpaviz.models.mlp import MLPConfig, init_mlp, make_mlp_batch, mlp_loss
from alpaviz.models.registry import MODELS, get_model, get_model_config
from alpaviz.models.training import Training, count_parameters, make_training_step

__all__ = [
    "MODELS",
    "AdamOptions",
    "GPTConfig",
    "MLPConfig",
    "Training",
    "abstract_gpt",
    "apply_adam",
    "count_parameters",
    "get_model",
    "get_model_config",
    "gpt_loss",
    "init_adam",
    "init_gpt",
    "init_mlp",
    "make_gpt_batch",
    "make_mlp_batch",
    "make_training_step",
    "mlp_loss",
]
