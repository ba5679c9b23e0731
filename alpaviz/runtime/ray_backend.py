"""The Ray backend, driver side: one actor for each host of the plan; per step one message to each."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from alpaviz.errors import AlpaVizError, LaunchError
from alpaviz.plan import Plan
from alpaviz.plan_file import plan_to_json
from alpaviz.program.jax_internals import is_extended
from alpaviz.program.program import Program, Role, ValueKind
from alpaviz.runtime.arguments import assemble_results, flatten_arguments, is_batch
from alpaviz.runtime.executable import Executable
from alpaviz.runtime.local import summarise_times
from alpaviz.runtime.pieces import join_pieces
from alpaviz.runtime.ray_worker import HostWorker, StepOrder, StepReport


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


class _Generation:
    """The results of one step; while anybody holds one of them the workers keep them all."""

    def __init__(self, step: int) -> None:
        self.step = step


class RemoteValue:
    """An array that workers hold. `executable.fetch` brings it here; passing it to the next step moves nothing."""

    def __init__(self, generation: _Generation, value: int, shape: tuple[int, ...], dtype: str, owner: int) -> None:
        self.generation, self.value, self.shape, self.dtype, self.owner = generation, value, shape, dtype, owner

    def __repr__(self) -> str:
        return f"RemoteValue({self.dtype}{list(self.shape)} on the workers)"


class RayExecutable(Executable):
    """A plan on Ray workers. A Ray that runs already is used and left alone; otherwise one is started here.

    Args:
        timeout_s: how long a worker waits for another before it gives up.
    """

    def __init__(self, plan: Plan, program: Program, *, timeout_s: float = 300.0) -> None:
        super().__init__(plan, program)
        self._ray = import_ray()
        self._is_closed = False
        self._owns_ray = not self._ray.is_initialized()
        if self._owns_ray:
            self._ray.init(
                num_cpus=max(2, os.cpu_count() or 1), include_dashboard=False, log_to_driver=False,
                logging_level="ERROR", configure_logging=False,
            )  # fmt: skip
        self._step = 0
        self._dead: list[int] = []
        self._hosts = sorted({host for stage in plan.stages for host, _ in stage.devices})
        self._workers: list[Any] = []
        try:
            self._start_workers(timeout_s)
        except BaseException:
            self.close()
            raise

    def _start_workers(self, timeout_s: float) -> None:
        actor = self._ray.remote(HostWorker)
        environment = self._choose_environment()
        self._workers = [
            actor.options(num_cpus=0, max_concurrency=32, runtime_env={"env_vars": environment}).remote(host, timeout_s)
            for host in range(len(self._hosts))
        ]
        if self._hosts != list(range(len(self._hosts))):
            raise LaunchError(f"The plan uses hosts {self._hosts}; hosts must be numbered from 0 without gaps.")
        addresses = self._get([worker.find_address.remote() for worker in self._workers])
        spans = any(len({host for host, _ in stage.devices}) > 1 for stage in self.plan.stages)
        coordinator = f"{addresses[0][0]}:{addresses[0][1]}" if spans else None
        recipe, data = pickle_by_value(self.program.recipe), plan_to_json(self.plan)
        self._get([w.set_up.remote(recipe, data, self._workers, coordinator) for w in self._workers])

    def _choose_environment(self) -> dict[str, str]:
        if not self.plan.cluster.is_virtual:
            return {}
        count = self.plan.cluster.devices_per_host
        return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}

    def _get(self, refs: Sequence[Any]) -> list[Any]:
        """Results of one call per worker; the first failure stops the others and is raised in words."""
        waiting = dict(zip(refs, range(len(refs)), strict=True))
        results: dict[int, Any] = {}
        while waiting:
            done, _ = self._ray.wait(list(waiting), num_returns=1)
            for ref in done:
                host = waiting.pop(ref)
                try:
                    results[host] = self._ray.get(ref)
                except self._ray.exceptions.RayError as error:
                    failure = self._explain(error, host)
                    for worker in self._workers:
                        worker.abort.remote(str(failure).split("\n")[0])
                    raise failure from None
        return [results[host] for host in range(len(refs))]

    def _explain(self, error: Exception, host: int) -> AlpaVizError:
        cause = getattr(error, "cause", None)
        if isinstance(cause, AlpaVizError):
            return cause
        stages = [s.index for s in self.plan.stages if any(h == host for h, _ in s.devices)]
        where = f"host {host} (stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))})"
        if isinstance(error, self._ray.exceptions.RayActorError):
            return LaunchError(
                f"The worker of {where} died. Launch the plan again; the planner and its plan are as they were."
            )
        return LaunchError(f"The worker of {where} failed: {str(error).strip().splitlines()[-1]}")

    def __call__(self, state: Any, *batch: Any) -> Any:
        return self._run((state, *batch), is_timed=False)[0]

    def profile(self, state: Any, *batch: Any) -> Any:
        import time

        self._run((state, *batch), is_timed=False)
        began = time.perf_counter()
        results, _ = self._run((state, *batch), is_timed=False)
        step = time.perf_counter() - began
        _, reports = self._run((state, *batch), is_timed=True)
        times: list[dict[Role, list[float]]] = [{} for _ in self.plan.stages]
        for report in reports:
            for stage, found in report.times.items():
                times[stage] = {Role(role): seconds for role, seconds in found.items()}
        self.measured = summarise_times(times, step)
        return results

    def _run(self, arguments: tuple[Any, ...], *, is_timed: bool) -> tuple[Any, list[StepReport]]:
        if self._is_closed:
            raise LaunchError("This executable has been closed: launch the plan again.")
        leaves = flatten_arguments(self.program, arguments)
        order = self._make_order(leaves, is_timed)
        reports: list[StepReport] = self._get(self._issue(order))
        return assemble_results(self.program, leaves, self._collect(order.step, reports)), reports

    def _issue(self, order: StepOrder) -> list[Any]:
        message = self._ray.put(order)
        return [worker.run_step.remote(message) for worker in self._workers]

    def _make_order(self, leaves: Sequence[Any], is_timed: bool) -> StepOrder:
        arrays: dict[int, Any] = {}
        stored: dict[int, tuple[int, int]] = {}
        batch: dict[int, Any] = {}
        for position, (leaf, v) in enumerate(zip(leaves, self.program.inputs, strict=True)):
            if isinstance(leaf, RemoteValue):
                if leaf.owner != id(self):
                    raise LaunchError(
                        f"{self.program.values[v].name} is on the workers of another executable: fetch it first."
                    )
                stored[v] = (leaf.generation.step, leaf.value)
            elif is_batch(self.program, position):
                batch[v] = to_portable(leaf, self.program.values[v].dtype)
            else:
                arrays[v] = to_portable(leaf, self.program.values[v].dtype)
        self._step += 1
        forget, self._dead = tuple(self._dead), []
        return StepOrder(self._step, arrays, stored, batch, forget, is_timed)

    def _collect(self, step: int, reports: Sequence[StepReport]) -> dict[int, Any]:
        generation = self._make_generation(step)
        results: dict[int, Any] = {}
        for v in self.program.outputs:
            if v is None or self.program.values[v].kind is not ValueKind.INTERMEDIATE:
                continue
            value = self.program.values[v]
            pieces = [piece for report in reports for piece in report.values.get(v) or ()]
            if pieces:
                results[v] = join_pieces(value.shape, value.dtype, pieces)
            else:
                results[v] = RemoteValue(generation, v, value.shape, value.dtype, id(self))
        return results

    def _make_generation(self, step: int) -> _Generation:
        generation = _Generation(step)
        weakref.finalize(generation, self._dead_steps().append, step)
        return generation

    def _dead_steps(self) -> Any:
        executable = weakref.ref(self)

        class _Appender:
            @staticmethod
            def append(step: int) -> None:
                alive = executable()
                if alive is not None:
                    alive._dead.append(step)

        return _Appender

    def place(self, state: Any) -> Any:
        leaves, structure = jax.tree.flatten(state)
        values = self.program.inputs[: len(leaves)]
        arrays = {v: to_portable(leaf, self.program.values[v].dtype) for leaf, v in zip(leaves, values, strict=True)}
        self._step += 1
        message = self._ray.put(arrays)
        self._get([worker.store.remote(self._step, message) for worker in self._workers])
        generation = self._make_generation(self._step)
        handles = [
            RemoteValue(generation, v, self.program.values[v].shape, self.program.values[v].dtype, id(self))
            for v in values
        ]
        return jax.tree.unflatten(structure, handles)

    def fetch(self, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: self._fetch(leaf) if isinstance(leaf, RemoteValue) else np.asarray(leaf), tree)

    def _fetch(self, leaf: RemoteValue) -> Any:
        refs = [worker.fetch.remote(leaf.generation.step, leaf.value) for worker in self._workers]
        pieces = [piece for part in self._get(refs) if part is not None for piece in part]
        if not pieces:
            raise LaunchError(f"{leaf} is no longer stored: the workers have been restarted since.")
        return join_pieces(leaf.shape, leaf.dtype, pieces)

    def compiled_text(self, stage: int, part: str) -> str:
        texts: list[Any] = self._get([w.compiled_text.remote(stage, part) for w in self._workers])
        return str(next(text for text in texts if text is not None))

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._ray.is_initialized():
            for worker in self._workers:
                self._ray.kill(worker)
            if self._owns_ray:
                self._ray.shutdown()
        self._workers = []


def to_portable(leaf: Any, dtype: str) -> Any:
    """A leaf as a host array that can be pickled."""
    if isinstance(leaf, jax.Array) and is_extended(leaf.dtype):
        raise LaunchError(
            "Typed PRNG keys cannot be sent to Ray workers yet: use jax.random.PRNGKey (raw keys) in the state."
        )
    return np.asarray(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else np.asarray(leaf, dtype=dtype)


def pickle_by_value(recipe: Any) -> bytes:
    """`recipe` with the step's own module pickled by value, so that workers need not be able to import it."""
    import importlib
    import sys

    from ray import cloudpickle

    name = getattr(recipe.step, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    by_value = name not in (None, "__main__") and module is not None and not _is_installed(module)
    if by_value:
        cloudpickle.register_pickle_by_value(importlib.import_module(str(name)))
    try:
        return bytes(cloudpickle.dumps(recipe))
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _is_installed(module: Any) -> bool:
    path = getattr(module, "__file__", None) or ""
    return "site-packages" in path or module.__name__.split(".")[0] == "alpaviz"
