"""What a stage holds while its instruction list is worked through, with the buffers that XLA planned for each chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alpaviz.plan import Plan
from alpaviz.runtime.instructions import ONCE, Free, Instruction, Receive, Run
from alpaviz.runtime.partition import ChunkKey, Partition


@dataclass(frozen=True, slots=True)
class ChunkBuffers:
    """Bytes on one device of a compiled chunk; `alias_bytes` of its results overwrite arguments."""

    argument_bytes: float
    output_bytes: float
    alias_bytes: float
    temporary_bytes: float

    @property
    def working_bytes(self) -> float:
        """What a run takes beside its arguments."""
        return self.output_bytes - self.alias_bytes + self.temporary_bytes


def find_peak(
    plan: Plan,
    partition: Partition,
    stage: int,
    instructions: Sequence[Instruction],
    buffers: Mapping[ChunkKey, ChunkBuffers],
    sizes: Mapping[int, float],
    donated: Mapping[int, ChunkKey],
) -> float:
    """The most bytes that a device of `stage` holds beside its state and the batch.

    Args:
        sizes: value id -> bytes of its shard; `donated`: state -> the update chunk that overwrites it.
    """
    accumulated = [
        v for k, c in partition.chunks.items() if k[0] == stage and plan.num_microbatches > 1 for v in c.sums
    ]
    held: dict[tuple[int, int], float] = {(v, ONCE): sizes[v] for v in accumulated}
    peak = sum(held.values())
    for instruction in instructions:
        if isinstance(instruction, Receive):
            held[instruction.value, instruction.microbatch] = sizes[instruction.value]
        elif isinstance(instruction, Free):
            for v in instruction.values:
                held.pop((v, instruction.microbatch), None)
        elif isinstance(instruction, Run):
            chunk = partition.chunks[instruction.key]
            peak = max(peak, sum(held.values()) + buffers[instruction.key].working_bytes)
            held.update({(v, instruction.microbatch): sizes[v] for v in chunk.outputs})
            held.update({(v, ONCE): sizes[v] for v in (*chunk.sums, *chunk.lasts, *chunk.finals)})
            # What is overwritten counts once, as state.
            for v, key in donated.items():
                if key == instruction.key:
                    held[v, ONCE] = -sizes[v]
    return peak
