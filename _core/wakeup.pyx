# How one thread wakes another. Each method is a single step.

from _thread import allocate_lock


cdef unlock(lock):
    lock.release()


cdef lock_if_free(lock):
    lock.acquire(False)


cdef class WakeupFields:
    """The part of `pyredisson._backends.threads.wakeup.ThreadWakeup` that is used without sleeping.

    `lock` is unlocked while the wakeup is set, except for a moment when its waiter wakes up: so `flag` says whether it
    is set. `self_pipe`: a socket to which a byte is sent when the wakeup is set.
    """

    cdef public object lock
    cdef public object self_pipe
    cdef bint flag

    def __cinit__(self):
        self.lock = allocate_lock()
        self.lock.acquire()
        self.self_pipe = None

    def set(self):
        # The flag and the lock are one state: a flag alone would tell others that its waiter was woken.
        with cython.critical_section(self):
            self.flag = True
            try:
                unlock(self.lock)
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

    @cython.critical_section
    def clear(self):
        self.flag = False
        lock_if_free(self.lock)

    @cython.critical_section
    def is_set(self):
        return self.flag
