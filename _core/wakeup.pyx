# How one thread wakes another. Each method is a single step, except that without a global lock `set` and `clear` may
# run at the same time: then the wakeup is set afterwards.

from _thread import allocate_lock


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
        self.flag = True
        try:
            self.lock.release()
        except RuntimeError:
            # It was set already.
            self.flag = True
            return
        # Once more: `clear` may have come in between, and the lock is unlocked now.
        self.flag = True
        if self.self_pipe is not None:
            try:
                self.self_pipe.send(b"\0")
            except OSError:
                # The pipe is full, so the poll ends anyway; or the listener has ended, and with it the poll.
                return

    def clear(self):
        self.flag = False
        self.lock.acquire(False)

    def is_set(self):
        return self.flag
