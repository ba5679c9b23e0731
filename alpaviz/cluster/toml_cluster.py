"""Clusters from TOML.

    name = "ours"
    num_hosts = 2
    [host]
    device = "A100-80GB"                               # of the catalogue, or the name of [device] below
    num_devices = 8
    link = { bandwidth = 230e9, latency = 5e-6 }       # bytes/s one way that a device has in its host; seconds
    [network]                                          # what a host has to the others, all its cards together
    bandwidth = 50e9                                   # bytes/s one way
    latency = 20e-6                                    # seconds

`preset = "p4d.24xlarge"` instead of `[host]` takes a host, and the network where none is given, from the catalogue.
A device of one's own is a table `[device]` with `memory_bytes`, `memory_bandwidth` in bytes/s and `flops.<dtype>` in
FLOP/s. `host.topology` says how devices are joined where it is not a switch:

    topology = { kind = "bridges", devices_per_bridge = 4, across = 10e9 }           # PCIe; bytes/s between bridges
    topology = { kind = "direct", links_per_device = 7, pairs = [[0, 1, 1], ...], detour = 10e9 }  # devices, links
    topology = { kind = "torus", dims = [4, 4], wraps = [false, false] }             # host.link is one link
"""

from __future__ import annotations

from pathlib import Path

from alpaviz.cluster.catalogue import load_catalogue, read_device, read_link, read_topology
from alpaviz.cluster.description import Cluster, DeviceType, Host, Link
from alpaviz.cluster.fields import Table, read_toml, suggest
from alpaviz.cluster.wiring import remember_topology

_FIELDS = ("name", "num_hosts", "preset", "host", "device", "network", "is_virtual")


def read_cluster(path: str | Path) -> Cluster:
    """The cluster of a TOML file. Raises as `Cluster.from_toml`."""
    file = read_toml(path)
    file.check_fields(_FIELDS)
    num_hosts = file.whole("num_hosts", "hosts") if "num_hosts" in file else 1
    network: Link | None = None
    if "preset" in file:
        name = file.text("preset", "the name of a host of the catalogue")
        hosts = load_catalogue().hosts
        if name not in hosts:
            file.fail("preset", f"is {name!r}, which the catalogue does not hold.{suggest(name, hosts)}".rstrip(".?"))
        if "host" in file or "device" in file:
            file.fail("preset", "and [host] or [device] are both given: give one of them")
        preset = hosts[name]
        host, network = (
            Host(load_catalogue().devices[preset.device].device, preset.num_devices, preset.link),
            preset.network,
        )
        default_name = f"{name}:{num_hosts}"
    else:
        host, default_name = _read_host(file), Path(path).stem
    if "network" in file:
        network = read_link(file, "network", "what a host has to the others")
    elif network is None and num_hosts > 1:
        file.table("network", "what a host has to the others: bandwidth in bytes/s one way and latency in seconds")
    is_virtual = file.flag("is_virtual", "CPU devices of this machine") if "is_virtual" in file else False
    name = file.text("name", "a name for people") if "name" in file else default_name
    return Cluster(name, (host,) * num_hosts, network or host.link, is_virtual)


def _read_host(file: Table) -> Host:
    table = file.table("host", "device, num_devices, and link with bandwidth in bytes/s one way and latency in seconds")
    table.check_fields(("device", "num_devices", "link", "topology"))
    num_devices = table.whole("num_devices", "devices")
    device = _find_device(file, table)
    if "link" not in table and num_devices == 1:
        return Host(device, 1, Link(device.memory_bandwidth, 0.0))
    link = read_link(table, "link", "what a device has to the others in its host")
    host = Host(device, num_devices, link)
    if "topology" in table:
        remember_topology(host, read_topology(table, num_devices, link))
    return host


def _find_device(file: Table, host: Table) -> DeviceType:
    known = load_catalogue().devices
    if "device" in file:
        own = file.table("device", "memory_bytes, memory_bandwidth in bytes/s and flops in FLOP/s")
        own.check_fields(("name", "memory_bytes", "memory_bandwidth", "flops"))
        return read_device(own.text("name", "a name") if "name" in own else "device", own)
    name = host.text("device", "the name of a device type of the catalogue")
    if name not in known:
        hint = suggest(name, known) or f" Known: {', '.join(known)}."
        host.fail("device", f"is {name!r}, which the catalogue does not hold.{hint}".rstrip(".?"))
    return known[name].device
