"""Hosts, devices and links, and the meshes that a stage may run on.

In: a preset's name (`parse_cluster`, `get_cluster`) or a description (`describe_cluster`). Out: a frozen `Cluster`; the
submesh shapes that a stage may have (`enumerate_submeshes`), each as logical meshes whose axes know their links
(`enumerate_logical_meshes`); and devices for a list of shapes (`place_submeshes`).
"""

from alpaviz.cluster.description import Cluster, DeviceType, Host, Link
from alpaviz.cluster.mesh import MESH_AXES, LogicalMesh, Submesh, SubmeshShape
from alpaviz.cluster.presets import DEVICES, PRESETS, describe_cluster, get_cluster, parse_cluster
from alpaviz.cluster.submesh import (
    enumerate_logical_meshes,
    enumerate_submeshes,
    make_logical_mesh,
    place_submeshes,
)

__all__ = [
    "DEVICES",
    "MESH_AXES",
    "PRESETS",
    "Cluster",
    "DeviceType",
    "Host",
    "Link",
    "LogicalMesh",
    "Submesh",
    "SubmeshShape",
    "describe_cluster",
    "enumerate_logical_meshes",
    "enumerate_submeshes",
    "get_cluster",
    "make_logical_mesh",
    "parse_cluster",
    "place_submeshes",
]
