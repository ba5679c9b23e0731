"""Measures the devices that are attached, step by step, and keeps what it has."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import jax

from alpaviz.calibration.fit import Calibration, fit_costs
from alpaviz.calibration.kernels import time_case
from alpaviz.calibration.samples import Case, Sample, list_cases
from alpaviz.calibration.store import (
    Setup,
    find_path,
    find_setup,
    load_calibration,
    load_samples,
    save_calibration,
    save_samples,
)
from alpaviz.errors import CalibrationError
from alpaviz.runtime.attached import find_type_name

_KEEP_EVERY_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class MeasureProgress:
    """`done` of `total` cases are measured, `case` is next (None at the end)."""

    done: int
    total: int
    case: Case | None
    elapsed_s: float


Timer = Callable[[Case, Sequence[Any]], float]


def measure(
    devices: Sequence[Any] | None = None,
    *,
    folder: str | PathLike[str] | None = None,
    again: bool = False,
    budget_s: float = 110.0,
    on_progress: Callable[[MeasureProgress], None] | None = None,
    timer: Timer = time_case,
) -> Calibration:
    """Measure `devices` and fit the cost model to them; nothing else should run on them meanwhile.

    What was measured before with the same versions is read and not measured again. An interrupted measurement
    (KeyboardInterrupt, a dead process) goes on where it stopped the next time.

    Args:
        devices: JAX devices of one kind, of one host; by default all of this process's.
        folder: where calibrations are kept; by default the cache folder (`ALPAVIZ_CACHE`).
        again: measure though there is a calibration; the earlier one is kept until the new one is complete.
        budget_s: seconds after which sizes between those measured are left out.
        on_progress: called before each case; None prints a line now and then.
        timer: what measures one case on devices, in seconds.

    Raises:
        CalibrationError: the devices are of several kinds or of one without figures, one of them failed or
            disappeared, or the folder cannot be written. An earlier calibration is kept.
    """
    chosen = list(jax.local_devices() if devices is None else devices)
    setup = _find_setup(chosen)
    path = find_path(setup.device_kind, setup.num_devices, folder)
    if not again and path.exists():
        try:
            return load_calibration(path, setup)
        except CalibrationError as error:
            print(f"{error}", file=sys.stderr)
    is_cpu = chosen[0].platform == "cpu"
    cases = list_cases(len(chosen), is_cpu=is_cpu)
    measurement = _Measurement(setup, path.with_suffix(".measuring"), chosen, on_progress or _Printer())
    samples = measurement.run(cases, budget_s, timer)
    source = f"{setup.num_devices} x {setup.device_kind}, JAX {setup.jax_version}, {time.strftime('%Y-%m-%d')}"
    costs, link = fit_costs(samples, source, len(chosen))
    name = find_type_name(setup.device_kind)
    assert name is not None, "devices without figures were refused"
    calibration = Calibration(
        setup.device_kind, name, len(chosen), setup.alpaviz_version, setup.jax_version, costs, link, tuple(samples),
        len(cases) - len(samples),
    )  # fmt: skip
    save_calibration(calibration, path)
    path.with_suffix(".measuring").unlink(missing_ok=True)
    return calibration


def _find_setup(devices: Sequence[Any]) -> Setup:
    if not devices:
        raise CalibrationError("There are no devices to measure.")
    kinds = sorted({device.device_kind for device in devices})
    if len(kinds) > 1:
        raise CalibrationError(f"Devices of several kinds ({', '.join(kinds)}) cannot be measured together.")
    if find_type_name(kinds[0]) is None:
        raise CalibrationError(f"Devices of kind {kinds[0]!r} have no figures here, so none can be replaced.")
    return find_setup(kinds[0], len(devices))


class _Measurement:
    """Cases that are measured one after another; what is done is kept in `path`."""

    def __init__(
        self, setup: Setup, path: Path, devices: Sequence[Any], report: Callable[[MeasureProgress], None]
    ) -> None:
        self._setup, self._path, self._devices, self._report = setup, path, devices, report
        self._samples = load_samples(path, setup)
        self._began = time.monotonic()
        self._kept_at = self._began

    def run(self, cases: Sequence[Case], budget_s: float, timer: Timer) -> list[Sample]:
        """Samples of all cases for which there is time, those of an interrupted measurement among them."""
        known = {sample.case for sample in self._samples}
        try:
            for number, case in enumerate(cases):
                elapsed = time.monotonic() - self._began
                if elapsed > budget_s:
                    break
                self._report(MeasureProgress(number, len(cases), case, elapsed))
                if case not in known:
                    self._samples.append(Sample(case, self._time(case, timer)))
                    self._keep_now_and_then()
        finally:
            save_samples(self._samples, self._setup, self._path)
        self._report(MeasureProgress(len(cases), len(cases), None, time.monotonic() - self._began))
        return self._samples

    def _time(self, case: Case, timer: Timer) -> float:
        try:
            return timer(case, self._devices[: case.num_devices])
        except (jax.errors.JaxRuntimeError, RuntimeError) as error:
            line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CalibrationError(
                f"The devices failed at {case} ({line}). {len(self._samples)} measurements are kept, and an earlier "
                "calibration too; measure again when the devices are there."
            ) from error

    def _keep_now_and_then(self) -> None:
        if time.monotonic() - self._kept_at > _KEEP_EVERY_S:
            save_samples(self._samples, self._setup, self._path)
            self._kept_at = time.monotonic()


class _Printer:
    """A line about every ten seconds."""

    def __init__(self) -> None:
        self._said_at = -100.0

    def __call__(self, progress: MeasureProgress) -> None:
        if progress.case is None or progress.elapsed_s - self._said_at >= 10:
            self._said_at = progress.elapsed_s
            what = "done" if progress.case is None else str(progress.case)
            print(f"{progress.done:>4} of {progress.total}, {progress.elapsed_s:.0f} s: {what}", flush=True)
