"""Clusters in TOML: ten lines make one, and what is wrong is named by file, field and unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from alpaviz.cluster import Cluster, SubmeshShape, make_logical_mesh, parse_cluster
from alpaviz.errors import InvalidClusterError

TEN_LINES = """
name = "ours"
num_hosts = 2
[host]
device = "A100-80GB"
num_devices = 8
link = { bandwidth = 230e9, latency = 5e-6 }
[network]
bandwidth = 50e9
latency = 20e-6
"""
OWN_DEVICE = """
[device]
name = "mine"
memory_bytes = 8e9
memory_bandwidth = 200e9
flops.float32 = 1e12
[host]
num_devices = 1
"""


def read(folder: Path, text: str) -> Cluster:
    (folder / "ours.toml").write_text(text)
    return Cluster.from_toml(folder / "ours.toml")


def test_ten_lines_describe_a_cluster(tmp_path: Path) -> None:
    cluster = read(tmp_path, TEN_LINES)
    assert (cluster.name, cluster.num_hosts, cluster.devices_per_host) == ("ours", 2, 8)
    assert (cluster.device_type.name, cluster.network.bandwidth) == ("A100-80GB", 50e9)


def test_a_host_of_the_catalogue_is_taken_by_its_name(tmp_path: Path) -> None:
    assert read(tmp_path, 'preset = "p4d.24xlarge"\nnum_hosts = 4') == parse_cluster("p4d.24xlarge:4")


def test_a_host_of_one_device_of_ones_own_needs_no_link(tmp_path: Path) -> None:
    cluster = read(tmp_path, OWN_DEVICE)
    assert cluster.device_type.peak_flops("float32") == 1e12


def test_devices_on_pcie_bridges_share_the_way_across(tmp_path: Path) -> None:
    bridges = 'topology = { kind = "bridges", devices_per_bridge = 4, across = 10e9 }'
    text = TEN_LINES.replace("[network]", f"{bridges}\n[network]").replace("230e9", "24.5e9")
    mesh = make_logical_mesh(read(tmp_path, text), SubmeshShape(1, 8), (8,))
    assert mesh.link("x").bandwidth == pytest.approx(10e9)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("230e9", "-1", r"host\.link\.bandwidth must be a number of bytes/s above 0, not -1"),
        ("230e9", "0", r"host\.link\.bandwidth must be a number of bytes/s above 0, not 0"),
        ("50e9", "0.0", r"network\.bandwidth must be a number of bytes/s above 0, not 0\.0"),
        ("50e9", "inf", r"network\.bandwidth must be a number of bytes/s above 0, not inf"),
        ("50e9", '"50 GB/s"', r"network\.bandwidth must be a number of bytes/s above 0, not '50 GB/s'"),
        ("20e-6", "-1e-6", r"network\.latency must be a number of seconds of at least 0"),
        ("num_devices = 8", "num_devices = 8.5", r"host\.num_devices must be a whole number of devices above 0"),
        ("num_devices = 8", "", r"host\.num_devices is missing: a whole number of devices above 0"),
        ("num_hosts = 2", "num_hosts = true", r"num_hosts must be a whole number of hosts above 0, not True"),
        ("link = { bandwidth = 230e9, latency = 5e-6 }", "", r"host\.link is missing: .*bandwidth in bytes/s one way"),
        ("bandwidth = 50e9", "", r"network\.bandwidth is missing: a number of bytes/s above 0"),
        ("[network]\nbandwidth = 50e9\nlatency = 20e-6", "", r"network is missing: .*latency in seconds"),
        ("A100-80GB", "A100-80", r"host\.device is 'A100-80'.* Did you mean 'A100-80GB'"),
        ("num_hosts = 2", "num_host = 2", r"num_host is no field of it; .* Did you mean 'num_hosts'"),
        ('name = "ours"', 'name = "ours', r"is not TOML: .*line 2"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_file_field_and_unit(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEN_LINES
    with pytest.raises(InvalidClusterError, match=r"ours\.toml: " + message):
        read(tmp_path, TEN_LINES.replace(old, new))


def test_a_rate_for_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidClusterError, match=r"device\.flops\.fp32 is of an unknown dtype"):
        read(tmp_path, OWN_DEVICE.replace("flops.float32", "flops.fp32"))


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ('{ kind = "direct", links_per_device = 1, pairs = [[0, 1, 1]] }', "device 2 has no link"),
        ('{ kind = "direct", links_per_device = 1, pairs = [[0, 8, 1]] }', r"\[0, 8, 1\].*devices 0 to 7"),
        ('{ kind = "torus", dims = [4, 4], wraps = [false, false] }', "4x4 has 16 devices, not 8"),
        ('{ kind = "bridges", devices_per_bridge = 4, across = 0 }', "across must be a number of bytes/s above 0"),
        ('{ kind = "swich" }', "Did you mean 'switch'"),
    ],
)
def test_a_topology_that_does_not_fit_its_host_is_refused(tmp_path: Path, topology: str, message: str) -> None:
    text = TEN_LINES.replace("[network]", f"topology = {topology}\n[network]")
    with pytest.raises(InvalidClusterError, match=message):
        read(tmp_path, text)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidClusterError, match=r"none\.toml: cannot be read: No such file"):
        Cluster.from_toml(tmp_path / "none.toml")


def test_a_mesh_of_more_devices_than_the_cluster_has_is_refused() -> None:
    with pytest.raises(InvalidClusterError, match=r"submesh 2x8 needs 2 hosts of 8 devices, cluster .* has 1 of 8"):
        make_logical_mesh(parse_cluster("dgx-a100"), SubmeshShape(2, 8), (16,))
