"""How one thread wakes another."""

import threading

from pyredisson._core import WakeupFields


class ThreadWakeup(WakeupFields):
    """A lock that is unlocked while the wakeup is set: waiting needs no polling, and setting is a single call.

    While its waiter polls a socket instead of waiting here, `self_pipe` is where to send a byte when it is set.
    """

    __slots__ = ()

    alive = True

    def wait(self, seconds: float) -> bool:
        """Waits until the wakeup is set, or the time is over; returns which. It stays set."""
        if self.is_set():
            return True
        if not self.lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            return False
        try:
            self.lock.release()
        except RuntimeError:
            # Another thread has called `set` since the line above, so it is set.
            return True
        return True
