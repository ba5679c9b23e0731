"""What is known of the stages of one program structure on one mesh, by keys that are the same in every process.

In: structures and stage shapes. Out: their digests, and a container that a cache can keep (`alpaviz.stage_cache`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

from alpaviz.intra.stage_problem import GroupKey, StagePrice, StageShape
from alpaviz.intra.structure import LayerInstance, ProgramStructure
from alpaviz.program.program import Program
from alpaviz.program.rule import ShardingRule


@dataclass(frozen=True, slots=True)
class SolvedStage:
    """A stage's best choice; `price` is None where none fits, `bytes_short` then says how far it is from fitting."""

    choice: tuple[int, ...]
    price: StagePrice | None
    objective: float
    bound: float
    solver: str
    bytes_short: float = 0.0


@dataclass(slots=True, eq=False)
class StageRecords:
    """Answers for one program structure on one mesh.

    Attributes:
        stages: by `name_stage`.
        least_bytes: by `name_group`, bytes that no choice for one layer of the group can go below.
        least_s: by `name_group`, seconds that no choice for one layer of the group can go below.
        is_changed: something was added since the records were made.
    """

    stages: dict[str, SolvedStage] = field(default_factory=dict)
    least_bytes: dict[str, float] = field(default_factory=dict)
    least_s: dict[str, float] = field(default_factory=dict)
    is_changed: bool = False

    def keep_stage(self, key: str, stage: SolvedStage) -> None:
        self.stages[key] = stage
        self.is_changed = True

    def keep_least_bytes(self, key: str, num_bytes: float) -> None:
        self.least_bytes[key] = num_bytes
        self.is_changed = True

    def keep_least_s(self, key: str, seconds: float) -> None:
        self.least_s[key] = seconds
        self.is_changed = True


def name_stage(shape: StageShape, in_flight: int | None, memory_limit: float) -> str:
    """The key of a stage; layer classes in it are those of the structure that the records are for."""
    return f"{_digest_shape(shape)} {in_flight} {float(memory_limit)!r}"


def name_group(key: GroupKey, in_flight: int | None) -> str:
    """The key of a group of layers; `in_flight` None is without memory limit."""
    return f"{key!r} {in_flight}"


@lru_cache(maxsize=65536)
def _digest_shape(shape: StageShape) -> str:
    return hashlib.sha256(repr((shape.groups, shape.links, shape.copies)).encode()).hexdigest()[:32]


def digest_structure(program: Program, structure: ProgramStructure) -> str:
    """A hash of all that stage problems take from `program`: its layer classes in order, not how often each occurs.

    Names, scopes and source lines are not in it, so it outlives edits that change no op.
    """
    digest = hashlib.sha256(f"microbatches {program.num_microbatches}".encode())
    rules: dict[ShardingRule, int] = {}
    for layer in structure.representatives:
        for line in _describe_layer(program, structure, structure.instances[layer], rules):
            digest.update(f"{line!r}\n".encode())
    for rule in rules:
        digest.update(f"{rule!r}\n".encode())
    return digest.hexdigest()


def _describe_layer(
    program: Program, structure: ProgramStructure, instance: LayerInstance, rules: dict[ShardingRule, int]
) -> list[object]:
    """One layer with its values numbered in order of use; `rules` collects rules, which are named by number."""
    numbers: dict[int, int] = {}
    lines: list[object] = ["layer"]

    def number(v: int | None) -> int | None:
        if v is None:
            return None
        if v not in numbers:
            numbers[v] = len(numbers)
            value = program.values[v]
            marks = (v in structure.saved, v in structure.accumulated)
            lines.append((value.shape, value.dtype, str(value.kind), program.count_slices(v), *marks))
        return numbers[v]

    lines.append([number(v) for v in instance.values])
    for i in instance.ops:
        op = program.ops[i]
        rule = rules.setdefault(op.rule, len(rules))
        inputs, outputs = [number(v) for v in op.inputs], [number(v) for v in op.outputs]
        lines.append((op.primitive, str(op.role), op.is_recomputed, rule, float(op.flops), inputs, outputs))
    pairs = [(numbers[a], numbers[b]) for a, b in structure.state_pairs if a in numbers and b in numbers]
    lines.append((instance.owned_inputs, instance.externals, pairs))
    return lines
