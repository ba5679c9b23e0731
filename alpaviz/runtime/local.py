"""The local backend: all meshes are devices of this process, and one thread plays all instruction lists.

JAX dispatches asynchronously, so stages overlap although their instructions are issued in turn. A plan of a single
stage is one jitted function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from alpaviz.cluster import Cluster
from alpaviz.errors import LaunchError
from alpaviz.plan import Plan
from alpaviz.program.jax_internals import is_extended
from alpaviz.program.leaves import is_non_array, mark_non_arrays, restore_non_arrays
from alpaviz.program.program import Program, Role
from alpaviz.runtime.arguments import assemble_results, flatten_arguments, is_batch, slice_microbatch, to_host
from alpaviz.runtime.attached import attached_cluster
from alpaviz.runtime.checkpoint_index import CheckpointIndex
from alpaviz.runtime.checkpoint_pieces import read_leaves, write_pieces
from alpaviz.runtime.checkpoints import Written
from alpaviz.runtime.donation import StateMover, copy_given
from alpaviz.runtime.executable import Executable, MeasuredTimes
from alpaviz.runtime.fused import FusedStep
from alpaviz.runtime.initialize import create_leaves, make_portable, refuse_other_state
from alpaviz.runtime.instructions import Free, Receive, Run, Send, build_instructions
from alpaviz.runtime.meshes import find_local_device, list_layouts, list_state_pairs, make_mesh
from alpaviz.runtime.partition import partition_program
from alpaviz.runtime.pieces import move_array
from alpaviz.runtime.recording import StageRecorder, make_timeline
from alpaviz.runtime.stacked import join_lanes, split_lanes
from alpaviz.runtime.stage_worker import StageWorker
from alpaviz.runtime.state_leaves import StateLeaf, flatten_state, list_state_leaves, unflatten_state
from alpaviz.runtime.statistics import DevicePeak, list_peaks

Mailbox = dict[tuple[int, int, int], Any]
"""(value, microbatch, target stage) -> what was sent."""


class LocalExecutable(Executable):
    """A plan on devices of this process."""

    def __init__(
        self,
        plan: Plan,
        program: Program,
        devices: Sequence[Any],
        *,
        donate_state: bool = False,
        record_every: int | None = None,
    ) -> None:
        super().__init__(plan, program, record_every)
        self._donate_state, self._devices = donate_state, tuple(devices)
        find_device = find_local_device(plan, devices)
        meshes = [make_mesh(stage, find_device) for stage in plan.stages]
        self._layouts = list_layouts(plan, meshes, list_state_pairs(program))
        self._fused = FusedStep(plan, program, self._layouts[0], donate_state) if plan.num_stages == 1 else None
        self._workers: list[StageWorker] | None = None
        self._recorders: list[StageRecorder] = []

    @property
    def workers(self) -> list[StageWorker]:
        """The stages' workers; made at first use."""
        self.refuse_if_closed()
        if self._workers is None:
            partition = partition_program(self.program, self.plan)
            self.lists = build_instructions(self.program, self.plan, partition)
            donate = self._donate_state and self._fused is None
            self._workers = [
                StageWorker(self.program, self.plan, partition, stage, layouts, donate_state=donate)
                for stage, layouts in enumerate(self._layouts)
            ]
        return self._workers

    def __call__(self, state: Any, *batch: Any) -> Any:
        self.refuse_if_closed()
        leaves = flatten_arguments(self.program, (state, *batch))
        is_recorded = self._note_step(leaves)
        return self._play(leaves, is_recorded=is_recorded) if self._fused is None else self._fused(leaves)

    def profile(self, state: Any, *batch: Any) -> Any:
        self.refuse_if_closed()
        leaves = flatten_arguments(self.program, (state, *batch))
        given = self._list_given()
        self._play(copy_given(leaves, given), is_recorded=True)  # compiles
        for worker in self.workers:
            worker.times.clear()
        self._play(copy_given(leaves, given), is_timed=True)
        self._play(copy_given(leaves, given), is_recorded=True)
        self._keep_recording()
        step = self._play if self._fused is None else self._fused
        if self._fused is not None:
            jax.block_until_ready(step(copy_given(leaves, given)))
        began = time.perf_counter()
        results = jax.block_until_ready(step(leaves))
        seconds = time.perf_counter() - began
        self.measured = summarise_times([worker.times for worker in self.workers], seconds)
        return results

    def _keep_recording(self) -> None:
        if self._recorders:
            runs = {stage: recorder.finish() for stage, recorder in enumerate(self._recorders)}
            self._recording, self._recorders = make_timeline(runs, self.plan.num_stages), []

    def _list_peaks(self) -> list[DevicePeak]:
        workers = self._workers or []
        held = [worker.held_peak_bytes for worker in workers] or [0] * self.plan.num_stages
        return [
            peak
            for stage, layouts in enumerate(self._layouts)
            for peak in list_peaks(stage, list(layouts.mesh.devices.flat), held[stage])
        ]

    def _list_given(self) -> set[int]:
        """Positions of arguments that a step consumes."""
        if self._fused is not None:
            return set(self._fused.given_positions)
        values = {v for worker in self.workers for v in worker.given_inputs}
        return {i for i, v in enumerate(self.program.inputs) if v in values}

    def _play(self, leaves: Sequence[Any], *, is_timed: bool = False, is_recorded: bool = False) -> Any:
        results: dict[int, Any] = {}
        mover = StateMover()
        for worker in self.workers:
            results.update(self._begin(worker, leaves, mover))
            if is_recorded:
                worker.record()
        mailbox: Mailbox = {}
        position = [0] * len(self.workers)
        remaining = sum(map(len, self.lists))
        while remaining:
            moved = sum(self._advance(stage, position, mailbox, is_timed) for stage in range(len(self.workers)))
            remaining -= moved
            if not moved:
                raise LaunchError("The instruction lists wait for each other; this is a fault of AlpaViz.")
        if is_recorded:
            self._recorders = [found for worker in self.workers if (found := worker.take_recorder()) is not None]
        for worker in self.workers:
            results.update(worker.finish())
        return assemble_results(self.program, leaves, results)

    def _advance(self, stage: int, position: list[int], mailbox: Mailbox, is_timed: bool) -> int:
        """Issue instructions of one stage until it waits or has issued a chunk and its sends; how many."""
        instructions, worker, begin = self.lists[stage], self.workers[stage], position[stage]
        has_run = False
        while position[stage] < len(instructions):
            instruction = instructions[position[stage]]
            if has_run and not isinstance(instruction, (Send, Free)):
                break
            if isinstance(instruction, Receive):
                array = mailbox.pop((instruction.value, instruction.microbatch, stage), None)
                if array is None:
                    break
                worker.write(instruction.value, instruction.microbatch, array)
            elif isinstance(instruction, Send):
                array = worker.read(instruction.value, instruction.microbatch)
                sharding = self.workers[instruction.target].shard(instruction.value)
                key = (instruction.value, instruction.microbatch, instruction.target)
                mailbox[key] = jax.device_put(array, sharding)
            else:
                self._execute(worker, instruction, is_timed)
                has_run = isinstance(instruction, Run)
            position[stage] += 1
        return position[stage] - begin

    def _execute(self, worker: StageWorker, instruction: Run | Free, is_timed: bool) -> None:
        try:
            worker.execute(instruction, is_timed=is_timed)
        except Exception as error:
            error.add_note(f"while AlpaViz ran {worker.describe(instruction)}")
            raise

    def _begin(self, worker: StageWorker, leaves: Sequence[Any], mover: StateMover) -> dict[int, Any]:
        """Give a stage its inputs; those that it owns and the step returns as they are."""
        position_of = {v: i for i, v in enumerate(self.program.inputs)}
        inputs: dict[int, Any] = {}
        batch: dict[tuple[int, int], Any] = {}
        for v in worker.needed_inputs:
            position = position_of.get(v)
            if position is None:
                continue
            sharding, dtype = worker.shard(v), self.program.values[v].dtype
            if not is_batch(self.program, position):
                inputs[v] = mover.move(leaves[position], sharding, dtype, is_given=v in worker.given_inputs)
                continue
            leaf = to_host(leaves[position])
            for microbatch in range(self.plan.num_microbatches):
                part = slice_microbatch(self.program, leaf, position, microbatch)
                batch[v, microbatch] = move_array(part, sharding, dtype)
        worker.begin(inputs, batch)
        returned = {v for v in self.program.outputs if v is not None}
        return {v: a for v, a in inputs.items() if v in returned and self.plan.values[v].stage == worker.stage}

    def place(self, state: Any) -> Any:
        self.refuse_if_closed()
        leaves, structure = jax.tree.flatten(mark_non_arrays(state))
        counts = self.program.input_lanes[: len(leaves)]
        leaves = split_lanes(leaves, counts)
        given = self._list_given() if self._donate_state else set()
        placed = []
        for position, (leaf, v) in enumerate(zip(leaves, self.program.inputs, strict=False)):
            value = self.program.values[v]
            sharding = self._layouts[self.plan.values[v].stage].shard(v, len(value.shape))
            placed.append(move_array(leaf, sharding, value.dtype, is_own=position in given))
        return restore_non_arrays(jax.tree.unflatten(structure, join_lanes(placed, counts)))

    def initialize(self, init_fn: Callable[[Any], Any], key: Any) -> Any:
        self.refuse_if_closed()
        refuse_other_state(self.program, init_fn, key)
        leaves = list_state_leaves(self.program)
        made: dict[int, Any] = {}
        for stage in range(self.plan.num_stages):
            own = {leaf: self._shard(leaf) for leaf in leaves if self.plan.values[leaf.value].stage == stage}
            made |= create_leaves(self.program, init_fn, make_portable(key), own)
        return unflatten_state(self.program, [made[leaf.value] for leaf in leaves])

    def _shard(self, leaf: StateLeaf) -> Any:
        """Where the plan keeps a leaf of the state."""
        return self._layouts[self.plan.values[leaf.value].stage].shard(leaf.value, len(leaf.shape))

    def _write_pieces(self, state: Any, partial: Path) -> Written:
        leaves = list_state_leaves(self.program)
        arrays = dict(zip(leaves, flatten_state(self.program, state), strict=True))
        placed = {
            leaf: array if isinstance(array, jax.Array) else move_array(array, self._shard(leaf), leaf.dtype)
            for leaf, array in arrays.items()
        }
        return [write_pieces(partial, 0, placed)]

    def _read_pieces(self, folder: Path, index: CheckpointIndex) -> Any:
        leaves = list_state_leaves(self.program)
        arrays = read_leaves(self.program, folder, index, {leaf: self._shard(leaf) for leaf in leaves})
        return unflatten_state(self.program, [arrays[leaf.value] for leaf in leaves])

    def find_remaining_cluster(self) -> Cluster:
        return attached_cluster()

    def _relaunch(self, plan: Plan, program: Program, devices: Sequence[Any] | None) -> Executable:
        from alpaviz.runtime.launch import launch

        chosen = self._devices if devices is None else devices
        return launch(
            plan,
            program,
            backend="local",
            devices=chosen,
            donate_state=self._donate_state,
            record_every=self.record_every,
        )

    def fetch(self, tree: Any) -> Any:
        return jax.tree.map(fetch_leaf, tree)

    def compiled_text(self, stage: int, part: str) -> str:
        self.refuse_if_closed()
        self.refuse_unknown_stage(stage)
        if part == "step" and self._fused is not None:
            return self._fused.compiled_text()
        return self.workers[stage].compiled_text(part)

    def close(self) -> None:
        super().close()
        self._workers, self._fused = None, None


def fetch_leaf(leaf: Any) -> Any:
    """An array on the host; a leaf that is no array as it is."""
    if is_non_array(leaf):
        return leaf
    if isinstance(leaf, jax.Array) and is_extended(leaf.dtype):
        return leaf
    return np.asarray(leaf)


def summarise_times(times: Sequence[dict[Role, list[float]]], step: float) -> MeasuredTimes:
    """Means per microbatch of forward and backward, sum of the update."""

    def mean(seconds: list[float]) -> float:
        return sum(seconds) / len(seconds) if seconds else 0.0

    return {
        stage: {
            "forward_s": mean(found.get(Role.FORWARD, [])), "backward_s": mean(found.get(Role.BACKWARD, [])),
            "update_s": sum(found.get(Role.UPDATE, [])), "step_s": step,
        }
        for stage, found in enumerate(times)
    }  # fmt: skip
