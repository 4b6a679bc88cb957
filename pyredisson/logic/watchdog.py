"""Watches the holds of one client: which of them are due for renewal, and which have ended."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, cast

from pyredisson._core import RenewalStep, Timer, Wheel
from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.routing import Changes
from pyredisson.logic.holds import GONE, HELD, NOT_TAKEN_OVER, Hold, HoldTable
from pyredisson.logic.loops import Loop, LoopOwner, log_exception, weak_loop
from pyredisson.logic.observing import Observing
from pyredisson.logic.ports import Runtime
from pyredisson.logic.renewer import BATCH, Batch, RenewalGrid, Renewer
from pyredisson.logic.repairs import REPAIR_FOR, Unsent

if TYPE_CHECKING:
    from pyredisson.logic.announcement import Announcement

LISTED_AFTER = 1000
"""Milliseconds after which others are told of a hold. Most holds are shorter, and cost nothing."""
SCAN_INTERVAL = 0.2
"""Seconds between two searches for the holds of slots that have moved. Each of them looks at all holds of the client,
and slots may be moved one by one."""


class Alarm(Timer):
    """Something other than a hold that needs attention at a certain time."""

    def ring(self) -> None:
        """The time has come. Called by `keep_time`, so it must not block."""
        raise NotImplementedError


class Watchdog(LoopOwner, RenewalStep):
    """A timer wheel with a loop that keeps the time, and a renewer for each shard.

    Each loop has a thread of its own. `keep_time` never waits for the network, so it declares a hold lost at the moment
    when its lease ends. The renewers have connections of their own, so that calls that are slow or hang can't delay a
    renewal. A single server has one renewer, which starts with the first hold. With several servers, a renewer starts
    with the first work for its shard, and ends when it had none for long.

    A call that acquires or releases a lock only changes the wheel: it takes no mutex, and it wakes `keep_time` only if
    its hold is due before the next look at the wheel.
    """

    closed = False

    def __init__(self, holds: HoldTable, runtime: Runtime, lease_ms: int, start: Callable[[Loop], None]) -> None:
        """`start` runs a loop on a thread of its own."""
        super().__init__()
        self.observing: Observing | None = None
        self.announcer: Announcement | None = None
        """None: nobody is told of this client."""
        self._holds = holds
        self._runtime = runtime
        self._lease_ms = lease_ms
        self._grid = RenewalGrid(lease_ms)
        self._grids = {lease_ms: self._grid}
        """For each length of a lease that is renewed."""
        self._moved_at = -math.inf
        """The reading of the clock when slots have moved last."""
        self._moved: deque[Iterable[int]] = deque()
        """Slots that have moved, and whose holds are still to be checked."""
        self._next_scan = -math.inf
        self.wheel = holds.wheel = Wheel(self._now_ms())
        self.cancel = self.wheel.discard
        """Undoes `set_alarm`."""
        self._next_look = math.inf
        self._time_wakeup = runtime.wakeup()
        self.release_when_owner_ends = False
        """Whether holds of ended owners are released."""
        self._reported: dict[Hold, None] = {}
        """Holds for which it was logged that their owners have ended."""
        self.start = start
        # Re-entrant: a finalizer that the garbage collector runs while a thread is started may add a repair.
        self._starting = threading.RLock()
        self.started = False
        self._renewers: dict[Hashable, Renewer] = {}
        """The renewers that have not ended."""
        runtime.on_topology_change(self.on_topology_change)

    # --- What calls

    def _watch_otherwise(self, hold: Hold, now: float) -> None:
        """Watches a hold that has a fixed lease, or is the first one of a step of the grid; see `watch`."""
        if not self._step_begins <= now < self._step_ends:
            self._enter_grid_step(now)
            if now < self._moved_at:
                # Its acquire was sent before slots moved: the server that has granted it may not have served its slot
                # any more, and the search for the holds of those slots may not have found it.
                self.check((hold,))
        due = self._first_due
        if hold.leases is not None:
            # A fixed lease may end before, or a renewal be due.
            due = min(self.next_renewal_of(hold, now, due), due, int(hold.valid_until * 1000) + 1)
        self.wheel.add(hold, due)
        self.look_by(due)

    def watch_nested(self, hold: Hold, now: float) -> None:
        """The same for a nested acquire, which may make the renewal earlier, but never later."""
        if not hold.needs_renewal or hold.due < 0 or int(now * 1000) + self._grid_of(hold).round < hold.due:
            self.watch(hold, now)

    def set_alarm(self, alarm: Alarm, when: float) -> None:
        """Has the alarm ring at that time of the runtime's clock."""
        due = int(when * 1000) + 1
        self.wheel.add(alarm, due)
        self.look_by(due)

    def begin_waiting(self) -> None:
        """A call waits before the threads are started. So a client that has never held a lock is announced, too."""
        # If no thread can be started, the next wait tries again. Only the announcement depends on it.
        with contextlib.suppress(RuntimeError):
            self._start_or_wake()

    def do(self, chore: Announcement) -> None:
        """Has a chore run soon, by the renewer of the shard that serves its key now.

        A chore that asks for itself while it runs is run again in the next round.
        """
        while True:
            renewer = self._renewer_of(self._runtime.shard_of(chore.key))
            renewer.chores.append(chore)
            if not renewer.ended:
                break
        self._wake(renewer)
        if not self.started:
            self._start_or_wake()

    def check(self, holds: Iterable[Hold]) -> None:
        """Has the servers asked at once which of these holds they know. What they don't know is lost."""
        # A lease that the watchdog renews is renewed. A fixed lease lasts on the server for as long as it is relied on:
        # another server that knows the hold may lack the latest extension.
        for hold in holds:
            if hold.state is HELD:
                self.dispatch(hold, NOT_TAKEN_OVER)

    def on_topology_change(self, changes: Changes) -> None:
        """Checks soon all holds of the slots that other servers serve now. Takes no mutex and doesn't block."""
        # A hold that is granted at this very moment may be older.
        self._moved_at = math.nextafter(self._runtime.clock(), math.inf)
        self._step_begins = self._moved_at
        if self.started or self._holds.table:
            # In `moved_slots` the keys have moved, too, unless an administrator has assigned a slot by force.
            self._moved.extend((changes.moved_slots, changes.failed_over_slots))
            self._time_wakeup.set()
        for node in changes.removed_nodes:
            renewer = self._renewers.get(node)
            if renewer is not None:
                renewer.retire()

    def repair(self, payload: bytes) -> None:
        """Sends an idempotent command in the background until it has run, for `REPAIR_FOR` seconds at least."""
        self._send_later(payload, max(REPAIR_FOR, self._lease_ms / 1000), is_repair=True)

    def notify(self, payload: bytes) -> None:
        """Sends an idempotent command that wakes waiters. It is given up after a lease: then they retry anyway."""
        self._send_later(payload, self._lease_ms / 1000, is_repair=False)

    def _send_later(self, payload: bytes, seconds: float, *, is_repair: bool) -> None:
        self.dispatch_unsent(Unsent(payload, self._runtime.clock() + seconds, is_repair))
        if not self.started:
            self._start_or_wake()

    def pending_repairs(self) -> list[bytes]:
        return [payload for renewer in list(self._renewers.values()) for payload in renewer.repairs.pending()]

    def clear_repairs(self) -> None:
        """The pending repairs were sent by somebody else: by the client, when it was closed."""
        for renewer in list(self._renewers.values()):
            renewer.repairs.clear()

    def close(self) -> None:
        """Ends all loops. Takes no mutex: a finalizer calls this."""
        self.closed = True
        for renewer in list(self._renewers.values()):
            renewer.repairs.close()
        self._time_wakeup.set()
        for renewer in list(self._renewers.values()):
            renewer.wake()

    def _enter_grid_step(self, now: float) -> None:
        """Computes once for all holds that begin in this step of the grid when they are due for the first time."""
        tracing.look()
        step = self._grid.step
        number = int(now * 1000) // step
        listed_after = self._grid.round if self.announcer is None else min(LISTED_AFTER, self._grid.round)
        self._first_due = number * step + listed_after
        self._step_ends = (number + 1) * step / 1000
        self._step_begins = max(number * step / 1000, self._moved_at)
        # Set on another thread meanwhile, perhaps before the assignment above.
        if self._step_begins < self._moved_at:
            self._step_begins = self._moved_at

    # --- The loop that keeps time

    async def _keep_time_once(self) -> float:
        """Passes on what is due for renewal, declares lost what has ended. Returns the seconds until the next look."""
        wheel = self.wheel
        now = self._now_ms()
        with_work: dict[Renewer, None] = {}
        for timer in cast(list[Hold | Alarm], wheel.advance(now)):
            try:
                if isinstance(timer, Alarm):
                    timer.ring()
                elif self._is_due(timer, now):
                    with_work[self._assign(timer, GONE)] = None
            except Exception:  # noqa: BLE001
                # Any exception, for example of a user's logging filter: all other holds depend on this loop.
                log_exception("looking at a hold failed")
        for renewer in with_work:
            renewer.wake()
        next_scan = self._check_moved()
        self._start_renewers()
        next_look = self._next_look = self._when_to_look(now)
        # A timer that was added just before this assignment compared itself with the old value, and did not wake us.
        if self._when_to_look(now) < next_look:
            next_look = self._next_look = self._when_to_look(now)
        return max(0.0, min(next_look / 1000, next_scan) - self._runtime.clock())

    def _when_to_look(self, now: int) -> int:
        """The tick of the next look at the wheel."""
        # With an empty wheel it looks every half round. So `watch` doesn't need to wake it for a renewed lease.
        look = now + max(1, self._grid.round // 2)
        next_due = self.wheel.next_due()
        if next_due is not None:
            look = min(look, next_due)
        # Also if the holds of the latest step have ended by now: else each hold of a series of short ones would be due
        # before the next look, and wake this loop.
        return min(look, self._first_due) if now < self._first_due else look

    def _is_due(self, hold: Hold, now: int) -> bool:
        """Whether to renew a hold whose time in the wheel has come. At its first time it is listed for others."""
        ends = int(hold.valid_until * 1000)
        if (ends <= now or hold.state is not HELD) and self._holds.expire_if_due(hold):
            return False
        # If the renewal fails, it is due again at the end of the lease, when it is declared lost.
        self.wheel.add(hold, ends + 1)
        needs_renewal = hold.needs_renewal
        if self.announcer is not None and not hold.listed:
            renewal = self._grid_of(hold).next_renewal(hold.begun)
            if needs_renewal and now < renewal:
                needs_renewal = False
                self.wheel.add(hold, min(renewal, ends + 1))
            # At last: if it fails, the hold is watched all the same.
            self.announcer.add(hold)
        return needs_renewal

    def _check_moved(self) -> float:
        """Checks the holds of slots that have moved. Returns when to do that next."""
        now = self._runtime.clock()
        if not self._moved:
            return math.inf
        if now < self._next_scan:
            return self._next_scan
        self._next_scan = now + SCAN_INTERVAL
        moved: set[int] = set()
        while self._moved:
            moved.update(self._moved.popleft())
        slot_of = self._runtime.slot_of
        self.check([hold for hold in list(self._holds.table.values()) if slot_of(hold.commands.key) in moved])
        return math.inf

    def _start_renewers(self) -> None:
        """Starts the renewers that have work for the first time. If a thread can't start, the next look tries again."""
        for renewer in list(self._renewers.values()):
            if not renewer.started:
                try:
                    renewer.start()
                except RuntimeError:
                    log_exception("the thread that renews leases on one server could not start, and is tried again")

    # --- The renewers

    def _renewer_of(self, shard: Hashable) -> Renewer:
        """The renewer of a shard, which may be new."""
        renewer = self._renewers.get(shard)
        if renewer is None:
            made = Renewer(shard, self, self._holds, self._runtime, self._lease_ms)
            # One call, in which no other thread runs.
            renewer = self._renewers.setdefault(shard, made)
            if self.closed:
                renewer.repairs.close()
        return renewer

    def remove(self, renewer: Renewer) -> None:
        """This renewer ends: new work for its shard goes to another one."""
        self._renewers.pop(renewer.shard, None)

    def _assign(self, hold: Hold, reason: str) -> Renewer:
        """Makes a hold due at the renewer of the shard that serves it now. That renewer is to be woken."""
        while True:
            renewer = self._renewer_of(self._runtime.shard_of(hold.commands.key))
            renewer.due[hold] = reason
            if not renewer.ended:
                return renewer

    def dispatch(self, hold: Hold, reason: str) -> None:
        """Gives a hold to the renewer of the shard that serves it now."""
        self._wake(self._assign(hold, reason))

    def dispatch_unsent(self, unsent: Unsent) -> None:
        """Gives a command to the renewer of the shard that serves it now."""
        while True:
            renewer = self._renewer_of(self._runtime.shard_of_command(unsent.payload))
            renewer.add_unsent(unsent)
            if not renewer.ended:
                self._wake(renewer)
                return

    def _wake(self, renewer: Renewer) -> None:
        renewer.wake()
        if not renewer.started:
            # `keep_time` starts it: no caller waits for the start of a thread, and no loop fails because of it.
            self._time_wakeup.set()

    def release_if_ended(self, hold: Hold) -> bool:
        """Whether the hold was released, because its owner has ended: a thread or task that can't release it any more.

        Without `release_when_owner_ends` it isn't released, and that is logged once.
        """
        owner = hold.acquired_by
        if owner is None or not owner.calls.have_ended or not hold.renewed or hold in self._reported:
            return False
        if self.release_when_owner_ends:
            # A later hold must have another name on the server: the repair may run after its acquire.
            owner.new_epoch()
            self._holds.declare_lost(hold, "the thread or task that took it has ended")
            self.repair(hold.commands.abandon(hold))
            return True
        count = len(self._reported)
        # At powers of two: a look at all of them for each one would delay the renewals of thousands.
        if not count & (count - 1):
            for reported in list(self._reported):
                if reported.state is not HELD:
                    self._reported.pop(reported, None)
        self._reported[hold] = None
        logger.warning(
            "lock %r is renewed although the thread or task that took it, owner %s, has ended: until another thread"
            " leaves its block, it is removed by force, or its client is closed (release_when_owner_ends releases it)",
            readable(hold.commands.key),
            readable(hold.owner),
        )
        return False

    def next_renewal(self, batch: Batch, sent_at: float) -> int:
        """When the holds of a batch, which was sent at `sent_at`, are to be renewed next: a tick of the wheel."""
        if not self._runtime.sharded or len(batch.holds) == BATCH:
            return self._grid.next_renewal(sent_at)
        return self._grid.next_renewal_of_slot(sent_at, batch.slot)

    def next_renewal_of(self, hold: Hold, sent_at: float, usual: int) -> int:
        """The same for one hold, whose lease may not be the client's. `usual`: for a lease of the client."""
        grid = self._grid_of(hold)
        return usual if grid is self._grid else grid.next_renewal(sent_at)

    def _grid_of(self, hold: Hold) -> RenewalGrid:
        if hold.leases is None:
            return self._grid
        lease = hold.shortest_lease(self._lease_ms)
        return self._grids.get(lease) or self._grids.setdefault(lease, RenewalGrid(lease))

    def look_by(self, due: int) -> None:
        """Holds or alarms were added to the wheel that are due at that tick."""
        if due < self._next_look:
            self._start_or_wake()

    # --- Starting

    def _start_or_wake(self) -> None:
        """Wakes `keep_time`, which is to look earlier than it intended to; starts the loops before the first time."""
        if self.started:
            self._time_wakeup.set()
            return
        with self._starting:
            if self.announcer is not None and not self.started:
                self.announcer.begin()
            # Each start is noted after it succeeded: if a thread can't start, the next hold tries again. `keep_time`
            # is last, as it sets `_next_look`: from then on only holds that are due earlier come here.
            # A single server has one renewer.
            if not self._runtime.sharded and not (renewer := self._renewer_of(self._runtime.shard_of(b""))).started:
                renewer.start()
            if not self.started:
                self.start(weak_loop(self, "keep_time", self._runtime, self._time_wakeup, Watchdog._keep_time_once))
                self.started = True

    def _now_ms(self) -> int:
        return int(self._runtime.clock() * 1000)
