"""Time and outcome of tracing: how long, how it grows, what is understood.

    python -m tests.benchmarks.program [--quick] [--json FILE] [--check]

Prints the seconds to trace GPT-39B written out and scanned, the slope from 6 to 96 layers (microseconds per op), the
share of FLOP in ops without a sharding rule for every model that ships, how many structural classes 48 layers of GPT
make, and what a cold trace of GPT-2 small takes beyond JAX's own (each in a fresh process).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from alpaviz.intra.structure import find_structure
from alpaviz.models import MODELS, get_model
from alpaviz.program import trace_program
from alpaviz.program.program import Program


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and what it is held to."""

    name: str
    value: float
    unit: str
    at_most: float | None

    @property
    def is_met(self) -> bool:
        return self.at_most is None or self.value <= self.at_most


def trace(name: str, cuts: int | None = None, **changes: Any) -> tuple[Program, float]:
    """The program of a model and the seconds that it took, the model's own construction left out.

    Args:
        cuts: layers for planning; None for the automatic number.
        changes: fields of the model's configuration.
    """
    training = get_model(name, batch_size=64, **changes)
    start = time.perf_counter()
    program = trace_program(training.step, training.state, training.batch, num_microbatches=2, num_layers=cuts)
    return program, time.perf_counter() - start


def measure_large(is_quick: bool) -> list[Figure]:
    name = "gpt-2.6b" if is_quick else "gpt-39b"
    written, scanned = trace(name)[1], trace(name, scan=True)[1]
    return [
        Figure(f"{name}, written out", written, "s", None if is_quick else 8.0),
        Figure(f"{name}, scanned over layers", scanned, "s", None if is_quick else 3.0),
    ]


def measure_growth(is_quick: bool) -> list[Figure]:
    """Seconds against ops; the exponent of a power law through the first and last point says whether it is linear."""
    found = []
    points: list[tuple[int, float]] = []
    for layers in (2, 6, 12) if is_quick else (6, 12, 24, 48, 96):
        program, seconds = trace("gpt-350m", num_layers=layers)
        points.append((len(program.ops), seconds))
        found.append(Figure(f"GPT of {layers} layers, {len(program.ops)} ops", seconds, "s", None))
    ops, seconds_ = np.array([p[0] for p in points]), np.array([p[1] for p in points])
    slope = float(np.polyfit(ops, seconds_, 1)[0])
    exponent = float(np.log(seconds_[-1] / seconds_[0]) / np.log(ops[-1] / ops[0]))
    found.append(Figure("slope", slope * 1e6, "µs/op", None))
    found.append(Figure("exponent of the growth", exponent, "", 1.15))
    return found


def measure_understanding(names: Sequence[str]) -> list[Figure]:
    found = []
    for name in names:
        program, _ = trace(name)
        total = sum(op.flops for op in program.ops)
        opaque = sum(op.flops for op in program.ops if op.rule.is_opaque)
        found.append(Figure(f"{name}: FLOP in opaque ops", 100 * opaque / total, "%", 0.0))
    return found


def measure_classes(is_quick: bool) -> list[Figure]:
    layers = 8 if is_quick else 48
    # One layer for planning per block, and one for the head, which is heavy in a model of this width.
    program, _ = trace("gpt-350m", cuts=layers + 1, num_layers=layers)
    classes = len(find_structure(program).representatives)
    return [Figure(f"structural classes of {layers} layers of GPT", classes, "", 3)]


_COLD = """
import time
import jax
from alpaviz import program
from alpaviz.models import make_training_step
from alpaviz.models.gpt import GPTConfig

config = GPTConfig(hidden=768, num_layers=12, num_heads=12, vocab=50257, seq=1024)
training = make_training_step(config, batch_size=8)
is_floor = {is_floor}
if is_floor:
    program.value_and_grad = jax.value_and_grad  # the step looks it up when it is called
start = time.perf_counter()
if is_floor:
    jax.make_jaxpr(training.step)(training.state, training.batch)
else:
    program.trace_program(training.step, training.state, training.batch)
print(time.perf_counter() - start)
"""
"""Seconds of the first trace in a process: of JAX alone with JAX's own gradient, or of AlpaViz."""


def time_cold(*, is_floor: bool) -> float:
    """Median seconds of three fresh processes, imports and the model's construction left out."""
    command = [sys.executable, "-c", _COLD.format(is_floor=is_floor)]
    return float(np.median([float(subprocess.check_output(command, text=True).split()[-1]) for _ in range(3)]))


def measure_cold() -> list[Figure]:
    floor, whole = time_cold(is_floor=True), time_cold(is_floor=False)
    return [
        Figure("gpt-2 small, cold: JAX's make_jaxpr alone", floor, "s", None),
        Figure("gpt-2 small, cold: whole trace", whole, "s", None),
        Figure("gpt-2 small, cold: beyond JAX, of JAX's", (whole - floor) / floor, "", 0.5),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small models only")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="fail where a figure misses its target")
    options = parser.parse_args(arguments)
    quick = options.quick
    trace("gpt-tiny")  # imports and JAX's own start are not what is measured
    names = [name for name in MODELS if not quick or name.endswith("tiny")]
    figures = measure_cold() + measure_large(quick) + measure_growth(quick)
    figures += measure_understanding(names) + measure_classes(quick)
    for figure in figures:
        missed = "" if figure.is_met else ": MISSED"
        target = "" if figure.at_most is None else f"  (at most {figure.at_most:g}{missed})"
        print(f"{figure.name:55} {figure.value:10.3f} {figure.unit}{target}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([asdict(figure) for figure in figures], file, indent=1)
    return int(options.check and not all(figure.is_met for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
