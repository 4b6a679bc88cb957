# The fields of a hold and of the calls that change it. Each acquire makes one of each, so they have to be cheap.
# The methods here are single steps: neither a signal handler nor another thread runs in the middle of one.

cdef class OwnerCall:
    """A call of one owner, which takes its turn among the owner's calls; see `CallQueues`."""

    cdef unsigned long thread


cdef class HoldFields(Timer):
    """The fields of `pyredisson.logic.holds.Hold`, where their meaning is documented."""

    cdef public tuple key
    cdef public object commands
    cdef public bytes owner
    cdef public Py_ssize_t count
    cdef public object leases
    cdef public long long token
    cdef public double valid_until
    cdef public object state
    cdef public str reason
    cdef public list listeners
    cdef public object lost_below
    cdef public object acquired_by
    cdef public double begun
    cdef public long long extended
    cdef public bint listed

    def __init__(self, tuple key, commands, bytes owner, lease, double valid_until, state):
        self.begin(key, commands, owner, lease, valid_until, state)

    cdef begin(self, tuple key, commands, bytes owner, lease, double valid_until, state):
        self.key = key
        self.commands = commands
        self.owner = owner
        self.count = 1
        self.leases = lease
        self.valid_until = valid_until
        self.state = state
        self.reason = ""

    @cython.critical_section
    def change_state(self, old, new, str reason not None=""):
        """Goes from state `old` to `new`, to a loss for a reason; False: it is in another state, and stays there."""
        if self.state is not old:
            return False
        self.reason = reason
        self.state = new
        return True

    def add_level(self, AcquireCall call not None, double valid_until, held):
        """Counts one more level, acquired by `call`. False: the hold isn't in the state `held` any more."""
        with cython.critical_section(self, call):
            before = None
            leases = None
            while leases is None or self.leases is not before:
                # A new list, as others read the old one. The garbage collector may run other code while it is made.
                before = self.leases
                leases = [*before, call.lease] if isinstance(before, list) else [before, call.lease]
            if self.state is not held:
                return False
            self.leases = leases
            self.count += 1
            if valid_until > self.valid_until:
                self.valid_until = valid_until
            if call.token > self.token:
                self.token = call.token
            call.hold = self
            return True

    def absorb(self, HoldFields below not None):
        """Counts the levels of a lost hold below this one as levels of this one."""
        with cython.critical_section(self, below):
            self.count += below.count
            self.lost_below = None

    @cython.critical_section
    def lengthen(self, long long lease, double valid_until, held):
        """The server has confirmed the hold until then, for a lease of so many ms. False: it isn't held any more."""
        if self.state is not held:
            return False
        if lease > self.extended:
            self.extended = lease
        if valid_until > self.valid_until:
            self.valid_until = valid_until
        return True

    @cython.critical_section
    cdef bint is_in(self, state) except -1:
        """Whether it is in that state."""
        return self.state is state

    @cython.critical_section
    cdef bint is_valid(self, held, double now) except -1:
        """Whether it can be relied on."""
        return self.state is held and self.valid_until > now

    @cython.critical_section
    cdef Py_ssize_t begin_release(self, double now, held, releasing):
        """The release of one level begins; returns how many levels are to remain.

        -1: the hold isn't in the state `held`, or can't be relied on any more. With the last level it goes to
        `releasing`.
        """
        if self.state is not held or self.valid_until <= now:
            return -1
        if self.count == 1:
            self.state = releasing
        return self.count - 1

    def drop_level(self, ReleaseCall call not None, held, releasing):
        """Takes the level of `call` off, once; returns how many remain.

        -1: the level of this call was dropped before, or the hold has no level. With the last level a hold in the state
        `held` goes to `releasing`.
        """
        with cython.critical_section(self, call):
            before = None
            leases = None
            while leases is None or self.leases is not before:
                # As in `add_level`.
                before = self.leases
                leases = before[:max(self.count - 1, 0)] if isinstance(before, list) else []
            if call.dropped:
                return -1
            call.dropped = True
            if not self.count:
                call.reported = True
                return -1
            self.count -= 1
            if isinstance(before, list):
                self.leases = leases
                # The hold may go on until the end of that lease. By number: nothing is made that is collected.
                for number in range(len(leases), len(before)):
                    if before[number] is not None and before[number] > self.extended:
                        self.extended = before[number]
            if not self.count and self.state is held:
                self.state = releasing
            return self.count


