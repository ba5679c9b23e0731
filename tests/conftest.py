"""Settings that every test shares: eight virtual CPU devices, asked for before JAX starts, and no cache of stages."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["ALPAVIZ_CACHE"] = "off"  # a test finds its own answers, and leaves the user's folder alone
