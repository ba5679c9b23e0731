"""Orbax in one process, whatever other processes JAX knows of: each host writes a folder of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from alpaviz.errors import CheckpointError


def import_orbax() -> Any:
    """Orbax's checkpoint package.

    Raises:
        CheckpointError: it is not installed.
    """
    try:
        import orbax.checkpoint
    except ImportError:
        raise CheckpointError(
            "Checkpoints need Orbax, which is not installed here: pip install alpaviz[checkpoints]."
        ) from None
    return orbax.checkpoint


def make_checkpointer(orbax: Any) -> Any:
    """A checkpointer of trees of NumPy arrays for this process alone, which waits for no other."""
    me = jax.process_index()
    options = orbax.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"alpaviz{me}"
    )
    registry = orbax.type_handlers.create_type_handler_registry(
        (np.ndarray, _define_handler()()),
        (jax.Array, orbax.type_handlers.ArrayHandler(primary_host=me)),  # unused; Orbax warns where there is none
    )
    handler = orbax.PyTreeCheckpointHandler(multiprocessing_options=options, type_handler_registry=registry)
    return orbax.Checkpointer(handler, multiprocessing_options=options)


@functools.cache
def _define_handler() -> type:
    """Orbax's handler of NumPy arrays, which writes in every process: its own is for arrays that all processes hold,
    and writes in process 0 only. What is written is read by its own.
    """
    import tensorstore

    async def write(value: np.ndarray, info: Any) -> None:
        await info.await_path_creation()
        base = f"{info.parent_dir}/ocdbt.process_{jax.process_index()}/"
        store = {"driver": "ocdbt", "base": {"driver": "file", "path": base}, "path": info.name}
        metadata = {
            "shape": value.shape, "chunks": [max(1, size) for size in value.shape],
            "compressor": {"id": "zstd", "level": 1},
        }  # fmt: skip
        spec = {
            "driver": "zarr", "kvstore": {**store, "config": {"max_inline_value_bytes": 1024}}, "metadata": metadata,
            "dtype": value.dtype.name, "store_data_equal_to_fill_value": True,
        }  # fmt: skip
        array = await tensorstore.open(tensorstore.Spec(spec), create=True, open=True, context=info.ts_context)
        await array.write(value, can_reference_source_data_indefinitely=True)

    class Handler(import_orbax().type_handlers.NumpyHandler):  # type: ignore[misc]
        async def serialize(self, values: Sequence[Any], infos: Sequence[Any], args: Any = None) -> Sequence[Any]:
            await asyncio.gather(*map(write, values, infos))
            return []

    return Handler
