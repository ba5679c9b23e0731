"""What one op costs under one strategy on one logical mesh; caches for a whole mesh.

`MeshCosts` is made once per logical mesh. It changes only by remembering, so one may be shared by everything that
plans on this mesh, from one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from alpaviz.cluster.mesh import LogicalMesh
from alpaviz.cost import plan_resharding, price_collective, price_compute, price_resharding_matrix
from alpaviz.intra.problem import FloatArray
from alpaviz.intra.strategy_table import Specs, StrategyTable
from alpaviz.plan import PlannedCollective
from alpaviz.program.program import Op, Program, Role, Value
from alpaviz.program.rule import ShardingRule
from alpaviz.program.strategy import (
    Strategy,
    defer,
    enumerate_strategies,
    follow_result_spec,
    follow_spec,
    iterate_specs,
    list_deferrals,
)
from alpaviz.types import ShardingSpec, count_shards

_OP_CLASSES = {
    "dot_general": "matmul",
    "ragged_dot_general": "matmul",
    "conv_general_dilated": "convolution",
    "gather": "gather",
    "scatter-add": "gather",
}
_TRANSCENDENTAL = (
    "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erf_inv", "erfc", "sin", "cos", "tan", "pow",
    "rsqrt", "cbrt", "lgamma", "digamma", "atan2",
)  # fmt: skip
_REDUCTIONS = (
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin", "cumsum",
    "cumprod", "cummax", "cumlogsumexp", "reduce_window_sum", "reduce_window_max", "sort", "top_k",
)  # fmt: skip
_OP_CLASSES.update(dict.fromkeys(_TRANSCENDENTAL, "transcendental"), **dict.fromkeys(_REDUCTIONS, "reduction"))
_FUSED = ("elementwise", "transcendental", "reduction", "update")
_NO_WORK = frozenset(
    {"reshape", "squeeze", "expand_dims", "stop_gradient", "optimization_barrier", "broadcast_in_dim", "iota", "copy"}
)


@dataclass(frozen=True, slots=True)
class OpCost:
    """Seconds on the busiest device: `compute_s` of the op itself, and its own collectives."""

    compute_s: float
    collectives: tuple[PlannedCollective, ...]

    @property
    def micro_s(self) -> float:
        """Seconds whenever the op runs."""
        return self.compute_s + sum(c.time_s for c in self.collectives if not c.once)

    @property
    def once_s(self) -> float:
        """Seconds once a step."""
        return sum(c.time_s for c in self.collectives if c.once)


class MeshCosts:
    """Strategies, op costs and resharding costs on `mesh`, each found once.

    Args:
        like: of a mesh of the same shape on other links or devices, to share all that has no price.
    """

    def __init__(self, mesh: LogicalMesh, like: MeshCosts | None = None) -> None:
        self.mesh = mesh
        self.axis_sizes = mesh.axis_sizes
        self._strategies: dict[tuple[ShardingRule, bool], StrategyTable] = {} if like is None else like._strategies
        self._followers: dict[tuple[ShardingRule, int, bool, bool, int], tuple[Specs, StrategyTable]]
        self._followers = {} if like is None else like._followers
        self._interned: dict[Specs, Specs] = {} if like is None else like._interned
        self._prices: dict[object, tuple[FloatArray, FloatArray]] = {}
        self._followed: dict[tuple[ShardingRule, int, bool, ShardingSpec], Strategy]
        self._followed = {} if like is None else like._followed
        self._specs: dict[tuple[int, ...], tuple[ShardingSpec, ...]] = {} if like is None else like._specs
        self._matrices: dict[object, tuple[Specs, Specs, FloatArray]] = {}
        self._op_costs: dict[object, OpCost] = {}

    def list_strategies(self, rule: ShardingRule, *, may_defer: bool = False) -> tuple[Strategy, ...]:
        """Every strategy of an op with `rule`."""
        return self.tabulate(rule, may_defer=may_defer).strategies

    def tabulate(self, rule: ShardingRule, *, may_defer: bool = False) -> StrategyTable:
        """Every strategy of an op with `rule`, as a table.

        Args:
            may_defer: the op's partial sums may be reduced once a step.
        """
        key = (rule, may_defer)
        if key not in self._strategies:
            found = enumerate_strategies(rule, self.axis_sizes)
            self._strategies[key] = StrategyTable(list_deferrals(found) if may_defer else found, self.intern)
        return self._strategies[key]

    def tabulate_followers(
        self, rule: ShardingRule, position: int, specs: Specs, *, of_result: bool, may_defer: bool = False
    ) -> StrategyTable:
        """For each of `specs` the strategy that keeps operand (result) `position` in it, as far as `rule` allows.

        Args:
            specs: interned.
            may_defer: the op's partial sums are reduced once a step.
        """
        key = (rule, position, of_result, may_defer, id(specs))
        found = self._followers.get(key)
        if found is None or found[0] is not specs:
            follow = self.follow_result if of_result else self.follow
            followers = [follow(rule, position, spec) for spec in specs]
            table = StrategyTable([defer(s) for s in followers] if may_defer else followers, self.intern)
            found = self._followers[key] = (specs, table)
        return found[1]

    def intern(self, specs: Specs) -> Specs:
        """The one tuple that stands for all tuples equal to `specs`."""
        return self._interned.setdefault(specs, specs)

    def list_specs(self, shape: tuple[int, ...]) -> tuple[ShardingSpec, ...]:
        """Every spec of an array of `shape`."""
        if shape not in self._specs:
            self._specs[shape] = self.intern(tuple(iterate_specs(shape, self.axis_sizes)))
        return self._specs[shape]

    def follow(self, rule: ShardingRule, operand: int, spec: ShardingSpec) -> Strategy:
        """The strategy that keeps operand `operand` in `spec` as far as the rule allows."""
        key = (rule, operand, True, spec)
        if key not in self._followed:
            self._followed[key] = follow_spec(rule, operand, spec, self.axis_sizes)
        return self._followed[key]

    def follow_result(self, rule: ShardingRule, result: int, spec: ShardingSpec) -> Strategy:
        """The strategy that makes result `result` in `spec` as far as the rule allows."""
        key = (rule, result, False, spec)
        if key not in self._followed:
            self._followed[key] = follow_result_spec(rule, result, spec, self.axis_sizes)
        return self._followed[key]

    def price_reshardings(self, value: Value, held: Specs, wanted: Specs) -> FloatArray:
        """Seconds from each of `held` to each of `wanted`; (held, wanted)."""
        held, wanted = self.intern(held), self.intern(wanted)
        key = (value.shape, value.itemsize, id(held), id(wanted))
        if key not in self._matrices:
            matrix = price_resharding_matrix(value.shape, value.itemsize, held, wanted, self.mesh)
            self._matrices[key] = (held, wanted, np.asarray(matrix, dtype=float))
        return self._matrices[key][2]

    def plan_resharding(
        self, value: Value, held: ShardingSpec, wanted: ShardingSpec
    ) -> tuple[tuple[ShardingSpec, ...], tuple[PlannedCollective, ...]]:
        """Specs after each step from `held` to `wanted`, and the collectives of the steps that communicate."""
        steps = plan_resharding(value.shape, value.itemsize, held, wanted, self.mesh)
        collectives = tuple(
            PlannedCollective(
                step.collective.kind, step.collective.axes, step.collective.num_bytes,
                price_collective(step.collective.kind, step.collective.num_bytes, self.mesh, step.collective.axes),
            )
            for step in steps
            if step.collective is not None
        )  # fmt: skip
        return tuple(step.spec_after for step in steps), collectives

    def local_bytes(self, value: Value, spec: ShardingSpec) -> float:
        """Bytes of one shard."""
        return value.num_bytes / count_shards(spec, self.axis_sizes) if spec else float(value.num_bytes)

    def price_op(self, program: Program, op: Op, strategy: Strategy) -> OpCost:
        """Compute time and collectives of `op` under `strategy`."""
        dtypes = tuple(program.values[v].dtype for v in (*op.inputs, *op.outputs) if v is not None)
        key = (op.primitive, op.rule, strategy.label, strategy.is_deferred, dtypes, op.flops, op.role)
        if key not in self._op_costs:
            self._op_costs[key] = self._price(program, op, strategy)
        return self._op_costs[key]

    def price_all(self, program: Program, op: Op, table: StrategyTable) -> tuple[FloatArray, FloatArray]:
        """Seconds of `op` under each strategy of `table` whenever it runs, and once a step; (strategies,) each."""
        dtypes = tuple(program.values[v].dtype for v in (*op.inputs, *op.outputs) if v is not None)
        key = (op.primitive, op.rule, table, dtypes, op.flops, op.role)
        if key not in self._prices:
            prices = [self.price_op(program, op, s) for s in table.strategies]
            self._prices[key] = np.array([p.micro_s for p in prices]), np.array([p.once_s for p in prices])
        return self._prices[key]

    def _price(self, program: Program, op: Op, strategy: Strategy) -> OpCost:
        values = program.values
        op_class = _OP_CLASSES.get(op.primitive, "elementwise")
        if op.role is Role.UPDATE and op_class in ("elementwise", "transcendental"):
            op_class = "update"
        results = [
            self.local_bytes(values[v], spec)
            for v, spec in zip(op.outputs, strategy.output_specs, strict=True)
            if v is not None
        ]
        compute = 0.0
        if op.primitive not in _NO_WORK and any(v is not None and values[v].shape for v in (*op.inputs, *op.outputs)):
            operands = [
                self.local_bytes(values[v], spec)
                for v, spec in zip(op.inputs, strategy.input_specs, strict=True)
                if v is not None
            ]
            # XLA fuses elementwise chains: an intermediate is written once and its readers find it in registers.
            moved = sum(results) if op_class in _FUSED else sum(operands) + sum(results)
            if op_class == "reduction" and self.mesh.device_type.measured is not None:
                moved = sum(operands)  # which is what was measured
            first = next((v for v in op.inputs if v is not None), op.outputs[0])
            dtype = values[first].dtype if first is not None else "float32"
            split = 1
            for axis in strategy.split_axes:
                split *= self.axis_sizes[axis]
            flops = self._count_body_flops(op.rule, strategy) if op.rule.body else op.flops / split
            compute = price_compute(flops, moved, dtype, self.mesh.device_type, op_class, self.mesh.num_devices)
        collectives = self._list_collectives(strategy, sum(results)) + self._list_body_collectives(op.rule, strategy)
        return OpCost(compute, self._list_exchanges(program, op, strategy) + collectives)

    def _list_exchanges(self, program: Program, op: Op, strategy: Strategy) -> tuple[PlannedCollective, ...]:
        """Halos: rows that pass to each neighbour; those of a second dimension are longer by what the first brought."""
        found = []
        local = 0.0
        for halo in op.rule.halos:
            axes, v = strategy.factor_axes[halo.factor], op.inputs[halo.operand]
            if not axes or v is None:
                continue
            local = local or self.local_bytes(program.values[v], strategy.input_specs[halo.operand])
            row = local * self._count_shards(strategy, (halo.factor,)) / halo.length
            for rows in filter(None, (halo.before, halo.after)):
                time = price_collective("collective-permute", row * rows, self.mesh, axes)
                found.append(PlannedCollective("collective-permute", axes, row * rows, time))
            local += row * (halo.before + halo.after)
        return tuple(found)

    def _count_shards(self, strategy: Strategy, factors: Sequence[int]) -> int:
        return count_shards(tuple(strategy.factor_axes[f] for f in factors), self.axis_sizes)

    def _count_body_flops(self, rule: ShardingRule, strategy: Strategy) -> float:
        return sum(part.times * part.flops / self._count_shards(strategy, part.split) for part in rule.body)

    def _list_body_collectives(self, rule: ShardingRule, strategy: Strategy) -> tuple[PlannedCollective, ...]:
        """Those inside a loop, with the bytes of all iterations."""
        found = []
        for part in rule.body:
            if not part.times:
                continue
            axes = tuple(axis for f in part.summed for axis in strategy.factor_axes[f])
            if axes:
                size = part.num_bytes / self._count_shards(strategy, part.result)
                time = price_collective("all-reduce", size, self.mesh, axes)
                found.append(PlannedCollective("all-reduce", axes, size * part.times, time * part.times))
        return tuple(found)

    def _list_collectives(self, strategy: Strategy, result_bytes: float) -> tuple[PlannedCollective, ...]:
        found: list[PlannedCollective] = []
        size = result_bytes
        for axis, _ in strategy.scatter:
            size *= self.axis_sizes[axis]
        for axis, _ in strategy.scatter:
            time = price_collective("reduce-scatter", size, self.mesh, (axis,))
            found.append(PlannedCollective("reduce-scatter", (axis,), size, time, strategy.is_deferred))
            size /= self.axis_sizes[axis]
        if strategy.is_deferred:
            # One sum of what each device has accumulated, over all axes at once.
            if strategy.reduce_axes:
                time = price_collective("all-reduce", size, self.mesh, strategy.reduce_axes)
                found.append(PlannedCollective("all-reduce", strategy.reduce_axes, size, time, once=True))
            return tuple(found)
        # XLA reduces one factor after another: two that are split make two all-reduces.
        for axes in strategy.factor_axes:
            reduced = tuple(axis for axis in axes if axis in strategy.reduce_axes)
            if reduced:
                time = price_collective("all-reduce", size, self.mesh, reduced)
                found.append(PlannedCollective("all-reduce", reduced, size, time))
        return tuple(found)
