"""Checkpoints as folders: one for each step, whole or not there at all.

    folder/step_00000012/index.json    leaves, and which piece covers which part of each
    folder/step_00000012/host_0000/    the pieces that host 0 owned, in Orbax's format

Each host writes into a hidden folder beside it, which gets its name when everything is on the disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from alpaviz.errors import CheckpointError
from alpaviz.program.program import Program
from alpaviz.runtime.checkpoint_index import (
    CheckpointIndex,
    StoredPiece,
    find_step_folder,
    is_covered,
    list_checkpoints,
    make_index,
    name_step_folder,
    read_index,
    refuse_other_leaves,
    write_index,
)
from alpaviz.runtime.checkpoint_pieces import describe_cause, name_host_folder
from alpaviz.runtime.orbax_process import import_orbax

Written = Sequence[Mapping[str, Sequence[StoredPiece]]]
"""By host: the pieces of each leaf that it wrote."""

PARTIAL_PREFIX = ".partial_"
"""Beginning of the name of a folder that is being written."""


def write_checkpoint(
    program: Program, folder: str | os.PathLike[str], step: int | None, write: Callable[[Path], Written]
) -> Path:
    """Let `write` fill a folder with all hosts' pieces and make a checkpoint of it; its path.

    Args:
        step: by default one more than that of the newest checkpoint in `folder`.

    Raises:
        CheckpointError: it could not be written, or there is one of this step. What was there before is as it was.
    """
    import_orbax()
    parent = Path(folder).expanduser().absolute()
    steps = list_checkpoints(parent)
    if step is None:
        step = steps[-1] + 1 if steps else 0
    if step < 0:
        raise CheckpointError(f"The step of a checkpoint is a number from 0, not {step}.")
    target = parent / name_step_folder(step)
    if target.exists():
        raise CheckpointError(
            f"There is a checkpoint of step {step} in {parent} already: delete it or name another step."
        )
    partial = parent / f"{PARTIAL_PREFIX}{target.name}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _clear(parent)
        partial.mkdir()
        index = make_index(program, step, write(partial))
        _refuse_missing(index, partial)
        write_index(index, partial)
        _flush_folder(partial)
        partial.rename(target)
        _flush_folder(parent)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {target} could not be written: {describe_cause(error)}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _clear(parent: Path) -> None:
    """Remove what a process that died while it wrote has left: it would fill the disk."""
    for entry in parent.glob(f"{PARTIAL_PREFIX}*"):
        shutil.rmtree(entry)


def _refuse_missing(index: CheckpointIndex, partial: Path) -> None:
    for leaf in index.leaves:
        if not is_covered(leaf):
            raise CheckpointError(
                f"{leaf.name} is no longer there: it was donated to a step. Save what the step returned."
            )
        for host in {piece.host for piece in leaf.pieces}:
            if not (partial / name_host_folder(host)).is_dir():
                raise CheckpointError(
                    f"What host {host} wrote is not in {partial.parent}: checkpoints of several hosts need a file "
                    "system that all of them share."
                )


def _flush_folder(folder: Path) -> None:
    """Make sure that the names in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_checkpoint(program: Program, folder: str | os.PathLike[str], step: int | None) -> tuple[Path, CheckpointIndex]:
    """Folder and index of the checkpoint of `step`, by default of the newest.

    Raises:
        CheckpointError: there is none, it is damaged, or it is of another state than the program's.
    """
    import_orbax()
    path = find_step_folder(folder, step)
    index = read_index(path)
    refuse_other_leaves(index, program, path)
    return path, index
