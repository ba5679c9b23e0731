"""A plan: everything that was decided, with its estimates, as plain data.

A plan opens without JAX. It says which program (`ProgramSummary.fingerprint`) and which cluster it was made for.
Floats are seconds (`*_s`) and bytes (`*_bytes`). `save_plan` and `load_plan` are in `alpaviz.plan_file`,
`compare_plans` in `alpaviz.plan_diff`, `validate_plan` in `alpaviz.plan_check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from alpaviz.cluster.description import Cluster
from alpaviz.pins import Pin
from alpaviz.types import CollectiveKind, DeviceId, MeshAxis, ShardingSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from alpaviz.plan_explanation import Sentence
    from alpaviz.program.program import Program
    from alpaviz.stage_variants import Regret
    from alpaviz.verify import Verification

PLAN_SCHEMA_VERSION = 1

RECOMPUTE = "recompute/"
"""Names of ops that a recomputed layer does again begin with it; the rest is the name of the forward op."""


@dataclass(frozen=True, slots=True)
class PlannedCollective:
    """One collective: over `axes` of the stage's mesh; `num_bytes` is the full tensor a device takes part with.

    all-gather: the gathered bytes; reduce-scatter: the input's bytes; others: the local tensor's bytes. `once`: it
    happens once a step though its op runs in every microbatch, because the op's partial sums are accumulated.
    """

    kind: CollectiveKind
    axes: tuple[MeshAxis, ...]
    num_bytes: float
    time_s: float
    once: bool = False


@dataclass(frozen=True, slots=True)
class PlannedResharding:
    """Operand `operand` of an op arrives as `held` and is needed as `wanted`; `specs` are those after each step.

    A negative `operand`, -1 - k, is result k: a new state that goes back to the spec in which the state is stored.
    `collectives` are empty where another op of the same role has already paid for the same resharding.
    """

    operand: int
    held: ShardingSpec
    wanted: ShardingSpec
    specs: tuple[ShardingSpec, ...]
    collectives: tuple[PlannedCollective, ...]


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How one op runs.

    Attributes:
        id, name, primitive, role, layer, scope, source, inputs, outputs: as in `Program.Op`.
        stage: which stage runs it. Ops of scalars that several stages need are run by each of them; `stage` is then
            the first.
        rule: the sharding rule as text, `b m k, b k n -> b m n`.
        strategy: mesh axes by factor, `"m:x k:y"`; `"whole"` if no axis splits it. A reduction that ends in a
            reduce-scatter names the dimension it scatters to: `"k:y>1"`.
        is_decision: the solver chose it; otherwise it follows a neighbour.
        input_specs: per operand, the spec it is needed in (empty tuple for literals and scalars).
        output_specs: per result.
        collectives: what the strategy itself needs (all-reduce or reduce-scatter of its result).
        reshardings: of operands that arrive in another spec.
        compute_s: seconds on the busiest device, once per microbatch (once per step for update ops).
        partial_axes: axes over which the results are partial sums, which are accumulated as they are and reduced once
            a step; `output_specs` are those after that.
    """

    id: int
    name: str
    primitive: str
    role: str
    layer: int
    stage: int
    scope: str
    source: str
    rule: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    strategy: str
    is_decision: bool
    input_specs: tuple[ShardingSpec, ...]
    output_specs: tuple[ShardingSpec, ...]
    collectives: tuple[PlannedCollective, ...]
    reshardings: tuple[PlannedResharding, ...]
    compute_s: float
    partial_axes: tuple[MeshAxis, ...] = ()


