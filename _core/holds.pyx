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
