"""One host of a plan, as a Ray actor: the stages on its devices, which reach those of other hosts by mail.

JAX is imported only inside the actor, whose environment (platform, number of virtual devices) is set before it
starts. One message starts a whole step; sends go from worker to worker.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from alpaviz.errors import LaunchError
from alpaviz.runtime.mailbox import Mailbox, MailKey
from alpaviz.runtime.ray_watch import list_versions
from alpaviz.runtime.remote_values import StoreKey

if TYPE_CHECKING:
    from alpaviz.program.program import Program
    from alpaviz.runtime.checkpoint_index import CheckpointIndex, StoredPiece
    from alpaviz.runtime.instructions import Instruction
    from alpaviz.runtime.recording import RecordedRun
    from alpaviz.runtime.stage_worker import StageWorker
    from alpaviz.runtime.statistics import DevicePeak

INPUT = -2
"""Microbatch number under which a stage sends state that another stage also reads, at the start of a step."""

SMALL_BYTES = 65_536
"""Results of at most this size, losses and metrics, come back with the report of a step."""


class WorkerPlace(NamedTuple):
    """Where a worker runs, a port that is free there, and versions of what the driver must have too."""

    address: str
    port: int
    process: int
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class StepOrder:
    """What the driver tells every worker to do a step.

    Attributes:
        step: its number; results are stored under it.
        arrays: input value -> host array.
        stored: input value -> what an earlier step or `store` has stored.
        batch: input value -> host array, whole.
        forget: stored arrays that nobody can ask for any more.
        is_timed: wait after every chunk, and report times.
        keep_state: do not consume the state, although the executable was launched to do so.
        is_recorded: report when chunks ran, without waiting after each.
    """

    step: int
    arrays: Mapping[int, Any]
    stored: Mapping[int, StoreKey]
    batch: Mapping[int, Any]
    forget: tuple[StoreKey, ...] = ()
    is_timed: bool = False
    keep_state: bool = False
    is_recorded: bool = False


@dataclass(slots=True)
class StepReport:
    """What a worker says after a step: small results; where they were taken, times by role and runs, both by stage."""

    values: dict[int, Any]
    times: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    runs: dict[int, list[RecordedRun]] = field(default_factory=dict)


class HostWorker:
    """The actor. `run_step` runs in one thread; `deliver` and `abort` in others at the same time."""

    def __init__(self, host: int, timeout_s: float) -> None:
        self.host, self.timeout_s = host, timeout_s
        self._mailbox = Mailbox()
        self._store: dict[StoreKey, Any] = {}

    def find_address(self) -> WorkerPlace:
        """Where and what this worker is."""
        import ray

        address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return WorkerPlace(address, probe.getsockname()[1], os.getpid(), list_versions())

    def ping(self) -> None:
        """Answer, also while a step runs."""

    def read_clock(self) -> float:
        """Now, on the clock of recorded runs, in s."""
        return time.perf_counter()

    def list_peaks(self) -> list[DevicePeak]:
        """The most memory that was in use on each device of this host."""
        from alpaviz.runtime.statistics import list_peaks

        return [
            peak
            for stage, worker in self.stages.items()
            for peak in list_peaks(stage, worker.layouts.mesh.local_devices, worker.held_peak_bytes)
        ]

    def set_up(
        self, recipe: bytes, plan_json: bytes, peers: Sequence[Any], coordinator: str | None, donate_state: bool
    ) -> None:
        """Trace the program again, join the other hosts and build this host's stages.

        Raises:
            LaunchError: the program traced here is not the one that was planned.
        """
        import jax
        from ray import cloudpickle

        from alpaviz.plan_file import plan_from_json
        from alpaviz.program import retrace

        self.plan = plan_from_json(plan_json)
        self.peers = list(peers)
        if coordinator is not None:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(
                coordinator, num_processes=len(peers), process_id=self.host, coordinator_bind_address=coordinator
            )
        self.program: Program = retrace(cloudpickle.loads(recipe))
        if self.program.fingerprint != self.plan.program.fingerprint:
            raise LaunchError(
                f"host {self.host} traced program {self.program.fingerprint}, the plan is for "
                f"{self.plan.program.fingerprint}: the worker's packages or registered rules differ from the driver's."
            )
        self._build_stages(is_joined=coordinator is not None, donate_state=donate_state)

    def _build_stages(self, *, is_joined: bool, donate_state: bool) -> None:
        import jax

        from alpaviz.runtime.instructions import build_instructions
        from alpaviz.runtime.meshes import list_layouts, list_state_pairs, make_mesh
        from alpaviz.runtime.partition import partition_program
        from alpaviz.runtime.stage_worker import StageWorker

        by_host: dict[int, list[Any]] = defaultdict(list)
        for device in jax.devices():
            by_host[device.process_index if is_joined else self.host].append(device)
        if len(by_host[self.host]) < self.plan.cluster.devices_per_host:
            raise LaunchError(
                f"host {self.host} has {len(by_host[self.host])} devices, the plan is for "
                f"{self.plan.cluster.devices_per_host} on each host."
            )
        # Without a common group a host does not see the others' devices; it never uses them either.
        stand_in = by_host[self.host]
        meshes = [make_mesh(s, lambda place: by_host.get(place[0], stand_in)[place[1]]) for s in self.plan.stages]
        layouts = list_layouts(self.plan, meshes, list_state_pairs(self.program))
        partition = partition_program(self.program, self.plan)
        self.hosts = [sorted({host for host, _ in stage.devices}) for stage in self.plan.stages]
        self.lists = build_instructions(self.program, self.plan, partition)
        self.stages: dict[int, StageWorker] = {
            stage: StageWorker(self.program, self.plan, partition, stage, layouts[stage], donate_state=donate_state)
            for stage in range(self.plan.num_stages)
            if self.host in self.hosts[stage]
        }
        self.maker = {v: key[0] for v, key in partition.maker.items()}
        self.readers: dict[int, set[int]] = defaultdict(set)
        for key, chunk in partition.chunks.items():
            for v in chunk.inputs:
                self.readers[v].add(key[0])

    # Mail.

    def deliver(self, key: MailKey, item: Any) -> None:
        """Take in what one host of a sending stage holds of a value."""
        self._mailbox.deliver(key, item)

    def abort(self, step: int, reason: str) -> None:
        """Stop waiting in `step`: another worker has failed."""
        self._mailbox.abort(step, reason)

    def _send(self, array: Any, value: int, microbatch: int, source: int, target: int, step: int) -> None:
        from alpaviz.runtime.pieces import list_pieces

        key = (step, value, microbatch, target)
        if target in self.stages and self.hosts[source] == self.hosts[target] == [self.host]:
            import jax

            self.deliver(key, jax.device_put(array, self.stages[target].shard(value)))
            return
        pieces = list_pieces(array)
        for host in self.hosts[target]:
            if host == self.host:
                # Copies: the pieces are views of memory that the step may overwrite.
                self.deliver(key, [(bounds, data.copy()) for bounds, data in pieces])
            else:
                self.peers[host].deliver.remote(key, pieces)

    def _take(self, value: int, microbatch: int, source: int, target: int, step: int) -> Any | None:
        """The array sent to `target`, or None while something of it is on its way."""
        from alpaviz.runtime.chunk_runner import find_aval
        from alpaviz.runtime.pieces import join_pieces, place_array

        is_local = self.hosts[source] == self.hosts[target] == [self.host]
        mail = self._mailbox.take((step, value, microbatch, target), 1 if is_local else len(self.hosts[source]))
        if mail is None or is_local:
            return mail if mail is None else mail[0]
        whole = join_pieces(find_aval(self.program, value), [piece for part in mail for piece in part])
        return place_array(whole, self.stages[target].shard(value))

    # Steps.

    def run_step(self, order: StepOrder) -> StepReport:
        """Play this host's instruction lists; results stay here under the step's number."""
        for key in order.forget:
            self._store.pop(key, None)
        self._mailbox.begin(order.step)
        current = [f"host {self.host}, taking in the state"]
        try:
            returned = self._begin(order)
            self._play(order, current)
            current[0] = "an earlier chunk (executable.profile finds out which)"
            return self._finish(order, returned)
        except LaunchError:
            raise
        except Exception as error:
            detail = traceback.format_exc(limit=-6)
            raise LaunchError(
                f"{current[0]} on host {self.host} failed: {type(error).__name__}: {error}\n{detail}"
            ) from None
        finally:
            for worker in self.stages.values():
                worker.finish()

    def _begin(self, order: StepOrder) -> dict[int, Any]:
        """Give the stages their inputs; state that the step returns as it is and that this host owns."""
        self._share_state(order)
        consumed: set[StoreKey] = set()
        passed = {v for v in self.program.outputs if v is not None}
        returned: dict[int, Any] = {}
        for stage, worker in self.stages.items():
            inputs: dict[int, Any] = {}
            batch: dict[tuple[int, int], Any] = {}
            needed = set(worker.needed_inputs)
            for v in self.program.inputs:
                is_returned = v in passed and self.plan.values[v].stage == stage and v not in order.batch
                if v in order.batch:
                    if v in needed:
                        self._slice(order.batch[v], v, worker, batch)
                elif v in needed or is_returned:
                    inputs[v] = self._read_state(order, v, stage, consumed)
                    if is_returned:
                        returned[v] = inputs[v]
            worker.begin(inputs, batch)
            worker.times.clear()
            if order.is_recorded:
                worker.record()
        for key in consumed:
            del self._store[key]
        return returned

    def _share_state(self, order: StepOrder) -> None:
        """Send what this host has stored to other stages that read it too."""
        for v, key in order.stored.items():
            owner = self._find_owner(key)
            for target in self.readers[v] if owner in self.stages else ():
                if target != owner:
                    self._send(self._store[key], v, INPUT, owner, target, order.step)

    def _find_owner(self, key: StoreKey) -> int:
        """The stage that has stored an array."""
        return self.maker.get(key[1], self.plan.values[key[1]].stage)

    def _read_state(self, order: StepOrder, value: int, stage: int, consumed: set[StoreKey]) -> Any:
        """State for `stage` in its layout, in memory that the step may overwrite where it does; notes such stored."""
        import jax
        import numpy as np

        from alpaviz.runtime.pieces import PortableKey, copy_array, place_array

        worker = self.stages[stage]
        is_given, sharding = value in worker.given_inputs, worker.shard(value)
        if value not in order.stored:
            array = order.arrays[value]
            # The array lies in memory that all workers of this machine share.
            return place_array(np.array(array) if is_given and not isinstance(array, PortableKey) else array, sharding)
        key = order.stored[value]
        if self._find_owner(key) != stage:
            return self._wait(value, self._find_owner(key), stage, order.step)
        array = self._store[key]
        if is_given and (order.keep_state or key in consumed):
            array = copy_array(array)
        elif is_given:
            consumed.add(key)
        return array if array.sharding == sharding else jax.device_put(array, sharding)

    def _slice(self, leaf: Any, value: int, worker: StageWorker, batch: dict[tuple[int, int], Any]) -> None:
        from alpaviz.runtime.arguments import slice_microbatch
        from alpaviz.runtime.pieces import from_portable, place_array

        position = self.program.inputs.index(value)
        if self.program.batch_axes[position] is not None:
            leaf = from_portable(leaf)
        for microbatch in range(self.plan.num_microbatches):
            part = slice_microbatch(self.program, leaf, position, microbatch)
            batch[value, microbatch] = place_array(part, worker.shard(value))

    def _wait(self, value: int, source: int, target: int, step: int) -> Any:
        deadline = time.monotonic() + self.timeout_s
        while True:
            array = self._take(value, INPUT, source, target, step)
            if array is not None:
                return array
            self._mailbox.pause(deadline, f"stage {target} on host {self.host} waits for stage {source}")

    def _play(self, order: StepOrder, current: list[str]) -> None:
        position = dict.fromkeys(self.stages, 0)
        deadline = time.monotonic() + self.timeout_s
        while any(position[s] < len(self.lists[s]) for s in self.stages):
            moved = False
            for stage in self.stages:
                while position[stage] < len(self.lists[stage]):
                    instruction = self.lists[stage][position[stage]]
                    current[0] = self.stages[stage].describe(instruction)
                    if not self._execute(stage, instruction, order):
                        break
                    position[stage] += 1
                    moved = True
            if moved:
                deadline = time.monotonic() + self.timeout_s
            else:
                self._mailbox.pause(deadline, f"{current[0]} on host {self.host}")

    def _execute(self, stage: int, instruction: Instruction, order: StepOrder) -> bool:
        """Do one instruction; False where it has to wait."""
        from alpaviz.runtime.instructions import Receive, Send

        worker = self.stages[stage]
        if isinstance(instruction, Receive):
            array = self._take(instruction.value, instruction.microbatch, instruction.source, stage, order.step)
            if array is None:
                return False
            worker.write(instruction.value, instruction.microbatch, array)
        elif isinstance(instruction, Send):
            array = worker.read(instruction.value, instruction.microbatch)
            self._send(array, instruction.value, instruction.microbatch, stage, instruction.target, order.step)
        else:
            worker.execute(instruction, is_timed=order.is_timed)
        return True

    def _finish(self, order: StepOrder, returned: Mapping[int, Any]) -> StepReport:
        """Store the results; those that are not state and small are sent back at once."""
        import jax

        from alpaviz.runtime.pieces import list_pieces

        runs = {stage: worker.list_runs() for stage, worker in self.stages.items() if order.is_recorded}
        results = {**returned, **{v: a for worker in self.stages.values() for v, a in worker.finish().items()}}
        jax.block_until_ready(results)
        self._store.update(((order.step, v), array) for v, array in results.items())
        state = {self.program.outputs[o] for o, _ in self.program.state_outputs}
        values = {
            v: list_pieces(array)
            for v, array in results.items()
            if v not in state and self.program.values[v].num_bytes <= SMALL_BYTES
        }
        for v in values:
            del self._store[order.step, v]
        times = {
            stage: {role.value: list(seconds) for role, seconds in worker.times.items()}
            for stage, worker in self.stages.items()
        }
        return StepReport(values, times if order.is_timed else {}, runs)

    def store(self, step: int, arrays: Mapping[int, Any]) -> None:
        """Keep input arrays of this host's stages in their layouts, as the results of `step`."""
        from alpaviz.runtime.pieces import place_array

        for v, array in arrays.items():
            stage = self.plan.values[v].stage
            if stage in self.stages:
                own = array.copy() if hasattr(array, "copy") else array  # not the memory that workers share
                self._store[step, v] = place_array(own, self.stages[stage].shard(v))

    def initialize(self, step: int, message: bytes) -> None:
        """Create the state of this host's stages from a pickled init function and its key, as the results of `step`."""
        from ray import cloudpickle

        from alpaviz.runtime.initialize import create_leaves

        init_fn, key = cloudpickle.loads(message)
        for worker in self.stages.values():
            made = create_leaves(self.program, init_fn, key, self._shard_state(worker.stage))
            self._store.update(((step, v), array) for v, array in made.items())

    def _shard_state(self, stage: int) -> dict[Any, Any]:
        """The leaves of the state that a stage owns, with their shardings."""
        from alpaviz.runtime.state_leaves import list_state_leaves

        leaves = [leaf for leaf in list_state_leaves(self.program) if self.plan.values[leaf.value].stage == stage]
        return {leaf: self.stages[stage].shard(leaf.value) for leaf in leaves}

    def save(self, keys: Mapping[int, StoreKey], folder: str) -> dict[str, list[StoredPiece]]:
        """Write what this host owns of stored state, given by value, into its folder in `folder`."""
        from alpaviz.runtime.checkpoint_pieces import write_pieces
        from alpaviz.runtime.state_leaves import list_state_leaves

        arrays = {leaf: self._store.get(keys[leaf.value]) for leaf in list_state_leaves(self.program)}
        held = {leaf: array for leaf, array in arrays.items() if array is not None}
        return write_pieces(Path(folder), self.host, held)

    def restore(self, step: int, folder: str, index: CheckpointIndex) -> None:
        """Read the state of this host's stages from a checkpoint, as the results of `step`."""
        from alpaviz.runtime.checkpoint_pieces import read_leaves

        for stage in self.stages:
            made = read_leaves(self.program, Path(folder), index, self._shard_state(stage))
            self._store.update(((step, v), array) for v, array in made.items())

    def fetch(self, keys: Sequence[StoreKey]) -> dict[StoreKey, Any]:
        """Pieces that this host holds of stored arrays."""
        from alpaviz.runtime.pieces import list_pieces

        return {key: list_pieces(self._store[key]) for key in keys if key in self._store}

    def count_stored(self) -> int:
        """How many arrays are stored here."""
        return len(self._store)

    def compiled_text(self, stage: int, part: str) -> str | None:
        """HLO of one of this host's chunks; None where the stage is elsewhere."""
        return self.stages[stage].compiled_text(part) if stage in self.stages else None
