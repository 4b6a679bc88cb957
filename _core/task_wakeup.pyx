# How one task wakes another, and when the time of a wait is over. As a future, a wakeup belongs to the thread of its
# event loop.

from heapq import heappush
from time import monotonic

cdef class TaskWakeup:
    """The part of `pyredisson._backends.aio.wakeup.AioWakeup` that is used without sleeping.

    `_sleeps`: the sleeps of the running event loop, which many waits share; None: this wait has a timer of its own.
    `_loop`: the event loop of the task that waits; None: it is not known. `_future`: what the task awaits; None: it
    doesn't sleep. `ends_at`: when the time of the present wait is over; infinite: it has no end, or there is no wait.
    `thread`: the thread of the event loop; 0: it is not known.
    """

    cdef bint flag
    cdef unsigned long thread
    cdef public double ends_at
    cdef public object _loop
    cdef public object _sleeps
    cdef public TaskFuture _future

    def __init__(self, sleeps=None):
        self.ends_at = float("inf")
        self._sleeps = sleeps
        if sleeps is not None:
            self._loop = sleeps.loop
            self.thread = sleeps.thread

    @property
    def alive(self):
        # Also if the task doesn't sleep here: in a loop that is closed it goes on nowhere. A loop with a current task
        # runs: mostly that spares the call of a function in Python.
        return self._loop is None or self._loop in current_tasks or not self._loop.is_closed()

    def set(self):
        self.flag = True
        self.wake_task()

    def clear(self):
        self.flag = False

    def is_set(self):
        return self.flag

    def on_end(self):
        """The time of the present wait is over."""
        self.wake_task()

    cdef wake_task(self):
        try:
            if self.thread and self.thread != PyThread_get_thread_ident():
                # The watchdog has found a hold lost, or another thread closes the client.
                self._loop.call_soon_threadsafe(self.on_end)
            elif self._future is not None and self._future.outcome == PENDING:
                self._future.finish(RESULT, None)
        except RuntimeError:
            # Its event loop is closed, and has not ended the task.
            pass


cdef class SleepsFields:
    """The fields of `pyredisson._backends.aio.wakeup.Sleeps`, where their meaning is documented."""

    cdef public object loop
    cdef public unsigned long thread
    cdef public list _heap
    cdef public Py_ssize_t _limit
    cdef public double _rings_at
    cdef long long number

    @property
    def run_here(self):
        """Whether `loop` is the running loop; False is not certain.

        `get_running_loop` asks the operating system for the process, before Python 3.13. After a fork every client is a
        new client, without the loops of its parent.
        """
        return self.thread == PyThread_get_thread_ident() and runs(self.loop)

    def begin(self, TaskWakeup sleep not None, double seconds):
        """Has `on_end` called after so many seconds, not earlier, unless `ends_at` is changed before."""
        cdef double end = monotonic() + seconds
        sleep.ends_at = end
        if end == float("inf"):
            return
        # No two entries are equal, so the wakeups are never compared.
        self.number += 1
        heappush(self._heap, (end, self.number, sleep))
        if end < self._rings_at:
            self._set_timer(end)
        if len(self._heap) > self._limit:
            self._drop_forgotten()

    def ring(self):
        """Called by the loop's timer. No signal's handler runs in here, but one may raise anywhere in `_ring`."""
        try:
            self._ring()
        except BaseException:
            # The rest is looked at soon.
            if self._heap:
                self._set_timer(self._heap[0][0])
            raise
