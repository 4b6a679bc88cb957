"""How one thread wakes another."""

from __future__ import annotations

import _thread
import socket
import threading


class ThreadWakeup:
    """A lock that is unlocked while the wakeup is set: waiting needs no polling, and setting is a single call."""

    __slots__ = ("_lock", "self_pipe")

    alive = True

    def __init__(self) -> None:
        self.self_pipe: socket.socket | None = None
        """Where to send a byte when the wakeup is set, while its waiter polls a socket instead of waiting here."""
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            # It was set already.
            return
        self_pipe = self.self_pipe
        if self_pipe is not None:
            try:
                self_pipe.send(b"\0")
            except OSError:
                # The pipe is full, so the poll ends anyway; or the listener has ended, and with it the poll.
                return

    def clear(self) -> None:
        self._lock.acquire(blocking=False)

    def is_set(self) -> bool:
        return not self._lock.locked()

    def wait(self, seconds: float) -> bool:
        """Waits until the wakeup is set, or the time is over; returns which. It stays set."""
        if not self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            return False
        try:
            self._lock.release()
        except RuntimeError:
            # Another thread has called `set` since the line above, so it is set.
            return True
        return True
