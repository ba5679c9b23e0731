"""U-Net: an encoder and a decoder of images, joined at each resolution by a skip connection.

Convolutions keep the size (the original crops), and groups of channels are normalised, so that a small batch works.

Source: Ronneberger et al. 2015, figure 1; Wu and He 2018 (group normalisation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """Size and arithmetic of a U-Net.

    Attributes:
        channels: at the full resolution, a multiple of `num_groups`; twice as many at each next one.
        num_levels: resolutions, each half of the one above it.
        image: pixels of a side; images are square with three channels.
        num_classes: of the pixels.
        num_groups: of channels that are normalised together.
        dtype: of parameters and compute. Statistics and loss are float32.
    """

    channels: int
    num_levels: int
    image: int
    num_classes: int = 2
    num_groups: int = 8
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.num_levels < 2:
            raise AlpaVizError(f"UNetConfig: num_levels must be at least 2, not {self.num_levels}.")
        if self.image % 2 ** (self.num_levels - 1):
            raise AlpaVizError(f"UNetConfig: image {self.image} cannot be halved {self.num_levels - 1} times.")
        if self.channels % self.num_groups:
            raise AlpaVizError(f"UNetConfig: channels {self.channels} is no multiple of num_groups {self.num_groups}.")


def init_unet(config: UNetConfig, key: jax.Array) -> Params:
    """Fresh parameters: kernels of deviation sqrt(2 / inputs)."""
    keys = iter(jax.random.split(key, 5 * config.num_levels + 1))

    def kernel(size: int, incoming: int, outgoing: int) -> jax.Array:
        deviation = jnp.asarray((2 / (size * size * incoming)) ** 0.5, config.dtype)
        return jax.random.normal(next(keys), (size, size, incoming, outgoing), config.dtype) * deviation

    def make_level(incoming: int, outgoing: int) -> Params:
        # Arrays of their own for each convolution: a step that is given its state to overwrite takes none twice.
        return {
            f"conv_{i}": {
                "kernel": kernel(3, channels, outgoing),
                "scale": jnp.ones(outgoing, config.dtype),
                "bias": jnp.zeros(outgoing, config.dtype),
            }
            for i, channels in enumerate((incoming, outgoing))
        }

    width = [config.channels * 2**level for level in range(config.num_levels)]
    params: Params = {}
    for level, outgoing in enumerate(width):
        params[f"down_{level}"] = make_level(width[level - 1] if level else 3, outgoing)
    for level, outgoing in enumerate(width[:-1]):
        params[f"up_{level}"] = {"grow": kernel(2, 2 * outgoing, outgoing)} | make_level(2 * outgoing, outgoing)
    return params | {"head": kernel(1, config.channels, config.num_classes)}


def abstract_unet(config: UNetConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_unet(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_unet_batch(config: UNetConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `images` (batch, height, width, 3) and the `labels` of their pixels (batch, height, width) of int32."""
    image_key, label_key = jax.random.split(key)
    shape = batch_size, config.image, config.image
    images = jax.random.normal(image_key, (*shape, 3), config.dtype)
    return {"images": images, "labels": jax.random.randint(label_key, shape, 0, config.num_classes, jnp.int32)}


def unet_loss(params: Params, batch: dict[str, jax.Array], config: UNetConfig) -> jax.Array:
    """Mean cross-entropy of the pixels' labels, in nats; a float32 scalar."""
    x, skips = batch["images"], []
    for level in range(config.num_levels):
        with jax.named_scope(f"down_{level}"):
            if level:
                skips.append(x)
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            x = _apply_level(x, params[f"down_{level}"], config)
    for level in reversed(range(config.num_levels - 1)):
        with jax.named_scope(f"up_{level}"):
            p = params[f"up_{level}"]
            grown = jax.lax.conv_transpose(x, p["grow"], (2, 2), "VALID", dimension_numbers=_LAYOUT)
            x = _apply_level(jnp.concatenate([skips[level], grown], axis=-1), p, config)
    with jax.named_scope("head"):
        logits = _convolve(x, params["head"]).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["labels"][..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)


_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=_LAYOUT)


def _apply_level(x: jax.Array, p: Params, config: UNetConfig) -> jax.Array:
    """Two convolutions, each normalised and rectified."""
    for i in range(2):
        conv = p[f"conv_{i}"]
        x = jax.nn.relu(_normalise(_convolve(x, conv["kernel"]), config.num_groups) * conv["scale"] + conv["bias"])
    return x


def _normalise(x: jax.Array, num_groups: int) -> jax.Array:
    """Per image and group of channels, by mean and variance over pixels and the group's channels."""
    wide = x.astype(jnp.float32).reshape(*x.shape[:3], num_groups, -1)
    centred = wide - wide.mean((1, 2, 4), keepdims=True)
    unit = centred * jax.lax.rsqrt((centred * centred).mean((1, 2, 4), keepdims=True) + 1e-5)
    return unit.reshape(x.shape).astype(x.dtype)
