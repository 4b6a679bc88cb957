"""Renews the leases of one client, and finds out which holds have ended: two loops around one timer wheel."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from redis.exceptions import NoScriptError, RedisError

from pyredisson._core import Timer, Wheel
from pyredisson._diagnostics import debug, logger, readable
from pyredisson._protocol.error_codes import is_transient
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson.errors import ClosedError
from pyredisson.logic import retry
from pyredisson.logic.holds import HELD, Hold, HoldTable, Renewal
from pyredisson.logic.loops import Loop, log_exception, run_loop, weak_loop
from pyredisson.logic.ports import Runtime
from pyredisson.logic.repairs import Repairs

BATCH = 100
"""Locks in one script call, as Redisson's `lockWatchdogBatchSize`: a longer call would delay other clients."""
ROUNDS_PER_LEASE = 3
"""A lease is renewed after each third of it."""
GRID_STEPS_PER_ROUND = 100
"""Renewals are due at the points of a grid, so that many holds share a batch and the threads wake seldom."""
RETRIES_PER_ROUND = 10
"""How often a failed renewal is repeated in the time of one round."""


class Alarm(Timer):
    """Something other than a hold that needs attention at a certain time."""

    def ring(self) -> None:
        """The time has come. Called by `keep_time`, so it must not block."""
        raise NotImplementedError


