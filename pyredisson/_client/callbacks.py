"""The threads that call functions of the user: the observer with its events, and the on_lost callbacks."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic

from pyredisson._backends.runtime import start_thread
from pyredisson._diagnostics import logger
from pyredisson.events import Event, handlers_of
from pyredisson.logic.loops import log_exception
from pyredisson.logic.losses import Callback

MOST_EVENTS = 100_000
"""So many events wait for an observer that is slow. Then the oldest are dropped."""
INTERVAL = 0.1
"""Seconds for which events are gathered. So a busy program wakes the thread ten times a second, not for every call."""
BURST = 16
"""After so many events the other threads have a turn: else the interpreter switches threads every 5 ms only."""
TURN = 0.00005
"""Seconds."""
LONGEST_FORK = 1.0
"""Seconds. A fork takes milliseconds; an interrupt may hide its end."""


class Delivery:
    """Events are added to `queue` by any thread; one thread delivers them.

    The thread starts with the first event. It refers to this object only, so it doesn't keep a client alive.
    """

    def __init__(self, observer: object, client_id: str) -> None:
        self.handlers = handlers_of(observer)
        self.queue: deque[Event | threading.Event] = deque(maxlen=MOST_EVENTS)
        """What is to be delivered. An event of `threading` is set when everything before it was delivered."""
        self._client_id = client_id
        # Its `put` may be called on any line, also by a finalizer in the middle of another `put`.
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._run: dict[str, int] = {}
        """The thread that delivers, under the key "thread"; empty: there is none."""
        self._starting = False
        self._idle = False
        """Whether the thread waits until it is woken. Otherwise it looks at the queue again soon."""
        self._closed = False
        self.calling = threading.RLock()
        """Held while the observer is being called, and while another thread forks."""
        self._dropped = 0
        """About how many events were dropped since the observer was told so."""
        self._falls_behind = False
        self._failures: Counter[str] = Counter()
        self._start_failed = False

    # --- Any thread

    def wake(self) -> None:
        """An event was added. Takes no mutex, and may be called on any line."""
        if len(self.queue) >= MOST_EVENTS:
            # Not exact, as other threads may do the same.
            self._dropped += 1
            if not self._falls_behind:
                self._falls_behind = True
                logger.warning(
                    "%d events wait for the observer, which is too slow: the oldest are dropped", MOST_EVENTS
                )
        if self._idle:
            self._wakeups.put(None)
        elif not self._run and not self._starting:
            self._start()

    def drain(self, seconds: float) -> bool:
        """Waits, for so long at most, until all events that were added before were delivered; whether they were."""
        if not self._run and not self.queue:
            return True
        if self._run.get("thread") == threading.get_ident() or self._start_failed:
            # The observer has closed the client; or there is no thread.
            return False
        done = threading.Event()
        self.queue.append(done)
        self.wake()
        self._wakeups.put(None)
        return done.wait(seconds)

    def end(self) -> None:
        """The thread ends when everything was delivered. Takes no mutex and doesn't block: a finalizer calls this."""
        self._closed = True
        self._wakeups.put(None)

    def close(self, seconds: float) -> None:
        """The same, but waits for so long at most. An event that is added later is delivered, too."""
        self.end()
        self.drain(seconds)
        for method, failures in list(self._failures.items()):
            if self._failures.pop(method, 0) > 1:
                logger.warning("the observer's method %s failed %d times", method, failures)

    def _start(self) -> None:
        # Two threads may start. The one that comes second ends at once.
        try:
            self._starting = True
            start_thread(self._work, "pyredisson-observer")
            self._start_failed = False
        except RuntimeError as error:
            if not self._start_failed:
                self._start_failed = True
                logger.warning("no thread could be started for the observer, which is told later: %s", error)
        finally:
            self._starting = False

    # --- The thread

    def _work(self) -> None:
        thread = threading.get_ident()
        while self._run.setdefault("thread", thread) == thread:
            self._deliver_until_closed()
            self._run.clear()
            # An event that was added just before found that there is a thread.
            if not self.queue:
                return

    def _deliver_until_closed(self) -> None:
        while True:
            if not self._closed:
                with suppress(Empty):
                    self._wakeups.get(timeout=INTERVAL)
            if self._deliver_pending():
                continue
            if self._closed:
                return
            self._idle = True
            # Looked at after the assignment: whoever adds an event looks at `_idle` after that.
            if not self.queue and not self._closed:
                self._wakeups.get()
            self._idle = False

    def _deliver_pending(self) -> int:
        """Delivers what is in the queue. Returns how many events that were."""
        delivered = 0
        while self.queue:
            item = self.queue.popleft()
            if isinstance(item, threading.Event):
                item.set()
                continue
            if self._dropped:
                count, self._dropped = self._dropped, 0
                if "dropped" in self.handlers:
                    self._deliver(Event(what="dropped", client_id=self._client_id, time_ns=item.time_ns, count=count))
            self._deliver(item)
            delivered += 1
            if not delivered % BURST:
                time.sleep(TURN)
        if self._falls_behind:
            self._falls_behind = False
            logger.warning("the observer has caught up with the events")
        return delivered

    def _deliver(self, event: Event) -> None:
        if not self.calling.acquire(timeout=LONGEST_FORK):
            # An interrupt has hidden the end of the fork.
            self.calling = threading.RLock()
            self.calling.acquire()
        try:
            self.handlers[event.what](event)
        except BaseException:  # noqa: BLE001
            # A user's method may raise anything, also SystemExit. It must neither stop later events nor fill the log.
            self._failures[event.what] += 1
            if self._failures[event.what] == 1:
                log_exception(f"the observer's method {event.what} failed; this is logged once")
        finally:
            self.calling.release()


