"""Plans that no solver made: small, whole (`validate_plan` accepts them) and with round figures.

`make_small_plan` is an MLP on virtual devices; `plans` draws variations of it for property tests. A plan of a GPT's
size, for views, is `tests.widget.synthetic_plan.make_plan`.
"""

from __future__ import annotations

from hypothesis import strategies as st

from alpaviz.cluster.presets import parse_cluster
from alpaviz.pins import Pin, PinKind
from alpaviz.plan import (
    PLAN_SCHEMA_VERSION,
    MemoryEstimate,
    OpPlan,
    Plan,
    PlannedCollective,
    PlannedResharding,
    ProgramSummary,
    SolverReport,
    StagePlan,
    StepEstimate,
    Transfer,
    ValuePlan,
)
from alpaviz.types import ShardingSpec, to_spec

WIDTH, BATCH = 16, 8
COLUMNS: ShardingSpec = to_spec((None, "x"))
ROWS: ShardingSpec = to_spec(("x", None))
WHOLE: ShardingSpec = to_spec((None, None))
ALL_REDUCE = PlannedCollective("all-reduce", ("x",), 512.0, 3e-6)
ALL_GATHER = PlannedCollective("all-gather", ("x",), 512.0, 1e-6)


def make_small_plan(
    num_layers: int = 4,
    num_stages: int = 2,
    num_microbatches: int = 4,
    *,
    cluster: str = "virtual:8",
    weight_spec: ShardingSpec = COLUMNS,
    activations_bytes: float = 4e8,
    pins: tuple[Pin, ...] = (),
) -> Plan:
    """An MLP of equal layers on equal stages: each layer has a weight, a forward, a backward and an update op.

    A stage takes 1 ms forward, 2 ms backward and 3 ms for its update; its mesh is one axis `x` over its devices. The
    estimate is that of 1F1B with free sends: (microbatches + stages - 1) x 3 ms + 3 ms.
    """
    described = parse_cluster(cluster)
    values, ops = _list_values_and_ops(num_layers, num_stages, weight_spec)
    stages = tuple(
        _make_stage(i, num_layers, num_stages, num_microbatches, described.num_devices, activations_bytes)
        for i in range(num_stages)
    )
    transfers = tuple(
        Transfer(_activation(s * num_layers // num_stages - 1, num_layers), s - 1, s, WHOLE, 512.0, 1e-5, False)
        for s in range(1, num_stages)
    )
    return Plan(
        schema_version=PLAN_SCHEMA_VERSION,
        program=ProgramSummary(
            "small-mlp", "5eed", len(ops), num_layers, tuple(f"block_{i}" for i in range(num_layers)),
            (4096.0,) * num_layers, 4096.0 * num_layers, 1024.0 * num_layers,
        ),
        cluster=described, num_microbatches=num_microbatches, schedule="1f1b", stages=stages, ops=ops, values=values,
        transfers=transfers, estimate=_estimate(num_stages, num_microbatches), pins=pins,
        solver=SolverReport("exact", 0.5, 4e-3, 4e-3, 6, 3), warnings=("a warning",),
    )  # fmt: skip


def _activation(layer: int, num_layers: int) -> int:
    """Value id of what the forward op of `layer` makes; that of layer -1 is the batch."""
    return num_layers + 1 + layer


def _list_values_and_ops(
    num_layers: int, num_stages: int, weight_spec: ShardingSpec
) -> tuple[tuple[ValuePlan, ...], tuple[OpPlan, ...]]:
    stage_of = [layer * num_stages // num_layers for layer in range(num_layers)]
    weight, batch = (WIDTH, WIDTH), (BATCH, WIDTH)
    values = [
        ValuePlan(i, f"state['block_{i}']['weight']", weight, "float32", "state", stage_of[i], weight_spec)
        for i in range(num_layers)
    ]
    values.append(ValuePlan(num_layers, "batch[0]", batch, "float32", "batch", 0, WHOLE))
    ops: list[OpPlan] = []

    def add(role: str, layer: int, inputs: tuple[int, ...], shape: tuple[int, ...], spec: ShardingSpec) -> int:
        result, scope = len(values), f"block_{layer}" if role != "update" else "adam"
        is_product = role != "update"
        resharding = PlannedResharding(0, WHOLE, ROWS, (ROWS,), (ALL_GATHER,))
        values.append(ValuePlan(result, f"v{result}", shape, "float32", "intermediate", stage_of[layer], spec))
        ops.append(
            OpPlan(
                id=len(ops), name=f"{scope}/{'dot_general' if is_product else 'sub'}.{len(ops)}",
                primitive="dot_general" if is_product else "sub", role=role, layer=layer, stage=stage_of[layer],
                scope=scope, source=f"train.py:{layer + 1}", rule="a b, b c -> a c" if is_product else "a b -> a b",
                inputs=inputs, outputs=(result,), strategy="c:x" if spec == COLUMNS else "whole",
                is_decision=is_product, input_specs=tuple(values[i].spec for i in inputs), output_specs=(spec,),
                collectives=(ALL_REDUCE,) if role == "backward" else (),
                reshardings=(resharding,) if role == "forward" else (), compute_s=1e-4,
            )
        )  # fmt: skip
        return result

    x = num_layers
    for layer in range(num_layers):
        x = add("forward", layer, (x, layer), batch, WHOLE)
    gradients = {}
    for layer in reversed(range(num_layers)):
        gradients[layer] = add("backward", layer, (x, layer), weight, weight_spec)
    for layer in range(num_layers):
        add("update", layer, (layer, gradients[layer]), weight, weight_spec)
    return tuple(values), tuple(ops)


def _make_stage(
    index: int, num_layers: int, num_stages: int, num_microbatches: int, num_devices: int, activations_bytes: float
) -> StagePlan:
    size = num_devices // num_stages
    first = -(-index * num_layers // num_stages)
    last = -(-(index + 1) * num_layers // num_stages) - 1
    return StagePlan(
        index=index, first_layer=first, last_layer=last, submesh=f"1x{size}",
        devices=tuple((0, index * size + d) for d in range(size)), mesh_shape=(size,), mesh_axes=("x",),
        forward_s=1e-3, backward_s=2e-3, update_s=3e-3, compute_s=2e-3 * num_microbatches + 3e-3,
        collectives_s=(("all-reduce", 0.6e-3 * num_microbatches), ("all-gather", 0.2e-3 * num_microbatches)),
        resharding_s=0.2e-3 * num_microbatches, in_flight=min(num_stages - index, num_microbatches),
        memory=MemoryEstimate(1e8, 2e8, 1e8, activations_bytes, 5e7, 4e9), objective=4e-3, bound=4e-3,
    )  # fmt: skip


def _estimate(num_stages: int, num_microbatches: int) -> StepEstimate:
    work = 3e-3 * num_microbatches + 3e-3
    waiting = 3e-3 * (num_stages - 1)
    return StepEstimate(
        step_s=work + waiting, compute_s=2e-3 * num_microbatches + 3e-3,
        collectives_s=(("all-reduce", 0.6e-3 * num_microbatches), ("all-gather", 0.2e-3 * num_microbatches)),
        resharding_s=0.2e-3 * num_microbatches, transfer_s=0.0, bubble_s=waiting,
        bubble_fraction=waiting / (work + waiting), model_flops_utilisation=0.25,
    )  # fmt: skip


PINS = (
    Pin(PinKind.STRATEGY, "block_0/dot_general.0", "whole"),
    Pin(PinKind.LAYER_STAGE, 1, 0),
    Pin(PinKind.NUM_STAGES, None, 2),
    Pin(PinKind.LOGICAL_MESH, None, "4x1"),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Small plans that differ in layers, stages, microbatches, weight layout, memory and pins."""
    num_stages = draw(st.sampled_from([1, 2, 4]))
    return make_small_plan(
        num_layers=num_stages * draw(st.integers(1, 3)),
        num_stages=num_stages,
        num_microbatches=draw(st.integers(1, 6)),
        weight_spec=draw(st.sampled_from([COLUMNS, ROWS, WHOLE])),
        activations_bytes=draw(st.floats(0, 1e9, allow_nan=False)),
        pins=tuple(draw(st.lists(st.sampled_from(PINS), unique=True))),
    )
