"""The command line: plan a built-in model, show and compare plan files, list what there is, open JupyterLab.

Plans and tables go to standard output, progress and errors to standard error. Exit codes: 0; 2 after an error, which is
said in one sentence; 130 after an interrupt. Each command imports what it needs, so `--help` is instant.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from alpaviz import __version__
from alpaviz.errors import AlpaVizError, SolveCancelledError

if TYPE_CHECKING:
    from alpaviz.plan import Plan
    from alpaviz.planner import Planner
    from alpaviz.planner_state import SolveProgress

_EPILOG = "Example: alpaviz plan gpt-1.3b --cluster p3.16xlarge:1 --output gpt.alpaplan.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. `argv` is without the program's name; None takes `sys.argv`.

    Raises:
        SystemExit: arguments are wrong (code 2), or `--help` or `--version` was asked for (code 0).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["lab"]:  # argparse would take options for JupyterLab as its own
            return _open_lab(arguments[1:])
        options = _make_parser().parse_args(arguments)
        code: int = options.run(options)
        sys.stdout.flush()
    except AlpaVizError as error:
        return _complain(str(error))
    except BrokenPipeError:  # the reader of the output, `head` for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'file'}: {error.strerror or error}.")
    except KeyboardInterrupt:
        print("alpaviz: interrupted.", file=sys.stderr)
        return 130
    return code


def _complain(message: str) -> int:
    print(f"alpaviz: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="alpaviz", description="Finds and shows parallel execution plans of JAX training steps.", epilog=_EPILOG
    )
    parser.add_argument("--version", action="version", version=f"alpaviz {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_plan(commands)
    show = commands.add_parser("show", help="show a plan file", description="Show a plan file.")
    show.add_argument("file", metavar="FILE")
    show.set_defaults(run=_show)
    compare = commands.add_parser("compare", help="compare two plan files", description="Say what changed from A to B.")
    compare.add_argument("before", metavar="A")
    compare.add_argument("after", metavar="B")
    compare.set_defaults(run=_compare)
    models = commands.add_parser("models", help="list built-in models", description="List built-in models.")
    models.set_defaults(run=_list_models)
    clusters = commands.add_parser("clusters", help="list cluster presets", description="List cluster presets.")
    clusters.set_defaults(run=_list_clusters)
    commands.add_parser("lab", help="open JupyterLab with AlpaViz; arguments go to it", add_help=False)
    return parser


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser(
        "plan", help="plan a built-in model", description="Plan a built-in model and show the plan.", epilog=_EPILOG
    )
    plan.add_argument("model", metavar="MODEL", help="a name that 'alpaviz models' lists")
    plan.add_argument(
        "--cluster", default="p3.16xlarge:1", help="PRESET:HOSTS, virtual:8 or virtual:2x4 (default: %(default)s)"
    )
    plan.add_argument(
        "--batch-size", type=_positive, metavar="N", help="sequences a step (default: 1024 for large models, else 16)"
    )
    plan.add_argument(
        "--num-microbatches", type=_positive_or_auto, metavar="N",
        help="slices of the batch, or auto to search (default: 8 sequences each for large models, else 4 slices)",
    )  # fmt: skip
    plan.add_argument("--layers", type=_positive, metavar="N", help="layers of the forward pass (default: chosen)")
    plan.add_argument("--stages", type=_positive, metavar="N", help="pin the number of stages (default: chosen)")
    plan.add_argument(
        "--schedule", default="1f1b", metavar="NAME",
        help="1f1b, gpipe, interleaved-2, interleaved-4, zero-bubble, or auto (default: %(default)s)",
    )  # fmt: skip
    plan.add_argument(
        "--recompute", default="auto", metavar="HOW",
        help="auto, never or always make activations again in the backward pass (default: %(default)s)",
    )  # fmt: skip
    plan.add_argument(
        "--solver", default="auto", metavar="NAME", help="auto, exact, ilp or paper (default: %(default)s)"
    )
    plan.add_argument(
        "--time-limit", type=_positive, metavar="SECONDS", help="give up after that long (default: never)"
    )
    plan.add_argument("--output", metavar="FILE", help="write the plan; .alpaplan.json files open in JupyterLab")
    plan.add_argument("--quiet", action="store_true", help="no progress, and no text of the plan if it is written")
    plan.set_defaults(run=_plan)


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def _positive_or_auto(text: str) -> int | Literal["auto"]:
    try:
        return "auto" if text == "auto" else _positive(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number above 0 nor 'auto'") from None


def _plan(options: argparse.Namespace) -> int:
    from alpaviz.plan_text import describe_plan

    if options.output is not None and not (folder := Path(options.output).parent).is_dir():
        raise AlpaVizError(f"{options.output!r} cannot be written: there is no folder {str(folder)!r}.")
    planner = _make_planner(options)
    plan = _solve(planner, (lambda _: None) if options.quiet else _ProgressPrinter(), options.time_limit)
    if options.output is not None:
        planner.save(options.output)
        if not options.quiet:
            print(f"Plan written to {options.output}.", file=sys.stderr)
    if options.output is None or not options.quiet:
        print(describe_plan(plan))
    return 0


def _solve(planner: Planner, report: Callable[[SolveProgress], None], time_limit: int | None) -> Plan:
    if time_limit is None:
        return planner.solve(on_progress=report)
    timer = threading.Timer(time_limit, planner.cancel)
    timer.daemon = True
    timer.start()
    try:
        return planner.solve(on_progress=report)
    except SolveCancelledError:
        raise SolveCancelledError(
            f"No plan was found in {time_limit} s. Give it more time, fewer --layers, or pin the number of --stages."
        ) from None
    finally:
        timer.cancel()


def _make_planner(options: argparse.Namespace) -> Planner:
    from alpaviz.cluster import parse_cluster
    from alpaviz.models import GPTConfig, get_model, get_model_config
    from alpaviz.planner import Planner

    cluster = parse_cluster(options.cluster)
    config = get_model_config(options.model)
    is_large = isinstance(config, GPTConfig) and config.seq >= 1024
    batch_size = options.batch_size or (1024 if is_large else 16)
    microbatches = options.num_microbatches or (max(1, batch_size // 8) if is_large else min(4, batch_size))
    model = get_model(options.model, batch_size)
    planner = Planner(
        model.step, model.state, model.batch, cluster=cluster, num_microbatches=microbatches, num_layers=options.layers,
        schedule=options.schedule, solver=options.solver, recompute=options.recompute, name=options.model,
    )  # fmt: skip
    if options.stages is not None:
        planner.pin_num_stages(options.stages)
    return planner


class _ProgressPrinter:
    """A line on standard error when a phase begins, and at each quarter of one that takes a while."""

    def __init__(self) -> None:
        self._shown = ("", -1)

    def __call__(self, progress: SolveProgress) -> None:
        quarter = 4 * progress.done // max(1, progress.total) if progress.total > 1 else 0
        if (progress.phase, quarter) == self._shown:
            return
        self._shown = progress.phase, quarter
        amount = f" {progress.done}/{progress.total}" if progress.total > 1 else ""
        print(f"[{progress.elapsed_s:6.1f} s] {progress.phase}{amount}", file=sys.stderr, flush=True)


def _show(options: argparse.Namespace) -> int:
    from alpaviz.plan_file import load_plan
    from alpaviz.plan_text import describe_plan

    print(describe_plan(load_plan(options.file)))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from alpaviz.plan_diff import compare_plans
    from alpaviz.plan_file import load_plan
    from alpaviz.plan_text import describe_diff

    print(describe_diff(compare_plans(load_plan(options.before), load_plan(options.after))))
    return 0


def _list_models(_: argparse.Namespace) -> int:
    from alpaviz.models import MODELS, count_parameters, get_model

    for name in MODELS:
        parameters = count_parameters(get_model(name, 1).state["params"])
        size = f"{parameters / 1e9:.3g} billion" if parameters >= 1e9 else f"{parameters / 1e6:.3g} million"
        print(f"{name:<12} {size} parameters")
    return 0


def _list_clusters(_: argparse.Namespace) -> int:
    from alpaviz.cluster import DEVICES, PRESETS

    for name, preset in PRESETS.items():
        memory = DEVICES[preset.device].memory_bytes / 1e9
        print(f"{name:<16} {preset.num_devices} x {preset.device} ({memory:.0f} GB) a host; {preset.source}")
    print(f"{'virtual':<16} CPU devices of this machine: virtual:8, or virtual:2x4 for hosts x devices")
    return 0


def _open_lab(arguments: Sequence[str]) -> int:
    from importlib import import_module

    code: int = import_module("alpaviz.lab").main(list(arguments))
    return code
