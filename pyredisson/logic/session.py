"""What all primitives of one client share: its runtime, its owners and holds, its waiters, its watchdog."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from weakref import KeyedRef

from pyredisson._settings.config import Config
from pyredisson._settings.durations import lease_ms
from pyredisson.errors import ClosedError
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.exactly_once import SessionSlots
from pyredisson.logic.groups.registry import GroupRegistry
from pyredisson.logic.holds import ENDED, GIVEN_BACK, GONE, Hold, Holds, Owner, Renames
from pyredisson.logic.locks.fair_queue import LocalQueues
from pyredisson.logic.lost_callbacks import Callback, LostCallbacks
from pyredisson.logic.permits.registry import PermitRegistry
from pyredisson.logic.ports import Runtime
from pyredisson.logic.watchdog import Loop, Watchdog
from pyredisson.owners import FIRST_AUTOMATIC_ID


class Session:
    """The inside of a client, the same in every world."""

    runtime: Runtime
    clock: Callable[[], float]
    watchdog: Watchdog
    channels: ChannelRegistry

    def __init__(
        self,
        config: Config,
        start: Callable[[Loop], None],
        notify: Callable[[Callback], None],
        say_last: Callable[[bytes], None],
    ) -> None:
        """`start` sets one of the watchdog's loops going; `notify` calls a callback where it holds up nobody;
        `say_last` sends a command of a client that is closed already.

        `begin` must follow.
        """
        self.lease = lease_ms(config.lock_watchdog_timeout)
        """Milliseconds for which a lock is taken whose lease the watchdog renews."""
        self.fair_wait = lease_ms(config.fair_lock_wait_timeout)
        """Milliseconds for which Redisson keeps a place in the queue of a fair lock."""
        self.attempts = config.retry_attempts
        self._release_ended = config.release_when_owner_ends
        self.closed = False
        self.server = f"{config.path or config.host}:{config.port}/{config.database}"
        """Which server it is, for groups of locks that are on several."""
        self._start = start
        self._notify = notify
        self._say_last = say_last
        self.lost_callbacks = LostCallbacks(notify)
        self._renames = Renames()
        self._explicit: dict[int, KeyedRef[int, Owner]] = {}
        """Explicit owners that a handle, or a call that is under way, refers to."""

    def begin(self, runtime: Runtime, watchdog_runtime: Runtime, channels: ChannelRegistry) -> None:
        """As a new client that owns nothing; also after `fork`, where what there was is the parent's."""
        self.runtime = runtime
        self.clock = runtime.clock
        self.id = str(uuid.uuid4())
        self.slots = SessionSlots(self.id, runtime, self.attempts)
        self.permits = PermitRegistry()
        self.holds = Holds(runtime.clock, self._lost)
        self.watchdog = Watchdog(
            self.holds, watchdog_runtime, self.lease, self._start, release_ended=self._release_ended
        )
        self.channels = channels
        self.local_queues = LocalQueues()
        self._ids = itertools.count(FIRST_AUTOMATIC_ID)
        for reference in list(self._explicit.values()):
            # Its handles go on in the child.
            if (owner := reference()) is not None:
                owner.begin(self.id)
        self.groups = GroupRegistry()

    def new_owner(self) -> Owner:
        """An owner whose id was never given before."""
        return Owner(self.id, next(self._ids))

    def explicit_owner(self, owner_id: int) -> Owner:
        """The owner of an id that the user chose. It is forgotten when nothing refers to it any more."""
        known = self._explicit
        while True:
            made = Owner(self.id, owner_id, self._renames)
            reference = known.setdefault(owner_id, KeyedRef(made, self._forget, owner_id))
            owner = reference()
            if owner is not None:
                return owner
            self._forget(reference)

    def _forget(self, dead: KeyedRef[int, Owner]) -> None:
        known, owner_id = self._explicit, dead.key
        # No call of a function: another thread may be making the same owner anew.
        if owner_id in known and known[owner_id] is dead:
            del known[owner_id]

    def notify(self, callback: Callback) -> None:
        """Has something done on a thread that nobody waits for; may be called from anywhere."""
        self._notify(callback)

    def repair(self, payload: bytes) -> None:
        """Has the watchdog repeat an idempotent command until it has run; a closed client says it once."""
        if self.closed:
            self._say_last(payload)
        else:
            self.watchdog.repair(payload)

    def check_open(self) -> None:
        """Raises `ClosedError` for a closed client."""
        if self.closed:
            raise ClosedError(f"client {self.id} is closed")

    def close(self) -> list[Hold]:
        """Ends waiting and renewing; returns the holds that are still to be given back."""
        self.closed = True
        self.channels.wake_all()
        self.watchdog.close()
        left = [hold for hold in list(self.holds.table.values()) if self.holds.proven(hold)]
        for hold in list(self.holds.table.values()):
            # The garbage collector doesn't look into the wheel: a hold in there would keep this client's memory.
            self.watchdog.forget(hold)
        self.holds.table.clear()
        self.groups.holds.clear()
        for hold in left:
            hold.end(GIVEN_BACK)
        return left

    def _lost(self, hold: Hold) -> None:
        self.lost_callbacks.run(hold.key[0])
        # A fixed lease ends when its waiters look anyway; whoever removes a lock by force publishes.
        if hold.reason is GONE or (hold.reason is ENDED and hold.renewed):
            notice = hold.lock.lost_command()
            if notice is not None and not self.closed:
                self.watchdog.notify(notice)
