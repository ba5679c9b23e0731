"""The hardware catalogue: TOML files in `alpaviz/hardware`, one a family, each figure with its public source.

Figures are dense peaks and one-way bandwidths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path

from alpaviz.cluster.description import DTYPES, DeviceType, Link
from alpaviz.cluster.fields import Table, read_toml, suggest
from alpaviz.cluster.topology import Bridges, DirectLinks, Switch, Topology, Torus, check_topology


@dataclass(frozen=True, slots=True)
class CatalogueDevice:
    """A device of the catalogue.

    Attributes:
        matmul_efficiency: (dtype, share of the peak FLOP/s that the best matrix product found reaches) pairs.
        sources: (field, where its figure is from) pairs, for instance `("flops.float16", "NVIDIA ... data sheet")`.
        family: the file that it is in, without `.toml`.
    """

    device: DeviceType
    matmul_efficiency: tuple[tuple[str, float], ...]
    sources: tuple[tuple[str, str], ...]
    family: str


@dataclass(frozen=True, slots=True)
class HostPreset:
    """A kind of host: its devices, what joins them, what joins hosts, and where the figures are from.

    Attributes:
        link: what one device reaches to the others in its host; `peak_bandwidth` is the data sheet's figure for it
            (bytes/s one way; equal where no other is known).
        network: what one host has to the others: all of its `num_cards` network cards.
        has_rails: cards belong to devices, each joined to the cards of the same place in other hosts.
        source: of the number of devices, for a short list; `sources` says it field by field.
    """

    device: str
    num_devices: int
    link: Link
    network: Link
    source: str
    topology: Topology = field(default_factory=Switch)
    peak_bandwidth: float = math.nan
    num_cards: int = 1
    has_rails: bool = False
    sources: tuple[tuple[str, str], ...] = ()
    family: str = ""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A line of the catalogue, for people.

    Attributes:
        kind: `"device"` or `"host"`.
        summary: what it is, in units that people use.
        sources: (field, where its figure is from) pairs.
    """

    name: str
    kind: str
    family: str
    summary: str
    sources: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Devices and hosts by name, in the order of the files; `pods` has the most chips of a slice of each kind."""

    devices: dict[str, CatalogueDevice]
    hosts: dict[str, HostPreset]
    pods: dict[str, int]


_FAMILIES = ("volta", "ampere", "hopper", "blackwell", "ada", "instinct", "tpu", "cpu")
_DEVICE_FIELDS = ("memory_bytes", "memory_bandwidth", "flops", "matmul_efficiency")
_HOST_FIELDS = ("device", "num_devices", "link", "network", "topology")


@lru_cache(maxsize=1)
def load_catalogue() -> Catalogue:
    """What the package brings."""
    devices: dict[str, CatalogueDevice] = {}
    hosts: dict[str, HostPreset] = {}
    pods: dict[str, int] = {}
    folder = resources.files("alpaviz") / "hardware"
    for family in _FAMILIES:
        with resources.as_file(folder / f"{family}.toml") as path:
            found = read_family(path)
        devices |= found.devices
        hosts |= found.hosts
        pods |= found.pods
    return Catalogue(devices, hosts, pods)


def read_family(path: str | Path) -> Catalogue:
    """The devices and hosts of one file of the catalogue's form.

    Raises:
        InvalidClusterError: a field is missing or wrong, or a figure has no source.
    """
    file = read_toml(path)
    file.check_fields(("sources", "device", "host", "slices"))
    cite = _make_citer(file)
    family = Path(path).stem
    devices: dict[str, CatalogueDevice] = {}
    for name in _names(file, "device"):
        table = file.table("device", "devices by name").table(name, "a device")
        table.check_fields(_DEVICE_FIELDS)
        efficiency = () if "matmul_efficiency" not in table else read_rates(table, "matmul_efficiency", "of the peak")
        devices[name] = CatalogueDevice(read_device(name, table), efficiency, cite(table), family)
    hosts: dict[str, HostPreset] = {}
    for name in _names(file, "host"):
        table = file.table("host", "hosts by name").table(name, "a host")
        hosts[name] = _read_host(table, cite, family)
    pods: dict[str, int] = {}
    for name in _names(file, "slices"):
        table = file.table("slices", "slices by name").table(name, "slices of one kind of chip")
        pods[name] = table.whole("pod", "chips")
        hosts |= {f"{name}-{shape}": preset for shape, preset in _read_slices(table, cite, family)}
    return Catalogue(devices, hosts, pods)


def read_device(name: str, table: Table) -> DeviceType:
    """`memory_bytes`, `memory_bandwidth` in bytes/s and `flops.<dtype>` in FLOP/s of a table."""
    memory = table.number("memory_bytes", "bytes")
    bandwidth = table.number("memory_bandwidth", "bytes/s")
    rates = read_rates(table, "flops", "FLOP/s")
    if "float32" not in dict(rates):
        table.fail("flops.float32", "is missing: a number of FLOP/s above 0; dtypes without a rate run at this one")
    return DeviceType(name, memory, bandwidth, rates)


def read_rates(table: Table, field: str, unit: str) -> tuple[tuple[str, float], ...]:
    """A figure for each dtype."""
    rates = table.table(field, f"numbers of {unit}, one for each dtype, with float32 among them")
    for dtype in rates.entries:
        if dtype not in DTYPES:
            hint = suggest(dtype, DTYPES) or f" Known: {', '.join(DTYPES)}."
            rates.fail(dtype, f"is of an unknown dtype, {dtype!r}.{hint}".rstrip(".?"))
    return tuple((dtype, rates.number(dtype, unit)) for dtype in rates.entries)


def read_link(table: Table, field: str, what: str) -> Link:
    """A table with `bandwidth` in bytes/s, one way, and `latency` in seconds."""
    link = table.table(field, f"{what}: bandwidth in bytes/s one way and latency in seconds")
    return Link(link.number("bandwidth", "bytes/s"), link.number("latency", "seconds", may_be_zero=True))


def read_topology(table: Table, num_devices: int, link: Link) -> Topology:
    """`topology`: a table with its `kind`; a `switch` where there is none."""
    if "topology" not in table:
        return Switch()
    form = table.table("topology", "how the devices of a host are joined")
    kinds = ("switch", "direct", "bridges", "torus")
    kind = form.text("kind", f"one of {', '.join(kinds)}")
    topology: Topology
    match kind:
        case "switch":
            form.check_fields(("kind", "source"))
            topology = Switch()
        case "direct":
            form.check_fields(("kind", "source", "links_per_device", "pairs", "detour"))
            pairs = form.rows("pairs", "[device, device, links] triples")
            detour = form.number("detour", "bytes/s") / link.bandwidth if "detour" in form else 0.05
            count = form.whole("links_per_device", "links")
            topology = DirectLinks(count, tuple(_read_pair(form, pair) for pair in pairs), detour)
        case "bridges":
            form.check_fields(("kind", "source", "devices_per_bridge", "across"))
            across = form.number("across", "bytes/s") / link.bandwidth
            topology = Bridges(form.whole("devices_per_bridge", "devices"), across)
        case "torus":
            form.check_fields(("kind", "source", "dims", "wraps"))
            dims = _read_dims(form)
            wraps = tuple(form.rows("wraps", "true or false for each of dims"))
            if len(wraps) != len(dims) or not all(isinstance(wrap, bool) for wrap in wraps):
                form.fail("wraps", f"must be true or false for each of the {len(dims)} dims, not {list(wraps)!r}")
            topology = Torus(dims, tuple(bool(wrap) for wrap in wraps))
        case _:
            form.fail("kind", f"must be one of {', '.join(kinds)}, not {kind!r}.{suggest(kind, kinds)}".rstrip(".?"))
    if problem := check_topology(topology, num_devices):
        form.fail("", problem)
    return topology


def _read_pair(form: Table, pair: object) -> tuple[int, int, int]:
    if not (isinstance(pair, list) and len(pair) == 3 and all(type(n) is int for n in pair) and pair[2] > 0):
        form.fail("pairs", f"must hold [device, device, links] with whole numbers and at least one link, not {pair!r}")
    return pair[0], pair[1], pair[2]


def _read_dims(form: Table) -> tuple[int, ...]:
    dims = form.rows("dims", "devices along each dimension")
    if not dims or not all(type(n) is int and n > 0 for n in dims):
        form.fail("dims", f"must be whole numbers of devices above 0, not {dims!r}")
    return tuple(n for n in dims if isinstance(n, int))


# Hosts and slices

_Citer = Callable[[Table], tuple[tuple[str, str], ...]]


def _names(file: Table, field: str) -> tuple[str, ...]:
    return tuple(file.table(field, "tables by name").entries) if field in file else ()


def _make_citer(file: Table) -> _Citer:
    """A function that gives each figure of a table its source in full, and refuses a figure without one."""
    cited = file.table("sources", "texts that figures name").entries

    def cite(table: Table) -> tuple[tuple[str, str], ...]:
        found = []
        for name, value in table.entries.items():
            if isinstance(value, dict) and "value" not in value and "kind" not in value:
                inner = Table(table.file, f"{table.path}.{name}", value)
                found += [(f"{name}.{below}", text) for below, text in cite(inner)]
            elif isinstance(value, dict) or type(value) in (int, float):
                key = table.source(name)
                if key not in cited:
                    table.fail(f"{name}.source", f"must name a line of [sources], not {key!r}")
                found.append((name, str(cited[key])))
        return tuple(found)

    return cite


def _read_host(table: Table, cite: _Citer, family: str) -> HostPreset:
    table.check_fields(_HOST_FIELDS)
    count = table.whole("num_devices", "devices")
    link = read_link(table, "link", "what a device has to the others in its host")
    cards = table.table("network", "what a host has to the others")
    inside = table.table("link", "what a device has")
    sources = cite(table)
    return HostPreset(
        table.text("device", "the name of a device type"),
        count,
        link,
        read_link(table, "network", "what a host has to the others"),
        dict(sources)["num_devices"],
        read_topology(table, count, link),
        inside.number("peak", "bytes/s") if "peak" in inside else link.bandwidth,
        cards.whole("num_cards", "network cards"),
        cards.flag("has_rails", "each device with its own cards"),
        sources,
        family,
    )


def _read_slices(table: Table, cite: _Citer, family: str) -> list[tuple[str, HostPreset]]:
    """Each slice of a pod as one host: its chips are joined by ICI whichever machine they sit in."""
    link = read_link(table, "link", "one ICI link")
    machine = read_link(table, "network", "what one machine has to those of other slices")
    per_host = table.whole("chips_per_host", "chips")
    sources = cite(table)
    found = []
    for shape in table.rows("shapes", "slices such as '4x4'"):
        dims = tuple(int(n) for n in str(shape).split("x"))
        count = math.prod(dims)
        machines = -(-count // per_host)
        network = Link(machine.bandwidth * machines, machine.latency)
        topology = Torus(dims, find_wraps(dims, table.text("wraps", "which dimensions wrap around")))
        preset = HostPreset(
            table.text("device", "the name of a device type"), count, link, network, dict(sources)["pod"], topology,
            link.bandwidth, machines, False, sources, family,
        )  # fmt: skip
        found.append((str(shape), preset))
    return found


def find_wraps(dims: tuple[int, ...], rule: str) -> tuple[bool, ...]:
    """Which dimensions of a slice wrap around.

    Optical switches join the ends of whole cubes of 4 x 4 x 4 chips (v4, v5p); elsewhere only a dimension of the whole
    pod wraps around. Source: jax-ml/scaling-book, tpus.md.
    """
    if rule == "multiples of 4":
        return (all(size % 4 == 0 for size in dims),) * len(dims)
    return tuple(size == int(rule) for size in dims)
