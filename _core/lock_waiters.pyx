# A call that waits for a lock which is handed on inside its client, from its entry into the queue to its end. Each
# contended acquire makes one. Neither a signal handler nor another thread runs in the middle of a method, except where
# it says so.
#
# "Quietly" means: without the mutex of the channels, and without a word to the subscription connection. A waiter that
# joins behind others that have done both needs neither. A waiter that leaves while others stay doesn't, either: loops
# that run with the mutex held expect it on any of their lines, because a finalizer may end a waiter there. Only without
# a global lock these steps take the mutex of the channels, as they change several objects.

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define FREE_THREADED 1
    #else
    #define FREE_THREADED 0
    #endif
    """
    const bint FREE_THREADED


cdef bint is_set(wakeup) except -1:
    return (<TaskWakeup> wakeup).flag if isinstance(wakeup, TaskWakeup) else wakeup.is_set()


cdef class ChannelFields:
    """The fields of `pyredisson.logic.channels.Channel`, where their meaning is documented, and some of its steps."""

    cdef public dict waiters
    cdef public bint confirmed
    cdef public object events
    cdef public object error
    cdef public double idle_since

    @cython.critical_section
    cdef object last_event(self):
        return self.events

    def set_aside(self, wakeup):
        """Messages go to other waiters. Returns the need of a waiter that one has woken already; else 0.

        The caller has the mutex.
        """
        cdef long long need = self.waiters.get(wakeup, 0)
        # Negative: it is leaving.
        if need <= 0:
            return 0
        self.waiters[wakeup] = 0
        return need if is_set(wakeup) else 0

    def take_back(self, wakeup, need):
        """Undoes `set_aside`, unless the waiter has left. The caller has the mutex."""
        if self.waiters.get(wakeup) == 0:
            self.waiters[wakeup] = need

    cdef bint owes_nothing(self, wakeup) except -1:
        """Whether a waiter can be removed without any other change: it has no wakeup to pass on, and others stay.

        While messages may be lost, the next one has to know that it makes attempts.
        """
        need = self.waiters.get(wakeup)
        if need is None or len(self.waiters) == 1 or not self.confirmed:
            return False
        return not (need and is_set(wakeup))


cdef class QueueFields


cdef class WaiterFields:
    """The fields and the state of a call that waits, see `pyredisson.logic.waiting.Waiter`, and some of its steps.

    `releaser`: the release that offers it what it waits for; None as soon as that has had an outcome. `error`: what the
    waiter has to raise, because what the server had entered was undone for a reason that concerns it alone.
    """

    cdef public object state
    cdef public object session
    cdef public object call
    cdef public object wakeup
    cdef public bytes channel_name
    cdef public ChannelFields channel
    cdef public QueueFields queue
    cdef public double look_at
    cdef public bint owes_attempt
    cdef public object error
    cdef public ReleaseCall releaser

    def begin(self, state, session, call, wakeup, bytes channel_name):
        """Sets the fields."""
        self.state = state
        self.session = session
        self.call = call
        self.wakeup = wakeup
        self.channel_name = channel_name

    @cython.critical_section
    cdef ChannelFields its_channel(self):
        return self.channel

    @property
    def deadline(self):
        """Until when the call waits; None: without limit. It may be changed during the wait, see `give_up`."""
        return self.call.deadline

    def sleep_seconds(self, double now, double unconfirmed_wait):
        """For how long to sleep at most. 0 or less: the deadline has passed.

        `unconfirmed_wait`: the longest sleep while messages may be lost.
        """
        cdef double seconds = max(self.look_at - now, 0.001)
        cdef ChannelFields channel = self.its_channel()
        if channel is None or not channel.confirmed:
            seconds = min(seconds, unconfirmed_wait)
        deadline = self.call.deadline
        return seconds if deadline is None else min(seconds, <double> deadline - now)

    @cython.critical_section
    def change_state(self, old, new):
        """Goes from state `old` to `new`; False: it is in another state, and stays there."""
        if self.state is not old:
            return False
        self.state = new
        return True

    @cython.critical_section
    def leave(self, given, left):
        """Goes to `left` from any state but `given`."""
        if self.state is not given:
            self.state = left

    def offer(self, waiting, offered, ReleaseCall releaser not None):
        """Goes from `waiting` to `offered`, and becomes the successor of `releaser`. False: it is in another state."""
        return self.begin_offer(waiting, offered, releaser)

    cdef bint begin_offer(self, waiting, offered, ReleaseCall releaser) except -1:
        with cython.critical_section(self, releaser):
            if self.state is not waiting:
                return False
            self.state = offered
            self.releaser = releaser
            releaser.successor = self
            releaser.hands_over = True
            return True

    @cython.critical_section
    def conclude(self, offered, outcome):
        """Goes from `offered` to `outcome`, which ends the offer. False: it is in another state, and stays there."""
        if self.state is not offered:
            return False
        self.state = outcome
        self.releaser = None
        return True


cdef class LockWaiterFields(WaiterFields):
    """The fields of `pyredisson.logic.locks.queued_wait.LockWaiter`, where their meaning is documented, and some of its
    steps.
    """

    cdef public object lock
    cdef public tuple hold_key

    def is_ready(self, waiting, double now, dict holds not None, lost):
        """Whether it sleeps, has time, and needs a new hold. `waiting`: its state then. `lost`: a lost hold's."""
        return self.needs_hold(waiting, now, holds, lost)

    cdef bint needs_hold(self, waiting, double now, dict holds, lost) except -1:
        cdef HoldFields hold
        # Other code may run where a wakeup is asked, so that comes first.
        if not self.wakeup.alive or self.state is not waiting:
            return False
        deadline = self.call.deadline
        if deadline is not None and <double> deadline <= now:
            return False
        hold = holds.get(self.hold_key)
        return hold is None or hold.is_in(lost)

    def prepare(self, events, long long renewed_lease_ms, double now):
        """Prepares the call for the command of a release that enters it, as its own attempt would do."""
        cdef AcquireCall call = self.call
        with cython.critical_section(call):
            call.events = events
            call.target = None
            call.in_doubt = False
            call.overtaken = False
            call.lease_ms = renewed_lease_ms if call.lease is None else call.lease
            # A lease counts from before its command was sent.
            call.sent_at = now


