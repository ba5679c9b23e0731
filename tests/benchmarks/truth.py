"""How far plans are from what XLA compiles: bytes of all collectives, and peak memory.

    python -m tests.benchmarks.truth [--quick] [--check] [--json FILE] [--plans N] [--models NAME ...] [--seed N]

For each model on 4 and 8 devices: the optimum and N random feasible plans (random pins of strategies and logical
meshes), each lowered and compiled for virtual CPU devices as `plan.verify` does it, but all in this process. `--check`
exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alpaviz.planner import Planner
    from alpaviz.verify.report import StageCheck

DEVICES = (4, 8)
MODELS = {
    "gpt-tiny": 1, "moe-tiny": 1, "wide-resnet-tiny": 1, "vit-tiny": 1, "unet-tiny": 1, "llama-tiny": 1,
}  # fmt: skip
"""Model -> microbatches."""
BATCH = 16
CLOSE, FAR, MEMORY, SHARE = 0.05, 0.2, 0.1, 0.9
"""Targets: collective bytes within `CLOSE` for `SHARE` of the plans and within `FAR` for all; peak memory within
`MEMORY` for `SHARE`."""
_MOST_PINS = 4


@dataclass(frozen=True, slots=True)
class Compared:
    """One plan: errors are shares of what was compiled, `added` what XLA adds on its own, as text."""

    model: str
    devices: int
    plan: str
    predicted_bytes: float
    compiled_bytes: float
    collectives_error: float
    memory_error: float
    added: tuple[str, ...]
    missing: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        name = f"{self.model} on {self.devices}, {self.plan}"
        return (
            f"{name:<44} {self.predicted_bytes:>10.3g} {self.compiled_bytes:>10.3g} {self.collectives_error:>+8.1%} "
            f"{self.memory_error:>+8.1%} {self.seconds:>6.1f}"
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """A share of plans with its target, the least that it may be."""

    name: str
    value: float
    target: float

    @property
    def is_met(self) -> bool:
        return self.value >= self.target

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        return f"{self.name:<58} {self.value:>7.1%}  at least {self.target:.0%}  {verdict}"


def main() -> int:
    """Compare, print a line for each plan and the shares; 1 if `--check` was given and a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the optimum and one random plan of each, on 4 devices")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record for each plan")
    parser.add_argument("--plans", type=int, default=10, help="random plans of each model and number of devices")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={max(DEVICES)}"
    os.environ.update(XLA_FLAGS=flags.strip(), JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="2")
    found = []
    print(f"{'plan':<44} {'predicted':>10} {'compiled':>10} {'bytes':>8} {'memory':>8} {'s':>6}")
    for compared in compare(options):
        print(compared, flush=True)
        for note in (*compared.added[:3], *compared.missing[:3]):
            print(f"    {note}", flush=True)
        found.append(compared)
    figures = list_figures(found)
    print(*figures, sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(compared) for compared in found], indent=1) + "\n")
    return int(options.check and not all(figure.is_met for figure in figures))


def compare(options: argparse.Namespace) -> Iterator[Compared]:
    """Every plan held against XLA."""
    from alpaviz.models import get_model
    from alpaviz.planner import Planner

    count = 1 if options.quick else options.plans
    for model in options.models:
        for devices in DEVICES[:1] if options.quick else DEVICES:
            planner = Planner(
                *get_model(model, BATCH), cluster=f"virtual:{devices}", num_microbatches=MODELS.get(model, 1),
                cache=None,
            )  # fmt: skip
            chance = random.Random(f"{options.seed} {model} {devices}")
            yield hold(planner, model, devices, "optimum")
            for number in range(count):
                if pin_at_random(planner, chance):
                    yield hold(planner, model, devices, f"random {number}")


def pin_at_random(planner: Planner, chance: random.Random) -> bool:
    """A feasible plan with a random logical mesh of one stage or two, and random strategies of a few ops."""
    from alpaviz.errors import AlpaVizError

    for _ in range(20):
        planner.clear_pins()
        try:
            planner.pin_num_stages(chance.choice((1, 1, 2)))
            plan = planner.solve(on_progress=lambda _: None)
            count = plan.stages[0].num_devices
            shapes = [f"{a}x{count // a}" for a in (2, 4) if a < count and count % a == 0] + [f"{count}"]
            if plan.num_stages == 1:
                planner.pin_logical_mesh(chance.choice(shapes))
                plan = planner.solve(on_progress=lambda _: None)
            decided = [op.name for op in plan.ops if op.is_decision and op.role != "update"]
            for name in chance.sample(decided, min(len(decided), chance.randint(1, _MOST_PINS))):
                ways = planner.alternatives(name)
                planner.pin_strategy(name, chance.choice(ways).strategy)
            planner.solve(on_progress=lambda _: None)
        except AlpaVizError:
            continue
        return True
    return False


def hold(planner: Planner, model: str, devices: int, name: str) -> Compared:
    """The planner's plan against XLA, compiled here."""
    import jax

    from alpaviz.verify.report import Verification
    from alpaviz.verify.stages import StageVerifier

    plan = planner.plan or planner.solve(on_progress=lambda _: None)
    began = time.perf_counter()
    verifier = StageVerifier(plan, planner.program, jax.devices())
    checks: Sequence[StageCheck] = [verifier.check(stage) for stage in range(plan.num_stages)]
    verification = Verification(model, tuple(checks), time.perf_counter() - began)
    meshes = ", ".join("x".join(map(str, stage.mesh_shape)) for stage in plan.stages)
    return Compared(
        model, devices, f"{name} ({meshes})", sum(c.predicted_bytes for c in checks),
        sum(c.compiled_bytes for c in checks), verification.collectives_error, verification.memory_error,
        tuple(f"added: {c}" for s in checks for c in s.added),
        tuple(f"missing: {c}" for s in checks for c in s.missing),
        verification.seconds,
    )  # fmt: skip


def list_figures(found: Sequence[Compared]) -> list[Figure]:
    """Shares of plans that are close."""

    def share(name: str, errors: Sequence[float], most: float, target: float) -> Figure:
        return Figure(name, sum(abs(e) <= most for e in errors) / max(1, len(errors)), target)

    collectives, memory = [c.collectives_error for c in found], [c.memory_error for c in found]
    figures = [
        share(f"{len(found)} plans: collective bytes within {CLOSE:.0%}", collectives, CLOSE, SHARE),
        share(f"{len(found)} plans: collective bytes within {FAR:.0%}", collectives, FAR, 1.0),
        share(f"{len(found)} plans: peak memory within {MEMORY:.0%}", memory, MEMORY, SHARE),
    ]
    for model in dict.fromkeys(c.model for c in found):
        own = [c for c in found if c.model == model]
        figures.append(
            share(f"  {model}: collective bytes within {CLOSE:.0%}", [c.collectives_error for c in own], CLOSE, SHARE)
        )
        figures.append(
            share(f"  {model}: peak memory within {MEMORY:.0%}", [c.memory_error for c in own], MEMORY, SHARE)
        )
    return figures


if __name__ == "__main__":
    sys.exit(main())
