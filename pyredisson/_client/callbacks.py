"""Calling `on_lost` functions where they delay nobody: a few daemon threads, begun when there is something to do."""

from __future__ import annotations

import queue
import threading
from collections import deque
from time import monotonic

from pyredisson._backends.thread_start import start_thread
from pyredisson._diagnostics import logger
from pyredisson.logic.lost_callbacks import Callback

MOST_THREADS = 16
"""So many different callbacks may be slow at the same time before another one is delayed."""
IDLE = 5.0
"""Seconds after which a thread with nothing to do ends."""


class Callbacks:
    """Calls each callback as often as it was asked to, one call after the other; different ones side by side.

    Its threads refer to nothing but this object, so that they keep no client alive.
    """

    def __init__(self) -> None:
        # Re-entrant: a finalizer that the garbage collector runs in here may find another hold lost.
        self._changed = threading.Condition(threading.RLock())
        self._calls: dict[Callback, queue.SimpleQueue[None]] = {}
        """For each callback that is being called, or will be, one entry a call."""
        self._ready: deque[Callback] = deque()
        """Callbacks that no thread has taken up yet."""
        self._threads: dict[threading.Thread, None] = {}
        self._closed = False

    def call(self, callback: Callback) -> None:
        """Has it called soon; where no thread can be started, with the next one."""
        with self._changed:
            fresh: queue.SimpleQueue[None] = queue.SimpleQueue()
            calls = self._calls.setdefault(callback, fresh)
            calls.put(None)
            if calls is fresh:
                self._ready.append(callback)
                self._changed.notify()
            if len(self._threads) < min(len(self._calls), MOST_THREADS):
                self._hire()

    def close(self, seconds: float) -> None:
        """Lets calls end that are under way or due, for so many seconds at most."""
        deadline = monotonic() + seconds
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = [thread for thread in list(self._threads) if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))

    def _hire(self) -> None:
        thread = threading.Thread(target=self._work, name="pyredisson-on-lost", daemon=True)
        self._threads[thread] = None
        try:
            start_thread(thread)
        except RuntimeError as error:
            self._threads.pop(thread, None)
            logger.warning("no thread for an on_lost callback, which is called later: %s", error)

    def _work(self) -> None:
        while (callback := self._next()) is not None:
            while self._has_call(callback):
                _guarded(callback)

    def _next(self) -> Callback | None:
        with self._changed:
            while not self._ready:
                if (self._closed or not self._changed.wait(IDLE)) and not self._ready:
                    self._threads.pop(threading.current_thread(), None)
                    return None
            return self._ready.popleft()

    def _has_call(self, callback: Callback) -> bool:
        with self._changed:
            calls = self._calls[callback]
            if calls.empty():
                del self._calls[callback]
                return False
            calls.get()
            return True


def _guarded(callback: Callback) -> None:
    try:
        callback()
    except BaseException:  # noqa: BLE001
        # A user's function: whatever it raises, SystemExit too; the thread has other callbacks to call.
        logger.exception("an on_lost callback failed")
