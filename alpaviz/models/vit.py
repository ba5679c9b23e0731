"""ViT: an encoder over patches of an image, classified by a token of its own.

Source: Dosovitskiy et al. 2021, section 3.1 and table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.errors import AlpaVizError

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ViTConfig:
    """Size and arithmetic of a ViT.

    Attributes:
        hidden: width of the residual stream; a multiple of `num_heads`.
        patch, image: pixels of a side; images are square with three channels, `image` a multiple of `patch`.
        num_classes: of the images.
        dtype: of parameters and compute. Normalisation and loss are float32.
    """

    hidden: int
    num_layers: int
    num_heads: int
    patch: int = 16
    image: int = 224
    num_classes: int = 1000
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.hidden % self.num_heads:
            raise AlpaVizError(f"ViTConfig: hidden {self.hidden} is not a multiple of num_heads {self.num_heads}.")
        if self.image % self.patch:
            raise AlpaVizError(f"ViTConfig: image {self.image} is not a multiple of patch {self.patch}.")

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.image // self.patch) ** 2


def init_vit(config: ViTConfig, key: jax.Array) -> Params:
    """Fresh parameters: normal weights of deviation 0.02, residual outputs smaller by the root of twice the layers."""
    width, heads, dtype = config.hidden, config.num_heads, config.dtype
    keys = iter(jax.random.split(key, 4 * config.num_layers + 4))
    small = 0.02 / (2 * config.num_layers) ** 0.5

    def weight(*shape: int, deviation: float = 0.02) -> jax.Array:
        return jax.random.normal(next(keys), shape, dtype) * jnp.asarray(deviation, dtype)

    def zeros(*shape: int) -> jax.Array:
        return jnp.zeros(shape, dtype)

    def norm() -> Params:
        return {"scale": jnp.ones(width, dtype), "bias": zeros(width)}

    params: Params = {
        "patches": weight(config.patch, config.patch, 3, width),
        "patches_bias": zeros(width),
        "class": weight(1, width),
        "positions": weight(config.num_patches + 1, width),
        "ln": norm(),
        "head": weight(width, config.num_classes),
        "head_bias": zeros(config.num_classes),
    }
    for i in range(config.num_layers):
        params[f"block_{i}"] = {
            "ln_1": norm(),
            "qkv": weight(width, 3, heads, width // heads),
            "qkv_bias": zeros(3, heads, width // heads),
            "out": weight(heads, width // heads, width, deviation=small),
            "out_bias": zeros(width),
            "ln_2": norm(),
            "up": weight(width, 4 * width),
            "up_bias": zeros(4 * width),
            "down": weight(4 * width, width, deviation=small),
            "down_bias": zeros(width),
        }
    return params


def abstract_vit(config: ViTConfig) -> Params:
    """Shapes and dtypes of the parameters; nothing is allocated."""
    return jax.eval_shape(lambda key: init_vit(config, key), jax.random.key(0))  # type: ignore[no-any-return]


def make_vit_batch(config: ViTConfig, batch_size: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `images` (batch, height, width, 3) and their `labels` (batch,) of int32."""
    image_key, label_key = jax.random.split(key)
    images = jax.random.normal(image_key, (batch_size, config.image, config.image, 3), config.dtype)
    return {"images": images, "labels": jax.random.randint(label_key, (batch_size,), 0, config.num_classes, jnp.int32)}


def vit_loss(params: Params, batch: dict[str, jax.Array], config: ViTConfig) -> jax.Array:
    """Mean cross-entropy of the labels, in nats; a float32 scalar."""
    with jax.named_scope("embed"):
        images, side = batch["images"], config.image // config.patch
        cut = images.reshape(-1, side, config.patch, side, config.patch, 3)
        x = jnp.einsum("bipjqc,pqch->bijh", cut, params["patches"]) + params["patches_bias"]
        x = x.reshape(x.shape[0], config.num_patches, config.hidden)
        own = jnp.broadcast_to(params["class"], (x.shape[0], 1, config.hidden))
        x = jnp.concatenate([own, x], axis=1) + params["positions"]
    for i in range(config.num_layers):
        p = params[f"block_{i}"]
        with jax.named_scope(f"block_{i}/attention"):
            x = x + _attend(_normalise(x, p["ln_1"]), p)
        with jax.named_scope(f"block_{i}/mlp"):
            h = jax.nn.gelu(_normalise(x, p["ln_2"]) @ p["up"] + p["up_bias"])
            x = x + h @ p["down"] + p["down_bias"]
    with jax.named_scope("head"):
        logits = (_normalise(x[:, 0], params["ln"]) @ params["head"] + params["head_bias"]).astype(jnp.float32)
        wanted = jnp.take_along_axis(logits, batch["labels"][:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - wanted)


def _normalise(x: jax.Array, p: Params) -> jax.Array:
    wide = x.astype(jnp.float32)
    unit = (wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + 1e-6)
    return jnp.add(unit.astype(x.dtype) * p["scale"], p["bias"])


def _attend(x: jax.Array, p: Params) -> jax.Array:
    """Self-attention over all patches; b batch, q and k positions, n heads, d size of a head."""
    qkv = jnp.einsum("bsh,hcnd->cbnsd", x, p["qkv"]) + p["qkv_bias"][:, None, :, None, :]
    query, key, value = qkv[0], qkv[1], qkv[2]
    scores = jnp.einsum("bnqd,bnkd->bnqk", query, key) * query.shape[-1] ** -0.5
    mixed = jnp.einsum("bnqk,bnkd->bnqd", jax.nn.softmax(scores, axis=-1), value)
    return jnp.add(jnp.einsum("bnqd,ndh->bqh", mixed, p["out"]), p["out_bias"])
