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
from alpaviz.runtime.arguments import assemble_results, is_batch, to_host
from alpaviz.runtime.chunk_runner import find_aval
from alpaviz.runtime.donation import StateMover, has_equal_layouts, list_replacements
from alpaviz.runtime.evaluate import evaluate_ops
from alpaviz.runtime.meshes import StageLayouts
from alpaviz.runtime.partial_sums import add_shares, list_partial_sums
from alpaviz.runtime.partition import partition_program
from alpaviz.runtime.pieces import find_key_implementation


class FusedStep:
    """The whole step. Called with flat arguments; gives the step's result tree."""

    def __init__(self, plan: Plan, program: Program, layouts: StageLayouts, donate_state: bool) -> None:
        self.plan, self.program, self.layouts = plan, program, layouts
        partition = partition_program(program, plan, merge_passes=True)
        self._pass = partition.chunks.get((0, Role.FORWARD, 0))
        self._updates = [partition.chunks[key] for key in partition.list_update_keys(0)]
        replaced = list_replacements(program) if donate_state else {}
        given = {v for v, made in replaced.items() if has_equal_layouts(layouts, v, made)}
        positions = range(len(program.inputs))
        self.given_positions = tuple(i for i in positions if program.inputs[i] in given)
        self._batch_positions = tuple(i for i in positions if is_batch(program, i))
        self._kept_positions = tuple(
            i for i in positions if i not in self.given_positions and i not in self._batch_positions
        )
        self._partial = list_partial_sums(plan, self._pass.sums if self._pass is not None else ())
        self._in_shardings = [self._shard_input(i) for i in positions]
        self._dtypes = [program.values[v].dtype for v in program.inputs]
        self._results = tuple(dict.fromkeys(v for v in program.outputs if v is not None and self._is_made(v)))
        self.jitted = jax.jit(self._run, out_shardings=[self._shard(v) for v in self._results], donate_argnums=(0,))

    def _is_made(self, value: int) -> bool:
        return self.program.values[value].kind is not ValueKind.BATCH

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
        results = self.jitted(*self.prepare(leaves))
        return assemble_results(self.program, leaves, dict(zip(self._results, results, strict=True)))

    def prepare(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The arguments of `jitted`: state that is donated, state that is not, and batch, all in place."""
        mover = StateMover()

        def place(positions: Sequence[int], *, is_given: bool = False) -> list[Any]:
            return [
                mover.move(self._stack(leaves[i], i), self._in_shardings[i], self._dtypes[i], is_given=is_given)
                for i in positions
            ]

        return place(self.given_positions, is_given=True), place(self._kept_positions), place(self._batch_positions)

    def _stack(self, leaf: Any, position: int) -> Any:
        """A batch leaf with the microbatches as a new first dimension."""
        axis = self.program.batch_axes[position]
        if axis is None or not self._is_stacked(position):
            return leaf
        leaf = to_host(leaf)
        count = self.plan.num_microbatches
        shape = (*leaf.shape[:axis], count, leaf.shape[axis] // count, *leaf.shape[axis + 1 :])
        stacked = leaf.reshape(shape)
        return np.moveaxis(stacked, axis, 0) if isinstance(leaf, np.ndarray) else jnp.moveaxis(stacked, axis, 0)

    def _run(self, given: Sequence[Any], kept: Sequence[Any], batch: Sequence[Any]) -> list[Any]:
        env: dict[int, Any] = dict(zip(self.program.constants, self.program.jaxpr.consts, strict=True))
        inputs = self.program.inputs
        env.update((inputs[i], leaf) for i, leaf in zip(self.given_positions, given, strict=True))
        env.update((inputs[i], leaf) for i, leaf in zip(self._kept_positions, kept, strict=True))
        by_position = dict(zip(self._batch_positions, batch, strict=True))
        sliced = {i: leaf for i, leaf in by_position.items() if self._is_stacked(i)}
        env.update((inputs[i], leaf) for i, leaf in by_position.items() if i not in sliced)
        if self._pass is not None:
            self._run_microbatches(env, sliced)
        returned: dict[int, Any] = {}
        for chunk in self._updates:
            evaluate_ops(self.program, self.plan, self.layouts, chunk.ops, env, returned)
        env.update(returned)
        return [env[v] for v in self._results]

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
            sums = [self._hold_sum(total + inner[v], v) for total, v in zip(carry[0], chunk.sums, strict=True)]
            return (sums, [inner[v] for v in chunk.lasts]), None

        zeros = [self._make_zero_sum(v) for v in chunk.sums], [self._make_zeros(v) for v in chunk.lasts]
        (sums, lasts), _ = jax.lax.scan(body, zeros, [sliced[i] for i in order], length=count)
        for v, total in zip(chunk.sums, sums, strict=True):
            summed = add_shares(total, self._shard(v)) if v in self._partial else total
            env[v] = (summed / count).astype(summed.dtype)
        env.update(zip(chunk.lasts, lasts, strict=True))

    def _make_zero_sum(self, value: int) -> Any:
        partial = self._partial.get(value)
        if partial is None:
            return self._make_zeros(value)
        aval = find_aval(self.program, value)
        return self._hold_sum(jnp.zeros((partial.count_shares(self.layouts), *aval.shape), aval.dtype), value)

    def _hold_sum(self, array: Any, value: int) -> Any:
        partial = self._partial.get(value)
        return self._hold(array, value) if partial is None else partial.hold(array, self.layouts)

    def _make_zeros(self, value: int) -> Any:
        aval = find_aval(self.program, value)
        if is_extended(aval.dtype):
            words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
            zeros = jnp.zeros(words.shape, words.dtype)
            return jax.random.wrap_key_data(zeros, impl=find_key_implementation(aval.dtype))
        return self._hold(jnp.zeros(aval.shape, aval.dtype), value)

    def _hold(self, array: Any, value: int) -> Any:
        return jax.lax.with_sharding_constraint(array, self._shard(value)) if array.ndim else array

    def lower(self) -> Any:
        """The lowered step, for looking at what XLA makes of it."""

        def abstract(position: int) -> Any:
            aval = find_aval(self.program, self.program.inputs[position])
            shape = (self.plan.num_microbatches, *aval.shape) if self._is_stacked(position) else aval.shape
            return jax.ShapeDtypeStruct(shape, aval.dtype, sharding=self._in_shardings[position])

        groups = (self.given_positions, self._kept_positions, self._batch_positions)
        return self.jitted.lower(*([abstract(i) for i in positions] for positions in groups))

    def compiled_text(self) -> str:
        """HLO of the compiled step."""
        return str(self.lower().compile().as_text())
