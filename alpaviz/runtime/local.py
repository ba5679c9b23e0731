"""The local backend: all meshes are devices of this process, and one thread plays all instruction lists.

JAX dispatches asynchronously, so stages overlap although their instructions are issued in turn. A plan of a single
stage is one jitted function.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from alpaviz.errors import LaunchError
from alpaviz.plan import Plan
from alpaviz.program.jax_internals import is_extended
from alpaviz.program.program import Program, Role
from alpaviz.runtime.arguments import assemble_results, flatten_arguments, is_batch, slice_microbatch, to_host
from alpaviz.runtime.executable import Executable, MeasuredTimes
from alpaviz.runtime.fused import FusedStep
from alpaviz.runtime.instructions import Free, Receive, Run, Send, build_instructions
from alpaviz.runtime.meshes import find_local_device, list_layouts, list_state_pairs, make_mesh
from alpaviz.runtime.partition import partition_program
from alpaviz.runtime.stage_worker import StageWorker


class LocalExecutable(Executable):
    """A plan on devices of this process."""

    def __init__(self, plan: Plan, program: Program, devices: Sequence[Any], *, donate_state: bool = False) -> None:
        super().__init__(plan, program)
        find_device = find_local_device(plan, devices)
        meshes = [make_mesh(stage, find_device) for stage in plan.stages]
        self._layouts = list_layouts(plan, meshes, list_state_pairs(program))
        self._fused = FusedStep(plan, program, self._layouts[0], donate_state) if plan.num_stages == 1 else None
        self._workers: list[StageWorker] | None = None
        self._is_closed = False

    @property
    def workers(self) -> list[StageWorker]:
        """The stages' workers; made at first use."""
        if self._workers is None:
            partition = partition_program(self.program, self.plan)
            self._lists = build_instructions(self.program, self.plan, partition)
            self._workers = [
                StageWorker(self.program, self.plan, partition, stage, layouts)
                for stage, layouts in enumerate(self._layouts)
            ]
        return self._workers

    def __call__(self, state: Any, *batch: Any) -> Any:
        self._refuse_if_closed()
        leaves = flatten_arguments(self.program, (state, *batch))
        if self._fused is not None:
            return self._fused(leaves)
        return self._play(leaves, is_timed=False)

    def profile(self, state: Any, *batch: Any) -> Any:
        self._refuse_if_closed()
        leaves = flatten_arguments(self.program, (state, *batch))
        self._play(leaves, is_timed=False)  # compiles
        for worker in self.workers:
            worker.times.clear()
        self._play(leaves, is_timed=True)
        if self._fused is not None:
            jax.block_until_ready(self._fused(leaves))
        began = time.perf_counter()
        results = jax.block_until_ready(self._fused(leaves) if self._fused else self._play(leaves, is_timed=False))
        step = time.perf_counter() - began
        self.measured = summarise_times([worker.times for worker in self.workers], step)
        return results

    def _play(self, leaves: Sequence[Any], *, is_timed: bool) -> Any:
        for worker in self.workers:
            self._begin(worker, leaves)
        mailbox: dict[tuple[int, int, int], Any] = {}
        position = [0] * len(self.workers)
        remaining = sum(map(len, self._lists))
        while remaining:
            moved = 0
            for stage, worker in enumerate(self.workers):
                moved += self._advance(stage, worker, position, mailbox, is_timed)
            remaining -= moved
            if not moved:
                raise LaunchError("The instruction lists wait for each other; this is a fault of AlpaViz.")
        results: dict[int, Any] = {}
        for worker in self.workers:
            results.update(worker.results)
        return assemble_results(self.program, leaves, results)

    def _advance(
        self,
        stage: int,
        worker: StageWorker,
        position: list[int],
        mailbox: dict[tuple[int, int, int], Any],
        is_timed: bool,
    ) -> int:
        """Issue instructions of one stage until it waits or has issued a chunk; how many."""
        done = 0
        instructions = self._lists[stage]
        while position[stage] < len(instructions):
            instruction = instructions[position[stage]]
            if isinstance(instruction, Receive):
                key = (instruction.value, instruction.microbatch, stage)
                if key not in mailbox:
                    return done
                worker.write(instruction.value, instruction.microbatch, mailbox.pop(key))
            elif isinstance(instruction, Send):
                array = worker.read(instruction.value, instruction.microbatch)
                target = self.workers[instruction.target]
                mailbox[instruction.value, instruction.microbatch, instruction.target] = jax.device_put(
                    array, target.shard(instruction.value)
                )
            else:
                worker.execute(instruction, is_timed=is_timed)
            position[stage] += 1
            done += 1
            if isinstance(instruction, Run):
                return done + self._issue_followers(stage, worker, position, mailbox)
        return done

    def _issue_followers(
        self, stage: int, worker: StageWorker, position: list[int], mailbox: dict[tuple[int, int, int], Any]
    ) -> int:
        """Sends and frees right after a chunk, so that receivers need not wait for another round."""
        done = 0
        instructions = self._lists[stage]
        while position[stage] < len(instructions) and isinstance(instructions[position[stage]], (Send, Free)):
            instruction = instructions[position[stage]]
            if isinstance(instruction, Send):
                array = worker.read(instruction.value, instruction.microbatch)
                mailbox[instruction.value, instruction.microbatch, instruction.target] = jax.device_put(
                    array, self.workers[instruction.target].shard(instruction.value)
                )
            elif isinstance(instruction, Free):
                worker.execute(instruction)
            position[stage] += 1
            done += 1
        return done

    def _begin(self, worker: StageWorker, leaves: Sequence[Any]) -> None:
        position_of = {v: i for i, v in enumerate(self.program.inputs)}
        inputs: dict[int, Any] = {}
        batch: dict[tuple[int, int], Any] = {}
        for v in worker.needed_inputs:
            position = position_of.get(v)
            if position is None:
                continue
            sharding = worker.shard(v)
            if not is_batch(self.program, position):
                inputs[v] = put(leaves[position], sharding, self.program.values[v].dtype)
                continue
            leaf = to_host(leaves[position])
            for microbatch in range(self.plan.num_microbatches):
                part = slice_microbatch(self.program, leaf, position, microbatch)
                batch[v, microbatch] = put(part, sharding, self.program.values[v].dtype)
        worker.begin(inputs, batch)

    def place(self, state: Any) -> Any:
        leaves, structure = jax.tree.flatten(state)
        placed = []
        for leaf, v in zip(leaves, self.program.inputs, strict=False):
            layouts = self._layouts[self.plan.values[v].stage]
            value = self.program.values[v]
            placed.append(put(leaf, layouts.shard(v, len(value.shape)), value.dtype))
        return jax.tree.unflatten(structure, placed)

    def fetch(self, tree: Any) -> Any:
        return jax.tree.map(fetch_leaf, tree)

    def compiled_text(self, stage: int, part: str) -> str:
        if part == "step":
            if self._fused is None:
                raise LaunchError("Only a plan of one stage is compiled as one step.")
            return self._fused.compiled_text()
        return self.workers[stage].runners[stage, Role(part), 0].compiled_text()

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise LaunchError("This executable has been closed: launch the plan again.")

    def close(self) -> None:
        self._is_closed = True
        self._workers, self._fused = None, None


def put(leaf: Any, sharding: Any, dtype: str) -> Any:
    """`leaf` in `sharding`; arrays that are there already are left alone."""
    if isinstance(leaf, jax.Array):
        return leaf if leaf.sharding == sharding else jax.device_put(leaf, sharding)
    return jax.device_put(np.asarray(leaf, dtype=dtype), sharding)


def fetch_leaf(leaf: Any) -> Any:
    """An array on the host."""
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
