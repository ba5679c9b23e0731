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

from alpaviz.errors import LaunchError
from alpaviz.plan import Plan
from alpaviz.program.program import Program, Role
from alpaviz.runtime.chunk_runner import ChunkRunner
from alpaviz.runtime.donation import find_donated
from alpaviz.runtime.instructions import ONCE, Free, Instruction, Run
from alpaviz.runtime.meshes import StageLayouts
from alpaviz.runtime.partition import ChunkKey, Partition
from alpaviz.runtime.pieces import place_array
from alpaviz.runtime.recording import RecordedRun, StageRecorder
from alpaviz.runtime.statistics import count_bytes

Results = dict[int, Any]


class StageWorker:
    """Values and chunks of one stage. Used from one thread.

    Args:
        donate_state: let update chunks overwrite the state that they replace.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        partition: Partition,
        stage: int,
        layouts: StageLayouts,
        *,
        donate_state: bool = False,
    ) -> None:
        self.program, self.plan, self.partition = program, plan, partition
        self.stage, self.layouts = stage, layouts
        self._last_microbatch = plan.num_microbatches - 1
        given = find_donated(program, partition, stage, layouts) if donate_state else {}
        self.given_inputs = frozenset(given)
        self.runners = {
            key: ChunkRunner(program, plan, partition, chunk, layouts, [v for v in given if given[v] == key])
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
        self.held_peak_bytes = 0
        self._recorder: StageRecorder | None = None
        self.results: Results = {}
        self._inputs: dict[int, Any] = {}
        self._batch: dict[tuple[int, int], Any] = {}
        self._values: dict[tuple[int, int], Any] = {}
        self._sums: dict[ChunkKey, list[Any]] = {}

    def begin(self, inputs: Mapping[int, Any], batch: Mapping[tuple[int, int], Any]) -> None:
        """Start a step: state by value, batch by (value, microbatch)."""
        self.finish()
        self._inputs, self._batch = dict(inputs), dict(batch)
        self._sums = {key: make() for key, make in self._zero_makers.items()}

    def finish(self) -> Results:
        """End a step: its results. Everything else that the stage held is let go."""
        results, self.results = self.results, {}
        if self._recorder is not None:
            self._recorder.abandon()
            self._recorder = None
        self._inputs, self._batch, self._values, self._sums = {}, {}, {}, {}
        return results

    def record(self) -> None:
        """Note when the chunks of the step that has begun really run."""
        self._recorder = StageRecorder()

    def take_recorder(self) -> StageRecorder | None:
        """What notes the runs of this step, with its runs once they have ended."""
        recorder, self._recorder = self._recorder, None
        return recorder

    def list_runs(self) -> list[RecordedRun]:
        """The runs of a recorded step, after they have ended."""
        recorder = self.take_recorder()
        return [] if recorder is None else recorder.finish()

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
        if self._recorder is not None:
            self._recorder.note_arrival(array)

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
        if self._recorder is not None:
            self._recorder.note_run(chunk.key[1], microbatch, began, (outputs, sums, lasts, finals))
        if is_timed:
            jax.block_until_ready((outputs, sums, lasts, finals))
            self.times[chunk.key[1]].append(time.perf_counter() - began)
            self._note_held()

    def _note_held(self) -> None:
        sums = (array for found in self._sums.values() for array in found)
        held = (self._inputs, self.constants, self._batch, self._values, self.results)
        arrays = (array for found in held for array in found.values() if not array.is_deleted())
        self.held_peak_bytes = max(self.held_peak_bytes, count_bytes([*sums, *arrays]))

    def compiled_text(self, part: str) -> str:
        """HLO of the chunk called `"forward"`, `"backward"` or `"update"` (the first of several updates).

        Raises:
            LaunchError: the stage has no such chunk.
        """
        keys = {key[1].value: key for key in self.runners if key[2] == 0}
        if part not in keys:
            raise LaunchError(f"Stage {self.stage} has no chunk {part!r}: it has {', '.join(sorted(keys))}.")
        return self.runners[keys[part]].compiled_text()

    def describe(self, instruction: Instruction) -> str:
        """Where an instruction is, for error messages."""
        if isinstance(instruction, Run):
            where = "" if instruction.microbatch == ONCE else f" of microbatch {instruction.microbatch}"
            return f"stage {self.stage}, {instruction.key[1].value}{where}"
        return f"stage {self.stage}, {type(instruction).__name__.lower()}"