cdef class QueueFields:
    """The fields of `pyredisson.logic.waiting.WaitingQueue`, where their meaning is documented, and some of its
    steps.

    `held`, `lost`: states of a hold. `waiting`, `offered`: states of a waiter. `unknown_wait`: how many seconds a call
    waits at most if it doesn't know when the lease of the holder ends.
    """

    cdef public dict waiters
    cdef public ChannelFields channel
    cdef public HoldFields holder
    cdef public object holder_events
    cdef public double busy_until
    cdef public double series_ends
    cdef public double others_first_until
    cdef object held
    cdef object lost
    cdef object waiting
    cdef object offered
    cdef double unknown_wait

    def __init__(self, held, lost, waiting, offered, double unknown_wait):
        self.waiters = {}
        self.series_ends = float("inf")
        self.held = held
        self.lost = lost
        self.waiting = waiting
        self.offered = offered
        self.unknown_wait = unknown_wait

    @property
    def is_held(self):
        """Whether a caller of this client holds the lock, as far as known. Its release looks into this queue.

        False after any message: another client may have removed the lock by force.
        """
        cdef HoldFields holder
        cdef ChannelFields channel
        with cython.critical_section(self):
            holder = self.holder
            channel = self.channel
            events = self.holder_events
        return holder is not None and channel is not None and holder.is_in(self.held) and channel.last_event() == events

    def next_look(self, double now, bint held):
        """When the holder's lease ends, as far as known; for a waiter that has made no attempt."""
        return self.end_of_lease(now, held)

    cdef double end_of_lease(self, double now, bint held):
        cdef HoldFields holder
        with cython.critical_section(self):
            holder = self.holder
        if held and holder is not None and holder.valid_until > now:
            return holder.valid_until + 0.001
        return self.busy_until if self.busy_until > now else now + self.unknown_wait

    cdef WaiterFields first_waiter(self):
        return first_key(self.waiters)

    def join_quietly(self, WaiterFields waiter not None, need, channels, double now, double longest):
        """Has a call that has made no attempt wait behind others, in the channel that they listen to.

        The others have made sure that the connection is being read. The waiter sleeps until it gets the lock or a
        message, or the holder's lease ends, for `longest` seconds at most. False: nothing was changed. `channels`: the
        registry of the client.
        """
        if FREE_THREADED:
            with channels.mutex:
                return self.join_behind_others(waiter, need, channels.waiting, now, longest)
        return self.join_behind_others(waiter, need, channels.waiting, now, longest)

    cdef bint join_behind_others(
        self, WaiterFields waiter, need, set waiting, double now, double longest
    ) except -1:
        cdef WaiterFields first = self.first_waiter()
        # Other code may run where these two are asked, so they come first.
        if first is None or not first.wakeup.alive:
            return False
        cdef ChannelFields channel
        look_at = min(self.end_of_lease(now, self.is_held), now + longest)
        with cython.critical_section(self):
            channel = self.channel
        if not self.waiters or channel is None or not channel.confirmed or channel.error is not None:
            return False
        if first.wakeup not in channel.waiters:
            return False
        with cython.critical_section(waiter):
            waiter.look_at = look_at
            waiter.queue = self
            waiter.channel = channel
        self.waiters[waiter] = None
        channel.waiters[waiter.wakeup] = need
        waiting.add(waiter.wakeup)
        with cython.critical_section(waiter):
            waiter.state = self.waiting
        return True

    def offer_to_first(
        self, ReleaseCall releaser not None, commands_type, double now, double limit, dict holds not None
    ):
        """Has a release begin to hand the lock on to the first waiter.

        `commands_type`: the class of the commands of the lock. `limit`: for how many seconds the lock is handed on,
        from the first time on. None: another waiter has to be looked for, or there is none, or the time is over;
        nothing was changed.
        """
        cdef WaiterFields first = self.first_waiter()
        if first is None or limit <= 0 or self.series_ends <= now:
            return None
        cdef LockWaiterFields waiter = <LockWaiterFields?> first
        if waiter.lock.commands.__class__ is not commands_type:
            return None
        if not waiter.needs_hold(self.waiting, now, holds, self.lost):
            return None
        return waiter if waiter.begin_offer(self.waiting, self.offered, releaser) else None

    def leave_quietly(self, WaiterFields waiter not None, channels):
        """Removes a waiter that has what it waits for, also from its channel, if others stay.

        False: nothing was changed. Also if it has a wakeup that goes to another waiter.
        """
        if FREE_THREADED:
            with channels.mutex:
                return self.leave_others(waiter, channels.waiting)
        return self.leave_others(waiter, channels.waiting)

    cdef bint leave_others(self, WaiterFields waiter, set waiting) except -1:
        if len(self.waiters) < 2 or waiter not in self.waiters:
            return False
        cdef ChannelFields channel = waiter.its_channel()
        if channel is None or not channel.owes_nothing(waiter.wakeup):
            return False
        del self.waiters[waiter]
        del channel.waiters[waiter.wakeup]
        waiting.discard(waiter.wakeup)
        return True
