"""How one thread tells another to look again."""

from __future__ import annotations

import _thread
import socket
import threading


class ThreadWakeup:
    """A lock that is free while the signal is set: waiting for it costs no polling, setting it is one call."""

    __slots__ = ("_lock", "ring")

    def __init__(self) -> None:
        self.ring: socket.socket | None = None
        """Where to send a byte when it is set: for one who waits in a poll instead."""
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            # It was set already.
            return
        ring = self.ring
        if ring is not None:
            try:
                ring.send(b"\0")
            except OSError:
                # Too many bells are ringing for one more to make a difference, or the one who reads has ended.
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
