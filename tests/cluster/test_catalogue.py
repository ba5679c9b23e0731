"""The catalogue: each figure has its source, and names that are nearly right are answered with the right ones."""

from __future__ import annotations

import pytest

from alpaviz.cluster import DEVICES, PRESETS, CatalogueEntry, find_device, find_host, list_catalogue, parse_cluster
from alpaviz.errors import InvalidClusterError


@pytest.mark.parametrize("entry", list_catalogue(), ids=lambda entry: entry.name)
def test_every_figure_of_the_catalogue_has_a_source(entry: CatalogueEntry) -> None:
    if entry.kind == "device":
        figures = {"memory_bytes", "memory_bandwidth", *(f"flops.{dtype}" for dtype, _ in DEVICES[entry.name].flops)}
    else:
        figures = {"link.bandwidth", "link.latency", "network.bandwidth", "network.latency"}
    sources = dict(entry.sources)
    assert figures <= set(sources)
    assert all(sources.values())


@pytest.mark.parametrize(
    "name",
    [
        "V100-16GB", "V100-32GB", "A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB", "L4-24GB",
        "L40S-48GB", "RTX-4090", "MI250X-128GB", "MI300X-192GB", "TPU-v3", "TPU-v4", "TPU-v5e", "TPU-v5p", "TPU-v6e",
    ],
)  # fmt: skip
def test_the_devices_that_people_have_are_in_the_catalogue(name: str) -> None:
    assert find_device(name.lower()).name == name


@pytest.mark.parametrize(
    "name", ["p3.16xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "dgx-a100", "dgx-h100"]
)
def test_the_hosts_that_people_have_are_in_the_catalogue(name: str) -> None:
    assert find_host(name) is PRESETS[name]


def test_links_reach_no_more_than_their_data_sheet_says() -> None:
    assert [n for n, preset in PRESETS.items() if preset.link.bandwidth > preset.peak_bandwidth] == []


@pytest.mark.parametrize(
    ("name", "close"), [("h100", "'H100-80GB'"), ("RTX4090", "'RTX-4090'"), ("A100-80", "'A100-80GB'")]
)
def test_a_device_name_that_is_nearly_right_is_answered_with_the_right_one(name: str, close: str) -> None:
    with pytest.raises(InvalidClusterError, match=f"Did you mean .*{close}"):
        find_device(name)


def test_a_slice_larger_than_the_pod_is_refused_with_the_slices_that_exist() -> None:
    with pytest.raises(InvalidClusterError, match=r"1024 chips, more than the 256 of a pod of tpu-v5e.*16x16"):
        parse_cluster("tpu-v5e-32x32")
