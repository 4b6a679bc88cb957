"""What all primitives of one client share: its runtime, its owners and holds, its waiters, its watchdog."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Hashable
from typing import Any
from weakref import KeyedRef

from pyredisson._settings.config import Config
from pyredisson._settings.durations import lease_ms
from pyredisson.errors import ClosedError
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.exactly_once import SessionSlots
from pyredisson.logic.holds import ENDED, GIVEN_BACK, GONE, LOST, Hold, HoldKey, Holds, Owner, Remembered, Renames
from pyredisson.logic.locks.fair_queue import LocalQueue
from pyredisson.logic.ports import Runtime
from pyredisson.logic.watchdog import Loop, Watchdog
from pyredisson.owners import FIRST_AUTOMATIC_ID

Callback = Callable[[], object]


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
        self._callbacks: dict[Hashable, dict[Callback, object]] = {}
        """What to call when a lock is lost, by its place in the table of holds, and what the user calls it by."""
        self._renames = Renames()
        self._explicit: dict[int, KeyedRef[int, Owner]] = {}
        """Explicit owners that a handle, or a call that is under way, refers to."""

    def begin(self, runtime: Runtime, watchdog_runtime: Runtime, channels: ChannelRegistry) -> None:
        """As a new client that owns nothing; also after `fork`, where what there was is the parent's."""
        self.runtime = runtime
        self.clock = runtime.clock
        self.id = str(uuid.uuid4())
        self.slots = SessionSlots(self.id, runtime, self.attempts)
        self.doubtful_permits: set[bytes] = set()
        """Permits whose acquire may run once more, late: who gives them back has to see to that."""
        self.reported_not_set: set[tuple[str, bytes]] = set()
        """Semaphores and latches of which was logged that they don't exist: what they are, and their names."""
        self.claimants = itertools.count(1)
        """Numbers for waiters that claim permits."""
        self.holds = Holds(runtime.clock, self._lost)
        self.watchdog = Watchdog(
            self.holds, watchdog_runtime, self.lease, self._start, release_ended=self._release_ended
        )
        self.channels = channels
        self.local_queues: dict[bytes, LocalQueue] = {}
        """Who waits for which fair lock."""
        self._ids = itertools.count(FIRST_AUTOMATIC_ID)
        for reference in list(self._explicit.values()):
            # Its handles go on in the child.
            if (owner := reference()) is not None:
                owner.begin(self.id)
        self.group_holds: dict[Hashable, dict[Any, None]] = {}
        """Of groups whose first member is ours, by the group's place and its party's id; the innermost is the last."""
        self.lost_groups = Remembered(self._has_lost, self._forget_lost)
        """Which of them were lost."""
        self.asked: dict[HoldKey, float] = {}
        """Members of groups that were asked and have not answered yet, and when that was."""

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

    def on_lost(self, place: Hashable, callback: object, tell: Callback) -> None:
        """Has `tell` called for each hold of that lock, by its place in the table, which this client loses.

        `remove_on_lost` knows it as `callback`.
        """
        callbacks: dict[Callback, object] = {}
        # Another thread may be removing the last one that was registered, and the dict with it.
        while self._callbacks.get(place) is not callbacks:
            callbacks = self._callbacks.setdefault(place, {})
            callbacks[tell] = callback

    def remove_on_lost(self, place: Hashable, callback: object) -> bool:
        """Removes the latest registration of that callback; was there one."""
        callbacks = self._callbacks.get(place, {})
        for tell in reversed(list(callbacks)):
            if callbacks.get(tell) == callback and callbacks.pop(tell, None) is not None:
                if not callbacks and (kept := self._callbacks.pop(place, {})):
                    # Registered by another thread just now.
                    self._callbacks.setdefault(place, kept).update(kept)
                return True
        return False

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
        self.group_holds.clear()
        for hold in left:
            hold.end(GIVEN_BACK)
        return left

    def tell_lost(self, place: Hashable) -> None:
        """Has the callbacks called that `on_lost` was given."""
        for tell in list(self._callbacks.get(place, ())):
            self._notify(tell)

    def _has_lost(self, key: Hashable) -> bool:
        return any(hold.state is LOST for hold in list(self.group_holds.get(key, ())))

    def _forget_lost(self, key: Hashable) -> None:
        levels = self.group_holds.get(key, {})
        for hold in list(levels):
            if hold.state is LOST:
                self.drop_group(key, hold)

    def drop_group(self, key: Hashable, hold: object) -> None:
        """Takes one level of a group's holds off the table. Idempotent."""
        table = self.group_holds
        levels = table.get(key, {})
        if hold not in levels:
            return
        levels.pop(hold, None)
        if not levels and (kept := table.pop(key, {})):
            # By another call of the same party, just now.
            table.setdefault(key, kept).update(kept)

    def _lost(self, hold: Hold) -> None:
        self.tell_lost(hold.key[0])
        # A fixed lease ends when its waiters look anyway; whoever removes a lock by force publishes.
        if hold.reason is GONE or (hold.reason is ENDED and hold.renewed):
            notice = hold.lock.lost_command()
            if notice is not None and not self.closed:
                self.watchdog.notify(notice)
