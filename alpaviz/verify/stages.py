"""Compiles the stages of a plan for virtual devices, and holds them against the plan. Runs in the child process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from alpaviz.plan import Plan
from alpaviz.program.program import Program, ValueKind
from alpaviz.runtime.chunk_runner import ChunkRunner
from alpaviz.runtime.collectives_in_hlo import CompiledCollective, list_collectives
from alpaviz.runtime.donation import find_donated
from alpaviz.runtime.fused import FusedStep
from alpaviz.runtime.instructions import build_instructions
from alpaviz.runtime.meshes import StageLayouts, list_layouts, list_state_pairs, make_mesh
from alpaviz.runtime.partition import partition_program
from alpaviz.types import count_shards
from alpaviz.verify.loops import count_runs
from alpaviz.verify.matching import check_collectives, find_ops, match_collectives
from alpaviz.verify.predicted import list_predicted
from alpaviz.verify.report import MemoryCheck, StageCheck
from alpaviz.verify.residency import ChunkBuffers, find_peak


class StageVerifier:
    """Holds stages of one plan against XLA, one at a time."""

    def __init__(self, plan: Plan, program: Program, devices: Sequence[Any]) -> None:
        self.plan, self.program = plan, program
        # Stages are compiled one by one, so all of them may lie on the same devices.
        places = [{place: devices[k] for k, place in enumerate(stage.devices)} for stage in plan.stages]
        meshes = [make_mesh(stage, found.__getitem__) for stage, found in zip(plan.stages, places, strict=True)]
        self._layouts = list_layouts(plan, meshes, list_state_pairs(program))
        self._ops_of = find_ops(program)
        self._partition = partition_program(program, plan)
        self._lists = build_instructions(program, plan, self._partition) if plan.num_stages > 1 else ()

    def check(self, stage: int) -> StageCheck:
        """Lower and compile `stage`."""
        began = time.perf_counter()
        compile_stage = self._compile_step if self.plan.num_stages == 1 else self._compile_chunks
        compiled, memory = compile_stage(stage)
        predicted = list_predicted(self.plan, stage)
        added, missing = match_collectives(self.plan, self._ops_of, predicted, compiled)
        return StageCheck(
            stage, self.plan.stages[stage].num_devices, check_collectives(predicted, compiled), memory, added, missing,
            time.perf_counter() - began,
        )  # fmt: skip

    def _compile_step(self, stage: int) -> tuple[list[CompiledCollective], MemoryCheck]:
        """The only stage: one function does the whole step."""
        compiled = FusedStep(self.plan, self.program, self._layouts[0], donate_state=True).lower().compile()
        buffers = read_buffers(compiled)
        memory = MemoryCheck(
            self.plan.stages[0].memory.total_bytes, buffers.argument_bytes + buffers.working_bytes,
            *self._sum_inputs(self._layouts[0], 0), buffers.temporary_bytes,
        )  # fmt: skip
        return self._list_collectives(compiled, stage, 1), memory

    def _compile_chunks(self, stage: int) -> tuple[list[CompiledCollective], MemoryCheck]:
        layouts, chunks = self._layouts[stage], self._partition.chunks
        donated = find_donated(self.program, self._partition, stage, layouts)
        collectives: list[CompiledCollective] = []
        buffers: dict[Any, ChunkBuffers] = {}
        for key, chunk in chunks.items():
            if key[0] != stage:
                continue
            given = [v for v in donated if donated[v] == key]
            runner = ChunkRunner(self.program, self.plan, self._partition, chunk, layouts, given)
            compiled = runner.lower().compile()
            buffers[key] = read_buffers(compiled)
            collectives += self._list_collectives(compiled, stage, 1 if chunk.is_update else self.plan.num_microbatches)
        state, batch = self._sum_inputs(layouts, stage)
        sizes = {v.id: self._count_local(v.id, layouts) for v in self.program.values}
        passing = find_peak(self.plan, self._partition, stage, self._lists[stage], buffers, sizes, donated)
        memory = MemoryCheck(
            self.plan.stages[stage].memory.total_bytes, state + batch + passing, state, batch,
            max((b.temporary_bytes for b in buffers.values()), default=0.0),
        )  # fmt: skip
        return collectives, memory

    def _list_collectives(self, compiled: Any, stage: int, calls: int) -> list[CompiledCollective]:
        text, plan = str(compiled.as_text()), self.plan.stages[stage]
        repeats = {name: runs * calls for name, runs in count_runs(text).items()}
        return list(list_collectives(text, plan.mesh_shape, plan.mesh_axes, repeats))

    def _count_local(self, value: int, layouts: StageLayouts) -> float:
        size = self.program.values[value].num_bytes
        return size / count_shards(layouts.specs.get(value, ()), dict(layouts.mesh.shape))

    def _sum_inputs(self, layouts: StageLayouts, stage: int) -> tuple[float, float]:
        """Bytes of the state (and constants) and of the whole batch that a device of a stage holds for a step."""
        read = {v for key, c in self._partition.chunks.items() if key[0] == stage for v in c.inputs}
        state = batch = 0.0
        for v in (*self.program.inputs, *self.program.constants):
            if v not in read:
                continue
            size = self._count_local(v, layouts)
            if self.program.values[v].kind is ValueKind.BATCH:
                batch += size * self.program.count_slices(v)
            else:
                state += size
        return state, batch


def read_buffers(compiled: Any) -> ChunkBuffers:
    """What XLA's buffer assignment says, bytes on one device."""
    stats = compiled.memory_analysis()
    return ChunkBuffers(
        float(stats.argument_size_in_bytes), float(stats.output_size_in_bytes), float(stats.alias_size_in_bytes),
        float(stats.temp_size_in_bytes),
    )  # fmt: skip
