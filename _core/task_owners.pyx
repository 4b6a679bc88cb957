# Which owner the calling task is.

cdef class TaskOwners:
    """The fields of `pyredisson._backends.aio.callers.Callers`.

    `owners`: the owner of each task. `_thread`, `_loop`: of the latest task that was new here; None: there was none.
    """

    cdef public dict owners
    cdef unsigned long _thread
    cdef object _loop

    def __cinit__(self):
        self.owners = {}

    @cython.critical_section
    def remember(self, loop):
        """The calling thread runs this event loop. None: forget what was remembered."""
        self._loop = loop
        self._thread = PyThread_get_thread_ident()

    def current(self):
        """The calling task's owner. RuntimeError: no task is running."""
        # Only one event loop of a thread runs at a time.
        with cython.critical_section(self):
            loop = self._loop if self._thread == PyThread_get_thread_ident() else None
        if loop is not None:
            owner = self.owners.get(current_tasks.get(loop))
            if owner is not None:
                return owner
        return self._find_current()
