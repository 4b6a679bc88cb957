# How one task wakes another. As a future, a wakeup belongs to the thread of its event loop.

cdef class TaskWakeup:
    """The part of `pyredisson._backends.aio.wakeup.AioWakeup` that is used without sleeping.

    `_loop`: the event loop of the task that waits; None: it is not known. `_future`: what the task awaits; None: it
    doesn't sleep. `ends_at`: when the time of the present wait is over; infinite: it has no end, or there is no wait.
    """

    cdef bint flag
    cdef public double ends_at
    cdef public object _loop
    cdef public TaskFuture _future

    def __cinit__(self, *args):
        self.ends_at = float("inf")

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
        if self._future is not None and self._future.outcome == PENDING:
            try:
                self._future.finish(RESULT, None)
            except RuntimeError:
                # Its event loop is closed, and has not ended the task.
                pass
