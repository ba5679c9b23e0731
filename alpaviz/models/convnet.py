"""A small convolutional network, to teach with: a row of convolutions that each halve the image, and a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConvNetConfig:
    """Size and arithmetic of the network.

    Attributes:
        channels: of the first convolution; each next one has twice as many.
        num_layers: convolutions of 3 x 3, each with stride 2.
        image: pixels of a side; images are square with three channels.
        num_classes: of the images.
        dtype: of parameters and compute. The loss is float32.
    """

    channels: int
    num_layers: int
    image: int = 32
    num_classes: int = 8
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.image % 2**self.num_layers:
            raise AlpaVizError(f"ConvNetConfig: image {self.image} cannot be halved {self.num_layers} times.")


def init_convnet(config: ConvNetConfig, key: jax.Array) -> Params:
    """Fresh parameters: kernels of deviation sqrt(2 / inputs)."""
    keys = iter(jax.random.split(key, config.num_layers + 1))
    params: Params = {}
    incoming = 3
    for i in range(config.num_layers):
        outgoing = config.channels * 2**i
        kernel = jax.random.normal(next(keys), (3, 3, incoming, outgoing), config.dtype) * (2 / (9 * incoming)) ** 0.5
        params[f"conv_{i}"] = {"kernel": kernel, "bias": jnp.zeros(outgoing, config.dtype)}
        incoming = outgoing
    head = jax.random.normal(next(keys), (incoming, config.num_classes), config.dtype) * incoming**-0.5
    return params | {"head": head}


def abstract_convnet(config: ConvNetConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_convnet(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_convnet_batch(config: ConvNetConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `images` (batch, height, width, 3) and their `labels` (batch,) of int32."""
    image_key, label_key = jax.random.split(key)
    images = jax.random.normal(image_key, (batch_size, config.image, config.image, 3), config.dtype)
    return {"images": images, "labels": jax.random.randint(label_key, (batch_size,), 0, config.num_classes, jnp.int32)}


def convnet_loss(params: Params, batch: dict[str, jax.Array], config: ConvNetConfig) -> jax.Array:
    """Mean cross-entropy of the labels, in nats; a float32 scalar."""
    x, layout = batch["images"], ("NHWC", "HWIO", "NHWC")
    for i in range(config.num_layers):
        p = params[f"conv_{i}"]
        with jax.named_scope(f"conv_{i}"):
            x = jax.lax.conv_general_dilated(x, p["kernel"], (2, 2), "SAME", dimension_numbers=layout)
            x = jax.nn.relu(x + p["bias"])
    with jax.named_scope("head"):
        logits = (x.mean((1, 2)) @ params["head"]).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["labels"][:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)