@cython.final
cdef class ReleaseCall(OwnerCall):
    """The release of one level of a hold: the counterpart of `AcquireCall`.

    The level is released once, whichever of several functions with the same `ReleaseCall` comes first. `dropped`: the
    hold doesn't count the level any more. `reported`: nothing is to be sent for the level any more. The server has
    replied to its release, or a command in the background is on its way, or the hold had no level. `successor`: the
    waiter to which this release hands the lock on, until the outcome is known. `hands_over`: the call that does so goes
    on, and will see the outcome.
    """

    cdef public bint dropped
    cdef public bint reported
    cdef public bint hands_over
    cdef public object successor

    def __cinit__(self):
        self.dropped = False
        self.reported = False
        self.hands_over = False
        self.successor = None


cdef class AcquireCall(OwnerCall):
    """One acquire: for which owner, for how long, until when, and its result. It may need several attempts.

    `hold`: what this call acquired, or added a level to. `token`: the fencing token. `events`: the events of the
    lock's channel when the first attempt was made; None: its messages did not arrive then. `began`: when a call
    was sent, or began to wait, that was refused or sent again; 0: it has had no reason to wait. `member`: the name
    under which an attempt may have entered the client in the list of the waiting ones. `place`: how many stand before
    it there, as the latest refusal said; -1: it isn't there. `foreign`: then the holder was no client of this library.

    The rest belongs to the present attempt. `target`: the hold that is to get one more level; None: a new hold.
    `name`: the owner's name in the command. `lease_ms`: the lease in it. `sent_at`: when it was sent. `in_doubt`: it
    may have run, or may run late. `overtaken`: a release by this owner was handed to the background, and may run after
    the command.
    """

    cdef public object owner
    cdef public object lease
    cdef public object deadline
    cdef public object hold
    cdef public long long token
    cdef public object events
    cdef public double began
    cdef public bytes member
    cdef public long long place
    cdef public bint foreign
    cdef public object target
    cdef public bytes name
    cdef public long long lease_ms
    cdef public double sent_at
    cdef public bint in_doubt
    cdef public bint overtaken

    def __cinit__(self, owner, lease, deadline):
        self.owner = owner
        self.lease = lease
        self.deadline = deadline
        self.hold = None
        self.token = 0
        self.events = None
        self.began = 0
        self.member = b""
        self.place = -1
        self.foreign = False
        self.target = None
        self.name = b""
        self.lease_ms = 0
        self.sent_at = 0
        self.in_doubt = False
        self.overtaken = False


cdef object first_key(dict keys):
    """The first key of a dict that others may change meanwhile; None: it is empty."""
    cdef PyObject *key = NULL
    cdef Py_ssize_t position = 0
    with cython.critical_section(keys):
        return <object> key if PyDict_Next(keys, &position, &key, NULL) else None


@cython.final
cdef class InOrder:
    """The keys of a dict that others may change meanwhile: the first one, and then the keys of a copy.

    Mostly the first key is enough, and a copy of a long queue takes time. Another key may be the first one by then.
    """

    cdef dict keys
    cdef object first
    cdef object others

    def __cinit__(self, dict keys not None):
        self.keys = keys

    def __iter__(self):
        return self

    def __next__(self):
        if self.first is None:
            self.first = first_key(self.keys)
            if self.first is None:
                raise StopIteration
            return self.first
        if self.others is None:
            self.others = iter(list(self.keys))
        following = next(self.others)
        return following if following is not self.first else next(self.others)
