"""Plans that people write: each has the collectives that its authors describe, runs, and is no better than ours."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import alpaviz
from alpaviz import baselines
from alpaviz.baselines.dimensions import find_dimension_classes
from alpaviz.baselines.tensor import find_tensor_classes
from alpaviz.errors import AlpaVizError, InfeasibleError
from alpaviz.models import MODELS, AdamOptions, get_model, make_training_step
from alpaviz.pins import PinKind
from alpaviz.plan import OpPlan, Plan, PlannedCollective
from alpaviz.planner import Planner
from alpaviz.types import list_axes
from tests.models.microbatches import average_over_halves
from tests.program.small_models import adam_step, init_gpt_state

IDS = np.asarray(jax.random.randint(jax.random.key(1), (16, 17), 0, 64))


@functools.cache
def make_planner(model: str, **options: Any) -> Planner:
    return Planner(*get_model(model, 32), **{"cluster": "virtual:8", "num_microbatches": 2} | options)


@functools.cache
def find_baseline(model: str, name: str) -> Plan:
    return baselines.plan(name, make_planner(model))


@functools.cache
def find_tensor_parallel_plan() -> Plan:
    """Megatron-LM's plan where a microbatch has two rows, too few to split it over all devices and two stages."""
    return baselines.plan("megatron", Planner(*get_model("gpt-tiny", 4), cluster="virtual:8", num_microbatches=2))


def list_collectives(plan: Plan) -> Iterator[tuple[OpPlan, bool, PlannedCollective]]:
    """Each with its op and whether it belongs to a resharding; those of scalars (the loss) are left out."""
    for op in plan.ops:
        for collective in op.collectives:
            if any(plan.values[v].shape for v in op.outputs if v is not None):
                yield op, False, collective
        for resharding in op.reshardings:
            yield from ((op, True, collective) for collective in resharding.collectives)


def count_in_blocks(plan: Plan, role: str) -> dict[str, Counter[str]]:
    """Kinds of collectives of each `block_i` of a GPT."""
    found: dict[str, Counter[str]] = {}
    for op, _, collective in list_collectives(plan):
        if op.role == role and op.scope.startswith("block"):
            found.setdefault(op.scope.split("/")[0], Counter())[collective.kind] += 1
    return found


