# The fields of a hold: one is made for every acquire, so making it and reading it has to be cheap.

cdef class OwnerCall:
    """What takes its turn among the calls of one owner."""

    cdef unsigned long thread


cdef class HoldFields(Timer):
    """What `pyredisson.logic.holds.Hold` is made of; what the fields mean is said there."""

    cdef public tuple key
    cdef public object lock
    cdef public bytes owner
    cdef public Py_ssize_t count
    cdef public object leases
    cdef public long long token
    cdef public double valid_until
    cdef public object state
    cdef public str reason
    cdef public list listeners
    cdef public object lost_below
    cdef public object taken_by

    def __cinit__(self, tuple key, lock, bytes owner, lease, double valid_until, lost_below, state):
        self.key = key
        self.lock = lock
        self.owner = owner
        self.count = 1
        self.leases = lease
        self.valid_until = valid_until
        self.state = state
        self.reason = ""
        self.token = 0
        self.lost_below = lost_below
        self.taken_by = None

    def change(self, old, new):
        """Goes from state `old` to `new`; False: it is in another state, and stays there."""
        if self.state is not old:
            return False
        self.state = new
        return True

    def nest(self, AcquireCall call not None, double valid_until, held):
        """Counts one more level, which is what `call` acquired; False: the hold isn't in the state `held` any more."""
        # Made first: the garbage collector may run other code while it makes a list.
        leases = self.leases if isinstance(self.leases, list) else [self.leases]
        if self.state is not held:
            return False
        (<list> leases).append(call.lease)
        self.leases = leases
        self.count += 1
        if valid_until > self.valid_until:
            self.valid_until = valid_until
        if call.token > self.token:
            self.token = call.token
        call.hold = self
        return True

    def drop(self, HoldLevel level not None, held, given_back):
        """Gives back one level, once; returns how many are left.

        -1: that `level` was given back before, or there is none left. With the last one, a hold that is `held`
        becomes `given_back`.
        """
        if level.done:
            return -1
        level.done = True
        if not self.count:
            level.told = True
            return -1
        self.count -= 1
        if isinstance(self.leases, list):
            del (<list> self.leases)[self.count:]
        if not self.count and self.state is held:
            self.state = given_back
        return self.count


@cython.final
cdef class HoldLevel(OwnerCall):
    """One level of a hold that is to be given back once, by whoever comes first.

    `done`: it is no part of the hold any more; `told`: the server knows that, or is being told.
    """

    cdef public bint done
    cdef public bint told

    def __cinit__(self):
        self.done = False
        self.told = False


cdef class AcquireCall(OwnerCall):
    """One acquire: for whom, for how long, until when, and what came of it. Others may act for the same owner.

    `hold`: what this call acquired, or one more level of; `token`: the fencing token that it got.
    """

    cdef public object owner
    cdef public object lease
    cdef public object deadline
    cdef public object hold
    cdef public long long token

    def __cinit__(self, owner, lease, deadline):
        self.owner = owner
        self.lease = lease
        self.deadline = deadline
        self.hold = None
        self.token = 0


def enter(dict table not None, HoldFields hold not None, AcquireCall call not None):
    """Puts into the table of holds what `call` acquired; no signal can strike halfway."""
    table[hold.key] = hold
    call.hold = hold


def replace(dict table not None, HoldFields hold not None):
    """Takes a hold out of the table, where a lost one below it stays; False: it isn't there."""
    cdef HoldFields lost_below = hold.lost_below
    if table.get(hold.key) is not hold:
        return False
    if lost_below is None or not lost_below.count:
        del table[hold.key]
    else:
        table[hold.key] = lost_below
    return True
