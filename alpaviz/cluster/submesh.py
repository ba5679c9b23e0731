"""Which blocks of devices a stage may have, how they are laid out, and as which logical meshes they are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from alpaviz.cluster.description import Cluster
from alpaviz.cluster.mesh import MESH_AXES, LogicalMesh, Submesh, SubmeshShape
from alpaviz.cluster.wiring import list_axis_groups
from alpaviz.errors import InvalidClusterError


def enumerate_submeshes(cluster: Cluster) -> tuple[SubmeshShape, ...]:
    """1 x 2^k devices inside a host, one whole host, and n whole hosts (paper section 5.1).

    On several hosts whose number of devices is no power of two, only those 2^k are kept that divide it: then each size
    divides the next larger one, and whatever adds up to the cluster can be laid out (`place_submeshes`). Three blocks
    of 4 on two hosts of 6, say, could not. Where hosts differ, these are the blocks of each kind.
    """
    if len(cluster.kinds) > 1:
        return tuple(
            replace(shape, kind=kind)
            for kind in cluster.kinds
            for shape in enumerate_submeshes(cluster.take_kind(kind))
        )
    per_host = cluster.devices_per_host
    inside = [1 << k for k in range(per_host.bit_length())]
    kept = [n for n in inside if cluster.num_hosts == 1 or per_host % n == 0]
    shapes = [SubmeshShape(1, n) for n in dict.fromkeys([*kept, per_host])]
    shapes += [SubmeshShape(n, per_host) for n in range(2, cluster.num_hosts + 1)]
    return tuple(shapes)


def enumerate_logical_meshes(cluster: Cluster, shape: SubmeshShape, max_axes: int = 2) -> tuple[LogicalMesh, ...]:
    """All meshes of one to `max_axes` axes over a submesh, no axis of one device unless it is the only one.

    Of meshes that differ only in the order of their axes, each axis with the same link, one is kept.
    """
    if shape.num_devices == 1:
        return (make_logical_mesh(cluster, shape, (1,)),)
    found: list[LogicalMesh] = []
    seen: set[object] = set()
    for count in range(1, max_axes + 1):
        for axes in _list_factorizations(shape.num_devices, count):
            mesh = make_logical_mesh(cluster, shape, axes)
            key = tuple(sorted(zip(mesh.shape, ((k.bandwidth, k.latency) for k in mesh.links), strict=True)))
            if key not in seen:
                seen.add(key)
                found.append(mesh)
    return tuple(found)


def _list_factorizations(total: int, count: int) -> list[tuple[int, ...]]:
    """Every way to write `total` as an ordered product of `count` numbers above 1, larger first numbers first."""
    if count == 1:
        return [(total,)]
    majors = [n for n in range(total - 1, 1, -1) if total % n == 0]
    return [(major, *rest) for major in majors for rest in _list_factorizations(total // major, count - 1)]


def make_logical_mesh(cluster: Cluster, shape: SubmeshShape, axes: tuple[int, ...]) -> LogicalMesh:
    """The submesh seen as an array of shape `axes`, hosts varying slowest.

    An axis whose groups stay inside a host gets what the links that they cross give (`find_topology`). Where groups
    leave their host, each gets its share of the network cards (`LogicalMesh.links`) and the network's latency.

    Raises:
        InvalidClusterError: the axes do not multiply to the number of devices, or the cluster has fewer.
    """
    cluster = cluster.take_kind(shape.kind)
    size = 1
    for n in axes:
        size *= n
    if size != shape.num_devices:
        raise InvalidClusterError(
            f"logical mesh {'x'.join(map(str, axes))} has {size} devices, the submesh {shape} has {shape.num_devices}."
        )
    if shape.num_hosts > cluster.num_hosts or shape.devices_per_host > cluster.devices_per_host:
        raise InvalidClusterError(
            f"submesh {shape} needs {shape.num_hosts} hosts of {shape.devices_per_host} devices, cluster "
            f"{cluster.name!r} has {cluster.num_hosts} of {cluster.devices_per_host}."
        )
    groups = list_axis_groups(cluster, shape, axes)
    by_axis = {group.axes[0]: group.link for group in groups if len(group.axes) == 1}
    links = tuple(by_axis.get(name, cluster.hosts[0].link) for name in MESH_AXES[: len(axes)])
    return LogicalMesh(shape, axes, links, cluster.device_type, groups)


def place_submeshes(cluster: Cluster, shapes: Sequence[SubmeshShape]) -> tuple[Submesh, ...]:
    """Devices for each shape, in the order given (paper theorem 1: shapes that fill the cluster always fit).

    Blocks of whole hosts come first, then smaller ones by size, so that each is aligned inside its host. Shapes that
    use fewer devices than there are leave the last ones free.

    Raises:
        InvalidClusterError: the shapes need more devices than there are, or do not fit side by side.
    """
    if len(cluster.kinds) > 1:
        return _place_by_kind(cluster, shapes)
    per_host = cluster.devices_per_host
    needed = sum(shape.num_devices for shape in shapes)
    if needed > cluster.num_devices:
        raise InvalidClusterError(f"stages need {needed} devices, cluster {cluster.name!r} has {cluster.num_devices}.")
    order = sorted(range(len(shapes)), key=lambda i: (-shapes[i].num_devices, i))
    used = [0] * cluster.num_hosts
    placed: dict[int, Submesh] = {}
    for i in order:
        shape = shapes[i]
        whole = shape.devices_per_host == per_host
        room = [h for h in range(cluster.num_hosts) if used[h] + shape.devices_per_host <= per_host]
        hosts = room[: shape.num_hosts]
        if len(hosts) < shape.num_hosts or (not whole and shape.num_hosts > 1):
            raise InvalidClusterError(
                f"submesh {shape} does not fit beside the others on {cluster.num_hosts} hosts of {per_host} devices."
            )
        devices = tuple((h, used[h] + d) for h in hosts for d in range(shape.devices_per_host))
        for h in hosts:
            used[h] += shape.devices_per_host
        placed[i] = Submesh(shape, devices)
    return tuple(placed[i] for i in range(len(shapes)))


def _place_by_kind(cluster: Cluster, shapes: Sequence[SubmeshShape]) -> tuple[Submesh, ...]:
    """Each kind's shapes on its own hosts, which are numbered as in the whole cluster."""
    placed: dict[int, Submesh] = {}
    for kind in dict.fromkeys(shape.kind for shape in shapes):
        own = cluster.take_kind(kind)
        numbers = [h for h, host in enumerate(cluster.hosts) if host == own.hosts[0]]
        indices = [i for i, shape in enumerate(shapes) if shape.kind == kind]
        for i, block in zip(indices, place_submeshes(own, [shapes[i] for i in indices]), strict=True):
            placed[i] = replace(block, devices=tuple((numbers[h], d) for h, d in block.devices))
    return tuple(placed[i] for i in range(len(shapes)))
