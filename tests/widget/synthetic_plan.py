"""A plan of a GPT that no solver made: realistic in size and shape, exact in nothing. For tests of the views."""

from __future__ import annotations

from dataclasses import dataclass, field

from alpaviz.cluster.description import Cluster, DeviceType, Host, Link
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

GB = 1e9
V100 = DeviceType("V100-16GB", 16e9, 900e9, (("float32", 15.7e12), ("float16", 125e12)))
BATCH, LENGTH, HIDDEN, HEADS, VOCAB = 8, 1024, 2048, 32, 51200


def make_cluster(num_hosts: int = 1, devices_per_host: int = 8) -> Cluster:
    host = Host(V100, devices_per_host, Link(150e9, 5e-6))
    return Cluster(f"p3.16xlarge:{num_hosts}", (host,) * num_hosts, Link(3.125e9, 2e-5))


def _spec(*entries: str | tuple[str, ...] | None) -> ShardingSpec:
    return to_spec(entries)


@dataclass
class _Builder:
    ops: list[OpPlan] = field(default_factory=list)
    values: list[ValuePlan] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def value(
        self, shape: tuple[int, ...], spec: ShardingSpec, stage: int, kind: str = "intermediate", name: str = "",
        dtype: str = "float16",
    ) -> int:  # fmt: skip
        number = len(self.values)
        self.values.append(ValuePlan(number, name or f"v{number}", shape, dtype, kind, stage, spec))
        return number

    def op(
        self, scope: str, primitive: str, rule: str, inputs: tuple[int | None, ...], shape: tuple[int, ...],
        spec: ShardingSpec, *, role: str, layer: int, stage: int, strategy: str = "", is_decision: bool = False,
        collectives: tuple[PlannedCollective, ...] = (), reshardings: tuple[PlannedResharding, ...] = (),
        compute_s: float = 2e-5, source: str = "gpt.py:88", dtype: str = "float16",
        input_specs: tuple[ShardingSpec, ...] | None = None,
    ) -> int:  # fmt: skip
        base = f"{scope}/{primitive}" if scope else primitive
        count = self.counts.get(base, 0)
        self.counts[base] = count + 1
        out = self.value(shape, spec, stage, dtype=dtype)
        if input_specs is None:
            input_specs = tuple(() if i is None else self.values[i].spec for i in inputs)
        self.ops.append(
            OpPlan(
                len(self.ops), f"{base}.{count}", primitive, role, layer, stage, scope, source, rule, inputs, (out,),
                strategy or "whole", is_decision, input_specs, (spec,), collectives, reshardings, compute_s,
            )
        )  # fmt: skip
        return out


def _all_reduce(axis: str, num_bytes: float, time_s: float) -> tuple[PlannedCollective, ...]:
    return (PlannedCollective("all-reduce", (axis,), num_bytes, time_s),)


def _matmul(
    b: _Builder, scope: str, x: int, w: int, *, split: str, role: str, layer: int, stage: int, line: int
) -> int:
    """A matmul whose weight is split over `y` by columns (`split="n"`) or rows (`split="k"`)."""
    xv, wv = b.values[x], b.values[w]
    out = (*xv.shape[:-1], wv.shape[1])
    by_columns = split == "n"
    x_spec = _spec("x", None, None if by_columns else "y")
    spec = _spec("x", None, "y" if by_columns else None)
    bytes_ = 2.0 * out[0] / 2 * out[1] * out[2]
    return b.op(
        scope, "dot_general", "b s k, k n -> b s n", (x, w), out, spec, role=role, layer=layer, stage=stage,
        strategy="b:x n:y" if by_columns else "b:x k:y", is_decision=True,
        collectives=() if by_columns else _all_reduce("y", bytes_, 4.1e-4),
        compute_s=2.9e-3 * wv.shape[0] * wv.shape[1] / HIDDEN / HIDDEN / 4, source=f"gpt.py:{line}",
        input_specs=(x_spec, _spec(None, "y") if by_columns else _spec("y", None)),
    )  # fmt: skip


