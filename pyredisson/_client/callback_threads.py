"""Runs `on_lost` callbacks on a few daemon threads, where a slow callback delays neither a caller nor the watchdog."""

from __future__ import annotations

import queue
import threading
from collections import deque
from time import monotonic

from pyredisson._backends.thread_start import start_thread
from pyredisson._diagnostics import logger
from pyredisson.logic.lost_callbacks import Callback

MOST_THREADS = 16
"""If so many different callbacks are slow at the same time, others are delayed."""
IDLE = 5.0
"""Seconds after which a thread without work ends."""


class CallbackThreads:
    """Calls of one callback run one after the other; calls of different callbacks run at the same time.

    The threads start when there is work. They refer to this object only, so they don't keep a client alive.
    """

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may run a finalizer here that finds another hold lost.
        self._changed = threading.Condition(threading.RLock())
        self._calls: dict[Callback, queue.SimpleQueue[None]] = {}
        """For each callback with calls that run or are due: one entry for each call that has not begun."""
        self._ready: deque[Callback] = deque()
        """CallbackThreads of `_calls` that no thread works on."""
        self._threads: dict[threading.Thread, None] = {}
        self._closed = False

    def call(self, callback: Callback) -> None:
        """Has a callback called soon. If no thread can be started, it is called with the next callback."""
        with self._changed:
            new: queue.SimpleQueue[None] = queue.SimpleQueue()
            calls = self._calls.setdefault(callback, new)
            calls.put(None)
            if calls is new:
                self._ready.append(callback)
                self._changed.notify()
            if len(self._threads) < min(len(self._calls), MOST_THREADS):
                self._start_thread()

    def close(self, seconds: float) -> None:
        """Waits, for so many seconds at most, until the calls that run or are due have ended."""
        deadline = monotonic() + seconds
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = [thread for thread in list(self._threads) if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="pyredisson-on-lost", daemon=True)
        self._threads[thread] = None
        try:
            start_thread(thread)
        except RuntimeError as error:
            self._threads.pop(thread, None)
            logger.warning("no thread could be started for an on_lost callback, which is called later: %s", error)

    def _work(self) -> None:
        while (callback := self._next()) is not None:
            while self._take_call(callback):
                _call(callback)

    def _next(self) -> Callback | None:
        """Waits for a callback to work on. None: the thread ends."""
        with self._changed:
            while not self._ready:
                if (self._closed or not self._changed.wait(IDLE)) and not self._ready:
                    self._threads.pop(threading.current_thread(), None)
                    return None
            return self._ready.popleft()

    def _take_call(self, callback: Callback) -> bool:
        """Takes one call of a callback. False: none is due."""
        with self._changed:
            calls = self._calls[callback]
            if calls.empty():
                del self._calls[callback]
                return False
            calls.get()
            return True


def _call(callback: Callback) -> None:
    try:
        callback()
    except BaseException:  # noqa: BLE001
        # A user's function may raise anything, also SystemExit. The thread has other callbacks to call.
        logger.exception("an on_lost callback failed")
