# The futures of asyncio's hot path. As asyncio's own, they belong to the thread of their event loop.

from asyncio import CancelledError, InvalidStateError, current_task
from asyncio import tasks as asyncio_tasks
from collections import deque


cdef enum Outcome:
    PENDING, RESULT, ERROR, CANCELLED  # A new future has the first one.


# The current task of each event loop, as asyncio knows it. Where asyncio doesn't use this dict any more, it is empty.
cdef dict current_tasks = getattr(asyncio_tasks, "_current_tasks", {})


cdef bint runs(loop) except -1:
    """Whether an event loop runs."""
    # Only a loop that runs has a current task. Mostly that spares the call of a function in Python.
    return loop in current_tasks or loop.is_running()


# The methods of event loops for which `may_run_inside_a_task` was computed, and the results. There are few of them.
cdef dict known_methods = {}


cdef bint may_run_inside_a_task(loop) except -1:
    """Whether a task may run the event loop, as far as known. The loops of asyncio and uvloop refuse it.

    nest_asyncio and others replace methods of asyncio's loops, at any time.
    """
    method = type(loop).run_forever
    known = known_methods.get(method)
    if known is None:
        module = getattr(method, "__module__", None) or type(loop).__module__
        known = known_methods[method] = module.partition(".")[0] not in ("asyncio", "uvloop")
    return known


# The delivery that goes on in each thread.
cdef dict deliveries = {}


@cython.final
@cython.freelist(256)
cdef class TaskFuture:
    """A future that one task awaits, with what a task uses of a future.

    A future of asyncio has its tasks go on in the next iteration of the event loop. This one has its task go on in the
    present iteration, if it is done by a `Delivery`.
    """

    cdef object loop
    cdef Outcome outcome
    cdef object value
    cdef object callback
    cdef object context
    cdef public bint _asyncio_future_blocking

    def __init__(self, loop):
        self.loop = loop

    def __await__(self):
        return self

    def __next__(self):
        if self.outcome == PENDING:
            if self.callback is not None:
                raise RuntimeError("another task awaits this future")
            # By this a task knows that it has got a future, and not the value of a generator.
            self._asyncio_future_blocking = True
            return self
        raise StopIteration(self.result())

    def get_loop(self):
        return self.loop

    def done(self):
        return self.outcome != PENDING

    def result(self):
        if self.outcome == RESULT:
            return self.value
        if self.outcome == PENDING:
            raise InvalidStateError("the future is not done")
        if self.outcome == CANCELLED:
            # The exception will refer to the frame that awaits this future: without it, that is no cycle.
            error, self.value = self.value, None
            raise CancelledError() if error is None else error
        raise self.value

    def add_done_callback(self, callback, *, context):
        """Called by the task that awaits this."""
        self.callback = callback
        self.context = context

    def cancel(self, msg=None):
        """Called when the task is cancelled. False: the future is done."""
        if self.outcome != PENDING:
            return False
        self.finish(CANCELLED, CancelledError() if msg is None else CancelledError(msg))
        return True

    def set_result(self, value):
        self.finish(RESULT, value)

    def set_exception(self, error):
        self.finish(ERROR, error)

    cdef finish(self, Outcome outcome, value):
        cdef Delivery delivery = deliveries.get(PyThread_get_thread_ident())
        if self.outcome != PENDING:
            raise InvalidStateError("the future is done already")
        self.value = value
        self.outcome = outcome
        if self.callback is None:
            # The task that awaits it now goes on at once.
            return
        if delivery is not None and delivery.loop is self.loop:
            delivery.futures.append(self)
        else:
            try:
                self.wake_soon()
            except RuntimeError:
                # A RecursionError: the task has not been woken, and can be woken once more. Or the loop is closed.
                self.outcome = PENDING
                self.value = None
                raise
            except BaseException:
                # An interrupt: the event loop may have been told or not.
                self.wake_soon()
                raise

    cdef wake_soon(self):
        self.loop.call_soon(self.go_on, context=self.context)

    def go_on(self):
        """Has the task go on, once, in its context."""
        callback = self.callback
        if callback is not None and self.outcome != PENDING:
            self.callback = None
            self.context = None
            callback(self)

    cdef wake(self):
        callback, self.callback = self.callback, None
        context, self.context = self.context, None
        context.run(callback, self)


@cython.final
cdef class Delivery:
    """What is done by one callback of the event loop: the tasks that wait for it go on when the callback ends.

    That saves an iteration of the event loop for each reply.
    """

    cdef object loop
    cdef object futures
    cdef Delivery outer

    def __cinit__(self, loop):
        self.loop = loop
        self.futures = deque()

    cdef begin(self):
        # Another one goes on only if an event loop runs inside it, as some tools allow.
        self.outer = deliveries.get(PyThread_get_thread_ident())
        deliveries[PyThread_get_thread_ident()] = self

    cdef end(self):
        if self.outer is None:
            del deliveries[PyThread_get_thread_ident()]
        else:
            deliveries[PyThread_get_thread_ident()] = self.outer

    cdef wake_tasks(self):
        """Has the tasks go on, in the order in which their futures were done."""
        # A loop that a task runs in here could neither call this callback nor have the other tasks go on.
        cdef bint at_once = not may_run_inside_a_task(self.loop) and current_task(self.loop) is None
        try:
            while at_once and self.futures:
                (<TaskFuture> self.futures.popleft()).wake()
        except BaseException as error:
            # An interrupt, or the end of the program. The callback of a read is no place to raise it: some loops take
            # it for a failure of the connection.
            self.loop.call_soon(reraise, error)
        self.wake_tasks_soon()

    def wake_tasks_soon(self):
        """The tasks that are left go on in the next iteration of the event loop."""
        while self.futures:
            (<TaskFuture> self.futures.popleft()).wake_soon()


def reraise(error):
    raise error
