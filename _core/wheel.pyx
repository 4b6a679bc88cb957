# The timer wheel: which timers are due when, for millions of timers of which most are taken out before they are due.

cdef extern from *:
    void __builtin_prefetch(const void *at) noexcept nogil
    int __builtin_clzll(unsigned long long bits) noexcept nogil
    int __builtin_ctzll(unsigned long long bits) noexcept nogil

cdef enum:
    BITS = 6                 # 64 places a level, so one machine word says which of them are taken
    LEVELS = 11              # 66 bits: every tick has a place, so no list of timers "too far ahead" is needed
    PLACES = LEVELS << BITS
    OVERDUE = PLACES         # timers that were due already when they were added
    STRIDE = 8               # how many nodes earlier a node is prefetched, see `ahead`


cdef struct Node:
    Node *after
    Node *before
    Node *ahead              # a node about STRIDE places further on; only prefetched, so it may be outdated
    PyObject *timer
    void *wheel              # the wheel it is in; NULL: in none
    int64_t due
    int place


cdef class Timer:
    """An entry of a `Wheel`; to be subclassed. It can be in one wheel at a time."""

    cdef Node node

    @property
    def due(self):
        """The tick at which the timer is due; -1 when it is in no wheel."""
        return self.node.due if self.node.wheel != NULL else -1


