"""What a launched plan is to a user: a training step."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from alpaviz.cluster import Cluster, parse_cluster
from alpaviz.errors import LaunchError
from alpaviz.plan import Plan
from alpaviz.program.program import Program
from alpaviz.runtime.checkpoint_index import CheckpointIndex
from alpaviz.runtime.checkpoints import Written, open_checkpoint, write_checkpoint
from alpaviz.runtime.statistics import DevicePeak, RunStatistics, StepClock, summarise_run
from alpaviz.schedule import Timeline

MeasuredTimes = dict[int, dict[str, float]]
"""By stage: `forward_s` and `backward_s` of one microbatch, `update_s`, and `step_s` of the whole step."""


class Executable(ABC):
    """A launched plan: `executable(state, *batch)` is the training step that it was traced from.

    The user's arrays are never consumed, unless `launch` was told to donate the state. The state that a step returns
    can be passed to the next without moving. Close it, or use it in a `with` block.
    """

    def __init__(self, plan: Plan, program: Program, record_every: int | None = None) -> None:
        self.plan, self.program, self.record_every = plan, program, record_every
        self._clock = StepClock()
        self._batch_size: int | None = None
        self._recording: Timeline | None = None
        self.measured: MeasuredTimes | None = None
        self.is_closed = False

    @abstractmethod
    def __call__(self, state: Any, *batch: Any) -> Any:
        """One training step; results in the structure of the step's."""

    @abstractmethod
    def place(self, state: Any) -> Any:
        """`state` on the plan's devices, in the plan's layouts."""

    @abstractmethod
    def initialize(self, init_fn: Callable[[Any], Any], key: Any) -> Any:
        """The state `init_fn(key)`, created in the plan's layouts: no device or host ever holds what the plan splits.

        Args:
            init_fn: makes a state of the step's structure; traced once for each stage.
            key: a PRNG key, or any tree of arrays that `init_fn` takes.

        Raises:
            LaunchError: the state is not the one that was planned for.
        """

    def save(self, state: Any, folder: str | PathLike[str], step: int | None = None) -> Path:
        """Write `state` as a checkpoint, each host what it owns: whole or not at all. Its path, in `folder`.

        It can be restored onto any plan of the same step. One executable at a time may save into a folder; hosts must
        share the file system that it is in.

        Args:
            step: number of training steps that led to the state; by default one more than that of the newest
                checkpoint in `folder`.

        Raises:
            CheckpointError: it could not be written; older checkpoints are as they were.
            LaunchError: `state` is not the step's.
        """
        self.refuse_if_unusable()
        return write_checkpoint(self.program, folder, step, lambda partial: self._write_pieces(state, partial))

    def restore(self, folder: str | PathLike[str], step: int | None = None) -> Any:
        """The state of a checkpoint, in the plan's layouts.

        No device ever holds more than its part; a host reads what its devices need, leaf after leaf.

        Args:
            step: that the checkpoint was saved at; by default the newest (`alpaviz.list_checkpoints(folder)[-1]`).

        Raises:
            CheckpointError: there is no such checkpoint, it is damaged, or of another state; the leaf is named.
        """
        self.refuse_if_unusable()
        path, index = open_checkpoint(self.program, folder, step)
        return self._read_pieces(path, index)

    @abstractmethod
    def _write_pieces(self, state: Any, partial: Path) -> Written:
        """Let each host write its pieces of `state` into `partial`."""

    @abstractmethod
    def _read_pieces(self, folder: Path, index: CheckpointIndex) -> Any:
        """The state in a checkpoint of the program's own leaves."""

    def replan(self, cluster: Cluster | str | None = None, *, devices: Sequence[Any] | None = None) -> Executable:
        """The same step planned for other devices and launched there; this executable is closed.

        Number of microbatches, schedule and options of the launch stay, and so do pins that are possible there. Go on
        with `restore`: a checkpoint fits any plan.

        Args:
            cluster: to plan for; by default what is left of this one's (on Ray, hosts whose workers answer; else the
                devices of this process).
            devices: those to use locally; by default the ones given to `launch`.

        Raises:
            InfeasibleError: the step does not fit there; this executable is left open.
            LaunchError: there are fewer devices than the cluster has.
        """
        from alpaviz.runtime.replan import plan_again

        if cluster is None:
            cluster = self.find_remaining_cluster()
        elif isinstance(cluster, str):
            cluster = parse_cluster(cluster)
        plan, program = plan_again(self.plan, self.program, cluster)
        self.close()
        return self._relaunch(plan, program, devices)

    @abstractmethod
    def find_remaining_cluster(self) -> Cluster:
        """What of the plan's devices can be used still."""

    @abstractmethod
    def _relaunch(self, plan: Plan, program: Program, devices: Sequence[Any] | None) -> Executable:
        """Another plan of the same step, launched as this one was."""

    @abstractmethod
    def fetch(self, tree: Any) -> Any:
        """`tree` (a state or a result) as arrays of the host."""

    @abstractmethod
    def profile(self, state: Any, *batch: Any) -> Any:
        """A training step's results; the step is made several times, to fill `measured` and `recording`."""

    def _note_step(self, leaves: Sequence[Any]) -> bool:
        """A step begins; whether it is to be recorded. The first is too, so that later ones compile nothing."""
        is_recorded = self.record_every is not None and self._clock.num_steps % self.record_every == 0
        if not self._clock.num_steps:
            axes = zip(leaves, self.program.batch_axes, strict=True)
            self._batch_size = next((leaf.shape[axis] for leaf, axis in axes if axis is not None), None)
        self._clock.note_step()
        return is_recorded

    @property
    def recording(self) -> Timeline | None:
        """When each chunk of the step recorded last really ran, on every stage; None before one was.

        `profile` records a step, and so does each `record_every`-th step of the launch. A chunk's time begins when it
        is issued, its inputs are there and the chunk before it on its stage has ended, and ends when its results are
        there: on the first device of the mesh in this process. Clocks of several hosts are brought together to within
        half the time that a message to a worker and back takes. Steps of a one-stage plan are a single call, locally:
        only `profile` records them, chunk by chunk.
        """
        self._keep_recording()
        return self._recording

    @abstractmethod
    def _keep_recording(self) -> None:
        """Make the step recorded last the present recording, after it has ended."""

    def export_trace(self, path: str | PathLike[str]) -> Path:
        """Write the recorded step, and the plan's predicted one below it, for ui.perfetto.dev or chrome://tracing.

        Raises:
            LaunchError: nothing was recorded yet.
        """
        from alpaviz.runtime.traces import make_trace

        recording = self.recording
        if recording is None:
            raise LaunchError("No step was recorded: call executable.profile, or launch with record_every=100.")
        path = Path(path)
        path.write_text(json.dumps(make_trace(recording, self.plan)), encoding="utf-8")
        return path

    def statistics(self, last: int = 100) -> RunStatistics:
        """Throughput over the `last` steps, model FLOP/s utilisation, and the most memory in use on each device."""
        self.refuse_if_unusable()
        return summarise_run(self.plan, self._clock, self._list_peaks(), self._batch_size, last)

    @abstractmethod
    def _list_peaks(self) -> list[DevicePeak]:
        """The most memory that was in use on each device."""

    @abstractmethod
    def compiled_text(self, stage: int, part: str) -> str:
        """HLO of a stage's `"forward"`, `"backward"` or `"update"` chunk (`"step"` of a one-stage plan)."""

    def close(self) -> None:
        """Give the devices back. Nothing of the launch goes on."""
        self.is_closed = True

    def refuse_if_closed(self) -> None:
        """Raise if the executable has been closed."""
        if self.is_closed:
            raise LaunchError("This executable has been closed: launch the plan again.")

    def refuse_if_unusable(self) -> None:
        """Raise if the executable has been closed, or if nothing more can run on it."""
        self.refuse_if_closed()

    def refuse_unknown_stage(self, stage: int) -> None:
        """Raise if the plan has no such stage."""
        if not 0 <= stage < self.plan.num_stages:
            raise LaunchError(f"There is no stage {stage}: the plan has {self.plan.num_stages}.")

    def __enter__(self) -> Executable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
