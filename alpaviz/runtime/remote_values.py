"""Arrays that workers hold, as the driver sees them."""

from __future__ import annotations

import weakref
from collections import deque
from typing import NoReturn

StoreKey = tuple[int, int]
"""(step that made it, value id): under what a worker stores an array."""


class RemoteValue:
    """An array that workers hold. `executable.fetch` brings it here; passing it to the next step moves nothing.

    Workers keep the array as long as this object lives.
    """

    __slots__ = ("__weakref__", "dtype", "key", "owner", "shape")

    def __init__(self, owner: RemoteStore, key: StoreKey, shape: tuple[int, ...], dtype: str) -> None:
        self.owner, self.key, self.shape, self.dtype = owner, key, shape, dtype

    def __repr__(self) -> str:
        return f"RemoteValue({self.dtype}{list(self.shape)} on the workers)"

    def __copy__(self) -> RemoteValue:
        return self

    def __deepcopy__(self, _: object) -> RemoteValue:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("An array on the workers cannot be pickled: use executable.fetch first.")


class RemoteStore:
    """What of one executable's workers' arrays somebody still holds. Handles may be dropped in any thread."""

    def __init__(self) -> None:
        self._dropped: deque[StoreKey] = deque()

    def hold(self, key: StoreKey, shape: tuple[int, ...], dtype: str) -> RemoteValue:
        """A handle of what workers have stored under `key`."""
        handle = RemoteValue(self, key, shape, dtype)
        weakref.finalize(handle, self._dropped.append, key).atexit = False
        return handle

    def take_dropped(self) -> tuple[StoreKey, ...]:
        """Keys that nobody can ask for any more, each once."""
        found = []
        while self._dropped:
            found.append(self._dropped.popleft())
        return tuple(found)
