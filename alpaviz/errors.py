"""Every error that AlpaViz raises on purpose. All derive from `AlpaVizError`.

A message says what was wrong (name and value), where, what was allowed, and what to do.
"""

from __future__ import annotations


class AlpaVizError(Exception):
    """Parent of every error that AlpaViz raises on purpose."""


class InvalidStepError(AlpaVizError):
    """The training step cannot be traced or is not what the planner takes."""


class InvalidClusterError(AlpaVizError):
    """A cluster description is wrong: the message names the field and its unit."""


class ShardingRuleError(AlpaVizError):
    """A sharding rule's text does not fit its op."""


class IndivisibleShardError(AlpaVizError):
    """Mesh axes do not divide the dimension that they should split."""


class PinError(AlpaVizError):
    """A pin names something that does not exist or asks for something that is not possible."""


class PinConflictError(PinError):
    """Two or more pins contradict each other, or no plan keeps them all. `pins` names them."""

    def __init__(self, message: str, pins: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.pins = pins


class InfeasibleError(AlpaVizError):
    """No plan fits: the message says what is short and by how much. `bytes_short` is 0 where it is not memory."""

    def __init__(self, message: str, bytes_short: float = 0.0) -> None:
        super().__init__(message)
        self.bytes_short = bytes_short


class SolverError(AlpaVizError):
    """A solver is missing, died or misbehaved."""


class SolveCancelledError(AlpaVizError):
    """The solve was cancelled; the planner keeps its last plan."""


class PlanFormatError(AlpaVizError):
    """A plan file is damaged, of another schema version, or not a plan."""


class PlanMismatchError(AlpaVizError):
    """A plan does not belong to this program or cluster."""


class LaunchError(AlpaVizError):
    """A plan could not be launched, or a launched step failed."""


class CheckpointError(AlpaVizError):
    """A checkpoint could not be written, or is missing, damaged or of another state; the message names the folder."""


class VerificationError(AlpaVizError):
    """A plan could not be held against XLA: its process died, took too long, or could not trace the program."""


class CalibrationError(AlpaVizError):
    """Devices could not be measured, or a calibration is damaged or of other devices or versions."""