@dataclass(frozen=True, slots=True)
class ValuePlan:
    """One array of the program: global shape for one microbatch; `spec` where it is made or, for inputs, stored."""

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    stage: int
    spec: ShardingSpec


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on the fullest device of a stage.

    `activations_bytes` is all microbatches in flight together; `temporary_bytes` the largest working set beside it;
    `batch_bytes` the slices of all microbatches.
    """

    parameters_bytes: float
    optimizer_bytes: float
    gradients_bytes: float
    activations_bytes: float
    temporary_bytes: float
    capacity_bytes: float
    batch_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        return (
            self.parameters_bytes
            + self.optimizer_bytes
            + self.gradients_bytes
            + self.activations_bytes
            + self.temporary_bytes
            + self.batch_bytes
        )


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A run of layers on one submesh.

    Attributes:
        index: 0-based, in pipeline order.
        first_layer, last_layer: inclusive.
        submesh: hosts x devices per host as text, `"1x4"`.
        devices: (host, device) in row-major order of the logical mesh.
        mesh_shape, mesh_axes: the logical mesh.
        forward_s, backward_s: one microbatch, communication inside the stage included.
        update_s: once per step.
        compute_s, collectives_s, resharding_s: per whole step (all microbatches and the update), the parts of it;
            `collectives_s` holds (kind, seconds) pairs.
        in_flight: microbatches whose activations are kept at once.
        memory: on the fullest device.
        objective, bound: of this stage's sharding problem, seconds.
        weights_s: the part of `backward_s` that no other stage waits for, such as the gradients of weights.
    """

    index: int
    first_layer: int
    last_layer: int
    submesh: str
    devices: tuple[DeviceId, ...]
    mesh_shape: tuple[int, ...]
    mesh_axes: tuple[MeshAxis, ...]
    forward_s: float
    backward_s: float
    update_s: float
    compute_s: float
    collectives_s: tuple[tuple[str, float], ...]
    resharding_s: float
    in_flight: int
    memory: MemoryEstimate
    objective: float
    bound: float
    weights_s: float = 0.0

    @property
    def axis_sizes(self) -> dict[MeshAxis, int]:
        return dict(zip(self.mesh_axes, self.mesh_shape, strict=True))

    @property
    def num_devices(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Value `value` goes from one stage to another, once per microbatch or (`once`) once per step.

    It leaves in the spec of its `ValuePlan` and arrives in `target_spec`, on the target stage's mesh.
    """

    value: int
    source_stage: int
    target_stage: int
    target_spec: ShardingSpec
    num_bytes: float
    time_s: float
    once: bool


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """Where a step's time goes, along the pipeline's critical stage; the parts add up to `step_s`.

    `collectives_s` holds (kind, seconds) pairs; `bubble_s` is time in which the busiest stage waits, `transfer_s` the
    part of that in which it waits for a send.
    """

    step_s: float
    compute_s: float
    collectives_s: tuple[tuple[str, float], ...]
    resharding_s: float
    transfer_s: float
    bubble_s: float
    bubble_fraction: float
    model_flops_utilisation: float


@dataclass(frozen=True, slots=True)
class ProgramSummary:
    """Which program a plan is for. `state_bytes` counts the state; `layers` names each layer for people.

    The activations of `recomputed_layers` are made again in the backward pass instead of being kept.
    """

    name: str
    fingerprint: str
    num_ops: int
    num_layers: int
    layers: tuple[str, ...]
    layer_flops: tuple[float, ...]
    flops: float
    state_bytes: float
    recomputed_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanTry:
    """One number of microbatches and schedule that was tried.

    `step_s` and `memory_bytes`, of the fullest device, are None where there was no plan. `reason` says why there was
    none, or why it cannot be used.
    """

    num_microbatches: int
    schedule: str
    step_s: float | None
    memory_bytes: float | None
    num_stages: int
    reason: str


@dataclass(frozen=True, slots=True)
class SolverReport:
    """How the plan was found: `objective` and `bound` of the two-level problem, in seconds a step.

    `tries` are all numbers of microbatches and schedules that were tried; empty where both were given.
    """

    solver: str
    seconds: float
    objective: float
    bound: float
    num_candidates: int
    num_solved: int
    notes: tuple[str, ...] = ()
    tries: tuple[PlanTry, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that was decided for one program on one cluster."""

    schema_version: int
    program: ProgramSummary
    cluster: Cluster
    num_microbatches: int
    schedule: str
    stages: tuple[StagePlan, ...]
    ops: tuple[OpPlan, ...]
    values: tuple[ValuePlan, ...]
    transfers: tuple[Transfer, ...]
    estimate: StepEstimate
    pins: tuple[Pin, ...]
    solver: SolverReport
    warnings: tuple[str, ...] = ()

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    def explain(self, regrets: Mapping[str, Sequence[Regret]] | None = None) -> tuple[Sentence, ...]:
        """Why this plan, in sentences; every number in them is the plan's.

        Args:
            regrets: by name of an op, what `planner.variants(stage).regrets(op)` gives.
        """
        from alpaviz.plan_explanation import explain_plan

        return explain_plan(self, regrets)

    def verify(self, program: Program, *, timeout_s: float = 600.0) -> Verification:
        """Compile every stage with XLA for virtual CPU devices and compare: collectives, memory, added resharding.

        A process of its own does it; nothing is run, and no accelerator is needed.

        Args:
            program: the traced step that the plan was made for.
            timeout_s: seconds after which the process is ended.

        Raises:
            PlanMismatchError: the plan is for another program.
            VerificationError: the step cannot be traced in the process, or it died or took too long.
        """
        from alpaviz.verify import verify_plan

        return verify_plan(self, program, timeout_s=timeout_s)
