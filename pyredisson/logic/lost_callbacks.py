"""The `on_lost` callbacks of one client."""

from __future__ import annotations

from collections.abc import Callable, Hashable

Callback = Callable[[], object]


class LostCallbacks:
    """Which callbacks are called when a hold of a lock, or of a group, is lost. Threads need no mutex for it."""

    def __init__(self, run: Callable[[Callback], None]) -> None:
        """`run` has a callback called on another thread, where it delays nothing."""
        self._run = run
        self._registered: dict[Hashable, dict[Callback, object]] = {}
        """By the lock's identity in the table of holds: what to call, and the function that the user registered."""

    def add(self, identity: Hashable, function: object, callback: Callback) -> None:
        """Has `callback` called for each hold of that lock which is lost. `function` is its name for `remove`."""
        callbacks: dict[Callback, object] = {}
        # Another thread may remove the last callback of this lock meanwhile, and the inner dict with it.
        while self._registered.get(identity) is not callbacks:
            callbacks = self._registered.setdefault(identity, {})
            callbacks[callback] = function

    def remove(self, identity: Hashable, function: object) -> bool:
        """Removes the latest registration of that function. Returns whether there was one."""
        callbacks = self._registered.get(identity, {})
        for callback in reversed(list(callbacks)):
            if callbacks.get(callback) == function and callbacks.pop(callback, None) is not None:
                if not callbacks and (removed := self._registered.pop(identity, {})):
                    # Another thread has added a callback between the two `pop`s.
                    self._registered.setdefault(identity, removed).update(removed)
                return True
        return False

    def run(self, identity: Hashable) -> None:
        """A hold of that lock was lost: has its callbacks called."""
        for callback in list(self._registered.get(identity, ())):
            self._run(callback)
