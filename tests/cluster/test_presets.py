"""Clusters by name and by description."""

from __future__ import annotations

import pytest

from alpaviz.cluster import DEVICES, PRESETS, Link, describe_cluster, get_cluster, parse_cluster
from alpaviz.errors import InvalidClusterError

LINK, NETWORK = Link(100e9, 5e-6), Link(10e9, 20e-6)


def test_the_papers_cluster_is_eight_hosts_of_eight_v100_on_25_gbit() -> None:
    cluster = get_cluster("p3.16xlarge", num_hosts=8)
    assert (cluster.num_hosts, cluster.devices_per_host, cluster.num_devices) == (8, 8, 64)
    assert cluster.device_type.memory_bytes == 16e9
    assert cluster.device_type.peak_flops("float16") == 125e12
    assert cluster.network.bandwidth == pytest.approx(25e9 / 8, rel=0.01)


def test_a_v100_runs_bfloat16_at_its_float32_rate() -> None:
    assert DEVICES["V100-16GB"].peak_flops("bfloat16") == 15.7e12


@pytest.mark.parametrize(
    ("text", "hosts", "devices"),
    [
        ("p3.16xlarge:2", 2, 8),
        ("P3.16XLARGE:2", 2, 8),
        ("dgx-a100", 1, 8),
        ("dgx-h100:4", 4, 8),
        ("virtual:8", 1, 8),
        ("virtual:2x4", 2, 4),
        ("virtual", 1, 8),
    ],
)
def test_text_names_hosts_and_devices(text: str, hosts: int, devices: int) -> None:
    cluster = parse_cluster(text)
    assert (cluster.num_hosts, cluster.devices_per_host) == (hosts, devices)
    assert cluster.is_virtual == text.startswith("virtual")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_gives_a_cluster_whose_network_is_no_faster_than_all_its_links(name: str) -> None:
    cluster = get_cluster(name, 2)
    assert cluster.num_hosts == 2
    assert cluster.network.bandwidth <= cluster.hosts[0].link.bandwidth * cluster.devices_per_host
    assert PRESETS[name].source


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_every_device_is_named_by_its_key_and_has_16_bit_rates_at_least_as_high_as_32_bit(device: str) -> None:
    kind = DEVICES[device]
    assert kind.name == device
    assert kind.peak_flops("float16") >= kind.peak_flops("float32")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p4.16xlarge:2", r"No cluster preset is called 'p4\.16xlarge'\. Did you mean 'p3\.16xlarge'"),
        ("p3.16xlarge:two", "'two' is not a number of hosts"),
        ("p3.16xlarge:0", "num_hosts must be a whole number above 0, not 0"),
        ("virtual:2x2x2", "write 'virtual:8' or 'virtual:2x4'"),
        ("virtual:2x0", "num_devices must be a whole number above 0, not 0"),
    ],
)
def test_a_wrong_text_is_answered_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(InvalidClusterError, match=message):
        parse_cluster(text)


def test_a_cluster_of_ones_own_is_described_with_a_device_by_name_or_by_figures() -> None:
    by_name = describe_cluster("mine", 2, 4, "A100-80GB", link=LINK, network=NETWORK)
    by_figures = describe_cluster("mine", 2, 4, DEVICES["A100-80GB"], link=LINK, network=NETWORK)
    assert by_name == by_figures
    assert by_name.num_devices == 8


def test_an_unknown_device_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(InvalidClusterError, match=r"type is called 'A100'\. Did you mean 'A100-.*Known: V100-16GB"):
        describe_cluster("mine", 1, 4, "A100", link=LINK, network=NETWORK)
