"""Holds that were lost: which losses were not released yet, bounded in number, and the `on_lost` callbacks."""

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
        self._keys.pop(key, None)
        self._keys[key] = None
        if len(self._keys) <= MOST_LOST:
            return
        keys = list(self._keys)
        lost = [key for key in keys if self._is_lost(key)]
        spare = MOST_LOST - MOST_LOST // 10
        for key in set(keys).difference(lost):
            self._keys.pop(key, None)
        for key in lost[: max(0, len(lost) - spare)]:
            self._keys.pop(key, None)
            self._forget(key)


# --- The `on_lost` callbacks of one client


Callback = Callable[[], object]


class LostCallbacks:
    """The callbacks for losses of each lock or group. To be changed with the mutex of the channels held."""

    def __init__(self, run: Callable[[Callback], None]) -> None:
        """`run` has a callback called on another thread, where it delays nothing."""
        self._run = run
        self._registered: dict[Hashable, dict[Callback, object]] = {}
        """By the lock's identity in the table of holds: what to call, and the function that the user registered."""

    def add(self, identity: Hashable, function: object, callback: Callback) -> None:
        """Has `callback` called for each hold of that lock which is lost. `function` is its name for `remove`."""
        callbacks: dict[Callback, object] = {}
        # A finalizer may remove the last callback of this lock meanwhile, and the inner dict with it.
        while self._registered.get(identity) is not callbacks:
            callbacks = self._registered.setdefault(identity, {})
            callbacks[callback] = function

    def remove(self, identity: Hashable, function: object) -> bool:
        """Removes the latest registration of that function. Returns whether there was one."""
        callbacks = self._registered.get(identity, {})
        for callback in reversed(list(callbacks)):
            if callbacks.get(callback) == function and callbacks.pop(callback, None) is not None:
                if not callbacks:
                    self._registered.pop(identity, None)
                return True
        return False

    def run(self, identity: Hashable) -> None:
        """A hold of that lock was lost: has its callbacks called."""
        for callback in list(self._registered.get(identity, ())):
            self._run(callback)
