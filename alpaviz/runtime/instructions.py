"""Instruction lists: everything a mesh worker does during a step, decided before the first step (paper section 6).

In: a `Partition` and a schedule. Out: per stage a tuple of instructions. The driver only starts the lists.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from alpaviz.plan import Plan
from alpaviz.program.program import Program, Role, ValueKind
from alpaviz.runtime.partition import Chunk, ChunkKey, Partition
from alpaviz.schedule import TaskKind, get_order

ONCE = -1
"""Microbatch number of what happens once per step."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run a chunk for a microbatch (`ONCE` for updates)."""

    key: ChunkKey
    microbatch: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send `value` to stage `target`."""

    value: int
    microbatch: int
    target: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for `value` from stage `source`."""

    value: int
    microbatch: int
    source: int


@dataclass(frozen=True, slots=True)
class Free:
    """Forget values of a microbatch: nothing reads them any more."""

    values: tuple[int, ...]
    microbatch: int


Instruction = Run | Send | Receive | Free


def build_instructions(program: Program, plan: Plan, partition: Partition) -> tuple[tuple[Instruction, ...], ...]:
    """The instruction list of each stage."""
    order = get_order(plan.schedule, plan.num_stages, plan.num_microbatches)
    return tuple(
        _StageList(program, plan, partition, stage).build([(t.kind, t.microbatch) for t in order[stage]])
        for stage in range(plan.num_stages)
    )


class _StageList:
    def __init__(self, program: Program, plan: Plan, partition: Partition, stage: int) -> None:
        self.program, self.plan, self.partition, self.stage = program, plan, partition, stage
        self.found: list[Instruction] = []
        self.received: set[tuple[int, int]] = set()
        self.targets = _find_targets(program, partition)
        self.last_reader = self._find_last_readers()

    def build(self, tasks: list[tuple[TaskKind, int]]) -> tuple[Instruction, ...]:
        for kind, microbatch in tasks:
            if kind is TaskKind.UPDATE:
                self._add_update()
                continue
            role = Role.FORWARD if kind is TaskKind.FORWARD else Role.BACKWARD
            chunk = self.partition.chunks.get((self.stage, role, 0))
            if chunk is not None:
                self._add_pass(chunk, microbatch)
        return tuple(self.found)

    def _add_pass(self, chunk: Chunk, microbatch: int) -> None:
        self._receive(chunk, microbatch)
        self.found.append(Run(chunk.key, microbatch))
        for v in chunk.outputs:
            for target in sorted(self.targets.get((v, False), ())):
                self.found.append(Send(v, microbatch, target))
        dead = tuple(v for v, key in self.last_reader.items() if key == chunk.key)
        if dead:
            self.found.append(Free(dead, microbatch))

    def _add_update(self) -> None:
        # Sums that another stage reads are complete once the last backward has run.
        for role in (Role.FORWARD, Role.BACKWARD):
            chunk = self.partition.chunks.get((self.stage, role, 0))
            sums = (v for v in chunk.sums if v not in self.partition.partial) if chunk is not None else ()
            for v in (*sums, *chunk.lasts) if chunk is not None else ():
                for target in sorted(self.targets.get((v, True), ())):
                    self.found.append(Send(v, ONCE, target))
        for key in self.partition.list_update_keys(self.stage):
            chunk = self.partition.chunks[key]
            self._receive(chunk, ONCE)
            self.found.append(Run(key, ONCE))
            for v in chunk.outputs:
                for target in sorted(self.targets.get((v, True), ())):
                    self.found.append(Send(v, ONCE, target))

    def _receive(self, chunk: Chunk, microbatch: int) -> None:
        for v in chunk.inputs:
            maker = self.partition.maker.get(v)
            if maker is None or maker[0] == self.stage or (v, microbatch) in self.received:
                continue
            self.received.add((v, microbatch))
            self.found.append(Receive(v, microbatch, maker[0]))

    def _find_last_readers(self) -> dict[int, ChunkKey]:
        """Value of a microbatch -> the last chunk of this stage that reads it (or makes it, where none here does)."""
        last: dict[int, ChunkKey] = {}
        for role in (Role.FORWARD, Role.BACKWARD):
            chunk = self.partition.chunks.get((self.stage, role, 0))
            if chunk is None:
                continue
            for v in (*chunk.outputs, *chunk.inputs):
                if v in self.partition.maker:
                    last[v] = chunk.key
        return last


def _find_targets(program: Program, partition: Partition) -> dict[tuple[int, bool], set[int]]:
    """(value, once per step) -> other stages that read it."""
    targets: dict[tuple[int, bool], set[int]] = defaultdict(set)
    for key, chunk in partition.chunks.items():
        for v in chunk.inputs:
            maker = partition.maker.get(v)
            if maker is None or program.values[v].kind is not ValueKind.INTERMEDIATE or maker[0] == key[0]:
                continue
            targets[v, chunk.is_update].add(key[0])
    return targets