def _norm(b: _Builder, scope: str, x: int, layer: int, stage: int, role: str) -> int:
    shape, spec = b.values[x].shape, b.values[x].spec
    small, small_spec = shape[:-1], spec[:-1]
    at = {"role": role, "layer": layer, "stage": stage, "source": "gpt.py:31", "strategy": "b:x"}
    wide = b.op(scope, "convert_element_type", "a b c -> a b c", (x,), shape, spec, dtype="float32", **at)
    total = b.op(scope, "reduce_sum", "a b c -> a b", (wide,), small, small_spec, dtype="float32", **at)
    mean = b.op(scope, "div", "a b, · -> a b", (total, None), small, small_spec, dtype="float32", **at)
    wide_mean = b.op(scope, "broadcast_in_dim", "a b -> a b c", (mean,), shape, spec, dtype="float32", **at)
    centred = b.op(scope, "sub", "a b c, a b c -> a b c", (wide, wide_mean), shape, spec, dtype="float32", **at)
    square = b.op(scope, "square", "a b c -> a b c", (centred,), shape, spec, dtype="float32", **at)
    var = b.op(scope, "reduce_sum", "a b c -> a b", (square,), small, small_spec, dtype="float32", **at)
    scale = b.op(scope, "rsqrt", "a b -> a b", (var,), small, small_spec, dtype="float32", **at)
    wide_scale = b.op(scope, "broadcast_in_dim", "a b -> a b c", (scale,), shape, spec, dtype="float32", **at)
    out = b.op(scope, "mul", "a b c, a b c -> a b c", (centred, wide_scale), shape, spec, dtype="float32", **at)
    return b.op(scope, "convert_element_type", "a b c -> a b c", (out,), shape, spec, **at)