@cython.final
cdef class Wheel:
    """A hierarchical timing wheel: which timers are due at which tick.

    A tick is an int from 0 to 2**63 - 1. The caller decides what a tick means, and passes the present one. The wheel
    owns its timers. The garbage collector doesn't look into a wheel, so a timer that refers to its wheel keeps both
    alive until it is taken out.

    Any thread may call any method without a lock. A change is C code that makes and frees no Python object, in one
    critical section, so no other thread and no finalizer sees it half done. The wheel's section guards the nodes of its
    timers, too.
    """

    cdef Node *first[PLACES + 1]
    cdef Node *last[PLACES + 1]
    cdef uint64_t taken[LEVELS]
    cdef int64_t now
    cdef Py_ssize_t count
    cdef bint closed

    def __cinit__(self, int64_t now=0):
        if now < 0:
            raise ValueError(f"a tick is not negative: {now}")
        self.now = now

    def __dealloc__(self):
        cdef int place
        cdef Node *node
        for place in range(PLACES + 1):
            while self.first[place] != NULL:
                node = self.first[place]
                self.take_out(node)
                Py_DECREF(<object> node.timer)

    def __len__(self):
        return self.count

    def add(self, Timer timer not None, int64_t due):
        """Adds `timer`, due at tick `due`; a timer that is in this wheel already is moved.

        With a tick that has passed, it is due at the next `advance`. ValueError: the timer is in another wheel.
        """
        self.insert(timer, due)

    def close(self):
        """Takes all timers out, and takes none in any more: one that came late would keep its client's memory."""
        self.closed = True
        self.advance(2**63 - 1)

    @cython.critical_section
    cdef insert(self, Timer timer, int64_t due):
        cdef Node *node = &timer.node
        if self.closed:
            return
        if node.wheel == NULL:
            Py_INCREF(timer)
            node.timer = <PyObject *> timer
        elif node.wheel == <void *> self:
            self.take_out(node)
        else:
            raise ValueError("the timer is in another wheel")
        node.due = due if due > self.now else self.now
        self.put_in(node)

    def discard(self, Timer timer not None):
        """Takes `timer` out. False: it was not in this wheel."""
        return self.remove(timer)

    cdef bint remove(self, Timer timer):
        with cython.critical_section(self):
            if timer.node.wheel != <void *> self:
                return False
            self.take_out(&timer.node)
        Py_DECREF(timer)
        return True

    @cython.critical_section
    def advance(self, int64_t now):
        """Makes `now` the present tick, and takes out the timers that are due by then.

        They are in the order of the ticks, and within one tick in the order of adding. Does nothing if `now` is before
        the present tick.
        """
        cdef list taken = []
        cdef Node *chain
        cdef Node *node
        cdef Timer timer
        if now < self.now:
            return taken
        chain = self.take_due(now)
        try:
            # A list that grows runs no garbage collection, and so no finalizer that changes the links.
            while chain != NULL:
                node = chain
                taken.append(<object> node.timer)
                chain = node.after
                __builtin_prefetch(node.ahead)
                node.wheel = NULL
                Py_DECREF(<object> node.timer)
        except MemoryError:
            # A timer that is lost here would be a lease that is never renewed.
            for timer in taken:
                Py_INCREF(timer)
                self.put_in(&timer.node)
            self.put_back(chain)
            raise
        return taken

    @cython.critical_section
    def next_due(self):
        """A tick before which no timer is due; it may be earlier than the earliest timer. None: the wheel is empty."""
        cdef int level = self.lowest()
        if self.first[OVERDUE] != NULL:
            return self.first[OVERDUE].due
        if level == LEVELS:
            return None
        return self.start_of(level, __builtin_ctzll(self.taken[level]))

    cdef inline int lowest(self) noexcept nogil:
        cdef int level = 0
        while level < LEVELS and self.taken[level] == 0:
            level += 1
        return level

    cdef inline int64_t start_of(self, int level, int index) noexcept nogil:
        # The places of a level are all within the present place of the level above.
        cdef uint64_t below = (<uint64_t> 1 << (level * BITS)) - 1
        cdef uint64_t turn = <uint64_t> self.now & ~((below << BITS) | 63)
        return <int64_t> (turn | (<uint64_t> index << (level * BITS)))

    cdef inline void put_in(self, Node *node) noexcept nogil:
        cdef Node *back
        cdef int level, steps = STRIDE - 1
        if node.due <= self.now:
            node.place = OVERDUE
        else:
            # The level of the highest digit (of BITS bits) in which the tick differs from the present one.
            level = (63 - __builtin_clzll(<uint64_t> (node.due ^ self.now))) // BITS
            node.place = (level << BITS) | <int> ((node.due >> (level * BITS)) & 63)
            self.taken[level] |= <uint64_t> 1 << (node.place & 63)
        node.wheel = <void *> self
        node.after = NULL
        node.before = self.last[node.place]
        # Of a million timers each is on a memory page of its own, and the address of the next one is known only when
        # this one was loaded. Without the prefetch each step waits for memory, which makes `advance` three times as
        # slow.
        node.ahead = NULL
        back = node.before
        while back != NULL and steps > 0:
            back = back.before
            steps -= 1
        if back != NULL:
            back.ahead = node
        if node.before == NULL:
            self.first[node.place] = node
        else:
            node.before.after = node
        self.last[node.place] = node
        self.count += 1

    cdef inline void take_out(self, Node *node) noexcept nogil:
        if node.before == NULL:
            self.first[node.place] = node.after
        else:
            node.before.after = node.after
        if node.after == NULL:
            self.last[node.place] = node.before
        else:
            node.after.before = node.before
        if self.first[node.place] == NULL and node.place != OVERDUE:
            self.taken[node.place >> BITS] &= ~(<uint64_t> 1 << (node.place & 63))
        node.wheel = NULL
        self.count -= 1

    cdef inline Node *take_place(self, int place) noexcept nogil:
        cdef Node *chain = self.first[place]
        self.first[place] = NULL
        self.last[place] = NULL
        if place != OVERDUE:
            self.taken[place >> BITS] &= ~(<uint64_t> 1 << (place & 63))
        return chain

    cdef Node *take_due(self, int64_t now) noexcept nogil:
        # Goes from one taken place to the next. When the present tick reaches a place above the lowest level, its
        # timers are distributed over the levels below, which keeps the result in the order of the ticks.
        cdef Node *chain = NULL
        cdef Node **end = &chain
        cdef Node *node
        cdef Node *rest
        cdef int level, index
        cdef int64_t start
        node = self.take_place(OVERDUE)
        while True:
            while node != NULL:
                __builtin_prefetch(node.ahead)
                end[0] = node
                end = &node.after
                self.count -= 1
                node = node.after
            level = self.lowest()
            if level == LEVELS:
                break
            index = __builtin_ctzll(self.taken[level])
            start = self.start_of(level, index)
            if start > now:
                break
            self.now = start
            rest = self.take_place((level << BITS) | index)
            if level == 0:
                node = rest
                continue
            while rest != NULL:
                node = rest
                __builtin_prefetch(node.ahead)
                rest = node.after
                self.count -= 1
                self.put_in(node)
            node = self.take_place(OVERDUE)
        self.now = now
        end[0] = NULL
        return chain

    cdef void put_back(self, Node *chain) noexcept nogil:
        cdef Node *node
        while chain != NULL:
            node = chain
            chain = node.after
            self.put_in(node)
