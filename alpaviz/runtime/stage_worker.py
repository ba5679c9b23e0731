"""One stage at work: its compiled chunks, and the values that it holds during a step.

The local and the Ray backend interpret the same instruction lists with this class; they differ only in how values
travel between stages.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.plan import Plan
from alpaviz.program.program import Program, Role
from alpaviz.runtime.evaluate import evaluate_ops
from alpaviz.runtime.instructions import ONCE, Free, Receive, Run, Send
from alpaviz.runtime.meshes import StageLayouts
from alpaviz.runtime.partition import Chunk, ChunkKey, Partition
from alpaviz.runtime.pieces import place_array

Results = dict[int, Any]


class ChunkRunner:
    """One chunk as a jitted function of its inputs and running sums; sums are donated."""

    def __init__(self, program: Program, plan: Plan, partition: Partition, chunk: Chunk, layouts: StageLayouts) -> None:
        self.program, self.plan, self.partition = program, plan, partition
        self.chunk, self.layouts = chunk, layouts
        self.accumulates = plan.num_microbatches > 1 and bool(chunk.sums)
        shardings = tuple(
            [self._shard(v) for v in values] for values in (chunk.outputs, chunk.sums, chunk.lasts, chunk.finals)
        )
        self._call = jax.jit(self._run, out_shardings=shardings, donate_argnums=(1,))

    def _shard(self, value: int) -> Any:
        return self.layouts.shard(value, len(self.program.values[value].shape))

    def _run(self, inputs: Sequence[Any], sums: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        env = dict(zip(self.chunk.inputs, inputs, strict=True))
        if self.chunk.is_update and self.plan.num_microbatches > 1:
            for v in self.chunk.inputs:
                if v in self.partition.means:
                    env[v] = (env[v] / self.plan.num_microbatches).astype(env[v].dtype)
        returned: dict[int, Any] = {}
        evaluate_ops(self.program, self.plan, self.layouts, self.chunk.ops, env, returned)
        new_sums = [env[v] for v in self.chunk.sums]
        if self.accumulates:
            new_sums = [total + made for total, made in zip(sums, new_sums, strict=True)]
        return (
            [env[v] for v in self.chunk.outputs], new_sums, [env[v] for v in self.chunk.lasts],
            [returned.get(v, env[v]) for v in self.chunk.finals],
        )  # fmt: skip

    def __call__(self, inputs: Sequence[Any], sums: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """(outputs, sums, lasts, finals) of the chunk."""
        return self._call(list(inputs), list(sums))  # type: ignore[no-any-return]

    def compiled_text(self) -> str:
        """HLO of the compiled chunk."""

        def abstract(v: int) -> Any:
            value = self.program.values[v]
            return jax.ShapeDtypeStruct(value.shape, find_aval(self.program, v).dtype, sharding=self._shard(v))

        inputs = [abstract(v) for v in self.chunk.inputs]
        sums = [abstract(v) for v in self.chunk.sums] if self.accumulates else []
        return str(self._call.lower(inputs, sums).compile().as_text())

    def make_zero_sums(self) -> Callable[[], list[Any]]:
        """A jitted maker of the sums that a step begins with."""
        values = [(find_aval(self.program, v).shape, find_aval(self.program, v).dtype) for v in self.chunk.sums]
        shardings = [self._shard(v) for v in self.chunk.sums]
        return jax.jit(lambda: [jnp.zeros(shape, dtype) for shape, dtype in values], out_shardings=shardings)


def find_aval(program: Program, value: int) -> Any:
    """JAX's abstract value of a value of the program."""
    return _list_avals(program)[value]


@functools.lru_cache(maxsize=4)
def _list_avals(program: Program) -> dict[int, Any]:
    avals = dict(zip(program.inputs, (v.aval for v in program.jaxpr.jaxpr.invars), strict=True))
    avals.update(zip(program.constants, (v.aval for v in program.jaxpr.jaxpr.constvars), strict=True))
    for op, eqn in zip(program.ops, program.jaxpr.eqns, strict=True):
        avals.update({v: out.aval for v, out in zip(op.outputs, eqn.outvars, strict=True) if v is not None})
    return avals


class StageWorker:
    """Values and chunks of one stage. Used from one thread."""

    def __init__(self, program: Program, plan: Plan, partition: Partition, stage: int, layouts: StageLayouts) -> None:
        self.program, self.plan, self.partition = program, plan, partition
        self.stage, self.layouts = stage, layouts
        self.runners = {
            key: ChunkRunner(program, plan, partition, chunk, layouts)
            for key, chunk in partition.chunks.items()
            if key[0] == stage
        }
        self._zero_makers = {key: runner.make_zero_sums() for key, runner in self.runners.items() if runner.accumulates}
        made = set(partition.maker)
        read = dict.fromkeys(v for runner in self.runners.values() for v in runner.chunk.inputs)
        self.needed_inputs = tuple(v for v in read if v not in made)
        self.constants = {
            v: place_array(const, layouts.shard(v, len(program.values[v].shape)))
            for v, const in zip(program.constants, program.jaxpr.consts, strict=True)
            if v in read
        }
        self.times: dict[Role, list[float]] = defaultdict(list)
        self.begin({}, {})

    def begin(self, inputs: Mapping[int, Any], batch: Mapping[tuple[int, int], Any]) -> None:
        """Start a step: state by value, batch by (value, microbatch)."""
        self._inputs, self._batch = dict(inputs), dict(batch)
        self._values: dict[tuple[int, int], Any] = {}
        self._sums: dict[ChunkKey, list[Any]] = {key: make() for key, make in self._zero_makers.items()}
        self.results: Results = {}

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
        for v, array in (*zip(chunk.sums, sums, strict=True), *zip(chunk.lasts, lasts, strict=True)):
            self._values[v, ONCE] = array
        self.results.update(zip(chunk.finals, finals, strict=True))
        if is_timed:
            jax.block_until_ready((outputs, sums, lasts, finals))
            self.times[chunk.key[1]].append(time.perf_counter() - began)

    def describe(self, instruction: Run | Send | Receive | Free) -> str:
        """Where an instruction is, for error messages."""
        if isinstance(instruction, Run):
            where = "" if instruction.microbatch == ONCE else f" of microbatch {instruction.microbatch}"
            return f"stage {self.stage}, {instruction.key[1].value}{where}"
        return f"stage {self.stage}, {type(instruction).__name__.lower()}"
