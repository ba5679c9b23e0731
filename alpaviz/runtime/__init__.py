"""A plan becomes something that runs.

In: a `Plan` and the `Program` it was made for. Out: an `Executable` with the signature of the training step, on the
devices of this process or on Ray.
"""

from alpaviz.runtime.attached import attached_cluster
from alpaviz.runtime.checkpoint_index import list_checkpoints
from alpaviz.runtime.executable import Executable
from alpaviz.runtime.launch import launch

__all__ = ["Executable", "attached_cluster", "launch", "list_checkpoints"]
