"""One stage at work: its compiled chunks, and the values that it holds during a step.

The local and the Ray backend interpret the same instruction lists with this class; they differ only in how values
travel between stages.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax

from alpaviz.plan import Plan
from alpaviz.program.program import Program, Role
from alpaviz.runtime.chunk_runner import ChunkRunner
from alpaviz.runtime.instructions import ONCE, Free, Instruction, Run
from alpaviz.runtime.meshes import StageLayouts
from alpaviz.runtime.partition import ChunkKey, Partition
from alpaviz.runtime.pieces import place_array

Results = dict[int, Any]


class StageWorker:
    """Values and chunks of one stage. Used from one thread.

    Args:
        donated: state values that the stage may overwrite with the state that replaces them.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        partition: Partition,
        stage: int,
        layouts: StageLayouts,
        donated: frozenset[int] = frozenset(),
    ) -> None:
        self.program, self.plan, self.partition = program, plan, partition
        self.stage, self.layouts = stage, layouts
        self._last_microbatch = plan.num_microbatches - 1
        self.runners = {
            key: ChunkRunner(program, plan, partition, chunk, layouts, donated)
            for key, chunk in partition.chunks.items()
            if key[0] == stage
        }
        self._zero_makers = {key: runner.make_zero_sums() for key, runner in self.runners.items() if runner.accumulates}
        made = set(partition.maker)
        read = dict.fromkeys(v for runner in self.runners.values() for v in runner.chunk.inputs)
        self.needed_inputs = tuple(v for v in read if v not in made)
        self.constants = {
            v: place_array(const, self.shard(v))
            for v, const in zip(program.constants, program.jaxpr.consts, strict=True)
            if v in read
        }
        self.times: dict[Role, list[float]] = defaultdict(list)
        self.finish()

    def begin(self, inputs: Mapping[int, Any], batch: Mapping[tuple[int, int], Any]) -> None:
        """Start a step: state by value, batch by (value, microbatch)."""
        self.finish()
        self._inputs, self._batch = dict(inputs), dict(batch)
        self._sums = {key: make() for key, make in self._zero_makers.items()}

    def finish(self) -> Results:
        """End a step: its results. Everything else that the stage held is let go."""
        results: Results = getattr(self, "results", {})
        self._inputs: dict[int, Any] = {}
        self._batch: dict[tuple[int, int], Any] = {}
        self._values: dict[tuple[int, int], Any] = {}
        self._sums: dict[ChunkKey, list[Any]] = {}
        self.results: Results = {}
        return results

    def shard(self, value: int) -> Any:
        """The sharding in which this stage holds a value."""
        return self.layouts.shard(value, len(self.program.values[value].shape))

    def read(self, value: int, microbatch: int) -> Any:
        """A value as it is now."""
        if value in self._inputs:
            return self._inputs[value]
        if value in self.constants:
            return self.constants[value]
        if (value, microbatch) in self._batch:
            return self._batch[value, microbatch]
        return self._values[value, microbatch]

    def write(self, value: int, microbatch: int, array: Any) -> None:
        """Take in a value that another stage has sent."""
        self._values[value, microbatch] = array

    def execute(self, instruction: Run | Free, *, is_timed: bool = False) -> None:
        """Run a chunk or forget values."""
        if isinstance(instruction, Free):
            for v in instruction.values:
                self._values.pop((v, instruction.microbatch), None)
            return
        began = time.perf_counter()
        runner = self.runners[instruction.key]
        chunk, microbatch = runner.chunk, instruction.microbatch
        inputs = [self.read(v, microbatch) for v in chunk.inputs]
        outputs, sums, lasts, finals = runner(inputs, self._sums.get(chunk.key, ()))
        for v, array in zip(chunk.outputs, outputs, strict=True):
            self._values[v, microbatch] = array
        if runner.accumulates:
            self._sums[chunk.key] = sums
        for v, array in zip(chunk.sums, sums, strict=True):
            self._values[v, ONCE] = array
        if microbatch == self._last_microbatch:  # which a schedule need not run last
            self._values.update(((v, ONCE), array) for v, array in zip(chunk.lasts, lasts, strict=True))
        self.results.update(zip(chunk.finals, finals, strict=True))
        if is_timed:
            jax.block_until_ready((outputs, sums, lasts, finals))
            self.times[chunk.key[1]].append(time.perf_counter() - began)

    def describe(self, instruction: Instruction) -> str:
        """Where an instruction is, for error messages."""
        if isinstance(instruction, Run):
            where = "" if instruction.microbatch == ONCE else f" of microbatch {instruction.microbatch}"
            return f"stage {self.stage}, {instruction.key[1].value}{where}"
        return f"stage {self.stage}, {type(instruction).__name__.lower()}"


def find_donated(program: Program, partition: Partition, stage: int, layouts: StageLayouts) -> frozenset[int]:
    """State that an update chunk of `stage` may overwrite: it makes the replacement, of equal shape and layout."""
    made_by = {v: chunk.key for chunk in partition.chunks.values() for v in chunk.finals if chunk.stage == stage}
    last_reader: dict[int, ChunkKey] = {}
    for key, chunk in partition.chunks.items():
        if key[0] == stage:
            for v in chunk.inputs:
                if key[1] is Role.UPDATE and key[2] >= last_reader.get(v, key)[2]:
                    last_reader[v] = key
    returned = {v for v in program.outputs if v is not None}
    found = set()
    for made, stored in list_replacements(program):
        is_same = layouts.specs.get(made, ()) == layouts.specs.get(stored, ())
        if is_same and stored not in returned and stored in last_reader and made_by.get(made) == last_reader[stored]:
            found.add(stored)
    return frozenset(found)


def list_replacements(program: Program) -> list[tuple[int, int]]:
    """(new state, the state that it replaces) where both have the same shape and dtype."""
    found: dict[int, int] = {}
    for o, i in program.state_outputs:
        made, stored = program.outputs[o], program.inputs[i]
        if made is None or made == stored or made in found:
            continue
        new, old = program.values[made], program.values[stored]
        if (new.shape, new.dtype) == (old.shape, old.dtype):
            found[made] = stored
    return list(found.items())
