# The part of the watchdog that each acquire uses.

cdef class RenewalStep:
    """The step of the renewal grid that goes on: holds that begin in it are due at the same time.

    `pyredisson.logic.watchdog.Watchdog` computes it. `_step_begins`, `_step_ends`: readings of the clock.
    `_first_due`: the tick at which those holds are due for the first time. `_next_look`: the tick at which the watchdog
    looks at the wheel next.
    """

    cdef public Wheel wheel
    cdef public double _step_begins
    cdef public double _step_ends
    cdef public int64_t _first_due
    cdef public double _next_look

    def watch(self, HoldFields hold not None, double now):
        """Watches a new hold, from its announcement to the end of its lease. `now`: when the acquire was sent."""
        self.watch_hold(hold, now)

    cdef watch_hold(self, HoldFields hold, double now):
        cdef int64_t due
        cdef bint in_step
        with cython.critical_section(self):
            due = self._first_due
            in_step = self._step_begins <= now < self._step_ends
        if in_step and hold.leases is None:
            self.wheel.insert(hold, due)
            # After the insertion: the loop looks at the wheel again after it has set its next look.
            if due < self._next_look:
                self._start_or_wake()
        else:
            self._watch_otherwise(hold, now)
