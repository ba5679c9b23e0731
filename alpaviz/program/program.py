"""The flattened training step: what planning and the runtime work on.

A `Program` is made by `alpaviz.program.trace_program`. It holds plain data (values, ops, roles, layers) beside the
jaxpr that it describes: `ops[i]` is `jaxpr.eqns[i]`, so the runtime can run what the planner decided.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from alpaviz.program.rule import ShardingRule

SHARED_LAYER = -1
"""Layer of ops and inputs that belong to no layer (step counters, schedules): every stage repeats them."""


class Role(enum.StrEnum):
    """What an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


class ValueKind(enum.StrEnum):
    """Where a value comes from."""

    STATE = "state"
    """A leaf of the step's first argument: parameter, optimizer state, counter, key."""
    BATCH = "batch"
    """A leaf of a later argument, of one microbatch."""
    CONSTANT = "constant"
    """An array that the step closes over."""
    INTERMEDIATE = "intermediate"


@dataclass(frozen=True, slots=True)
class Value:
    """One array. `shape` and `dtype` are global, for one microbatch; `name` is the path for inputs (`state['w']`)."""

    id: int
    shape: tuple[int, ...]
    dtype: str
    kind: ValueKind
    name: str

    @property
    def num_elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def itemsize(self) -> int:
        return dtype_itemsize(self.dtype)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.itemsize


@dataclass(frozen=True, slots=True)
class Op:
    """One primitive application.

    Attributes:
        id: position in `Program.ops` and in the jaxpr.
        name: unique and stable for one program, for people and pins: `block_3/attn/dot_general.2`.
        primitive: JAX's name of it.
        inputs: value ids; None where the operand is a literal.
        outputs: value ids; None where the result is dropped.
        rule: its sharding rule, sizes filled in.
        role: forward, backward or update.
        layer: which layer (0-based) it belongs to; update ops belong to the layer of the parameter that they update.
            `SHARED_LAYER` for scalar ops that belong to none.
        scope: name stack without transformations, `block_3/attn`.
        source: the user's line, `train.py:41`, or "".
        flops: multiply and add counted as 2; elementwise ops count their outputs' elements.
        is_recomputed: a forward op that the backward pass does again (`alpaviz.program.recompute`).
    """

    id: int
    name: str
    primitive: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    rule: ShardingRule
    role: Role
    layer: int
    scope: str
    source: str
    flops: float
    is_recomputed: bool = False


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A value that forward or backward makes once per microbatch and that update ops or the step's results read once.

    `mode` is `"mean"` over the microbatches (floating-point values that depend on the batch) or `"last"`.
    """

    value: int
    mode: str


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A traced training step, for one microbatch size.

    Attributes:
        name: for people.
        fingerprint: hash of ops, shapes, roles and layers; equal programs have equal ones across processes.
        values: indexed by value id.
        ops: in an order in which every operand is made before it is read.
        inputs: value ids in the order of the flattened arguments (state, then batch); constants are not in it.
        constants: value ids of closed-over arrays, in the order of `jaxpr.consts`.
        outputs: value ids of the flattened results; None where a result is a literal.
        state_outputs: (position in `outputs`, position in `inputs`) of results that are the next step's state.
        accumulations: what crosses from the microbatches to the once-per-step part.
        num_layers: layers are 0 .. num_layers - 1, in forward order.
        num_microbatches: slices of the batch a step; shapes of batch values are of one slice.
        has_gradient_marker: the step uses `alpaviz.grad` or `alpaviz.value_and_grad`. Without it there is one
            microbatch and one stage.
        input_layers: per entry of `inputs`, the layer that owns it (the first that reads it in the forward pass).
        warnings: sentences for the user.
        jaxpr: `jax.extend.core.ClosedJaxpr` with every call inlined; None where JAX is not at hand.
        in_tree, out_tree: of (state, *batch) and of the results.
        recipe: a `TraceRecipe` that makes this program again (in another process); None without JAX.
        batch_axes: per entry of `inputs`, the dimension that microbatches slice; None for state and unsliced leaves.
        input_lanes, output_lanes: per leaf of the arguments and of the results, of how many inputs (outputs) it is
            made, one for each slice along its first dimension; 0 for a leaf that is one. Empty: no leaf is taken apart.
        recomputed_layers: layers whose activations the backward pass makes again instead of keeping them.
    """

    name: str
    fingerprint: str
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    constants: tuple[int, ...]
    outputs: tuple[int | None, ...]
    state_outputs: tuple[tuple[int, int], ...]
    accumulations: tuple[Accumulation, ...]
    num_layers: int
    num_microbatches: int
    has_gradient_marker: bool
    input_layers: tuple[int, ...]
    batch_axes: tuple[int | None, ...]
    input_lanes: tuple[int, ...] = ()
    output_lanes: tuple[int, ...] = ()
    recomputed_layers: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    jaxpr: Any = field(default=None, repr=False)
    in_tree: Any = field(default=None, repr=False)
    out_tree: Any = field(default=None, repr=False)
    recipe: Any = field(default=None, repr=False)

    @property
    def flops(self) -> float:
        """FLOP of one whole step: microbatch work times `num_microbatches`, plus the update.

        What recomputed layers do again is not counted.
        """
        once = [op for op in self.ops if not op.is_recomputed]
        per_microbatch = sum(op.flops for op in once if op.role is not Role.UPDATE)
        return per_microbatch * self.num_microbatches + sum(op.flops for op in once if op.role is Role.UPDATE)

    def count_slices(self, value: int) -> int:
        """How many microbatches of a value a device holds during a step: of a sliced batch leaf all, of others one."""
        if self.values[value].kind is not ValueKind.BATCH:
            return 1
        return 1 if self.batch_axes[self.inputs.index(value)] is None else self.num_microbatches

    def __repr__(self) -> str:
        return (
            f"Program({self.name!r}: {len(self.ops)} ops, {self.num_layers} layers, "
            f"{self.num_microbatches} microbatches, {self.flops:.3g} FLOP a step)"
        )


_ITEMSIZES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4,
    "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16, "int4": 1, "uint4": 1,
}  # fmt: skip


def dtype_itemsize(dtype: str) -> int:
    """Bytes of one element; 1 for 8-bit floats, 8 for PRNG keys and tokens (an extended dtype's usual size)."""
    if dtype.startswith(("float8", "float4")):
        return 1
    return _ITEMSIZES.get(dtype, 8)
