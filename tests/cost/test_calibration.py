"""Calibration: what a fit finds in samples, what is kept on disk, and what plans made with it say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpaviz.calibration import Calibration, Sample, fit_costs, load_calibration, measuring, save_calibration
from alpaviz.calibration.fit import predict_case
from alpaviz.calibration.measuring import MeasureProgress, measure
from alpaviz.calibration.samples import COLLECTIVES, Case, list_cases
from alpaviz.calibration.store import find_path, find_setup
from alpaviz.cluster import Cluster, Link, parse_cluster
from alpaviz.cluster.measured import MeasuredCollective, MeasuredCosts, MeasuredRate
from alpaviz.cluster.mesh import SubmeshShape
from alpaviz.cluster.submesh import make_logical_mesh
from alpaviz.cost import price_collective, price_compute
from alpaviz.errors import CalibrationError, InvalidClusterError
from alpaviz.plan_file import plan_from_json, plan_to_json
from alpaviz.plan_text import describe_plan
from alpaviz.planner import Planner
from alpaviz.stage_cache import make_key
from alpaviz.sweep import change_cluster

LINK = Link(1e10, 1e-4)
CLASSES = ("matmul", "convolution", "gather", "elementwise", "transcendental", "reduction", "update")


def make_costs(parallel: float = 2.0, scale: float = 1.0, latency: float = 1e-5) -> MeasuredCosts:
    rates = tuple(
        MeasuredRate(name, "float32", 1e-6 if name in ("matmul", "convolution", "gather") else 0.0,
                     ((1e5, scale * 1e-11 * (k + 1)),), parallel)
        for k, name in enumerate(CLASSES)
    )  # fmt: skip
    collectives = tuple(
        MeasuredCollective(kind, group, latency * group, scale * 1e-10 * group, parallel)
        for kind in COLLECTIVES
        for group in (2, 4, 8)
    )
    return MeasuredCosts("synthetic", 8, rates, collectives, 2 / (8 * scale * 4e-11), 1e-5, 2e-5)


def make_samples(costs: MeasuredCosts, link: Link = LINK) -> list[Sample]:
    return [Sample(case, predict_case(case, costs, link)) for case in list_cases(8, is_cpu=True)]


def make_calibration(costs: MeasuredCosts | None = None, **changes: Any) -> Calibration:
    costs = costs or make_costs()
    setup = find_setup("cpu", 8)
    found = Calibration(
        "cpu", "CPU", 8, setup.alpaviz_version, setup.jax_version, costs, LINK, tuple(make_samples(costs))
    )
    return dataclasses.replace(found, **changes)


# What a fit finds


@settings(max_examples=8)
@given(
    parallel=st.sampled_from((1.0, 2.0, 4.0, 8.0)),
    scale=st.floats(0.01, 100),
    latency=st.floats(1e-6, 1e-3),
)
def test_a_fit_recovers_the_figures_behind_samples_without_noise(parallel: float, scale: float, latency: float) -> None:
    costs = make_costs(parallel, scale, latency)
    link = LINK
    fitted, found = fit_costs(make_samples(costs, link), "synthetic", 8)
    for case in list_cases(8, is_cpu=True):
        assert predict_case(case, fitted, found) == pytest.approx(predict_case(case, costs, link), rel=1e-3), case


@settings(max_examples=8)
@given(parallel=st.sampled_from((1.0, 2.0, 4.0, 8.0)))
def test_a_fit_finds_how_many_devices_work_at_full_speed(parallel: float) -> None:
    fitted, _ = fit_costs(make_samples(make_costs(parallel)), "synthetic", 8)
    assert fitted.parallel_devices == pytest.approx(parallel, rel=1e-6)


@settings(max_examples=8)
@given(noise=st.lists(st.floats(0.9, 1.1), min_size=30, max_size=30))
def test_a_fit_of_noisy_samples_is_as_close_as_the_noise(noise: list[float]) -> None:
    costs = make_costs()
    exact = make_samples(costs)
    noisy = [Sample(s.case, s.seconds * noise[k % len(noise)]) for k, s in enumerate(exact)]
    fitted, link = fit_costs(noisy, "synthetic", 8)
    for sample in exact:
        assert predict_case(sample.case, fitted, link) == pytest.approx(sample.seconds, rel=0.35), sample.case


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_sample_that_took_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(CalibrationError, match="must take some time"):
        fit_costs([Sample(Case("matmul", "float32", (32, 32), 1), seconds)], "synthetic", 1)


def test_samples_without_a_computation_are_refused() -> None:
    with pytest.raises(CalibrationError, match="No computation"):
        fit_costs([Sample(Case("call", "float32", (64,), 1), 1e-3)], "synthetic", 1)


def test_one_device_alone_has_neither_collectives_nor_a_link() -> None:
    cases = list_cases(1, is_cpu=True)
    samples = [Sample(case, predict_case(case, make_costs(), None)) for case in cases]
    costs, link = fit_costs(samples, "synthetic", 1)
    assert (costs.collectives, link) == ((), None)


# Measuring


class Timer:
    """Stands for the devices: seconds from known figures, and a failure at the case with number `fails_at`."""

    def __init__(self, fails_at: int | None = None, error: BaseException | None = None) -> None:
        self.cases: list[Case] = []
        self._fails_at, self._error = fails_at, error

    def __call__(self, case: Case, devices: Sequence[Any]) -> float:
        if self._error is not None and len(self.cases) == self._fails_at:
            raise self._error
        self.cases.append(case)
        return predict_case(case, make_costs(), LINK)


def run(folder: Path, timer: Timer, **options: Any) -> Calibration:
    return measure(folder=folder, on_progress=lambda _: None, timer=timer, **options)


def test_an_interrupted_measurement_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Timer(20, KeyboardInterrupt()))
    rest = Timer()
    calibration = run(tmp_path, rest)
    assert len(rest.cases) == len(calibration.samples) - 20


def test_a_resumed_measurement_finds_what_an_uninterrupted_one_finds(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", Timer(20, KeyboardInterrupt()))
    assert run(tmp_path / "a", Timer()).costs == run(tmp_path / "b", Timer()).costs


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    first = run(tmp_path, Timer())
    second = Timer()
    assert run(tmp_path, second) == first
    assert second.cases == []


def test_a_device_that_disappears_is_named_and_the_earlier_calibration_kept(tmp_path: Path) -> None:
    earlier = run(tmp_path, Timer())
    with pytest.raises(CalibrationError, match=r"failed at .* \(device is gone\)"):
        run(tmp_path, Timer(10, jax.errors.JaxRuntimeError("device is gone")), again=True)
    assert run(tmp_path, Timer()) == earlier


def test_measuring_goes_on_after_a_device_came_back(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError):
        run(tmp_path, Timer(10, jax.errors.JaxRuntimeError("device is gone")))
    rest = Timer()
    calibration = run(tmp_path, rest)
    assert len(rest.cases) == len(calibration.samples) - 10


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    seen: list[MeasureProgress] = []
    measure(folder=tmp_path, on_progress=seen.append, timer=Timer())
    assert (seen[0].done, seen[-1].done, seen[-1].case) == (0, seen[-1].total, None)


def test_no_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="no devices"):
        measure([], folder=tmp_path)


def test_a_budget_leaves_sizes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(measuring.time, "monotonic", lambda: float(next(clock)))
    calibration = run(tmp_path, Timer(), budget_s=300.0)
    total = len(list_cases(len(jax.local_devices()), is_cpu=True))
    assert 0 < calibration.num_left_out < total
    assert len(calibration.samples) + calibration.num_left_out == total


# Files


def test_a_calibration_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    calibration = make_calibration()
    save_calibration(calibration, tmp_path / "file")
    assert load_calibration(tmp_path / "file") == calibration


def test_a_file_of_another_device_is_refused(tmp_path: Path) -> None:
    save_calibration(make_calibration(), tmp_path / "file")
    with pytest.raises(CalibrationError, match="devices of kind cpu, here it is NVIDIA H100"):
        load_calibration(tmp_path / "file", find_setup("NVIDIA H100", 8))


@pytest.mark.parametrize(("field", "name"), [("jax_version", "JAX"), ("alpaviz_version", "AlpaViz")])
def test_a_file_of_another_version_is_refused(tmp_path: Path, field: str, name: str) -> None:
    save_calibration(make_calibration(**{field: "0.0.1"}), tmp_path / "file")
    with pytest.raises(CalibrationError, match=f"measured with {name} 0.0.1, here it is"):
        load_calibration(tmp_path / "file")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": 1}'])
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "file").write_bytes(damage)
    with pytest.raises(CalibrationError, match="damaged"):
        load_calibration(tmp_path / "file")


def test_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    save_calibration(make_calibration(), tmp_path / "file")
    data = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(data.replace(b'"num_left_out":0', b'"num_left_out":1'))
    with pytest.raises(CalibrationError, match="checksum"):
        load_calibration(tmp_path / "file")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="No such file"):
        load_calibration(tmp_path / "file")


def test_measuring_replaces_a_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = find_path("cpu", len(jax.local_devices()), tmp_path)
    path.write_bytes(b"damaged")
    calibration = run(tmp_path, Timer())
    assert load_calibration(path) == calibration


def test_without_a_cache_folder_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALPAVIZ_CACHE", "off")
    with pytest.raises(CalibrationError, match="give one"):
        find_path("cpu", 8)


# What plans are priced by


def calibrate(text: str = "virtual:8", costs: MeasuredCosts | None = None) -> Cluster:
    return parse_cluster(text).calibrated(make_calibration(costs))


def test_ops_take_what_was_measured() -> None:
    costs = make_costs(parallel=8.0)
    device = calibrate(costs=costs).device_type
    rate = costs.find_rate("matmul", "float32")
    assert rate is not None
    assert price_compute(1e9, 8.0, "float32", device, "matmul") == pytest.approx(rate.floor_s + 1e9 * rate.knots[0][1])


def test_devices_that_share_hardware_take_longer_together() -> None:
    device = calibrate(costs=make_costs(parallel=2.0)).device_type
    alone = price_compute(1e9, 8.0, "float32", device, "matmul", 1)
    assert price_compute(1e9, 8.0, "float32", device, "matmul", 8) == pytest.approx(4 * alone)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_collectives_inside_a_host_take_what_was_measured(kind: Any) -> None:
    costs = make_costs(parallel=8.0)
    mesh = make_logical_mesh(calibrate(costs=costs), SubmeshShape(1, 8), (8,))
    measured = next(c for c in costs.collectives if (c.kind, c.group_size) == (kind, 8))
    expected = measured.latency_s + 1e6 * measured.seconds_per_byte
    assert price_collective(kind, 1e6, mesh, ("x",)) == pytest.approx(expected)


def test_collectives_between_hosts_stay_as_described() -> None:
    described, measured = parse_cluster("virtual:2x4"), calibrate("virtual:2x4")
    meshes = [make_logical_mesh(c, SubmeshShape(2, 4), (2, 4)) for c in (described, measured)]
    assert price_collective("all-reduce", 1e6, meshes[0], ("x",)) == price_collective(
        "all-reduce", 1e6, meshes[1], ("x",)
    )


def test_a_calibration_of_other_devices_is_refused() -> None:
    with pytest.raises(InvalidClusterError, match="'V100-16GB', the calibration is of 'CPU'"):
        parse_cluster("p3.16xlarge").calibrated(make_calibration())


def test_measured_costs_below_zero_are_refused() -> None:
    with pytest.raises(InvalidClusterError, match="memory_bandwidth must be numbers of at least 0"):
        dataclasses.replace(make_costs(), memory_bandwidth=-1.0)


@pytest.mark.parametrize("varied", ["flops", "link_bandwidth"])
def test_sweeps_change_measured_costs_too(varied: str) -> None:
    cluster = calibrate()
    now = {"flops": cluster.device_type.peak_flops("float32"), "link_bandwidth": cluster.hosts[0].link.bandwidth}
    changed = change_cluster(cluster, {varied: 2 * now[varied]}, "float32").device_type.measured
    assert changed == make_costs().scale(2.0 if varied == "flops" else 1.0, 2.0 if varied != "flops" else 1.0)


def test_solved_stages_of_other_measured_costs_are_not_taken() -> None:
    meshes = [
        make_logical_mesh(cluster, SubmeshShape(1, 8), (8,))
        for cluster in (parse_cluster("virtual:8"), calibrate(), calibrate(costs=make_costs(scale=2.0)))
    ]
    assert len({make_key("structure", mesh, "auto") for mesh in meshes}) == 3


@pytest.fixture(scope="module")
def planner() -> Planner:
    from alpaviz.models import get_model

    return Planner(*get_model("mlp-4"), cluster=calibrate("virtual:4"), num_microbatches=2, cache=None)


def test_plans_made_with_measured_costs_say_so(planner: Planner) -> None:
    assert "measured costs: synthetic" in describe_plan(planner.solve(on_progress=lambda _: None))


def test_plans_made_without_do_not_speak_of_measured_costs() -> None:
    from alpaviz.models import get_model

    plain = Planner(*get_model("mlp-2"), cluster="virtual:2", cache=None)
    assert "measured" not in describe_plan(plain.solve(on_progress=lambda _: None))


def test_static_views_of_plans_made_with_measured_costs_say_so(planner: Planner) -> None:
    from alpaviz.widget.static_view import render_plan_html

    assert "measured costs" in render_plan_html(planner.solve(on_progress=lambda _: None))


def test_plan_files_keep_measured_costs(planner: Planner) -> None:
    plan = planner.solve(on_progress=lambda _: None)
    assert plan_from_json(plan_to_json(plan)).cluster.device_type.measured == make_costs()


def test_stages_on_shared_hardware_take_turns(planner: Planner) -> None:
    planner.pin_num_stages(2)
    plan = planner.solve(on_progress=lambda _: None)
    work = sum(2 * (stage.forward_s + stage.backward_s) for stage in plan.stages)
    assert plan.estimate.step_s > work


def test_figures_show_each_sample() -> None:
    calibration = make_calibration()
    points = sum(len(trace.x) for trace in calibration.figure().data if trace.name != "equal")
    assert points == len(calibration.samples)


def test_the_text_of_a_calibration_has_a_line_for_each_kind_of_sample() -> None:
    calibration = make_calibration()
    names = {sample.case.name for sample in calibration.samples}
    assert all(f"\n  {name} " in str(calibration) for name in names)
