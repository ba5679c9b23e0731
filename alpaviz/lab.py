"""`alpaviz lab`: JupyterLab, opened on the tour.

Notebooks come from the checkout that this package lies in, else from the package's shared data
(`share/alpaviz/notebooks`), copied into the working directory where they are missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from alpaviz.errors import AlpaVizError

TOUR = "00_tour.ipynb"
SHARED = Path("share/alpaviz/notebooks")


def find_checkout_notebooks() -> Path | None:
    """`notebooks/` of the working directory, or of the repository that this module lies in, if it holds the tour."""
    roots = (Path.cwd(), Path(__file__).resolve().parents[1])
    return next((root / "notebooks" for root in roots if (root / "notebooks" / TOUR).exists()), None)


def find_shared_notebooks() -> Path | None:
    """The notebooks that were installed with the package, if it holds the tour."""
    prefixes = dict.fromkeys((sysconfig.get_path("data"), sys.prefix, sys.base_prefix))
    return next((Path(p) / SHARED for p in prefixes if p and (Path(p) / SHARED / TOUR).exists()), None)


def prepare_notebooks(folder: Path | None = None) -> Path:
    """Path of the tour: in the checkout, else in `folder`/notebooks (by default of the working directory).

    Notebooks that are there already are kept as they are.

    Raises:
        AlpaVizError: neither a checkout nor installed notebooks are found.
    """
    checkout = find_checkout_notebooks() if folder is None else None
    if checkout is not None:
        return checkout / TOUR
    shared = find_shared_notebooks() or find_checkout_notebooks()
    if shared is None:
        raise AlpaVizError(
            f"No notebooks found: neither ./notebooks/{TOUR} nor {SHARED / TOUR} in {sys.prefix}. "
            "Run it in AlpaViz's repository, or install the package again."
        )
    target = (folder or Path.cwd()) / "notebooks"
    target.mkdir(parents=True, exist_ok=True)
    for notebook in sorted(shared.glob("*.ipynb")):
        if not (target / notebook.name).exists():
            shutil.copyfile(notebook, target / notebook.name)
    return target / TOUR


def make_command(tour: Path, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that starts JupyterLab on `tour`; `arguments` are JupyterLab's own."""
    root = tour.parent.parent
    command = [
        sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{tour.relative_to(root).as_posix()}",
    ]  # fmt: skip
    if hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in arguments:
        command.append("--allow-root")
    return [*command, *arguments]


def main(arguments: Sequence[str] = ()) -> int:
    """Start JupyterLab on the tour and wait until it ends; its exit status.

    Args:
        arguments: `--no-browser`, `--port N`; any other goes to JupyterLab as it is.

    Raises:
        AlpaVizError: no notebooks are found.
    """
    parser = argparse.ArgumentParser(
        prog="alpaviz lab", description="Open JupyterLab on the tour.", epilog="Other arguments go to JupyterLab."
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address, for a server")
    parser.add_argument("--port", type=int, help="port to listen on (JupyterLab's default is 8888)")
    known, others = parser.parse_known_args(arguments)
    if known.no_browser:
        others.append("--no-browser")
    if known.port is not None:
        others.append(f"--ServerApp.port={known.port}")
    tour = prepare_notebooks()
    print(f"Opening {tour} in JupyterLab. Stop it with Ctrl-C.", flush=True)
    try:
        return subprocess.call(make_command(tour, others))
    except KeyboardInterrupt:
        return 0
