"""A planned program cut into chunks: what each stage runs in one piece.

In: a program and a plan. Out: a `Partition`: per stage a forward and a backward chunk, run once per microbatch, and
update chunks, run once per step. Update chunks have phases, so that stages may read each other's results in between (a
global norm). Ops of scalars that belong to no layer are repeated in every chunk that reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from alpaviz.plan import Plan
from alpaviz.program.program import SHARED_LAYER, Program, Role, ValueKind

ChunkKey = tuple[int, Role, int]
"""(stage, role, phase); the phase is 0 but for updates."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Ops that a stage runs in one call.

    Attributes:
        key: which chunk of which stage.
        ops: op ids in order.
        inputs: value ids that it reads and does not make, in order.
        outputs: value ids that other chunks read.
        sums: value ids whose sum over the microbatches it keeps up.
        lasts: value ids of which the last microbatch's is kept.
        finals: value ids that are results of the step.
        reduces: inputs that are partial sums; this chunk adds them up over the devices.
    """

    key: ChunkKey
    ops: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sums: tuple[int, ...] = ()
    lasts: tuple[int, ...] = ()
    finals: tuple[int, ...] = ()
    reduces: tuple[int, ...] = ()

    @property
    def stage(self) -> int:
        return self.key[0]

    @property
    def is_update(self) -> bool:
        return self.key[1] is Role.UPDATE


@dataclass(frozen=True, slots=True)
class Partition:
    """All chunks of a planned program.

    Attributes:
        chunks: by key.
        phases: per stage, the number of its update chunks.
        maker: value id -> key of the chunk that makes it, for values that cross chunks.
        means: value ids that are sums until an update chunk divides them by the number of microbatches: the one that
            adds up their shares, where they are partial sums, else each that reads them.
        partial: those of them that are partial sums until the first update chunk of their stage.
    """

    chunks: dict[ChunkKey, Chunk]
    phases: tuple[int, ...]
    maker: dict[int, ChunkKey]
    means: frozenset[int]
    partial: frozenset[int] = frozenset()

    def list_update_keys(self, stage: int) -> list[ChunkKey]:
        return [(stage, Role.UPDATE, phase) for phase in range(self.phases[stage])]


def partition_program(program: Program, plan: Plan, *, merge_passes: bool = False) -> Partition:
    """Cut `program` as `plan` says.

    Args:
        merge_passes: put forward and backward of each stage in one chunk (for a single stage).
    """
    return _Partitioner(program, plan, merge_passes).run()


class _Partitioner:
    def __init__(self, program: Program, plan: Plan, merge_passes: bool) -> None:
        self.program, self.plan, self.merge_passes = program, plan, merge_passes
        self.stage_of = [op.stage for op in plan.ops]
        self.shared_maker = {
            v: op.id for op in program.ops if op.layer == SHARED_LAYER for v in op.outputs if v is not None
        }
        self.accumulated = {a.value: a.mode for a in program.accumulations}
        self.partial = {
            v: op.stage
            for op in plan.ops
            if op.partial_axes
            for v in op.outputs
            if v is not None and v in self.accumulated
        }
        self.maker: dict[int, ChunkKey] = {}
        self.members: dict[ChunkKey, list[int]] = defaultdict(list)

    def run(self) -> Partition:
        self._assign()
        wanted = self._find_final_chunks()
        for key in (*wanted, *((stage, Role.UPDATE, 0) for stage in self.partial.values())):
            self.members.setdefault(key, [])
        chunks = {key: self._make_chunk(key, ops, wanted.get(key, ())) for key, ops in self.members.items()}
        chunks = self._add_outputs(chunks)
        self.maker.update({v: (stage, Role.UPDATE, 0) for v, stage in self.partial.items()})
        phases = [0] * self.plan.num_stages
        for stage, role, phase in chunks:
            if role is Role.UPDATE:
                phases[stage] = max(phases[stage], phase + 1)
        for stage, count in enumerate(phases):
            for phase in range(count):
                chunks.setdefault((stage, Role.UPDATE, phase), Chunk((stage, Role.UPDATE, phase), (), (), ()))
        means = frozenset(v for v, mode in self.accumulated.items() if mode == "mean")
        return Partition(chunks, tuple(phases), self.maker, means, frozenset(self.partial))

    def _assign(self) -> None:
        """The chunk of each op that is not shared, and of each value that they make."""
        phase_of: dict[int, int] = {}
        for op in self.program.ops:
            if op.layer == SHARED_LAYER:
                continue
            stage, role = self.stage_of[op.id], op.role
            if self.merge_passes and role is Role.BACKWARD:
                role = Role.FORWARD
            phase = 0
            if role is Role.UPDATE:
                for v in op.inputs:
                    if v in phase_of and v is not None:
                        phase = max(phase, phase_of[v] + (self.maker[v][0] != stage))
                phase_of.update({v: phase for v in op.outputs if v is not None})
            key = (stage, role, phase)
            self.members[key].append(op.id)
            self.maker.update({v: key for v in op.outputs if v is not None})
            phase_of.update({v: 0 for v in op.outputs if v is not None and v in self.partial})

    def _find_final_chunks(self) -> dict[ChunkKey, tuple[int, ...]]:
        """Per update chunk, the results of the step that it gives; accumulated values are finished by phase 0."""
        finals: dict[ChunkKey, dict[int, None]] = defaultdict(dict)
        for v in self.program.outputs:
            if v is None or self.program.values[v].kind is not ValueKind.INTERMEDIATE:
                continue
            if v in self.shared_maker:
                finals[0, Role.UPDATE, 0][v] = None
                continue
            stage, role, phase = self.maker[v]
            finals[stage, Role.UPDATE, phase if role is Role.UPDATE else 0][v] = None
        return {key: tuple(values) for key, values in finals.items()}

    def _make_chunk(self, key: ChunkKey, ops: Sequence[int], finals: tuple[int, ...]) -> Chunk:
        made = {v for i in ops for v in self.program.ops[i].outputs}
        read = [v for i in ops for v in self.program.ops[i].inputs if v is not None]
        everything = self._pull_shared(ops, [*read, *finals])
        made |= {v for i in everything for v in self.program.ops[i].outputs}
        inputs = dict.fromkeys(
            v for i in everything for v in self.program.ops[i].inputs if v is not None and v not in made
        )
        inputs.update(dict.fromkeys(v for v in finals if v not in made))
        is_first = key[1:] == (Role.UPDATE, 0)
        reduces = tuple(v for v, stage in self.partial.items() if is_first and stage == key[0])
        inputs.update(dict.fromkeys(reduces))
        return Chunk(key, tuple(everything), tuple(inputs), (), finals=finals, reduces=reduces)

    def _pull_shared(self, ops: Sequence[int], wanted: Iterable[int]) -> list[int]:
        """`ops` with the shared ops that `wanted` values come from, in program order."""
        found = set(ops)
        stack = [self.shared_maker[v] for v in wanted if v in self.shared_maker]
        while stack:
            op = stack.pop()
            if op not in found:
                found.add(op)
                stack.extend(self.shared_maker[v] for v in self.program.ops[op].inputs if v in self.shared_maker)
        return sorted(found)

    def _add_outputs(self, chunks: dict[ChunkKey, Chunk]) -> dict[ChunkKey, Chunk]:
        readers: dict[int, set[ChunkKey]] = defaultdict(set)
        for key, chunk in chunks.items():
            for v in chunk.inputs:
                readers[v].add(key)
        result = {}
        for key, chunk in chunks.items():
            made = dict.fromkeys(
                v for i in chunk.ops for v in self.program.ops[i].outputs if v is not None and self.maker.get(v) == key
            )
            if chunk.is_update:
                outputs = tuple(v for v in (*made, *chunk.reduces) if readers[v] - {key})
                result[key] = replace(chunk, outputs=outputs)
                continue
            read_in_pass = {v for v in made if any(k[1] is not Role.UPDATE for k in readers[v])}
            outputs = tuple(v for v in made if v in read_in_pass)
            sums = tuple(v for v in made if self.accumulated.get(v) == "mean")
            lasts = tuple(v for v in made if self.accumulated.get(v) == "last")
            result[key] = Chunk(key, chunk.ops, chunk.inputs, outputs, sums, lasts)
        return result
