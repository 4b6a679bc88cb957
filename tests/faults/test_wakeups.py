"""A wakeup that several threads use at the same moment."""

from __future__ import annotations

import _thread
from collections.abc import Callable

from pyredisson._backends.threads.wakeup import ThreadWakeup


class Interrupted:
    """A lock after whose next acquisition the thread is interrupted by another one."""

    def __init__(self, lock: _thread.LockType, other_thread: Callable[[], None]) -> None:
        self._lock = lock
        self._other_thread = other_thread

    def acquire(self, *, timeout: float) -> bool:
        acquired = self._lock.acquire(timeout=timeout)
        self._other_thread()
        return acquired

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()


def test_it_is_set_while_its_waiter_wakes() -> None:
    """Two messages may come in quick succession."""
    wakeup = ThreadWakeup()
    wakeup.set()
    wakeup.lock = Interrupted(wakeup.lock, wakeup.set)  # type: ignore[assignment]
    assert wakeup.wait(1)
    assert wakeup.is_set()
    assert wakeup.wait(1)
