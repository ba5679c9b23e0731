"""Settings that every test shares: eight virtual CPU devices, asked for before JAX starts, and no cache of stages."""

from __future__ import annotations

import os

import pytest

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["ALPAVIZ_CACHE"] = "off"  # a test finds its own answers, and leaves the user's folder alone


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What drives a browser or a Ray cluster gets a second try: their start can time out on a busy machine.

    The summary lists each test that needed one.
    """
    for item in items:
        if any(item.get_closest_marker(name) for name in ("browser", "ray")):
            item.add_marker(pytest.mark.flaky(reruns=1))
