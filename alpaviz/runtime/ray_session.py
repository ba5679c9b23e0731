"""The Ray that executables run on: one that runs already, or one started here and stopped with the last of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from alpaviz.cluster import Cluster
from alpaviz.errors import LaunchError

START_ATTEMPTS = 3

_lock = threading.Lock()
_users: set[int] = set()
"""Numbers of the sessions that hold the Ray that was started here."""
_count = 0


def import_ray() -> Any:
    """The ray package.

    Raises:
        LaunchError: it is not installed.
    """
    try:
        import ray
    except ImportError:
        raise LaunchError("This plan needs Ray, which is not installed here: pip install ray.") from None
    return ray


class RaySession:
    """One executable's hold on Ray. A Ray that the user started is used and left alone."""

    def __init__(self) -> None:
        global _count
        self.ray = import_ray()
        with _lock:
            _count += 1
            self._number = _count
            if not self.ray.is_initialized():
                _users.clear()  # The user has shut down the one that was started here.
                _start(self.ray)
                _users.add(self._number)
            elif _users:
                _users.add(self._number)

    def release(self) -> None:
        """Let go of Ray; one that was started here stops when nobody holds it."""
        with _lock:
            held = self._number in _users
            _users.discard(self._number)
            if held and not _users and self.ray.is_initialized():
                self.ray.shutdown()


def _start(ray: Any) -> None:
    for remaining in reversed(range(START_ATTEMPTS)):
        try:
            _start_once(ray)
            return
        except Exception as error:
            if "timed out during startup" not in str(error) or not remaining:
                raise
            # Ray waits 30 s, which is too short on a machine that is busy; what it has loaded by then is there at once.
            ray.shutdown()


def _start_once(ray: Any) -> None:
    # Workers are processes of this machine only, so they need not be seen from outside, nor move when its address does.
    ray.init(
        num_cpus=max(2, os.cpu_count() or 1), include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        configure_logging=False, _node_ip_address="127.0.0.1",
    )  # fmt: skip


def choose_options(ray: Any, cluster: Cluster) -> dict[str, Any]:
    """Options of the actors, one for each host of `cluster`: environment and accelerators.

    Raises:
        LaunchError: Ray has fewer accelerators than the cluster.
    """
    if len({host.num_devices for host in cluster.hosts}) > 1:
        raise LaunchError(
            f"The hosts of {cluster.name!r} have unequal numbers of devices, which Ray actors do not yet."
        )
    environment = _choose_import_path()
    if cluster.is_virtual:
        count = cluster.devices_per_host
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
        return {"num_cpus": 0, "runtime_env": {"env_vars": environment}}
    available = int(ray.cluster_resources().get("GPU", 0))
    if available < cluster.num_devices:
        raise LaunchError(
            f"The plan is for {cluster.num_devices} devices of type {cluster.device_type.name}; Ray has {available} "
            f"GPUs. Start Ray on the cluster, or plan for cluster='virtual:{cluster.num_hosts}x"
            f"{cluster.devices_per_host}' to try the plan on CPUs."
        )
    return {
        "num_cpus": 0, "num_gpus": cluster.devices_per_host, "scheduling_strategy": "SPREAD",
        "runtime_env": {"env_vars": environment},
    }  # fmt: skip


def _choose_import_path() -> dict[str, str]:
    """Workers import the same alpaviz as this process, also where it runs from a checkout."""
    folder = str(Path(__file__).parents[2])
    if "site-packages" in folder:
        return {}
    return {"PYTHONPATH": os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])}
