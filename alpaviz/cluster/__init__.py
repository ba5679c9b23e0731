"""Hosts, devices and links, and the meshes that a stage may run on.

In: a name of the catalogue (`parse_cluster`, `get_cluster`; `list_catalogue` lists it, each figure with its source), or
a description (`describe_cluster`, `Cluster.from_toml`). Out: a frozen `Cluster`; the
submesh shapes that a stage may have (`enumerate_submeshes`), each as logical meshes whose axes know their links
(`enumerate_logical_meshes`); and devices for a list of shapes (`place_submeshes`).
"""

from alpaviz.cluster.catalogue import CatalogueDevice, CatalogueEntry, HostPreset
from alpaviz.cluster.description import Cluster, DeviceType, Host, Link
from alpaviz.cluster.mesh import MESH_AXES, AxisGroup, LogicalMesh, Submesh, SubmeshShape
from alpaviz.cluster.presets import (
    DEVICES,
    PRESETS,
    describe_cluster,
    find_device,
    find_host,
    get_cluster,
    list_catalogue,
    parse_cluster,
)
from alpaviz.cluster.submesh import (
    enumerate_logical_meshes,
    enumerate_submeshes,
    make_logical_mesh,
    place_submeshes,
)
from alpaviz.cluster.wiring import find_topology

__all__ = [
    "DEVICES",
    "MESH_AXES",
    "PRESETS",
    "AxisGroup",
    "CatalogueDevice",
    "CatalogueEntry",
    "Cluster",
    "DeviceType",
    "Host",
    "HostPreset",
    "Link",
    "LogicalMesh",
    "Submesh",
    "SubmeshShape",
    "describe_cluster",
    "enumerate_logical_meshes",
    "enumerate_submeshes",
    "find_device",
    "find_host",
    "find_topology",
    "get_cluster",
    "list_catalogue",
    "make_logical_mesh",
    "parse_cluster",
    "place_submeshes",
]
