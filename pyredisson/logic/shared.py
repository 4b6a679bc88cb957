"""What all primitives of one client share: its runtime, its owners and holds, its waiters, its watchdog."""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from pyredisson.config import Config
from pyredisson.durations import lease_ms
from pyredisson.errors import ClosedError
from pyredisson.logic.fair_line import Line
from pyredisson.logic.holds import ENDED, GIVEN_BACK, GONE, Hold, HoldKey, Holds, Owner
from pyredisson.logic.hub import Hub
from pyredisson.logic.once import Lanes
from pyredisson.logic.watchdog import Loop, Watchdog
from pyredisson.runtime import Runtime

FIRST_OWN_ID = 2**32
"""Owners' ids below this one are for the user to give (`owner=`)."""

Callback = Callable[[], object]


class Shared:
    """The inside of a client, the same in every world."""

    runtime: Runtime
    clock: Callable[[], float]
    watchdog: Watchdog
    hub: Hub

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
        self.closed = False
        self.server = f"{config.path or config.host}:{config.port}/{config.database}"
        """Which server it is, for groups of locks that are on several."""
        self._start = start
        self._notify = notify
        self._say_last = say_last
        self._callbacks: dict[Hashable, tuple[Callback, ...]] = {}

    def begin(self, runtime: Runtime, watchdog_runtime: Runtime, hub: Hub) -> None:
        """As a new client that owns nothing; also after `fork`, where what there was is the parent's."""
        self.runtime = runtime
        self.clock = runtime.clock
        self.id = str(uuid.uuid4())
        self.lanes = Lanes(self.id, runtime, self.attempts)
        self.doubtful_permits: set[bytes] = set()
        """Permits whose acquire may run once more, late: who gives them back has to see to that."""
        self.holds = Holds(runtime.clock, self._lost)
        self.watchdog = Watchdog(self.holds, watchdog_runtime, self.lease, self._start)
        self.hub = hub
        self.lines: dict[bytes, Line] = {}
        """Who waits for which fair lock."""
        self._ids = itertools.count(FIRST_OWN_ID)
        self._given: dict[int, Owner] = {}
        self.group_holds: dict[Hashable, dict[Any, None]] = {}
        """Of groups whose first member is ours, by the group's place and its party's id; the innermost is the last."""
        self.lost_groups: deque[Hashable] = deque()
        """Which of them were lost, the latest last."""
        self.asked: dict[HoldKey, float] = {}
        """Members of groups that were asked and have not answered yet, and when that was."""

    def new_owner(self) -> Owner:
        """An owner whose id was never given before."""
        return Owner(self.id, next(self._ids))

    def given_owner(self, owner_id: int) -> Owner:
        """The owner of an id that the user chose."""
        return self._given.get(owner_id) or self._given.setdefault(owner_id, Owner(self.id, owner_id))

    def repair(self, payload: bytes) -> None:
        """Has the watchdog repeat an idempotent command until it has run; a closed client says it once."""
        if self.closed:
            self._say_last(payload)
        else:
            self.watchdog.repair(payload)

    def on_lost(self, place: Hashable, callback: Callback) -> None:
        """Has `callback` called for each hold of that lock, by its place in the table, which this client loses."""
        self._callbacks[place] = (*self._callbacks.get(place, ()), callback)

    def check_open(self) -> None:
        """Raises `ClosedError` for a closed client."""
        if self.closed:
            raise ClosedError(f"client {self.id} is closed")

    def close(self) -> list[Hold]:
        """Ends waiting and renewing; returns the holds that are still to be given back."""
        self.closed = True
        self.hub.wake_all()
        self.watchdog.close()
        left = [hold for hold in list(self.holds.table.values()) if self.holds.proven(hold)]
        self.holds.table.clear()
        self.group_holds.clear()
        for hold in left:
            hold.end(GIVEN_BACK)
        return left

    def tell_lost(self, place: Hashable) -> None:
        """Has the callbacks called that `on_lost` was given."""
        for callback in self._callbacks.get(place, ()):
            self._notify(callback)

    def _lost(self, hold: Hold) -> None:
        self.tell_lost(hold.key[0])
        # A fixed lease ends when its waiters look anyway; whoever removes a lock by force publishes.
        if hold.reason is GONE or (hold.reason is ENDED and hold.renewed):
            notice = hold.lock.lost_command()
            if notice is not None and not self.closed:
                self.watchdog.notify(notice)
