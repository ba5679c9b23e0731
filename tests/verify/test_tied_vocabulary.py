"""A large tied vocabulary (I22 of the reported faults): its gradient and its memory are planned as XLA makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import alpaviz
from alpaviz import Plan, Planner
from alpaviz.cluster import parse_cluster
from alpaviz.verify import Verification

VOCAB, WIDTH, BATCH, LENGTH = 131_072, 512, 64, 1024
CAPACITY = 2e9


def loss(params: dict[str, Any], ids: jax.Array) -> jax.Array:
    x = params["emb"][ids]
    for i in range(2):
        x = x + jax.nn.gelu(x @ params[f"u{i}"]) @ params[f"d{i}"]
    z = x[:, :-1] @ params["emb"].T
    return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, ids[:, 1:, None], -1)[..., 0])


def step(params: dict[str, Any], ids: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    value, gradients = alpaviz.value_and_grad(loss)(params, ids)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


@pytest.fixture(scope="module")
def solved() -> tuple[Planner, Plan]:
    float32 = jnp.float32
    params = {"emb": jax.ShapeDtypeStruct((VOCAB, WIDTH), float32)}
    for i in range(2):
        params[f"u{i}"] = jax.ShapeDtypeStruct((WIDTH, 4 * WIDTH), float32)
        params[f"d{i}"] = jax.ShapeDtypeStruct((4 * WIDTH, WIDTH), float32)
    cluster = parse_cluster("p3.16xlarge:1")
    hosts = [replace(h, device_type=replace(h.device_type, memory_bytes=CAPACITY)) for h in cluster.hosts]
    ids = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    planner = Planner(
        step, params, ids, cluster=replace(cluster, hosts=tuple(hosts)), num_microbatches=16, max_mesh_axes=1
    )
    planner.pin_num_stages(1)
    return planner, planner.solve(on_progress=lambda progress: None)


@pytest.fixture(scope="module")
def verification(solved: tuple[Planner, Plan]) -> Verification:
    return solved[0].verify(on_progress=lambda progress: None)


def test_the_predicted_peak_is_within_a_tenth_of_the_compiled_one(verification: Verification) -> None:
    memory = verification.stages[0].memory
    assert memory.predicted_bytes == pytest.approx(memory.compiled_bytes, rel=0.1)


def test_the_compiled_peak_is_under_the_limit(verification: Verification) -> None:
    assert verification.stages[0].memory.compiled_bytes < CAPACITY


def test_the_collectives_are_those_compiled(verification: Verification) -> None:
    assert verification.collectives_error == pytest.approx(0.0, abs=0.01)


def test_no_value_of_the_vocabulary_is_repeated_over_the_devices(solved: tuple[Planner, Plan]) -> None:
    planner, plan = solved
    repeated = [
        op.name
        for op in plan.ops
        for v, spec in zip(op.outputs, op.output_specs, strict=True)
        if v is not None
        and {VOCAB, LENGTH - 1} <= set(planner.program.values[v].shape)
        and op.primitive != "broadcast_in_dim"
        and not any(spec)
    ]
    assert repeated == []
