"""The memory of losses that were not released yet, bounded in size."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MOST_LOST = 10_000
"""So many lost holds are remembered until their release, for the error that `unlock` raises."""

Key = TypeVar("Key", bound=Hashable)


class UnreleasedLosses(Generic[Key]):
    """The keys of what was lost and not released yet, the latest last: at most `MOST_LOST`.

    Keys of holds that were released since go first. A tenth of the keys goes at once, so that the search for them
    costs little for each loss.
    """

    def __init__(self, is_lost: Callable[[Key], bool], forget: Callable[[Key], object]) -> None:
        """`forget` is called for each of the oldest keys, if too many are still lost."""
        self._is_lost = is_lost
        self._forget = forget
        self._keys: dict[Key, None] = {}

    def add(self, key: Key) -> None:
        """Remembers a loss."""
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) > MOST_LOST:
            self._make_room()

    def _make_room(self) -> None:
        keys = list(self._keys)
        lost = [key for key in keys if self._is_lost(key)]
        spare = MOST_LOST - MOST_LOST // 10
        for key in set(keys).difference(lost):
            self._keys.pop(key, None)
        for key in lost[: max(0, len(lost) - spare)]:
            self._keys.pop(key, None)
            self._forget(key)
