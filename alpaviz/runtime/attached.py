"""The devices that are attached to this process, as a cluster that can be planned for."""

from __future__ import annotations

import re
from collections import Counter

import jax

from alpaviz.cluster import DEVICES, PRESETS, Cluster, Link, describe_cluster
from alpaviz.errors import InvalidClusterError

_KINDS = (
    (r"V100.*32", "V100-32GB"),
    (r"V100", "V100-16GB"),
    (r"A100.*80", "A100-80GB"),
    (r"A100", "A100-40GB"),
    (r"H200", "H200-141GB"),
    (r"H100", "H100-80GB"),
    (r"cpu", "CPU"),
)
"""What JAX calls a device -> our name of its type; the first that matches."""


def find_type_name(kind: str) -> str | None:
    """Our name of the type of devices that JAX calls `kind`; None for an unknown one."""
    return next((ours for pattern, ours in _KINDS if re.search(pattern, kind, re.IGNORECASE)), None)


def attached_cluster() -> Cluster:
    """This process's JAX devices as a cluster of one host (of several where JAX runs on several processes).

    Links are those of the preset with these devices, or of virtual devices for CPUs: they are not measured.

    Raises:
        InvalidClusterError: the devices are of an unknown kind, or not the same number on every host.
    """
    devices = jax.devices()
    kind = devices[0].device_kind
    name = find_type_name(kind)
    if name is None:
        raise InvalidClusterError(
            f"The attached devices are of kind {kind!r}, which has no figures here (known: {', '.join(DEVICES)}). "
            "Describe the cluster with alpaviz.describe_cluster."
        )
    per_host = Counter(device.process_index for device in devices)
    if len(set(per_host.values())) > 1:
        raise InvalidClusterError(f"Hosts have different numbers of devices: {dict(per_host)}. Attach equal hosts.")
    preset = next((p for p in PRESETS.values() if p.device == name), None)
    link = preset.link if preset is not None else Link(4e9, 20e-6)
    network = preset.network if preset is not None else Link(1e9, 100e-6)
    return describe_cluster(
        f"attached: {len(devices)} x {name}",
        len(per_host),
        len(devices) // len(per_host),
        name,
        link=link,
        network=network,
        is_virtual=name == "CPU",
    )
