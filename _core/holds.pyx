# The fields of a hold: one is made for every acquire, so making it and reading it has to be cheap.

cdef class HoldFields(Timer):
    """What `pyredisson.logic.holds.Hold` is made of; what the fields mean is said there."""

    cdef public tuple key
    cdef public object lock
    cdef public bytes owner
    cdef public Py_ssize_t count
    cdef public object leases
    cdef public long long token
    cdef public double ends
    cdef public object state
    cdef public str reason
    cdef public list listeners
    cdef public object under

    def __cinit__(self, tuple key, lock, bytes owner, lease, double ends, under, state):
        self.key = key
        self.lock = lock
        self.owner = owner
        self.count = 1
        self.leases = lease
        self.ends = ends
        self.state = state
        self.reason = ""
        self.token = 0
        self.under = under


cdef class Call:
    """One acquire: for whom, for how long, until when, and what came of it. Others may act for the same owner.

    `took`: whether it was this call that got the lock; `token`: the fencing token that it got.
    """

    cdef public object owner
    cdef public object lease
    cdef public object deadline
    cdef public bint took
    cdef public long long token

    def __cinit__(self, owner, lease, deadline):
        self.owner = owner
        self.lease = lease
        self.deadline = deadline
        self.took = False
        self.token = 0
