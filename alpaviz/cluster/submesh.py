"""Which blocks of devices a stage may have, how they are laid out, and as which logical meshes they are seen."""

from __future__ import annotations

from collections.abc import Sequence

from alpaviz.cluster.description import Cluster, Link
from alpaviz.cluster.mesh import LogicalMesh, Submesh, SubmeshShape
from alpaviz.errors import InvalidClusterError


def enumerate_submeshes(cluster: Cluster) -> tuple[SubmeshShape, ...]:
    """1 x 2^k devices inside a host, one whole host, and n whole hosts (paper section 5.1)."""
    per_host = cluster.devices_per_host
    inside = [1 << k for k in range(per_host.bit_length()) if 1 << k <= per_host]
    shapes = [SubmeshShape(1, n) for n in dict.fromkeys([*inside, per_host])]
    shapes += [SubmeshShape(n, per_host) for n in range(2, cluster.num_hosts + 1)]
    return tuple(shapes)


def enumerate_logical_meshes(cluster: Cluster, shape: SubmeshShape) -> tuple[LogicalMesh, ...]:
    """All meshes of one and two axes over a submesh; of two that differ only by naming equal axes one is kept."""
    total = shape.num_devices
    if total == 1:
        return (make_logical_mesh(cluster, shape, (1,)),)
    found = [make_logical_mesh(cluster, shape, (total,))]
    seen: set[object] = set()
    for major in range(total - 1, 1, -1):
        if total % major:
            continue
        mesh = make_logical_mesh(cluster, shape, (major, total // major))
        key = tuple(sorted(zip(mesh.shape, ((k.bandwidth, k.latency) for k in mesh.links), strict=True)))
        if key not in seen:
            seen.add(key)
            found.append(mesh)
    return tuple(found)


def make_logical_mesh(cluster: Cluster, shape: SubmeshShape, axes: tuple[int, ...]) -> LogicalMesh:
    """The submesh seen as an array of shape `axes`, hosts varying slowest.

    Raises:
        InvalidClusterError: the axes do not multiply to the number of devices.
    """
    size = 1
    for n in axes:
        size *= n
    if size != shape.num_devices:
        raise InvalidClusterError(
            f"logical mesh {'x'.join(map(str, axes))} has {size} devices, the submesh {shape} has {shape.num_devices}."
        )
    links, stride = [], size
    for n in axes:
        stride //= n
        links.append(_find_axis_link(cluster, shape, n, stride))
    return LogicalMesh(shape, axes, tuple(links), cluster.device_type)


def _find_axis_link(cluster: Cluster, shape: SubmeshShape, size: int, stride: int) -> Link:
    """What one group of `size` devices, `stride` apart, gets while all such groups communicate."""
    per_host = shape.devices_per_host
    if shape.num_hosts == 1 or size * stride <= per_host:
        return cluster.hosts[0].link
    # The group leaves its host. All groups that pass through one network card at once share it: with a stride of
    # `stride` there are that many groups side by side, at most one per device of the host.
    sharing = min(stride, per_host)
    bandwidth = min(cluster.network.bandwidth / sharing, cluster.hosts[0].link.bandwidth)
    return Link(bandwidth, cluster.network.latency)


def place_submeshes(cluster: Cluster, shapes: Sequence[SubmeshShape]) -> tuple[Submesh, ...]:
    """Devices for each shape, in the order given (paper theorem 1: shapes that fill the cluster always fit).

    Blocks of whole hosts come first, then smaller ones by size, so that each is aligned inside its host.

    Raises:
        InvalidClusterError: the shapes need more devices than there are, or do not fit side by side.
    """
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
