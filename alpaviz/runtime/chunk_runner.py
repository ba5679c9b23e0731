"""One chunk of a stage, compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from alpaviz.plan import Plan
from alpaviz.program.program import Program
from alpaviz.runtime.evaluate import evaluate_ops
from alpaviz.runtime.meshes import StageLayouts
from alpaviz.runtime.partial_sums import add_shares, list_partial_sums
from alpaviz.runtime.partition import Chunk, Partition

Outcome = tuple[list[Any], list[Any], list[Any], list[Any]]
"""(outputs, sums, lasts, finals) of a chunk, as listed in `Chunk`."""


class ChunkRunner:
    """One chunk as a jitted function of its inputs and running sums.

    Sums are donated, and so are the inputs in `donated`.
    """

    def __init__(
        self,
        program: Program,
        plan: Plan,
        partition: Partition,
        chunk: Chunk,
        layouts: StageLayouts,
        donated: Sequence[int] = (),
    ) -> None:
        self.program, self.plan, self.partition = program, plan, partition
        self.chunk, self.layouts = chunk, layouts
        self.accumulates = plan.num_microbatches > 1 and bool(chunk.sums)
        self._given = [k for k, v in enumerate(chunk.inputs) if v in donated]
        self._kept = [k for k, v in enumerate(chunk.inputs) if v not in donated]
        # Partial sums are such only while they are summed up: what `chunk` makes of `reduces` is an ordinary value.
        self._partial = list_partial_sums(plan, (*chunk.sums, *chunk.reduces))
        shardings = (
            [self._shard(v) for v in chunk.outputs], [self._describe(v).sharding for v in chunk.sums],
            [self._shard(v) for v in chunk.lasts], [self._shard(v) for v in chunk.finals],
        )  # fmt: skip
        self.jitted = jax.jit(self._run, out_shardings=shardings, donate_argnums=(0, 2))

    def _shard(self, value: int) -> Any:
        return self.layouts.shard(value, len(self.program.values[value].shape))

    def _describe(self, value: int) -> jax.ShapeDtypeStruct:
        """An input or a sum of this chunk."""
        aval, partial = find_aval(self.program, value), self._partial.get(value)
        if partial is None:
            return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=self._shard(value))
        shape = (partial.count_shares(self.layouts), *aval.shape)
        return jax.ShapeDtypeStruct(shape, aval.dtype, sharding=partial.shard(self.layouts))

    def split_inputs(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Inputs that are donated, and the others: the first two arguments of `jitted`."""
        return [inputs[k] for k in self._given], [inputs[k] for k in self._kept]

    def _run(self, given: Sequence[Any], kept: Sequence[Any], sums: Sequence[Any]) -> Outcome:
        env: dict[int, Any] = {self.chunk.inputs[k]: array for k, array in zip(self._given, given, strict=True)}
        env.update((self.chunk.inputs[k], array) for k, array in zip(self._kept, kept, strict=True))
        if self.chunk.is_update and self.plan.num_microbatches > 1:
            for v in self.chunk.reduces:
                env[v] = add_shares(env[v], self._shard(v))
            for v in self.chunk.inputs:
                if v in self.partition.means and (v not in self.partition.partial or v in self.chunk.reduces):
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

    def __call__(self, inputs: Sequence[Any], sums: Sequence[Any]) -> Outcome:
        given, kept = self.split_inputs(inputs)
        return self.jitted(given, kept, list(sums))  # type: ignore[no-any-return]

    def lower(self) -> Any:
        """The lowered chunk, for looking at what XLA makes of it."""
        given, kept = self.split_inputs([self._describe(v) for v in self.chunk.inputs])
        sums = [self._describe(v) for v in self.chunk.sums] if self.accumulates else []
        return self.jitted.lower(given, kept, sums)

    def compiled_text(self) -> str:
        """HLO of the compiled chunk."""
        return str(self.lower().compile().as_text())

    def make_zero_sums(self) -> Callable[[], list[Any]]:
        """A jitted maker of the sums that a step begins with."""
        sums = [self._describe(v) for v in self.chunk.sums]
        return jax.jit(lambda: [jnp.zeros(s.shape, s.dtype) for s in sums], out_shardings=[s.sharding for s in sums])


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
