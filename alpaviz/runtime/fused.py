"""A plan of one stage as a single jitted function: microbatches in a `lax.scan`, then the update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpaviz.plan import Plan
from alpaviz.program.jax_internals import is_extended
from alpaviz.program.program import Program, Role, ValueKind
from alpaviz.runtime.arguments import is_batch, to_host
from alpaviz.runtime.evaluate import evaluate_ops
from alpaviz.runtime.meshes import StageLayouts
from alpaviz.runtime.partition import partition_program
from alpaviz.runtime.stage_worker import find_aval


class FusedStep:
    """The whole step. Called with flat arguments; gives the step's result tree."""

    def __init__(self, plan: Plan, program: Program, layouts: StageLayouts, donate_state: bool) -> None:
        self.plan, self.program, self.layouts = plan, program, layouts
        partition = partition_program(program, plan, merge_passes=True)
        self._pass = partition.chunks.get((0, Role.FORWARD, 0))
        self._updates = [partition.chunks[key] for key in partition.list_update_keys(0)]
        self._means = partition.means
        positions = range(len(program.inputs))
        self._batch_positions = tuple(i for i in positions if is_batch(program, i))
        self._state_positions = tuple(i for i in positions if not is_batch(program, i))
        self._in_shardings = [self._shard_input(i) for i in positions]
        out_shardings = [None if v is None else self._shard(v) for v in program.outputs]
        self._call = jax.jit(self._run, out_shardings=out_shardings, donate_argnums=(0,) if donate_state else ())

    def _shard(self, value: int) -> Any:
        return self.layouts.shard(value, len(self.program.values[value].shape))

    def _is_stacked(self, position: int) -> bool:
        return self.plan.num_microbatches > 1 and self.program.batch_axes[position] is not None

    def _shard_input(self, position: int) -> Any:
        v = self.program.inputs[position]
        if not self._is_stacked(position):
            return self._shard(v)
        spec = self.layouts.specs.get(v, ((),) * len(self.program.values[v].shape))
        return self.layouts.spread(((), *spec))

    def __call__(self, leaves: Sequence[Any]) -> Any:
        state = [self._put(leaves[i], i) for i in self._state_positions]
        batch = [self._put(self._stack(leaves[i], i), i) for i in self._batch_positions]
        return jax.tree.unflatten(self.program.out_tree, self._call(state, batch))

    def _put(self, leaf: Any, position: int) -> Any:
        sharding = self._in_shardings[position]
        if isinstance(leaf, jax.Array):
            return leaf if leaf.sharding == sharding else jax.device_put(leaf, sharding)
        return jax.device_put(
            np.asarray(leaf, dtype=self.program.values[self.program.inputs[position]].dtype), sharding
        )

    def _stack(self, leaf: Any, position: int) -> Any:
        """A batch leaf with the microbatches as a new first dimension."""
        axis = self.program.batch_axes[position]
        if not self._is_stacked(position) or axis is None:
            return leaf
        leaf = to_host(leaf)
        count = self.plan.num_microbatches
        shape = (*leaf.shape[:axis], count, leaf.shape[axis] // count, *leaf.shape[axis + 1 :])
        return np.moveaxis(leaf.reshape(shape), axis, 0)

    def _run(self, state: Sequence[Any], batch: Sequence[Any]) -> list[Any]:
        env: dict[int, Any] = dict(zip(self.program.constants, self.program.jaxpr.consts, strict=True))
        env.update((self.program.inputs[i], leaf) for i, leaf in zip(self._state_positions, state, strict=True))
        sliced = {i: leaf for i, leaf in zip(self._batch_positions, batch, strict=True) if self._is_stacked(i)}
        env.update(
            (self.program.inputs[i], leaf)
            for i, leaf in zip(self._batch_positions, batch, strict=True)
            if i not in sliced
        )
        if self._pass is not None:
            self._run_microbatches(env, sliced)
        returned: dict[int, Any] = {}
        for chunk in self._updates:
            evaluate_ops(self.program, self.plan, self.layouts, chunk.ops, env, returned)
        env.update(returned)
        return [self._read_output(env, k) for k in range(len(self.program.outputs))]

    def _run_microbatches(self, env: dict[int, Any], sliced: dict[int, Any]) -> None:
        """Fill `env` with means and last values of the microbatches."""
        chunk = self._pass
        assert chunk is not None, "called only where there is a pass"
        count = self.plan.num_microbatches
        if count == 1:
            evaluate_ops(self.program, self.plan, self.layouts, chunk.ops, env)
            return
        order = list(sliced)

        def body(carry: tuple[list[Any], list[Any]], parts: list[Any]) -> tuple[tuple[list[Any], list[Any]], None]:
            inner = dict(env)
            inner.update((self.program.inputs[i], part) for i, part in zip(order, parts, strict=True))
            evaluate_ops(self.program, self.plan, self.layouts, chunk.ops, inner)
            sums = [self._hold(total + inner[v], v) for total, v in zip(carry[0], chunk.sums, strict=True)]
            return (sums, [inner[v] for v in chunk.lasts]), None

        zeros = [self._make_zeros(v) for v in chunk.sums], [self._make_zeros(v) for v in chunk.lasts]
        (sums, lasts), _ = jax.lax.scan(body, zeros, [sliced[i] for i in order], length=count)
        env.update((v, (s / count).astype(s.dtype)) for v, s in zip(chunk.sums, sums, strict=True))
        env.update(zip(chunk.lasts, lasts, strict=True))

    def _make_zeros(self, value: int) -> Any:
        aval = find_aval(self.program, value)
        if is_extended(aval.dtype):
            return jax.random.wrap_key_data(jnp.zeros((*aval.shape, 2), jnp.uint32))
        return self._hold(jnp.zeros(aval.shape, aval.dtype), value)

    def _hold(self, array: Any, value: int) -> Any:
        return jax.lax.with_sharding_constraint(array, self._shard(value)) if array.ndim else array

    def _read_output(self, env: dict[int, Any], position: int) -> Any:
        v = self.program.outputs[position]
        if v is None:
            return jnp.asarray(self.program.jaxpr.jaxpr.outvars[position].val)
        if self.program.values[v].kind is ValueKind.BATCH:
            raise ValueError(f"the step returns its batch leaf {self.program.values[v].name}")
        return env[v]

    def lower(self) -> Any:
        """The lowered step, for looking at what XLA makes of it."""

        def abstract(position: int) -> Any:
            aval = find_aval(self.program, self.program.inputs[position])
            shape = (self.plan.num_microbatches, *aval.shape) if self._is_stacked(position) else aval.shape
            return jax.ShapeDtypeStruct(shape, aval.dtype, sharding=self._in_shardings[position])

        state = [abstract(i) for i in self._state_positions]
        return self._call.lower(state, [abstract(i) for i in self._batch_positions])

    def compiled_text(self) -> str:
        """HLO of the compiled step."""
        return str(self.lower().compile().as_text())