paused: dict[int, list[Callable[[], None]]] = {}
"""For each thread that is about to fork, what has observers called again that aren't called meanwhile."""


def pause_before_fork(deliveries: list[Delivery], seconds: float) -> None:
    """Waits, for so long at most, until no observer is being called; and none is until `go_on_after_fork`.

    The child has a copy of every mutex, but not the threads of observers: a mutex of an observer's library that is held
    during the fork, for example of a metric, would stay held in the child.
    """
    until = monotonic() + seconds
    go_on = paused[threading.get_ident()] = list[Callable[[], None]]()
    for delivery in deliveries:
        calling = delivery.calling
        if calling.acquire(timeout=max(0.0, until - monotonic())):
            go_on.append(calling.release)


def go_on_after_fork() -> None:
    """In the parent."""
    for go_on in paused.pop(threading.get_ident(), ()):
        go_on()


MOST_THREADS = 16
"""If so many different callbacks are slow at the same time, others are delayed."""
IDLE = 5.0
"""Seconds after which a thread without work ends."""


class CallbackThreads:
    """Calls the on_lost callbacks: the calls of one run one after the other, of different ones at the same time.

    A slow one delays neither a caller nor the watchdog. The daemon threads start when there is work. They refer to this
    object only, so they don't keep a client alive.
    """

    def __init__(self) -> None:
        # Re-entrant: the garbage collector may run a finalizer here that finds another hold lost.
        self._changed = threading.Condition(threading.RLock())
        self._calls: dict[Callback, SimpleQueue[None]] = {}
        """For each callback with calls that run or are due: one entry for each of them."""
        self._ready: deque[Callback] = deque()
        """Callbacks of `_calls` that no thread works on."""
        self._threads: dict[threading.Thread, None] = {}
        self._closed = False

    def call(self, callback: Callback) -> None:
        """Has a callback called soon. If no thread can be started, it is called with the next callback."""
        with self._changed:
            new: SimpleQueue[None] = SimpleQueue()
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
        try:
            self._threads[start_thread(self._work, "pyredisson-on-lost")] = None
        except RuntimeError as error:
            logger.warning("no thread could be started for an on_lost callback, which is called later: %s", error)

    def _work(self) -> None:
        callback: Callback | None = None
        while (callback := self._next(callback)) is not None:
            try:
                callback()
            except BaseException:  # noqa: BLE001
                # A user's function may raise anything, also SystemExit. The thread has other callbacks to call.
                logger.exception("an on_lost callback failed")

    def _next(self, called: Callback | None) -> Callback | None:
        """Waits for a callback to call. None: the thread ends. `called`: the one whose call has ended."""
        with self._changed:
            if called is not None:
                calls = self._calls[called]
                calls.get()
                if calls.empty():
                    del self._calls[called]
                else:
                    self._ready.append(called)
                    self._changed.notify()
            while not self._ready:
                if (self._closed or not self._changed.wait(IDLE)) and not self._ready:
                    self._threads.pop(threading.current_thread(), None)
                    return None
            return self._ready.popleft()
