"""The index of a checkpoint: which leaves it holds, and which host's piece covers which part of each.

Leaves are those of the user's state, stacks of layers whole, so that a checkpoint does not depend on the plan, nor on
how the program was taken apart.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import msgspec

from alpaviz.errors import CheckpointError
from alpaviz.program.jax_internals import is_extended
from alpaviz.program.program import Program
from alpaviz.runtime.chunk_runner import find_aval
from alpaviz.runtime.pieces import Bounds
from alpaviz.runtime.state_leaves import StateLeaf, list_state_leaves

INDEX_FORMAT = 1
INDEX_NAME = "index.json"
_STEP_FOLDER = re.compile(r"step_(\d+)")


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A part of a leaf, as one host wrote it.

    Attributes:
        host: whose folder it is in.
        key: its name there.
        bounds: (start, stop) per dimension of the leaf; of PRNG keys, of their words.
        checksum: CRC-32 of its bytes.
    """

    host: int
    key: str
    bounds: Bounds
    checksum: int


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """A leaf of the user's state; `shape` and `bounds` of PRNG keys count their words as a last dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[StoredPiece, ...]


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """Everything about a checkpoint but the data."""

    format: int
    alpaviz: str
    jax: str
    step: int
    leaves: tuple[StoredLeaf, ...]


def find_stored_shape(program: Program, leaf: StateLeaf) -> tuple[int, ...]:
    """Shape of the data of the user's leaf that `leaf` is or belongs to."""
    aval = find_aval(program, leaf.value)
    if not is_extended(aval.dtype):
        return leaf.whole_shape
    words: tuple[int, ...] = jax.eval_shape(jax.random.key_data, aval).shape
    return (*leaf.whole_shape, *words[len(leaf.shape) :])


def make_index(program: Program, step: int, written: Sequence[Mapping[str, Sequence[StoredPiece]]]) -> CheckpointIndex:
    """The index of what the hosts have `written`, by leaf."""
    from alpaviz import __version__

    leaves = {}
    for leaf in list_state_leaves(program):
        pieces = [piece for host in written for piece in host.get(leaf.name, ())]
        leaves[leaf.name] = StoredLeaf(leaf.name, find_stored_shape(program, leaf), leaf.dtype, tuple(pieces))
    return CheckpointIndex(INDEX_FORMAT, __version__, jax.__version__, step, tuple(leaves.values()))


def write_index(index: CheckpointIndex, folder: Path) -> None:
    """Write `index` into `folder`, and make sure that it is on the disk."""
    with open(folder / INDEX_NAME, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(index), indent=1))
        file.flush()
        os.fsync(file.fileno())


def read_index(folder: Path) -> CheckpointIndex:
    """The index of the checkpoint in `folder`.

    Raises:
        CheckpointError: there is none, or it is damaged or of another format.
    """
    path = folder / INDEX_NAME
    try:
        data = path.read_bytes()
        header = msgspec.json.decode(data)
        found = header.get("format") if isinstance(header, dict) else None
        if found == INDEX_FORMAT:
            index = msgspec.json.decode(data, type=CheckpointIndex)
            _refuse_holes(index, folder)
            return index
    except OSError as error:
        raise CheckpointError(f"The checkpoint {folder} has no readable index: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"The checkpoint {folder} is damaged: {INDEX_NAME} cannot be read ({error}).") from None
    raise CheckpointError(
        f"The checkpoint {folder} is of format {found!r}; this AlpaViz reads format {INDEX_FORMAT}. Use the version of "
        "AlpaViz that wrote it."
    )


def _refuse_holes(index: CheckpointIndex, folder: Path) -> None:
    for leaf in index.leaves:
        if not is_covered(leaf):
            raise CheckpointError(f"The checkpoint {folder} is damaged: its pieces do not make up all of {leaf.name}.")


def is_covered(leaf: StoredLeaf) -> bool:
    """Whether the leaf's pieces, which do not overlap, make up all of it."""
    held = 0
    for piece in leaf.pieces:
        if len(piece.bounds) != len(leaf.shape):
            return False
        if any(not 0 <= a < b <= size for (a, b), size in zip(piece.bounds, leaf.shape, strict=True)):
            return False
        held += math.prod(b - a for a, b in piece.bounds)
    return held == math.prod(leaf.shape)


def refuse_other_leaves(index: CheckpointIndex, program: Program, folder: Path) -> None:
    """Raise where the checkpoint's leaves are not those of the program's state; the message names the first leaf."""
    stored = {leaf.name: leaf for leaf in index.leaves}
    planned = {leaf.name: leaf for leaf in list_state_leaves(program)}
    for name, leaf in planned.items():
        found, shape = stored.get(name), find_stored_shape(program, leaf)
        if found is None:
            extra = next((other for other in stored if other not in planned), None)
            hint = f" It has {extra}, which the step does not." if extra is not None else ""
            raise CheckpointError(f"The checkpoint {folder} has no leaf {name}.{hint}")
        if (found.shape, found.dtype) != (shape, leaf.dtype):
            raise CheckpointError(
                f"The checkpoint {folder} has {name} as {found.dtype}{list(found.shape)}; the step was planned for "
                f"{leaf.dtype}{list(shape)}."
            )
    for name in stored:
        if name not in planned:
            raise CheckpointError(f"The checkpoint {folder} has a leaf {name}, which the step's state does not have.")


def name_step_folder(step: int) -> str:
    """Name of the folder of a step's checkpoint."""
    return f"step_{step:08d}"


def list_checkpoints(folder: str | os.PathLike[str]) -> tuple[int, ...]:
    """Steps of the whole checkpoints in `folder`, from the first to the last."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        return ()
    matches = ((_STEP_FOLDER.fullmatch(entry.name), entry) for entry in path.iterdir())
    return tuple(sorted(int(match[1]) for match, entry in matches if match and (entry / INDEX_NAME).exists()))


def find_step_folder(folder: str | os.PathLike[str], step: int | None) -> Path:
    """The folder of the checkpoint of `step`, by default of the newest.

    Raises:
        CheckpointError: there is none.
    """
    steps = list_checkpoints(folder)
    path = Path(folder).expanduser().absolute()
    if not steps:
        raise CheckpointError(f"There is no checkpoint in {path}.")
    if step is None:
        step = steps[-1]
    if step not in steps:
        raise CheckpointError(f"There is no checkpoint of step {step} in {path}; there are {_describe_steps(steps)}.")
    return next(p for p in path.iterdir() if (match := _STEP_FOLDER.fullmatch(p.name)) and int(match[1]) == step)


def _describe_steps(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) <= 6 else f"{len(steps)}, from {steps[0]} to {steps[-1]}"