def list_state(plan: Plan, part: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Specs of the leaves of one part of the state that have at least two dimensions."""
    prefix = f"state['{part}']"
    return {v.name.removeprefix(prefix): v.spec for v in plan.values if v.name.startswith(prefix) and len(v.shape) > 1}


def test_data_parallel_reduces_every_gradient_and_communicates_nothing_else() -> None:
    plan = find_baseline("gpt-tiny", "data-parallel")
    found = list(list_collectives(plan))
    assert {(op.role, is_resharding, c.kind) for op, is_resharding, c in found} == {("backward", False, "all-reduce")}
    assert {c.axes for _, _, c in found} == {plan.stages[0].mesh_axes}
    sizes = Counter(plan.values[v].shape for op, _, _ in found for v in op.outputs if v is not None)
    parameters = Counter(v.shape for v in plan.values if v.name.startswith("state['params']"))
    table = next(v.shape for v in plan.values if v.name == "state['params']['wte']")
    flat = Counter({(int(np.prod(shape)),): 0 for shape in parameters})
    for counter, sign in ((sizes, 1), (parameters, -1), (Counter({table: 1}), -1)):  # the table is used twice
        for shape, count in counter.items():
            flat[(int(np.prod(shape)),)] += sign * count
    assert {shape: count for shape, count in flat.items() if count} == {}


def test_data_parallel_stores_the_state_whole_and_splits_the_batch_over_all_devices() -> None:
    plan = find_baseline("gpt-tiny", "data-parallel")
    for value in plan.values:
        if value.kind == "state":
            assert list_axes(value.spec) == ()
        elif value.kind == "batch":
            assert value.spec == (plan.stages[0].mesh_axes, ())


@pytest.mark.parametrize(
    ("name", "parts"),
    [("zero-1", {"mu", "nu"}), ("zero-2", {"mu", "nu"}), ("zero-3", {"mu", "nu", "params"})],
)
def test_zero_stores_in_pieces_what_its_stage_says(name: str, parts: set[str]) -> None:
    plan = find_baseline("gpt-tiny", name)
    for part in ("mu", "nu", "params"):
        expected = set(plan.stages[0].mesh_axes) if part in parts else set()
        assert {frozenset(list_axes(spec)) for spec in list_state(plan, part).values()} == {frozenset(expected)}


def test_each_stage_of_zero_needs_less_memory() -> None:
    plans = [find_baseline("gpt-tiny", name) for name in ("data-parallel", "zero-1", "zero-2", "zero-3")]
    stored = [p.stages[0].memory for p in plans]
    lasting = [m.parameters_bytes + m.optimizer_bytes + m.gradients_bytes for m in stored]
    assert lasting == sorted(lasting, reverse=True)
    assert len(set(lasting)) == 4
    assert [m.activations_bytes for m in stored] == pytest.approx([stored[0].activations_bytes] * 4, rel=1e-2)


def test_zero_2_scatters_gradients_in_every_microbatch_and_zero_1_once_a_step() -> None:
    for name, once in (("zero-1", True), ("zero-2", False)):
        plan = find_baseline("gpt-tiny", name)
        found = list(list_collectives(plan))
        of_products = [c for op, _, c in found if op.role == "backward" and op.primitive == "dot_general"]
        assert {(c.kind, c.once) for c in of_products} == {("reduce-scatter", once)}, name
        assert {op.role for op, _, c in found if c.kind == "all-gather"} == {"update"}, name


def test_zero_3_gathers_every_matrix_in_the_forward_and_in_the_backward_pass() -> None:
    plan = find_baseline("gpt-tiny", "zero-3")
    parameters = {v.id for v in plan.values if v.name.startswith("state['params']")}
    for role in ("forward", "backward"):
        ops = [op for op in plan.ops if op.role == role]
        multiplied = {v for op in ops if op.is_decision for v in op.inputs if v in parameters}
        gathered = {
            op.inputs[r.operand] for op in ops for r in op.reshardings if r.operand >= 0 and any(r.held) > any(r.wanted)
        }
        assert len(multiplied) == 9, "4 a block and the table of tokens"
        assert multiplied <= gathered, role


def test_megatron_reduces_twice_in_the_forward_and_twice_in_the_backward_pass_of_a_block() -> None:
    plan = find_tensor_parallel_plan()
    twice = Counter({"all-reduce": 2})
    assert count_in_blocks(plan, "forward") == {"block_0": twice, "block_1": twice}
    activation = (2, 32, 64)  # rows of a microbatch, positions, features
    backward = [
        op.scope.split("/")[0] for op, _, _ in list_collectives(plan)
        if op.role == "backward" and op.scope.startswith("block")
        and plan.values[op.outputs[0] or 0].shape == activation
    ]  # fmt: skip
    assert Counter(backward) == {"block_0": 2, "block_1": 2}


def test_megatron_splits_products_by_columns_and_then_by_rows() -> None:
    plan = find_tensor_parallel_plan()
    split = {name: [d for d, axes in enumerate(s) if axes] for name, s in list_state(plan, "params").items()}
    for block in ("['block_0']", "['block_1']"):
        assert split[f"{block}['qkv']"] == [2], "by heads"
        assert split[f"{block}['out']"] == [0]
        assert split[f"{block}['up']"] == [1]
        assert split[f"{block}['down']"] == [0]
    assert split["['wte']"] == [0]
    assert split["['wpe']"] == []


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("mlp-4", {"['block_0']['weight']": [1], "['block_1']['weight']": [0], "['block_2']['weight']": [1]}),
        ("llama-tiny", {"['block_0']['gate']": [1], "['block_0']['up']": [1], "['block_0']['down']": [0]}),
        ("vit-tiny", {"['block_0']['qkv']": [2], "['block_0']['out']": [0], "['patches']": [], "['head']": [1]}),
        ("moe-tiny", {"['block_1']['gate']": [], "['block_1']['up']": [2], "['block_1']['down']": [1]}),
    ],
)
def test_pairs_of_products_are_found_in_the_graph(model: str, expected: dict[str, list[int]]) -> None:
    program = make_planner(model).program
    classes = find_dimension_classes(program)
    tensor = find_tensor_classes(program, classes)
    inputs = {program.values[v].name.removeprefix("state['params']"): v for v in program.inputs}
    found = {name: [d for d, c in enumerate(classes.of_values[inputs[name]]) if c in tensor] for name in expected}
    assert found == expected


def test_sequence_parallel_scatters_onto_positions_where_megatron_reduces() -> None:
    plan = find_baseline("gpt-tiny", "sequence-parallel")
    for kinds in count_in_blocks(plan, "forward").values():
        assert kinds["all-reduce"] == 0
        assert kinds["reduce-scatter"] == 2
        assert kinds["all-gather"] >= 1
    scattered = [op for op in plan.ops if any(c.kind == "reduce-scatter" for c in op.collectives)]
    assert all(op.output_specs[0][1] and not op.output_specs[0][2] for op in scattered)


def test_expert_parallel_splits_experts_and_exchanges_tokens() -> None:
    plan = find_baseline("moe-tiny", "expert-parallel")
    for part in ("params", "mu", "nu"):
        split = {name: spec for name, spec in list_state(plan, part).items() if list_axes(spec)}
        assert set(split) == {"['block_1']['up']", "['block_1']['down']"}
        assert all(spec[0] and not list_axes(spec[1:]) for spec in split.values())
    for role in ("forward", "backward"):
        assert any(c.kind == "all-to-all" for op, _, c in list_collectives(plan) if op.role == role)
    assert "all-reduce" not in {c.kind for op, _, c in list_collectives(plan) if op.role == "forward"}


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_pipelines_have_a_stage_for_each_device_and_equal_layers(name: str) -> None:
    planner = make_planner("mlp-8", num_layers=8, schedule="1f1b")
    plan = baselines.plan(name, planner)
    assert plan.schedule == name
    assert [stage.mesh_shape for stage in plan.stages] == [(1,)] * 8
    assert [(stage.first_layer, stage.last_layer) for stage in plan.stages] == [(i, i) for i in range(8)]
    assert [stage.in_flight for stage in plan.stages] == ([2] * 8 if name == "gpipe" else [2] * 7 + [1])


def test_pipedream_is_data_parallel_inside_of_its_stages() -> None:
    plan = find_baseline("gpt-tiny", "pipedream")
    assert plan.num_stages > 1
    assert {c.kind for _, _, c in list_collectives(plan)} <= {"all-reduce"}
    assert all(list_axes(v.spec) == () for v in plan.values if v.kind == "state")


@functools.cache
def solve_ours(model: str) -> Plan:
    return make_planner(model).solve(on_progress=lambda _: None)


@pytest.mark.parametrize("model", ["gpt-tiny", "moe-tiny", "mlp-8"])
def test_ours_costs_no_more_than_any_baseline(model: str) -> None:
    ours = solve_ours(model)
    table = baselines.compare_with_baselines(make_planner(model))
    assert table.rows[0].plan is ours
    feasible = [row for row in table.rows[1:] if row.plan is not None]
    assert len(feasible) >= 7
    for row in feasible:
        assert row.plan is not None
        assert ours.solver.objective <= row.plan.solver.objective * (1 + 1e-5), row.name


def test_the_table_says_what_does_not_fit_and_why() -> None:
    solve_ours("gpt-tiny")
    table = baselines.compare_with_baselines(make_planner("gpt-tiny"), ["zero-1", "gpipe", "expert-parallel"])
    assert [row.name for row in table.rows] == ["alpaviz", "zero-1", "gpipe", "expert-parallel"]
    assert [row.is_feasible for row in table.rows] == [True, True, False, False]
    assert table.find("zero-1").peak_bytes == find_baseline("gpt-tiny", "zero-1").stages[0].memory.total_bytes
    assert "8 devices needs as many layers" in table.find("gpipe").reason
    assert "no experts" in table.find("expert-parallel").reason
    lines = str(table).splitlines()
    assert len(lines) == 5
    assert "1.00x" in lines[1]
    with pytest.raises(KeyError):
        table.find("zero-4")


def test_the_figure_has_a_column_for_each_plan_with_its_step_as_height() -> None:
    solve_ours("gpt-tiny")
    table = baselines.compare_with_baselines(make_planner("gpt-tiny"), ["zero-1", "gpipe"])
    figure = table.figure
    heights: Counter[str] = Counter()
    for trace in figure.data:
        for column, size in zip(trace.x, trace.y, strict=True):
            heights[column] += size
    assert list(figure.layout.xaxis.categoryarray) == ["alpaviz", "zero-1", "gpipe"]
    for row in table.rows:
        assert heights[row.name] == pytest.approx(1e3 * (row.step_s or 0.0))


def test_a_baseline_that_does_not_fit_the_memory_says_how_much_is_missing() -> None:
    planner = Planner(*get_model("gpt-1.3b", 64), cluster="p3.16xlarge:1", num_microbatches=8, num_layers=2)
    with pytest.raises(InfeasibleError, match=r"Baseline data-parallel: The model does not fit.* GB more") as caught:
        baselines.plan("data-parallel", planner)
    assert caught.value.bytes_short > 1e9


def test_a_batch_that_devices_do_not_divide_is_refused() -> None:
    planner = Planner(*get_model("gpt-tiny", 12), cluster="virtual:8", num_microbatches=2)
    with pytest.raises(InfeasibleError, match="has 6 rows, which 8 devices do not divide"):
        baselines.plan("zero-1", planner)


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(AlpaVizError, match=r"No baseline is called 'fsdp'\. Baselines: data-parallel, zero-1"):
        baselines.plan("fsdp", make_planner("gpt-tiny"))


def test_pins_made_of_a_baseline_keep_its_decisions_until_they_are_taken_away() -> None:
    plan = find_baseline("gpt-tiny", "zero-2")
    planner = Planner(*get_model("gpt-tiny", 32), cluster="virtual:8", num_microbatches=2)
    pins = baselines.list_pins(plan)
    for pin in pins:
        planner.pin(pin)
    again = planner.solve(on_progress=lambda _: None)
    decisions = [(op.name, op.strategy) for op in plan.ops if op.is_decision]
    assert [(op.name, op.strategy) for op in again.ops if op.is_decision] == decisions
    assert list_state(again, "mu") == list_state(plan, "mu")
    # What passes from layer to layer cannot be pinned, so a little may be saved there.
    assert 0.95 * plan.solver.objective < again.solver.objective <= plan.solver.objective * (1 + 1e-5)
    for pin in pins:
        if pin.kind is not PinKind.NUM_STAGES:
            planner.unpin(pin)
    assert planner.solve(on_progress=lambda _: None).solver.objective < plan.solver.objective


def run_and_compare(plan: Plan, planner: Planner, state: Any, batch: Any, expected: Any) -> None:
    with alpaviz.launch(plan, planner.program) as executable:
        ours = executable.fetch(executable(state, batch))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, expected)


@functools.cache
def make_gpt() -> tuple[Planner, Any, Any]:
    """A GPT of eight layers, its state, and the state and loss after a step on one device."""
    state = init_gpt_state(8)
    planner = Planner(adam_step, state, IDS, cluster="virtual:8", num_microbatches=2, num_layers=8)
    return planner, state, jax.jit(adam_step)(state, IDS)


@pytest.mark.parametrize("name", [name for name in baselines.NAMES if name != "expert-parallel"])
def test_a_launched_baseline_gives_the_single_device_result(name: str) -> None:
    planner, state, expected = make_gpt()
    run_and_compare(baselines.plan(name, planner), planner, state, IDS, expected)


@pytest.mark.parametrize("name", ["data-parallel", "expert-parallel"])
def test_a_launched_mixture_of_experts_gives_the_single_device_result(name: str) -> None:
    step, state, batch = make_training_step(MODELS["moe-tiny"], 32, abstract=False, adam=AdamOptions(epsilon=1e-3))
    planner = Planner(step, state, batch, cluster="virtual:8", num_microbatches=2)
    with alpaviz.launch(baselines.plan(name, planner), planner.program) as executable:
        new, metrics = executable.fetch(executable(state, batch))
    expected = average_over_halves(step, state, batch)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * np.abs(b).max()),
        (new["mu"], metrics), expected,
    )  # fmt: skip
