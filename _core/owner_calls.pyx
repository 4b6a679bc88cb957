# The calls of one owner take turns: each states how many levels the owner holds, so each must know what the one
# before it did.

@cython.final
cdef class CallQueues:
    """A first-in, first-out queue of calls for each lock. The call at its head has the turn.

    A call waits with a wakeup, which is set when its turn comes. Each method is a single step: neither a signal
    handler nor another thread runs in the middle of it.
    """

    cdef dict current
    cdef dict waiting

    def __cinit__(self):
        self.current = {}
        self.waiting = {}

    @cython.critical_section
    def enter(self, key, OwnerCall call not None):
        """Whether this call has the turn; it gets the turn at once if no other call has it."""
        return self.begin(key, call)

    cdef bint begin(self, key, OwnerCall call) except -1:
        if self.current.setdefault(key, call) is not call:
            return False
        call.thread = PyThread_get_thread_ident()
        return True

    @cython.critical_section
    def is_on_this_thread(self, key):
        """Whether the call that has the turn was last seen on the calling thread."""
        cdef OwnerCall call = self.current.get(key)
        return call is not None and call.thread == PyThread_get_thread_ident()

    @cython.critical_section
    def current_call(self, key):
        """The call that has the turn."""
        return self.current.get(key)

    @cython.critical_section
    def wait(self, key, OwnerCall call not None, wakeup):
        """Has the wakeup set when this call gets the turn. True: it has the turn already."""
        queue = self.waiting.get(key)
        if queue is None:
            queue = self.waiting.setdefault(key, {})
        if self.begin(key, call):
            return True
        (<dict> queue)[call] = wakeup
        return False

    def leave(self, key, call):
        """The call has ended or was given up, with or without the turn: the next one gets it. Idempotent."""
        wakeup = self.pass_on(key, call)
        if wakeup is not None:
            wakeup.set()

    @cython.critical_section
    cdef object pass_on(self, key, call):
        cdef dict queue = self.waiting.get(key) if self.waiting else None
        wakeup = None
        if self.current.get(key) is call:
            # Without an iterator: the garbage collector may run a finalizer where one is made, which ends another call.
            following = first_key(queue) if queue else None
            if following is None:
                del self.current[key]
            else:
                wakeup = queue.pop(following)
                # Its thread is known when it enters.
                (<OwnerCall> following).thread = 0
                self.current[key] = following
        elif queue:
            queue.pop(call, None)
        if queue is not None and not queue and self.waiting.get(key) is queue:
            del self.waiting[key]
        return wakeup