def _attention(b: _Builder, scope: str, x: int, weights: dict[str, int], layer: int, stage: int, role: str) -> int:
    at = {"role": role, "layer": layer, "stage": stage}
    qkv = _matmul(b, scope, x, weights["qkv"], split="n", line=47, **at)
    heads = (BATCH, LENGTH, 3, HEADS, HIDDEN // HEADS)
    split = b.op(
        scope, "reshape", "b s (t h d) -> b s t h d", (qkv,), heads, _spec("x", None, None, "y", None),
        strategy="b:x h:y", source="gpt.py:49", **at,
    )  # fmt: skip
    parts = []
    for _ in range(3):
        part = b.op(
            scope, "slice", "b s 1 h d -> b s 1 h d", (split,), (BATCH, LENGTH, 1, HEADS, 64),
            _spec("x", None, None, "y", None), strategy="b:x h:y", source="gpt.py:50", **at,
        )  # fmt: skip
        parts.append(
            b.op(
                scope, "squeeze", "b s 1 h d -> b s h d", (part,), (BATCH, LENGTH, HEADS, 64),
                _spec("x", None, "y", None), strategy="b:x h:y", source="gpt.py:50", **at,
            )
        )  # fmt: skip
    scores_shape, scores_spec = (BATCH, HEADS, LENGTH, LENGTH), _spec("x", "y", None, None)
    scores = b.op(
        scope, "dot_general", "b q h d, b k h d -> b h q k", (parts[0], parts[1]), scores_shape, scores_spec,
        strategy="b:x h:y", is_decision=True, compute_s=6.1e-4, source="gpt.py:52", **at,
    )  # fmt: skip
    masked = b.op(scope, "select_n", "a b c d, a b c d -> a b c d", (scores, scores), scores_shape, scores_spec,
                  strategy="b:x h:y", source="gpt.py:53", **at)  # fmt: skip
    for primitive in ("exp", "div", "convert_element_type"):
        masked = b.op(scope, primitive, "a b c d -> a b c d", (masked,), scores_shape, scores_spec,
                      strategy="a:x b:y", source="gpt.py:54", **at)  # fmt: skip
    mixed = b.op(
        scope, "dot_general", "b h q k, b k h d -> b q h d", (masked, parts[2]), (BATCH, LENGTH, HEADS, 64),
        _spec("x", None, "y", None), strategy="b:x h:y", is_decision=True, compute_s=6.1e-4, source="gpt.py:55", **at,
    )  # fmt: skip
    flat = b.op(scope, "reshape", "b s h d -> b s (h d)", (mixed,), (BATCH, LENGTH, HIDDEN), _spec("x", None, "y"),
                strategy="b:x h:y", source="gpt.py:56", **at)  # fmt: skip
    return _matmul(b, scope, flat, weights["out"], split="k", line=57, **at)


def _block(b: _Builder, layer: int, stage: int, x: int, weights: dict[str, int], role: str) -> int:
    at = {"role": role, "layer": layer, "stage": stage}
    name = f"block_{layer}"
    shape, spec = b.values[x].shape, b.values[x].spec
    h = _norm(b, f"{name}/ln_1", x, layer, stage, role)
    h = _attention(b, f"{name}/attn", h, weights, layer, stage, role)
    x = b.op(name, "add", "a b c, a b c -> a b c", (x, h), shape, spec, strategy="a:x", source="gpt.py:70", **at)
    h = _norm(b, f"{name}/ln_2", x, layer, stage, role)
    h = _matmul(b, f"{name}/mlp", h, weights["up"], split="n", line=62, **at)
    for primitive in ("integer_pow", "mul", "add", "mul", "tanh", "add", "mul", "mul"):
        h = b.op(f"{name}/mlp", primitive, "a b c -> a b c", (h,), b.values[h].shape, b.values[h].spec,
                 strategy="a:x c:y", source="gpt.py:63", **at)  # fmt: skip
    h = _matmul(b, f"{name}/mlp", h, weights["down"], split="k", line=64, **at)
    return b.op(name, "add", "a b c, a b c -> a b c", (x, h), shape, spec, strategy="a:x", source="gpt.py:71", **at)


def _backward(b: _Builder, layer: int, stage: int, grad: int, forward: list[OpPlan], weights: dict[str, int]) -> int:
    by_value = {v: k for k, v in weights.items()}
    for op in reversed(forward):
        out = b.values[op.outputs[0] or 0]
        at = {"role": "backward", "layer": layer, "stage": stage, "source": op.source}
        weight = next((i for i in op.inputs if i in by_value), None)
        if weight is not None:
            w = b.values[weight]
            reduced = PlannedCollective("all-reduce", ("x",), 2.0 * w.shape[0] * w.shape[1] / 2, 6.2e-4)
            gathered = PlannedCollective("all-gather", ("y",), 2.0 * out.shape[1] * out.shape[2] * 4, 2.2e-4)
            held = _spec("x", "y", None) if layer % 6 == 0 else out.spec
            resharding = (
                (PlannedResharding(0, held, out.spec, (_spec("x", None, None), out.spec), (gathered,)),)
                if held != out.spec
                else ()
            )
            b.op(
                op.scope, "dot_general", "b s k, b s n -> k n", (op.inputs[0], grad), w.shape, w.spec,
                strategy="b:x n:y" if w.spec[1] else "b:x k:y", is_decision=True, collectives=(reduced,),
                reshardings=resharding, compute_s=op.compute_s, **at,
            )  # fmt: skip
        spec = out.spec
        grad = b.op(op.scope, "mul", op.rule, (op.outputs[0], grad), out.shape, spec, strategy=op.strategy, **at)
        grad = b.op(op.scope, "add_any", op.rule, (grad, grad), out.shape, spec, strategy=op.strategy, **at)
        grad = b.op(
            op.scope, "dot_general" if op.primitive == "dot_general" else "mul", op.rule, (op.outputs[0], grad),
            out.shape, out.spec, strategy=op.strategy, is_decision=op.is_decision,
            collectives=op.collectives, compute_s=op.compute_s, **at,
        )  # fmt: skip
    return grad


def _update(b: _Builder, layer: int, stage: int, weights: dict[str, int]) -> None:
    for name, w in weights.items():
        value = b.values[w]
        x = w
        for primitive in ("mul", "mul", "add", "square", "mul", "mul", "add", "div", "div", "sqrt", "add", "div", "mul",
                          "mul", "neg", "add", "convert_element_type"):  # fmt: skip
            letters = "a b" if len(value.shape) == 2 else "a"
            x = b.op(
                "adam", primitive, f"{letters} -> {letters}", (x,), value.shape, value.spec, role="update",
                layer=layer, stage=stage, strategy="b:y" if value.spec[-1] else "a:y", source="optimizer.py:12",
                compute_s=1.1e-5, dtype="float32", is_decision=primitive == "neg" and name == "qkv",
            )  # fmt: skip


def make_plan(
    num_layers: int = 24,
    num_stages: int = 2,
    num_microbatches: int = 16,
    pins: tuple[Pin, ...] = (),
    num_hosts: int = 1,
) -> Plan:
    """GPT-1.3B-like at the default of 24 layers: about 9,000 ops on one host of eight V100."""
    b = _Builder()
    per_stage = num_layers // num_stages
    devices = 8 * num_hosts // num_stages
    tokens = b.value((BATCH, LENGTH), _spec("x", None), 0, "batch", "batch['tokens']", "int32")
    table = b.value((VOCAB, HIDDEN), _spec("y", None), 0, "state", "state['embed']")
    x = b.op(
        "embed", "gather", "v d, b s -> b s d", (table, tokens), (BATCH, LENGTH, HIDDEN), _spec("x", None, None),
        role="forward", layer=0, stage=0, strategy="b:x v:y", is_decision=True,
        collectives=_all_reduce("y", 1.7e7, 2.2e-4), source="gpt.py:80",
    )  # fmt: skip
    all_weights: list[dict[str, int]] = []
    forwards: list[list[OpPlan]] = []
    transfers: list[Transfer] = []
    for layer in range(num_layers):
        stage = min(layer // per_stage, num_stages - 1)
        if layer and layer % per_stage == 0:
            transfers.append(Transfer(x, stage - 1, stage, _spec("x", None, None), 3.4e7, 4.5e-4, False))
        shapes = {
            "qkv": (HIDDEN, 3 * HIDDEN), "out": (HIDDEN, HIDDEN),
            "up": (HIDDEN, 4 * HIDDEN), "down": (4 * HIDDEN, HIDDEN),
            "qkv_bias": (3 * HIDDEN,), "out_bias": (HIDDEN,), "up_bias": (4 * HIDDEN,), "down_bias": (HIDDEN,),
            "ln_1": (HIDDEN,), "ln_2": (HIDDEN,),
        }  # fmt: skip
        splits = {"qkv": _spec(None, "y"), "up": _spec(None, "y"), "out": _spec("y", None), "down": _spec("y", None)}
        weights = {
            name: b.value(shape, splits.get(name, _spec("y")), stage, "state", f"state['block_{layer}']['{name}']")
            for name, shape in shapes.items()
        }
        all_weights.append(weights)
        begin = len(b.ops)
        x = _block(b, layer, stage, x, weights, "forward")
        forwards.append(b.ops[begin:])
    grad = x
    for layer in reversed(range(num_layers)):
        stage = min(layer // per_stage, num_stages - 1)
        if layer + 1 < num_layers and (layer + 1) % per_stage == 0:
            transfers.append(Transfer(grad, stage + 1, stage, _spec("x", None, None), 3.4e7, 4.5e-4, False))
        grad = _backward(b, layer, stage, grad, forwards[layer], all_weights[layer])
    for layer in range(num_layers):
        _update(b, layer, min(layer // per_stage, num_stages - 1), all_weights[layer])
    stages = tuple(
        StagePlan(
            s, s * per_stage, num_layers - 1 if s == num_stages - 1 else (s + 1) * per_stage - 1,
            f"1x{devices}" if devices <= 8 else f"{devices // 8}x8",
            tuple(divmod(s * devices + d, 8) for d in range(devices)),
            (min(2, devices), max(1, devices // 2)), ("x", "y"),
            0.0412 + 0.004 * s, 0.0831 + 0.006 * s, 0.0094, 1.41 + 0.09 * s,
            (("all-reduce", 0.334), ("all-gather", 0.021), ("reduce-scatter", 0.048)), 0.017,
            num_stages - s, MemoryEstimate(1.32 * GB, 3.96 * GB, 1.32 * GB, (4.1 - 1.7 * s) * GB, 0.74 * GB, 16 * GB),
            0.1243, 0.1243,
        )
        for s in range(num_stages)
    )  # fmt: skip
    estimate = StepEstimate(
        2.31, 1.5, (("all-reduce", 0.334), ("all-gather", 0.021), ("reduce-scatter", 0.048)), 0.017, 0.0072,
        0.39, 0.169, 0.43,
    )  # fmt: skip
    program = ProgramSummary(
        "gpt-1.3b", "c0ffee12", len(b.ops), num_layers, tuple(f"block_{i}" for i in range(num_layers)),
        tuple(8.3e12 for _ in range(num_layers)), 8.3e12 * num_layers * 3 * num_microbatches, 1.57e10,
    )  # fmt: skip
    solver = SolverReport("exact", 21.4, 2.31, 2.29, 132, 41)
    return Plan(
        PLAN_SCHEMA_VERSION, program, make_cluster(num_hosts), num_microbatches, "1f1b", stages, tuple(b.ops),
        tuple(b.values),
        tuple(transfers), estimate, pins, solver,
        ("1 op (custom_call) has no sharding rule: it is not split.",),
    )  # fmt: skip


EXAMPLE_PINS = (
    Pin(PinKind.LAYER_STAGE, 11, 0),
    Pin(PinKind.STRATEGY, "block_3/mlp/dot_general.0", "b:x n:y"),
)
