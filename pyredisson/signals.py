"""How one thread tells another to look again."""

from __future__ import annotations

import _thread
import threading


class ThreadSignal:
    """A lock that is free while the signal is set: waiting for it costs no polling, setting it is one call."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            # It was set already.
            return

    def clear(self) -> None:
        self._lock.acquire(blocking=False)

    def is_set(self) -> bool:
        return not self._lock.locked()

    def wait(self, seconds: float) -> bool:
        """Until it is set, or the time is over. It stays set."""
        if self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            self._lock.release()
            return True
        return False
