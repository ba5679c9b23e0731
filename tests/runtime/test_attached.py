"""Attached devices as a cluster."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest

import alpaviz
from alpaviz.errors import InvalidClusterError


def test_virtual_devices_are_one_virtual_host() -> None:
    cluster = alpaviz.attached_cluster()
    assert (cluster.num_hosts, cluster.devices_per_host, cluster.is_virtual) == (1, len(jax.devices()), True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
    ],
)
def test_known_devices_have_their_figures(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [SimpleNamespace(device_kind=kind, process_index=i // 8) for i in range(16)]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    cluster = alpaviz.attached_cluster()
    assert (cluster.device_type.name, cluster.num_hosts, cluster.devices_per_host) == (name, 2, 8)


def test_an_unknown_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="Abacus 3", process_index=0)])
    with pytest.raises(InvalidClusterError, match="of kind 'Abacus 3', which has no figures here"):
        alpaviz.attached_cluster()
