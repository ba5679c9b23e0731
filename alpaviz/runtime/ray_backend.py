"""The Ray backend, driver side: one actor for each host of the plan; per step one message to each."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from alpaviz.cluster import Cluster
from alpaviz.errors import AlpaVizError, LaunchError
from alpaviz.plan import Plan
from alpaviz.plan_file import plan_to_json
from alpaviz.program.leaves import is_non_array, mark_non_arrays, restore_non_arrays
from alpaviz.program.program import Program, Role, ValueKind
from alpaviz.runtime.arguments import assemble_results, flatten_arguments, is_batch
from alpaviz.runtime.checkpoint_index import CheckpointIndex, StoredPiece
from alpaviz.runtime.checkpoints import Written
from alpaviz.runtime.chunk_runner import find_aval
from alpaviz.runtime.executable import Executable
from alpaviz.runtime.initialize import make_portable, refuse_other_state
from alpaviz.runtime.local import summarise_times
from alpaviz.runtime.pieces import Piece, from_portable, join_pieces, to_portable
from alpaviz.runtime.ray_session import RaySession, choose_options
from alpaviz.runtime.ray_watch import LOOK_S, WorkerWatch, count_living, refuse_other_versions
from alpaviz.runtime.ray_worker import HostWorker, StepOrder, StepReport
from alpaviz.runtime.recipes import pickle_by_value, pickle_recipe
from alpaviz.runtime.recording import RecordedRun, estimate_offset, make_timeline, shift_runs
from alpaviz.runtime.remote_values import RemoteStore, RemoteValue, StoreKey
from alpaviz.runtime.replan import keep_hosts
from alpaviz.runtime.stacked import StackedArray, join_lanes, split_lanes
from alpaviz.runtime.state_leaves import flatten_state, list_state_leaves, unflatten_state
from alpaviz.runtime.statistics import DevicePeak
from alpaviz.schedule import Timeline

DRAIN_S = 3.0
"""How long the other workers get to stop after one has failed, in s."""


class RayExecutable(Executable):
    """A plan on Ray workers. A Ray that runs already is used and left alone; otherwise one is started here.

    Args:
        donate_state: a step overwrites the state that it is given.
        timeout_s: how long a worker may leave the driver without an answer; twice as long, a worker waits for another
            that does answer.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        *,
        donate_state: bool = False,
        timeout_s: float = 300.0,
        record_every: int | None = None,
    ) -> None:
        super().__init__(plan, program, record_every)
        self._hosts = sorted({host for stage in plan.stages for host, _ in stage.devices})
        if self._hosts != list(range(len(self._hosts))):
            raise LaunchError(f"The plan uses hosts {self._hosts}; hosts must be numbered from 0 without gaps.")
        self._timeout_s, self._donate_state = timeout_s, donate_state
        self._step = 0
        self._fault = ""
        self._store = RemoteStore()
        self._workers: list[Any] = []
        self._pids: list[int] = []
        self._is_local: list[bool] = []
        self._session = RaySession()
        self._ray = self._session.ray
        try:
            self._start_workers(donate_state)
        except BaseException:
            self.close()
            raise

    def _start_workers(self, donate_state: bool) -> None:
        actor = self._ray.remote(HostWorker)
        options = choose_options(self._ray, self.plan.cluster)
        self._workers = [
            actor.options(max_concurrency=32, **options).remote(host, 2 * self._timeout_s) for host in self._hosts
        ]
        places = self._get([worker.find_address.remote() for worker in self._workers], is_watched=False)
        for host, place in enumerate(places):
            refuse_other_versions(place.versions, self._describe_host(host))
        here = self._ray.util.get_node_ip_address()
        self._is_local = [place.address == here for place in places]
        self._pids = [place.process for place in places if place.address == here]
        spans = any(len({host for host, _ in stage.devices}) > 1 for stage in self.plan.stages)
        coordinator = f"{places[0].address}:{places[0].port}" if spans else None
        recipe, data = pickle_recipe(self.program.recipe), plan_to_json(self.plan)
        self._get([w.set_up.remote(recipe, data, self._workers, coordinator, donate_state) for w in self._workers])

    # Talking to the workers.

    def _get(self, refs: Sequence[Any], *, is_watched: bool = True, drain_s: float = DRAIN_S) -> list[Any]:
        """Results of one call per worker; the first failure stops the others and is raised in words.

        Args:
            is_watched: workers that do not answer are given up. Those that are being started cannot answer yet.
            drain_s: how long the others get to stop after one has failed.
        """
        waiting = dict(zip(refs, range(len(refs)), strict=True))
        results: dict[int, Any] = {}
        watch = WorkerWatch(self._ray, self._workers, self._timeout_s)
        try:
            while waiting:
                done, _ = self._ray.wait(list(waiting), num_returns=1, timeout=LOOK_S)
                for ref in done:
                    host = waiting.pop(ref)
                    try:
                        results[host] = self._ray.get(ref)
                    except self._ray.exceptions.RayError as error:
                        raise self._explain(error, host) from None
                silent = watch.find_silent(waiting.values()) if is_watched and not done else None
                if silent is not None:
                    waiting = {ref: host for ref, host in waiting.items() if host != silent}
                    raise self._give_up(silent)
        except BaseException as error:
            death = self._stop_step(waiting, str(error).split("\n")[0] or type(error).__name__, drain_s)
            if death is not None and isinstance(error, LaunchError):
                raise death from None  # A worker that waited for the dead one may have failed first.
            raise
        return [results[host] for host in range(len(refs))]

    def _stop_step(self, waiting: Mapping[Any, int], reason: str, drain_s: float) -> AlpaVizError | None:
        """Make the workers give up what `waiting` is for, so that they can be used again; the death of one of them."""
        for worker in self._workers:
            worker.abort.remote(self._step, reason)
        death = None
        with contextlib.suppress(BaseException):  # The fault that led here is the one to raise.
            refs = list(waiting)
            done, stuck = self._ray.wait(refs, num_returns=len(refs), timeout=drain_s) if refs else ([], [])
            if stuck:
                self._fault = self._fault or "a worker did not stop after an earlier failure"
            for ref in done:
                try:
                    self._ray.get(ref)
                except self._ray.exceptions.RayActorError as error:
                    death = death or self._explain(error, waiting[ref])
                except self._ray.exceptions.RayError:
                    continue
        return death

    def _describe_host(self, host: int) -> str:
        stages = [s.index for s in self.plan.stages if any(h == host for h, _ in s.devices)]
        return f"host {host} (stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))})"

    def _give_up(self, host: int) -> LaunchError:
        where = self._describe_host(host)
        self._fault = f"the worker of {where} hangs"
        return LaunchError(
            f"The worker of {where} has not answered for {self._timeout_s:.0f} s: it hangs, or its machine is out of "
            "reach. Launch the plan again; the planner and its plan are as they were."
        )

    def _explain(self, error: Any, host: int) -> AlpaVizError:
        cause = getattr(error, "cause", None)
        if isinstance(cause, AlpaVizError):
            return cause
        where = self._describe_host(host)
        last = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "")
        if not isinstance(error, self._ray.exceptions.RayActorError):
            return LaunchError(f"The worker of {where} failed: {last}")
        self._fault = f"the worker of {where} died"
        if "creation task" in str(error):
            return LaunchError(f"The worker of {where} could not be started: {last}")
        return LaunchError(
            f"The worker of {where} died. Launch the plan again; the planner and its plan are as they were."
        )

    def refuse_if_unusable(self) -> None:
        self.refuse_if_closed()
        if self._fault:
            raise LaunchError(f"This executable cannot go on, as {self._fault}: close it and launch the plan again.")

    # Steps.

    def __call__(self, state: Any, *batch: Any) -> Any:
        return self._run((state, *batch), is_counted=True)[0]

    def profile(self, state: Any, *batch: Any) -> Any:
        self._run((state, *batch), keep_state=True, is_recorded=True)  # compiles
        self._run((state, *batch), keep_state=True, is_recorded=True)
        began = time.perf_counter()
        self._run((state, *batch), keep_state=True)
        step = time.perf_counter() - began
        results, reports = self._run((state, *batch), is_timed=True)
        times: list[dict[Role, list[float]]] = [{} for _ in self.plan.stages]
        for report in reports:
            for stage, found in report.times.items():
                times[stage] = {Role(role): seconds for role, seconds in found.items()}
        self.measured = summarise_times(times, step)
        return results

    def _run(
        self,
        arguments: tuple[Any, ...],
        *,
        is_timed: bool = False,
        keep_state: bool = False,
        is_recorded: bool = False,
        is_counted: bool = False,
    ) -> tuple[Any, list[StepReport]]:
        self.refuse_if_unusable()
        leaves = flatten_arguments(self.program, arguments)
        is_recorded = self._note_step(leaves) if is_counted else is_recorded
        order = replace(self._make_order(leaves, is_timed, keep_state), is_recorded=is_recorded)
        message = self._ray.put(order)
        reports: list[StepReport] = self._get([worker.run_step.remote(message) for worker in self._workers])
        if is_recorded:
            self._recording = self._join_runs(reports)
        return assemble_results(self.program, leaves, self._collect(reports)), reports

    def _join_runs(self, reports: Sequence[StepReport]) -> Timeline:
        """What the hosts have recorded, on this process's clock, which others on this machine share."""
        runs: dict[int, list[RecordedRun]] = {}
        for worker, is_local, report in zip(self._workers, self._is_local, reports, strict=True):

            def read_clock(worker: Any = worker) -> float:
                return float(self._ray.get(worker.read_clock.remote()))

            offset = 0.0 if is_local else estimate_offset(read_clock)
            for stage, found in report.runs.items():
                runs.setdefault(stage, shift_runs(found, offset))  # of several hosts of a mesh the first tells
        return make_timeline(runs, self.plan.num_stages)

    def _keep_recording(self) -> None:
        """Workers report runs with the step: there is nothing to wait for."""

    def _list_peaks(self) -> list[DevicePeak]:
        found: list[list[DevicePeak]] = self._get([worker.list_peaks.remote() for worker in self._workers])
        return [peak for peaks in found for peak in peaks]

    def _make_order(self, leaves: Sequence[Any], is_timed: bool, keep_state: bool) -> StepOrder:
        arrays: dict[int, Any] = {}
        stored: dict[int, StoreKey] = {}
        batch: dict[int, Any] = {}
        for position, (leaf, v) in enumerate(zip(leaves, self.program.inputs, strict=True)):
            if isinstance(leaf, RemoteValue):
                if leaf.owner is not self._store:
                    raise LaunchError(
                        f"{self.program.values[v].name} is on the workers of another executable: fetch it first."
                    )
                stored[v] = leaf.key
            elif is_batch(self.program, position):
                batch[v] = to_portable(leaf, self.program.values[v].dtype)
            else:
                arrays[v] = to_portable(leaf, self.program.values[v].dtype)
        self._step += 1
        return StepOrder(self._step, arrays, stored, batch, self._store.take_dropped(), is_timed, keep_state)

    def _collect(self, reports: Sequence[StepReport]) -> dict[int, Any]:
        """Results of the present step: small ones as arrays, the others as handles."""
        results: dict[int, Any] = {}
        for v in dict.fromkeys(self.program.outputs):
            if v is None or self.program.values[v].kind not in (ValueKind.INTERMEDIATE, ValueKind.STATE):
                continue
            value = self.program.values[v]
            pieces = [piece for report in reports for piece in report.values.get(v) or ()]
            if pieces:
                results[v] = from_portable(join_pieces(find_aval(self.program, v), pieces))
            else:
                results[v] = self._store.hold((self._step, v), value.shape, value.dtype)
        return results

    def place(self, state: Any) -> Any:
        self.refuse_if_unusable()
        leaves, structure = jax.tree.flatten(mark_non_arrays(state))
        counts = self.program.input_lanes[: len(leaves)]
        leaves = split_lanes(leaves, counts)
        handles = self._place_leaves(dict(zip(self.program.inputs, leaves, strict=False)))
        return restore_non_arrays(jax.tree.unflatten(structure, join_lanes(list(handles.values()), counts)))

    def _place_leaves(self, leaves: Mapping[int, Any]) -> dict[int, RemoteValue]:
        """Handles of state leaves, by value, after those that are here were sent to the workers."""
        values = self.program.values
        here = {v: leaf for v, leaf in leaves.items() if not isinstance(leaf, RemoteValue)}
        self._step += 1
        if here:
            message = self._ray.put({v: to_portable(leaf, values[v].dtype) for v, leaf in here.items()})
            self._get([worker.store.remote(self._step, message) for worker in self._workers])
        made = {v: self._store.hold((self._step, v), values[v].shape, values[v].dtype) for v in here}
        return {v: made.get(v, leaf) for v, leaf in leaves.items()}

    def initialize(self, init_fn: Callable[[Any], Any], key: Any) -> Any:
        self.refuse_if_unusable()
        refuse_other_state(self.program, init_fn, key)
        self._step += 1
        message = self._ray.put(pickle_by_value((init_fn, make_portable(key)), init_fn))
        self._get([worker.initialize.remote(self._step, message) for worker in self._workers])
        return self._hold_state()

    def _hold_state(self) -> Any:
        """Handles of a state that the workers have stored as the results of the present step."""
        handles = [
            self._store.hold((self._step, leaf.value), leaf.shape, leaf.dtype)
            for leaf in list_state_leaves(self.program)
        ]
        return unflatten_state(self.program, handles)

    def _write_pieces(self, state: Any, partial: Path) -> Written:
        values = [leaf.value for leaf in list_state_leaves(self.program)]
        handles = self._place_leaves(dict(zip(values, flatten_state(self.program, state), strict=True)))
        self._refuse_others(handles.values())
        message = self._ray.put({v: handle.key for v, handle in handles.items()})
        written: list[dict[str, list[StoredPiece]]] = self._get(
            [worker.save.remote(message, str(partial)) for worker in self._workers], drain_s=self._timeout_s
        )  # The others write to the end, so that nothing is written into a folder that has been removed.
        return written

    def _read_pieces(self, folder: Path, index: CheckpointIndex) -> Any:
        self._step += 1
        state = self._hold_state()  # before anything is read, so that workers forget what a failure leaves
        message = self._ray.put(index)
        self._get([worker.restore.remote(self._step, str(folder), message) for worker in self._workers])
        return state

    def _refuse_others(self, handles: Iterable[RemoteValue]) -> None:
        if any(handle.owner is not self._store for handle in handles):
            raise LaunchError("An array is on the workers of another executable: fetch it with that one.")

    def find_remaining_cluster(self) -> Cluster:
        if self.is_closed:
            raise LaunchError("This executable has been closed, and its workers with it: name the cluster to plan for.")
        count = count_living(self._ray, self._workers)
        if not count:
            raise LaunchError("No worker answers: start Ray anew, and launch or name the cluster to plan for.")
        return keep_hosts(self.plan.cluster, count)

    def _relaunch(self, plan: Plan, program: Program, devices: Sequence[Any] | None) -> Executable:
        return RayExecutable(
            plan, program, donate_state=self._donate_state, timeout_s=self._timeout_s, record_every=self.record_every
        )

    def fetch(self, tree: Any) -> Any:
        lanes = [lane for leaf in jax.tree.leaves(tree) for lane in getattr(leaf, "lanes", (leaf,))]
        handles = {lane.key: lane for lane in lanes if isinstance(lane, RemoteValue)}
        found: dict[StoreKey, list[Piece]] = {key: [] for key in handles}
        self._refuse_others(handles.values())
        if handles:
            self.refuse_if_unusable()
            for part in self._get([worker.fetch.remote(list(handles)) for worker in self._workers]):
                for key, pieces in part.items():
                    found[key].extend(pieces)

        def read(leaf: Any) -> Any:
            if isinstance(leaf, StackedArray):
                return np.stack([read(lane) for lane in leaf.lanes])
            if not isinstance(leaf, RemoteValue):
                return leaf if isinstance(leaf, jax.Array) or is_non_array(leaf) else np.asarray(leaf)
            if not found[leaf.key]:
                raise LaunchError(f"{leaf} is no longer there: it was donated to a step.")
            return from_portable(join_pieces(find_aval(self.program, leaf.key[1]), found[leaf.key]))

        return jax.tree.map(read, tree)

    def compiled_text(self, stage: int, part: str) -> str:
        self.refuse_if_unusable()
        self.refuse_unknown_stage(stage)
        texts: list[Any] = self._get([w.compiled_text.remote(stage, part) for w in self._workers])
        return str(next(text for text in texts if text is not None))

    def close(self) -> None:
        if self.is_closed:
            return
        super().close()
        if self._ray.is_initialized():
            for worker in self._workers:
                self._ray.kill(worker)
        self._workers = []
        _end_processes(self._pids, 1.0 if self._fault else 5.0)
        self._session.release()


def _end_processes(pids: Sequence[int], timeout_s: float) -> None:
    """Return when no process of this machine with one of `pids` runs any more. Ray has been told to end them, but does
    not reach one that is stopped: after `timeout_s` that is done here.
    """
    if not _has_ended(pids, timeout_s):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _has_ended(pids, timeout_s)


def _has_ended(pids: Sequence[int], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(map(_is_running, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, 0)
        return True
    return False
