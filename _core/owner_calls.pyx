# Whose command of one owner is on its way to a lock, and which call is next: calls act for one owner one by one.

@cython.final
cdef class CallQueues:
    """First come, first served, for each lock. A call waits in it with a signal, which is set when its turn comes.

    Each method is done before Python looks for a signal or switches threads: no interrupt strikes halfway.
    """

    cdef dict present
    cdef dict waiting

    def __cinit__(self):
        self.present = {}
        self.waiting = {}

    def enter(self, key, OwnerCall call not None):
        """Whether it is this call's turn; it is at once when no other call has it."""
        if self.present.setdefault(key, call) is not call:
            return False
        call.thread = PyThread_get_thread_ident()
        return True

    def is_on_this_thread(self, key):
        """Whether the call whose turn it is was last seen on the calling thread."""
        cdef OwnerCall call = self.present.get(key)
        return call is not None and call.thread == PyThread_get_thread_ident()

    def wait(self, key, OwnerCall call not None, signal):
        """Has the signal set when it is this call's turn. True: it is already."""
        queue = self.waiting.get(key)
        if queue is None:
            queue = self.waiting.setdefault(key, {})
        if self.enter(key, call):
            return True
        (<dict> queue)[call] = signal
        return False

    def leave(self, key, call):
        """The call is over, or given up, whether it had its turn or not: the next one has it. Idempotent."""
        cdef dict queue = self.waiting.get(key)
        signal = None
        if self.present.get(key) is call:
            while queue:
                following = next(iter(queue))
                signal = queue.pop(following, None)
                if signal is not None:
                    break
            if signal is None:
                del self.present[key]
            else:
                # Its thread is known when it enters.
                (<OwnerCall> following).thread = 0
                self.present[key] = following
        elif queue:
            queue.pop(call, None)
        if queue is not None and not queue and self.waiting.get(key) is queue:
            del self.waiting[key]
        if signal is not None:
            signal.set()
