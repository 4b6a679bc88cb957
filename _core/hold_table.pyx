# What each acquire and each release does with the table of holds. Neither a signal handler nor another thread runs in
# the middle of a method, except where it says so.

ctypedef object (*New)(type, tuple, void *)


cdef new_object(type cls):
    """An object whose fields are not set. This is faster than a call of the class."""
    return (<New> (<PyTypeObject *> cls).tp_new)(cls, (), NULL)


cdef class HoldTableFields:
    """The fields of `pyredisson.logic.holds.HoldTable`, and what is done with them by each acquire and each release.

    `hold_type`: the class of a hold. `held`, `releasing`, `released`: its states.
    """

    cdef public dict table
    cdef public Wheel wheel
    cdef public object _clock
    cdef type hold_type
    cdef object held
    cdef object releasing
    cdef object released

    def __init__(self, clock, type hold_type not None, held, releasing, released):
        self.table = {}
        self.wheel = Wheel()
        self._clock = clock
        self.hold_type = hold_type
        self.held = held
        self.releasing = releasing
        self.released = released

    def begin_attempt(self, AcquireCall call not None, tuple key, long long renewed_lease_ms):
        """The attempt of an acquire begins: chooses its target, and notes when it was sent.

        Returns a hold of the same owner that can't be relied on any more, which is not the target. None: there is none.
        """
        cdef HoldFields target
        # A lease counts from before its command was sent.
        cdef double now = self._clock()
        target = self.table.get(key)
        cdef bint relied_on = target is not None and target.is_valid(self.held, now)
        with cython.critical_section(call):
            call.sent_at = now
            call.in_doubt = False
            call.overtaken = False
            call.lease_ms = renewed_lease_ms if call.lease is None else call.lease
            call.target = target if relied_on else None
        return None if relied_on else target

    def begin_hold(self, AcquireCall call not None, tuple key, commands, double valid_until, RenewalStep step not None):
        """Records a new hold, which `call` acquired, and has it watched.

        No interrupt strikes between the entry in the table and the note on the call, by which an interrupted acquire is
        released.

        False: it is another case, and nothing was changed. The owner has a hold, or the call was overtaken.
        """
        # Other code may run while the object is made, in the garbage collector: so it is made first.
        cdef HoldFields hold = new_object(self.hold_type)
        hold.begin(key, commands, call.name, call.lease, valid_until, self.held)
        if call.overtaken or key in self.table:
            return False
        replace_hold(self.table, hold, call)
        if call.overtaken:
            # By another thread, which may have looked for this hold before it was in the table.
            with cython.critical_section(hold, call):
                call.hold = None
                hold.state = self.released
            take_out(self.table, hold)
            return False
        step.watch_hold(hold, call.sent_at)
        return True

    def begin_level_release(self, HoldFields hold not None):
        """The release of one level is about to be sent. Returns how many levels are to remain. -1: it is not held."""
        cdef Py_ssize_t remaining = hold.begin_release(self._clock(), self.held, self.releasing)
        if remaining < 0:
            self.expire_if_due(hold)
        return remaining

    def drop_level(self, HoldFields hold not None, ReleaseCall call not None):
        """Takes the level of `call` off the hold, once; returns how many remain. -1: it was dropped before.

        With the last level the hold leaves the table: it is released, unless it was lost. That part is done again by
        each further call, because an interrupt may have prevented it.
        """
        return 0 if self.end_hold(hold, call) else self._drop_level_otherwise(hold, call)

    def take_out(self, HoldFields hold not None):
        """Takes a hold out of the table. False: it isn't there."""
        return take_out(self.table, hold)

    cdef bint end_hold(self, HoldFields hold, ReleaseCall call) except -1:
        """The ordinary end of a hold: `call` has released its only level. The hold leaves the table and the wheel.

        False: it is another case, and nothing was changed.
        """
        # Before the checks: the garbage collector may run other code while the list is made.
        cdef list none = []
        if self.table.get(hold.key) is not hold:
            return False
        with cython.critical_section(hold, call):
            if hold.count != 1 or call.dropped or hold.state is not self.releasing:
                return False
            if hold.listeners is not None or hold.lost_below is not None:
                return False
            call.dropped = True
            hold.count = 0
            if isinstance(hold.leases, list):
                hold.leases = none
            hold.state = self.released
        take_out(self.table, hold)
        self.wheel.remove(hold)
        return True


cpdef replace_hold(dict table, HoldFields hold, AcquireCall call):
    """Puts into the table what `call` acquired."""
    with cython.critical_section(hold, call):
        hold.token = call.token
        hold.acquired_by = call.owner
        hold.begun = call.sent_at
    table[hold.key] = hold
    with cython.critical_section(call):
        call.hold = hold


def remove_hold(dict table not None, HoldFields hold not None):
    """Takes a hold out of the table, where a lost hold below it stays. False: the hold isn't there."""
    cdef HoldFields lost_below
    with cython.critical_section(hold):
        lost_below = hold.lost_below
    if lost_below is None or not lost_below.count:
        return take_out(table, hold)
    if table.get(hold.key) is not hold:
        return False
    table[hold.key] = lost_below
    return True


cdef bint take_out(dict table, HoldFields hold) except -1:
    return remove_value(table, hold.key, hold)


cpdef bint remove_value(dict table, key, value) except -1:
    """Removes an entry of a dict. False: it has another value, or there is none."""
    with cython.critical_section(table):
        return table.get(key) is value and table.pop(key) is value
