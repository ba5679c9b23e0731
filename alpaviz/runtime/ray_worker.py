"""One host of a plan, as a Ray actor: the stages on its devices, and the mailbox through which stages reach each other.

JAX is imported only inside the actor, whose environment (platform, number of virtual devices) is set before it
starts. One message starts a whole step; sends go from worker to worker.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from alpaviz.errors import LaunchError

if TYPE_CHECKING:
    from alpaviz.runtime.instructions import Instruction
    from alpaviz.runtime.stage_worker import StageWorker

INPUT = -2
"""Microbatch number under which a stage sends state that another stage also reads, at the start of a step."""

MailKey = tuple[int, int, int, int]
"""(step, value, microbatch, target stage)."""


@dataclass(frozen=True, slots=True)
class StepOrder:
    """What the driver tells every worker to do a step.

    Attributes:
        step: its number; results are stored under it.
        arrays: input value -> host array.
        stored: input value -> (step, value) of an earlier result.
        batch: input value -> host array, whole.
        forget: steps whose results nobody can ask for any more.
    """

    step: int
    arrays: Mapping[int, Any]
    stored: Mapping[int, tuple[int, int]]
    batch: Mapping[int, Any]
    forget: tuple[int, ...] = ()
    is_timed: bool = False


@dataclass(slots=True)
class StepReport:
    """What a worker says after a step: small results, and times by stage and role where they were taken."""

    values: dict[int, Any]
    times: dict[int, dict[str, list[float]]] = field(default_factory=dict)


class HostWorker:
    """The actor. `run_step` runs in one thread; `deliver` and `abort` in others at the same time."""

    def __init__(self, host: int, timeout_s: float) -> None:
        self.host, self.timeout_s = host, timeout_s
        self._mail: dict[MailKey, list[Any]] = defaultdict(list)
        self._arrived = threading.Condition()
        self._aborted = ""
        self._store: dict[int, dict[int, Any]] = {}

    def find_address(self) -> tuple[str, int, int]:
        """(IP address, a free port, process id) of this worker."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1], os.getpid()

    def set_up(self, recipe: bytes, plan_json: bytes, peers: Sequence[Any], coordinator: str | None) -> None:
        """Trace the program again, join the other hosts and build this host's stages.

        Raises:
            LaunchError: the program traced here is not the one that was planned.
        """
        import jax
        from ray import cloudpickle

        from alpaviz.plan_file import plan_from_json
        from alpaviz.program import retrace
        from alpaviz.runtime.instructions import build_instructions
        from alpaviz.runtime.meshes import list_layouts, list_state_pairs, make_mesh
        from alpaviz.runtime.partition import partition_program
        from alpaviz.runtime.stage_worker import StageWorker

        self.plan = plan_from_json(plan_json)
        self.peers = list(peers)
        if coordinator is not None:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(coordinator, num_processes=len(peers), process_id=self.host)
        self.program = retrace(cloudpickle.loads(recipe))
        if self.program.fingerprint != self.plan.program.fingerprint:
            raise LaunchError(
                f"host {self.host} traced program {self.program.fingerprint}, the plan is for "
                f"{self.plan.program.fingerprint}: the worker's packages or registered rules differ from the driver's."
            )
        by_host: dict[int, list[Any]] = defaultdict(list)
        for device in jax.devices():
            by_host[device.process_index if coordinator is not None else self.host].append(device)
        stand_in = by_host[self.host]

        def find_device(place: tuple[int, int]) -> Any:
            return by_host.get(place[0], stand_in)[place[1]]

        self.hosts = [sorted({host for host, _ in stage.devices}) for stage in self.plan.stages]
        meshes = [make_mesh(stage, find_device) for stage in self.plan.stages]
        layouts = list_layouts(self.plan, meshes, list_state_pairs(self.program))
        partition = partition_program(self.program, self.plan)
        self.lists = build_instructions(self.program, self.plan, partition)
        self.stages: dict[int, StageWorker] = {
            stage: StageWorker(self.program, self.plan, partition, stage, layouts[stage])
            for stage in range(self.plan.num_stages)
            if self.host in self.hosts[stage]
        }
        self.maker = {v: key[0] for v, key in partition.maker.items()}
        self.readers: dict[int, set[int]] = defaultdict(set)
        for key, chunk in partition.chunks.items():
            for v in chunk.inputs:
                self.readers[v].add(key[0])

    # Mail.

    def deliver(self, key: MailKey, pieces: Any) -> None:
        """Take in the pieces of a value that one host of the sending stage holds."""
        with self._arrived:
            self._mail[key].append(pieces)
            self._arrived.notify_all()

    def abort(self, reason: str) -> None:
        """Stop waiting: another worker has failed."""
        with self._arrived:
            self._aborted = reason
            self._arrived.notify_all()

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
                self.deliver(key, pieces)
            else:
                self.peers[host].deliver.remote(key, pieces)

    def _take(self, value: int, microbatch: int, source: int, target: int, step: int) -> Any | None:
        """The array sent to `target`, or None while something of it is on its way."""
        import jax

        from alpaviz.program.jax_internals import is_extended
        from alpaviz.runtime.pieces import join_pieces, place_array
        from alpaviz.runtime.stage_worker import find_aval

        key = (step, value, microbatch, target)
        with self._arrived:
            mail = self._mail.get(key, [])
            if mail and isinstance(mail[0], jax.Array):
                return self._mail.pop(key)[0]
            if len(mail) < len(self.hosts[source]):
                return None
            mail = self._mail.pop(key)
        aval = find_aval(self.program, value)
        pieces = [piece for part in mail for piece in part]
        if is_extended(aval.dtype):
            words = pieces[0][1].shape[len(aval.shape) :]
            data = join_pieces((*aval.shape, *words), "uint32", pieces)
            whole: Any = jax.random.wrap_key_data(jax.numpy.asarray(data))
        else:
            whole = join_pieces(aval.shape, aval.dtype, pieces)
        return place_array(whole, self.stages[target].shard(value))

    # Steps.

    def run_step(self, order: StepOrder) -> StepReport:
        """Play this host's instruction lists; results stay here under the step's number."""
        for step in order.forget:
            self._store.pop(step, None)
        self._aborted = ""
        current: list[str] = [f"host {self.host}, taking in the state"]
        try:
            self._begin(order)
            self._play(order, current)
        except LaunchError:
            raise
        except Exception as error:
            detail = traceback.format_exc(limit=-6)
            raise LaunchError(
                f"{current[0]} on host {self.host} failed: {type(error).__name__}: {error}\n{detail}"
            ) from None
        self._store[order.step] = {v: a for worker in self.stages.values() for v, a in worker.results.items()}
        return self._report(order)

    def _begin(self, order: StepOrder) -> None:
        from alpaviz.runtime.pieces import place_array

        owners = self._find_owners(order)
        for v, (step, stored) in order.stored.items():
            owner = owners[v]
            if owner in self.stages:
                for target in range(self.plan.num_stages):
                    if target != owner and self._needs(target, v):
                        self._send(self._store[step][stored], v, INPUT, owner, target, order.step)
        for stage, worker in self.stages.items():
            inputs: dict[int, Any] = {}
            batch: dict[tuple[int, int], Any] = {}
            for v in worker.needed_inputs:
                if v in order.arrays:
                    inputs[v] = place_array(order.arrays[v], worker.shard(v))
                elif v in order.stored:
                    step, stored = order.stored[v]
                    inputs[v] = (
                        self._store[step][stored]
                        if owners[v] == stage
                        else self._wait(v, INPUT, owners[v], stage, order.step)
                    )
                elif v in order.batch:
                    self._slice(order.batch[v], v, worker, batch)
            worker.begin(inputs, batch)
            worker.times.clear()

    def _slice(self, leaf: Any, value: int, worker: StageWorker, batch: dict[tuple[int, int], Any]) -> None:
        from alpaviz.runtime.arguments import slice_microbatch
        from alpaviz.runtime.pieces import place_array

        position = self.program.inputs.index(value)
        for microbatch in range(self.plan.num_microbatches):
            part = slice_microbatch(self.program, leaf, position, microbatch)
            batch[value, microbatch] = place_array(part, worker.shard(value))

    def _find_owners(self, order: StepOrder) -> dict[int, int]:
        """Input value -> the stage that has stored what it comes from."""
        return {v: self.maker.get(stored, self.plan.values[stored].stage) for v, (_, stored) in order.stored.items()}

    def _needs(self, stage: int, value: int) -> bool:
        return stage in self.readers[value]

    def _wait(self, value: int, microbatch: int, source: int, target: int, step: int) -> Any:
        deadline = time.monotonic() + self.timeout_s
        while True:
            array = self._take(value, microbatch, source, target, step)
            if array is not None:
                return array
            self._pause(deadline, f"stage {target} on host {self.host} waits for stage {source}")

    def _pause(self, deadline: float, what: str) -> None:
        with self._arrived:
            if self._aborted:
                raise LaunchError(f"{what}: given up, because {self._aborted}")
            if time.monotonic() > deadline:
                raise LaunchError(f"{what}: nothing came for {self.timeout_s:g} s. A worker hangs or is overloaded.")
            self._arrived.wait(0.05)

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
                self._pause(deadline, current[0])

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

    def _report(self, order: StepOrder) -> StepReport:
        """Results that are not state and small are sent back at once: losses and metrics."""
        import jax

        state = {self.program.outputs[o] for o, _ in self.program.state_outputs}
        jax.block_until_ready(self._store[order.step])
        values = {
            v: self.fetch(order.step, v)
            for v in self._store[order.step]
            if v not in state and self.program.values[v].num_bytes <= 65_536
        }
        times = {
            stage: {role.value: list(seconds) for role, seconds in worker.times.items()}
            for stage, worker in self.stages.items()
        }
        return StepReport(values, times if order.is_timed else {})

    def store(self, step: int, arrays: Mapping[int, Any]) -> None:
        """Keep input arrays of this host's stages in their layouts, as the results of `step`."""
        from alpaviz.runtime.pieces import place_array

        kept: dict[int, Any] = {}
        for v, array in arrays.items():
            stage = self.plan.values[v].stage
            if stage in self.stages:
                kept[v] = place_array(array, self.stages[stage].shard(v))
        self._store[step] = kept

    def fetch(self, step: int, value: int) -> Any:
        """Pieces of a stored value that this host holds; None where it is not stored here."""
        from alpaviz.runtime.pieces import list_pieces

        found = self._store.get(step, {}).get(value)
        return None if found is None else list_pieces(found)

    def compiled_text(self, stage: int, part: str) -> str | None:
        """HLO of one of this host's chunks; None where the stage is elsewhere."""
        from alpaviz.program.program import Role

        return self.stages[stage].runners[stage, Role(part), 0].compiled_text() if stage in self.stages else None
