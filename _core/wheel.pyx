# The timer wheel: who is due when, for millions of timers that mostly leave before they are due.

cdef extern from *:
    void __builtin_prefetch(const void *at) noexcept nogil
    int __builtin_clzll(unsigned long long bits) noexcept nogil
    int __builtin_ctzll(unsigned long long bits) noexcept nogil

cdef enum:
    BITS = 6                 # 64 places a level: one machine word says which are taken
    LEVELS = 11              # 66 bits: any tick finds a place, so there is no list of "too far ahead"
    PLACES = LEVELS << BITS
    OVERDUE = PLACES         # those added when already due
    STRIDE = 8               # how many nodes back a node is announced, see `ahead`


cdef struct Node:
    Node *after
    Node *before
    Node *ahead              # some nodes on, when last seen: only ever prefetched, so it may be stale
    PyObject *timer
    void *wheel              # which wheel it is in; NULL: in none
    int64_t due
    int64_t group
    int place


cdef struct Due:
    PyObject *timer
    int64_t group


cdef class Timer:
    """What a `Wheel` holds; meant to be subclassed. It can be in one wheel at a time."""

    cdef Node node

    @property
    def due(self):
        """The tick at which it is due; -1 when it is in no wheel."""
        return self.node.due if self.node.wheel != NULL else -1


@cython.final
cdef class Wheel:
    """A hierarchical timing wheel: what is due at which tick.

    A tick is an int from 0 to 2**63 - 1; the caller decides what it stands for and what time it is.
    The wheel owns its timers. As the garbage collector doesn't look into a wheel, a timer that leads
    back to the wheel keeps both alive until it leaves.

    Any thread may call any method under the GIL without another lock: a wheel is changed in C only,
    with no Python object made or freed halfway, so no other thread and no finalizer sees it half changed.
    """

    cdef Node *first[PLACES + 1]
    cdef Node *last[PLACES + 1]
    cdef uint64_t taken[LEVELS]
    cdef int64_t now
    cdef Py_ssize_t count

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

    def add(self, Timer timer not None, int64_t due, int64_t group=0):
        """Let `timer` be due at tick `due`, or move it there if it is in this wheel already.

        A tick that has passed counts as the present one: it is due at the next `advance`.
        ValueError: the timer is in another wheel.
        """
        cdef Node *node = &timer.node
        if node.wheel == NULL:
            Py_INCREF(timer)
            node.timer = <PyObject *> timer
        elif node.wheel == <void *> self:
            self.take_out(node)
        else:
            raise ValueError("the timer is in another wheel")
        node.group = group
        node.due = due if due > self.now else self.now
        self.put_in(node)

    def discard(self, Timer timer not None):
        """Take `timer` out. False: it was not in this wheel."""
        if timer.node.wheel != <void *> self:
            return False
        self.take_out(&timer.node)
        Py_DECREF(timer)
        return True

    def advance(self, int64_t now):
        """Make `now` the present and take out all that is due by then, as lists by group.

        Each list is in the order of the ticks, and in the order of adding within one tick.
        Nothing happens if `now` is before the present.
        """
        cdef Py_ssize_t count = 0, i
        cdef Node *chain
        cdef Node *node
        cdef Due *due
        cdef Timer timer
        cdef dict groups = {}
        cdef list members = None
        cdef int64_t group = 0
        if now < self.now:
            return groups
        chain = self.take_due(now, &count)
        if count == 0:
            return groups
        due = <Due *> PyMem_RawMalloc(count * sizeof(Due))
        if due == NULL:
            self.put_back(chain)
            raise MemoryError
        # From here on the timers are free: making lists can run the collector, whose finalizers may add
        # them again and so change their links.
        for i in range(count):
            node = chain
            chain = node.after
            __builtin_prefetch(node.ahead)
            due[i].timer = node.timer
            due[i].group = node.group
            node.wheel = NULL
        try:
            for i in range(count):
                if members is None or due[i].group != group:
                    group = due[i].group
                    members = groups.get(group)
                    if members is None:
                        members = groups[group] = []
                members.append(<object> due[i].timer)
        except MemoryError:
            # A timer that nobody is told of would be a lease that nobody renews.
            for i in range(count):
                timer = <Timer> due[i].timer
                if timer.node.wheel == NULL:
                    Py_INCREF(timer)
                    self.put_in(&timer.node)
            raise
        finally:
            for i in range(count):
                Py_DECREF(<object> due[i].timer)
            PyMem_RawFree(due)
        return groups

    def next_due(self):
        """A tick until which nothing will be due, never later than the earliest; None when empty."""
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
        # A level's places all lie ahead within the present turn of the level above.
        cdef uint64_t below = (<uint64_t> 1 << (level * BITS)) - 1
        cdef uint64_t turn = <uint64_t> self.now & ~((below << BITS) | 63)
        return <int64_t> (turn | (<uint64_t> index << (level * BITS)))

    cdef inline void put_in(self, Node *node) noexcept nogil:
        cdef Node *back
        cdef int level, steps = STRIDE - 1
        if node.due <= self.now:
            node.place = OVERDUE
        else:
            # The level of the highest digit in which the tick differs from the present.
            level = (63 - __builtin_clzll(<uint64_t> (node.due ^ self.now))) // BITS
            node.place = (level << BITS) | <int> ((node.due >> (level * BITS)) & 63)
            self.taken[level] |= <uint64_t> 1 << (node.place & 63)
        node.wheel = <void *> self
        node.after = NULL
        node.before = self.last[node.place]
        # Of a million timers each lies on a page of its own, and a list tells where the next one is only
        # when this one has arrived: without the hint each step waits for memory, and coming due costs
        # three times as much.
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

    cdef Node *take_due(self, int64_t now, Py_ssize_t *count) noexcept nogil:
        # Goes from one taken place to the next. A place above the lowest level is spread over the levels
        # below when the present reaches it, which is what keeps the result in order.
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
                count[0] += 1
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
