"""Wide-ResNet: a residual network of bottlenecks whose 3 x 3 convolutions have more channels than go in.

Batches are normalised by their own statistics; running averages, which training does not read, are left out. With
microbatches, each is normalised by its own.

Source: Zagoruyko and Komodakis 2016; where it is wider, and the sizes: Zheng et al. 2022, table 8,
and their benchmark code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]

BLOCKS = {14: (1, 1, 1, 1), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Blocks of the four stages, by the number of layers that a ResNet is named by."""


@dataclass(frozen=True, slots=True)
class WideResNetConfig:
    """Size and arithmetic of a Wide-ResNet.

    Attributes:
        layers: 50 or 101 (or 14, for teaching). With 101, 320 channels and factor 16 this is 12.63 billion parameters,
            4.8 % below the 13.27 that the artifact reports; the other sizes agree.
        channels: of the first stage; each later stage has twice those of the one before it.
        width_factor: channels that a block's 3 x 3 convolution makes of each one that goes in.
        image: pixels of a side; images are square with three channels, a multiple of 32.
        num_classes: of the images.
        dtype: of parameters and compute. Statistics and loss are float32.
    """

    layers: int
    channels: int
    width_factor: int
    image: int = 224
    num_classes: int = 1024
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.layers not in BLOCKS:
            known = ", ".join(map(str, BLOCKS))
            raise AlpaVizError(f"WideResNetConfig: layers must be one of {known}, not {self.layers}.")
        if self.image % 32:
            raise AlpaVizError(f"WideResNetConfig: image {self.image} is not a multiple of 32.")


def _list_blocks(config: WideResNetConfig) -> list[tuple[str, int, int, int]]:
    """(name, channels that go in, channels of the stage, stride) of every block; four times those come out."""
    found = []
    incoming = config.channels
    for stage, count in enumerate(BLOCKS[config.layers]):
        base = config.channels * 2**stage
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            found.append((f"stage_{stage}/block_{i}", incoming, base, stride))
            incoming = base * 4
    return found


def init_wide_resnet(config: WideResNetConfig, key: jax.Array) -> Params:
    """Fresh parameters: kernels of deviation sqrt(2 / inputs); the last scale of each block is 0."""
    keys = iter(jax.random.split(key, 4 * sum(BLOCKS[config.layers]) + 2))

    def kernel(size: int, incoming: int, outgoing: int) -> jax.Array:
        deviation = jnp.asarray((2 / (size * size * incoming)) ** 0.5, config.dtype)
        return jax.random.normal(next(keys), (size, size, incoming, outgoing), config.dtype) * deviation

    def norm(channels: int, scale: float = 1.0) -> Params:
        return {"scale": jnp.full(channels, scale, config.dtype), "bias": jnp.zeros(channels, config.dtype)}

    params: Params = {"stem": kernel(7, 3, config.channels), "norm": norm(config.channels)}
    for name, incoming, base, stride in _list_blocks(config):
        inner = base * config.width_factor
        block = {
            "conv_1": kernel(1, incoming, base),
            "norm_1": norm(base),
            "conv_2": kernel(3, base, inner),
            "norm_2": norm(inner),
            "conv_3": kernel(1, inner, 4 * base),
            "norm_3": norm(4 * base, 0.0),
        }
        if incoming != 4 * base or stride != 1:
            block |= {"skip": kernel(1, incoming, 4 * base), "skip_norm": norm(4 * base)}
        params[name] = block
    features = config.channels * 32
    return params | {
        "head": jax.random.normal(next(keys), (features, config.num_classes), config.dtype) * features**-0.5,
        "head_bias": jnp.zeros(config.num_classes, config.dtype),
    }


def abstract_wide_resnet(config: WideResNetConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_wide_resnet(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_wide_resnet_batch(config: WideResNetConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `images` (batch, height, width, 3) and their `labels` (batch,) of int32."""
    image_key, label_key = jax.random.split(key)
    images = jax.random.normal(image_key, (batch_size, config.image, config.image, 3), config.dtype)
    return {"images": images, "labels": jax.random.randint(label_key, (batch_size,), 0, config.num_classes, jnp.int32)}


def wide_resnet_loss(params: Params, batch: dict[str, jax.Array], config: WideResNetConfig) -> jax.Array:
    """Mean cross-entropy of the labels, in nats; a float32 scalar."""
    with jax.named_scope("stem"):
        x = jax.nn.relu(_normalise(_convolve(batch["images"], params["stem"], 2), params["norm"]))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for name, _, _, stride in _list_blocks(config):
        with jax.named_scope(name):
            x = _apply_block(x, params[name], stride)
    with jax.named_scope("head"):
        logits = (x.mean((1, 2)) @ params["head"] + params["head_bias"]).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["labels"][:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)


def _apply_block(x: jax.Array, p: Params, stride: int) -> jax.Array:
    h = jax.nn.relu(_normalise(_convolve(x, p["conv_1"], 1), p["norm_1"]))
    h = jax.nn.relu(_normalise(_convolve(h, p["conv_2"], stride), p["norm_2"]))
    h = _normalise(_convolve(h, p["conv_3"], 1), p["norm_3"])
    shortcut = _normalise(_convolve(x, p["skip"], stride), p["skip_norm"]) if "skip" in p else x
    return jax.nn.relu(h + shortcut)


def _convolve(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Images (batch, height, width, channels) by a kernel (height, width, in, out)."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)


def _normalise(x: jax.Array, p: Params) -> jax.Array:
    """Per channel, by mean and variance over all images and pixels."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean((0, 1, 2))
    unit = centred * jax.lax.rsqrt((centred * centred).mean((0, 1, 2)) + 1e-5)
    return jnp.add(unit.astype(x.dtype) * p["scale"], p["bias"])