class Watchdog:
    """Two loops on threads of their own, which start with the first hold.

    `keep_time` never waits for the network, so it declares a hold lost at the moment when its lease ends. `renew` has
    connections of its own, so that calls that are slow or hang can't delay a renewal. A call that acquires or releases
    a lock only changes the wheel: it takes no mutex, and it wakes `keep_time` only if its hold is due before the next
    look at the wheel.
    """

    def __init__(
        self,
        holds: HoldTable,
        runtime: Runtime,
        lease_ms: int,
        start: Callable[[Loop], None],
        *,
        release_when_owner_ends: bool = False,
    ) -> None:
        """`start` runs a loop on a thread of its own.

        `release_when_owner_ends`: a hold whose owner has ended is released; else that is only logged.
        """
        self._holds = holds
        self._runtime = runtime
        self._lease_ms = lease_ms
        self._lease_seconds = lease_ms / 1000
        self._round = max(1, lease_ms // ROUNDS_PER_LEASE)
        self._grid_step = max(1, self._round // GRID_STEPS_PER_ROUND)
        self._enter_grid_step(runtime.clock())
        self._wheel = Wheel(self._now_ms())
        holds.stop_watching = self._wheel.discard
        self.cancel = self._wheel.discard
        """Undoes `set_alarm`."""
        self._next_look = math.inf
        """The time in ms at which `keep_time` looks at the wheel next."""
        self._time_wakeup = runtime.wakeup()
        self._due: deque[Hold] = deque()
        """Holds whose renewal is due."""
        self._renew_wakeup = runtime.wakeup()
        self.repairs = Repairs(runtime, self._lease_seconds, self._on_repair)
        self._release_when_owner_ends = release_when_owner_ends
        self._reported: dict[Hold, None] = {}
        """Holds whose owner has ended, which was logged."""
        self._failures = 0
        """Failed attempts to renew in a row."""
        self._prepare_loops(start)

    def watch(self, hold: Hold, now: float) -> None:
        """Watches a new hold: for its renewal, or for the end of its lease. `now`: when the acquire was sent."""
        if hold.leases is None or hold.needs_renewal:
            if not self._step_begins <= now < self._step_ends:
                self._enter_grid_step(now)
            due = self._renewal_due
            if hold.leases is not None:
                # A fixed lease may end before the next round.
                due = min(due, int(hold.valid_until * 1000) + 1)
        else:
            due = int(hold.valid_until * 1000) + 1
        self._wheel.add(hold, due)
        if due < self._next_look:
            self._start_or_wake()

    def watch_nested(self, hold: Hold, now: float) -> None:
        """The same for a nested acquire, which may make the renewal earlier, but never later."""
        if not hold.needs_renewal or hold.due < 0 or int(now * 1000) + self._round < hold.due:
            self.watch(hold, now)

    def set_alarm(self, alarm: Alarm, when: float) -> None:
        """Has the alarm ring at that time of the runtime's clock."""
        due = int(when * 1000) + 1
        self._wheel.add(alarm, due)
        if due < self._next_look:
            self._start_or_wake()

    @property
    def started(self) -> bool:
        """Whether its threads have been started."""
        return self._started

    def close(self) -> None:
        """Ends both loops. Takes no mutex: a finalizer calls this."""
        self.closed = True
        self.repairs.close()
        self._time_wakeup.set()
        self._renew_wakeup.set()

    def _enter_grid_step(self, now: float) -> None:
        """Computes once for all holds that are acquired in this step of the grid when their renewal is due."""
        debug.look()
        step = int(now * 1000) // self._grid_step
        self._renewal_due = step * self._grid_step + self._round
        self._step_begins = step * self._grid_step / 1000
        self._step_ends = (step + 1) * self._grid_step / 1000

    def _on_repair(self) -> None:
        self.keep_alive["unsent"] = self
        self._start_or_wake()
        self._renew_wakeup.set()

    # --- The loop that keeps time

    def keep_time(self) -> Coroutine[Any, Any, None]:
        """Passes on what is due for renewal, and declares lost what has ended, until the watchdog is closed."""
        return run_loop(
            weakref.ref(self),
            "keep_time",
            self._runtime,
            self._time_wakeup,
            lambda watchdog: watchdog._keep_time_once(),
        )

    async def _keep_time_once(self) -> float:
        """Looks at all timers that are due. Returns the seconds until the next look."""
        wheel = self._wheel
        now = self._now_ms()
        for timers in wheel.advance(now).values():
            for timer in cast(list[Hold | Alarm], timers):
                try:
                    if isinstance(timer, Alarm):
                        timer.ring()
                    else:
                        self._on_due(timer)
                except Exception:  # noqa: BLE001
                    # Any exception, for example of a user's logging filter: all other holds depend on this loop.
                    log_exception("looking at a hold failed")
        next_due = wheel.next_due()
        # With an empty wheel it looks every half round. So `watch` doesn't need to wake it for a renewed lease.
        idle = max(1, self._round // 2)
        next_look = now + idle if next_due is None else min(next_due, now + idle)
        self._next_look = next_look
        # A timer that was added just before this assignment compared itself with the old value, and did not wake us.
        next_due = wheel.next_due()
        if next_due is not None and next_due < next_look:
            next_look = self._next_look = next_due
        return max(0.0, next_look / 1000 - self._runtime.clock())

    def _on_due(self, hold: Hold) -> None:
        if self._holds.expire_if_due(hold):
            return
        # If the renewal fails, it is due again at the end of the lease, when it is declared lost.
        self._wheel.add(hold, int(hold.valid_until * 1000) + 1)
        if hold.needs_renewal:
            self._due.append(hold)
            self._renew_wakeup.set()

    # --- The loop that renews

    def renew(self) -> Coroutine[Any, Any, None]:
        """Renews leases and sends repairs, until the watchdog is closed. No failure ends it."""
        return run_loop(
            weakref.ref(self), "renew", self._runtime, self._renew_wakeup, lambda watchdog: watchdog._renew_once()
        )

    async def _renew_once(self) -> float:
        """One round. Returns the seconds until the next one."""
        try:
            failed = await self._renew_due()
            failed |= await self.repairs.send()
        except ClosedError:
            # The loop ends before the next round.
            failed = False
        except Exception:  # noqa: BLE001
            # Any exception: the leases of all other holds depend on this loop.
            log_exception("the watchdog failed and goes on")
            failed = True
        pause = self._lease_seconds / ROUNDS_PER_LEASE
        if failed:
            pause *= (0.5 + self._runtime.jitter()) / RETRIES_PER_ROUND
        # `clear` first: the test finds a repair that another thread has added before, and the entry that is added with
        # a later repair stays.
        self.keep_alive.clear()
        if self.repairs.unsent:
            self.keep_alive["unsent"] = self
        return pause

    async def _renew_due(self) -> bool:
        """Renews the leases that are due. Returns whether any attempt failed."""
        batches = self._take_due()
        if not batches:
            return False
        failed: list[Hold] = []
        applied = 0
        commands: list[bytes] = []
        sent_at = self._runtime.clock()
        try:
            commands.extend(map(self._command, batches))
            replies = await self._runtime.send_all(commands)
            for batch, reply in zip(batches, replies, strict=True):
                try:
                    await self._apply_renewal(batch, reply, sent_at)
                except RedisError as error:
                    self._on_failure(commands[applied], len(batch), error)
                    failed.extend(batch)
                applied += 1
        except NoReply as problem:
            self._on_failure(commands[0], sum(map(len, batches)), problem.error)
        except RedisError as error:
            self._on_failure(commands[0], sum(map(len, batches)), error)
        else:
            if self._failures and not failed:
                self._failures = 0
                self._runtime.on_command_served(commands[0])
        finally:
            # After any exception, the leases that were not renewed are due again.
            for batch in batches[applied:]:
                failed.extend(batch)
            self._due.extend(failed)
        return bool(failed)

    def _take_due(self) -> list[list[Hold]]:
        """The holds that are due, in batches of locks that are renewed by the same command."""
        due: dict[Renewal, list[Hold]] = {}
        try:
            while self._due:
                hold = self._due.popleft()
                if hold.state is HELD and hold.needs_renewal and not self._release_if_abandoned(hold):
                    due.setdefault(hold.commands.renew, []).append(hold)
        except BaseException:
            # A logging filter of the user may raise. The other holds must not miss their renewal.
            self._due.extend(hold for holds in due.values() for hold in holds)
            raise
        return [holds[i : i + BATCH] for holds in due.values() for i in range(0, len(holds), BATCH)]

    def _release_if_abandoned(self, hold: Hold) -> bool:
        """Releases a hold whose owner has ended, or logs that once. Returns whether it was released."""
        owner = hold.acquired_by
        if owner is None or not owner.calls.ended or not hold.renewed or hold in self._reported:
            return False
        if self._release_when_owner_ends:
            # A later hold must have another name on the server: the repair may run after its acquire.
            owner.new_epoch()
            self._holds.declare_lost(hold, "the thread or task that took it has ended")
            self.repairs.repair(hold.commands.abandon(hold))
            return True
        self._reported = {other: None for other in self._reported if other.state is HELD}
        self._reported[hold] = None
        logger.warning(
            "lock %r is renewed although the thread or task that took it, owner %s, has ended: until another thread"
            " leaves its block, it is removed by force, or its client is closed (release_when_owner_ends releases it)",
            readable(hold.commands.key),
            readable(hold.owner),
        )
        return False

    def _on_failure(self, payload: bytes, count: int, error: RedisError) -> None:
        """Logs a failed attempt: as a warning if it is the first in a row and not part of a server's outage."""
        self._failures += 1
        outage = is_transient(error)
        level = logging.WARNING if self._failures == 1 and not outage else logging.DEBUG
        logger.log(level, "renewing %d locks failed and is tried again: %s", count, error)
        # One failure is no outage: any single connection may be closed.
        if outage and self._failures > 1:
            self._runtime.on_command_failed(payload, error)

    async def _apply_renewal(self, batch: Sequence[Hold], reply: Reply, sent_at: float) -> None:
        if isinstance(reply, RedisError):
            if not isinstance(reply, NoScriptError):
                raise reply
            reply = await retry.send_once(self._runtime, self._command(batch))
        ends = sent_at + self._lease_seconds
        due = int(sent_at * 1000) // self._grid_step * self._grid_step + self._round
        for hold, renewed in zip(batch, reply, strict=True):
            if hold.state is not HELD:
                # Released or lost meanwhile: that was decided without this reply.
                continue
            if renewed != 1:
                self._holds.declare_lost(hold)
            else:
                if hold.renewed:
                    self._holds.extend(hold, ends)
                self._wheel.add(hold, min(due, int(hold.valid_until * 1000) + 1))
        if due < self._next_look:
            self._start_or_wake()

    def _command(self, batch: Sequence[Hold]) -> bytes:
        return batch[0].commands.renew(self._runtime.scripts, batch, self._lease_ms)

    # --- Starting

    def _prepare_loops(self, start: Callable[[Loop], None]) -> None:
        """The part of `__init__` that the start and the end of the two loops need."""
        self._start = start
        # Re-entrant: a finalizer that the garbage collector runs while a thread is started may add a repair.
        self._starting = threading.RLock()
        self._started = False
        self._loops_started = 0
        self._running: dict[str, object] = {}
        """For each loop the run that claimed it."""
        self.keep_alive: dict[str, Watchdog] = {}
        """Contains this watchdog while it has something to send: until then a dropped client is not collected."""
        self.closed = False

    def _start_or_wake(self) -> None:
        """Wakes `keep_time`, which is to look earlier than it intended to; starts both loops before the first time."""
        if self._started:
            self._time_wakeup.set()
            return
        with self._starting:
            # Each start is noted after it succeeded: if a thread can't start, the next hold tries again. `keep_time`
            # is last, as it sets `_next_look`: from then on only holds that are due earlier come here.
            for loop in ("renew", "keep_time")[self._loops_started :]:
                self._start(weak_loop(self, loop))
                self._loops_started += 1
            self._started = True

    def claim(self, loop: str) -> bool:
        """Whether this run of a loop is the first one.

        An interrupt after a thread was started, and before that was noted, has the thread started again. Two runs of
        `renew` would remove each other's commands from the queue of repairs.
        """
        run = object()
        # One call, in which no other thread runs.
        return self._running.setdefault(loop, run) is run

    def _now_ms(self) -> int:
        return int(self._runtime.clock() * 1000)
