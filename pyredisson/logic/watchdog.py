"""Which leases to renew and which holds are over: two loops around one timer wheel, off everybody's hot path."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from redis.exceptions import NoScriptError, RedisError

from pyredisson._core import Timer, Wheel
from pyredisson._diagnostics import debug, logger, readable
from pyredisson._protocol.error_codes import is_transient, is_transient_reply
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.scripts import as_eval
from pyredisson.errors import ClosedError
from pyredisson.logic import retry
from pyredisson.logic.holds import GONE, HELD, Hold, Holds, Renewal
from pyredisson.logic.ports import Runtime, Wakeup

BATCH = 100
"""Locks a script call, as Redisson's `lockWatchdogBatchSize`: more would keep the server from others."""
ROUNDS_A_LEASE = 3
GRAINS_A_ROUND = 100
"""Renewals fall due on a grid, so that many holds make few batches and the thread wakes seldom."""
REPAIR_FOR = 600.0
"""Seconds; at least a lease."""
MOST_REPAIRS = 1000
"""Releases in one write."""
RETRIES_A_ROUND = 10
"""How often a failed renewal is tried again in the time of one round."""


Loop = Callable[[], Coroutine[Any, Any, None]]


class Alarm(Timer):
    """Something other than a hold that is to be looked at some time."""

    def ring(self) -> None:
        """It is time. Called by `keep_time`: it must not wait for anything."""
        raise NotImplementedError


class Watchdog:
    """Renews the leases of one client.

    `keep_time` never waits for the network: it says at the very moment which hold is over. `renew` has a
    connection of its own, so that a busy or hung data plane can't cost a lease. Owners only put a hold
    into the wheel and take it out; they wait for no lock and wake nobody, unless a hold ends earlier
    than the next time that `keep_time` looks anyway.
    """

    def __init__(
        self,
        holds: Holds,
        runtime: Runtime,
        lease_ms: int,
        start: Callable[[Loop], None],
        *,
        release_ended: bool = False,
    ) -> None:
        """`start` sets `keep_time` and `renew` going, with the first hold.

        `release_ended`: holds whose owners have ended are released, and not only logged.
        """
        self._holds = holds
        self._runtime = runtime
        self._lease_ms = lease_ms
        self._lease = lease_ms / 1000
        self._round = max(1, lease_ms // ROUNDS_A_LEASE)
        self._grain = max(1, self._round // GRAINS_A_ROUND)
        self._next_grain(runtime.clock())
        self._wheel = Wheel(self._ms())
        self.forget = self._wheel.discard
        """Takes a hold out that is over."""
        self._looks_at = math.inf
        self._earlier = runtime.wakeup()
        self._due: deque[Hold] = deque()
        self._work = runtime.wakeup()
        self._repairs: deque[tuple[bytes, float]] = deque()
        self._repair_for = max(REPAIR_FOR, self._lease)
        self._notices: deque[tuple[bytes, float]] = deque()
        self._release_ended = release_ended
        self._reported: dict[Hold, None] = {}
        """Holds whose owners have ended, which was logged."""
        self._failures = 0
        """How many attempts to renew have failed in a row."""
        self._start = start
        # Re-entrant: a finalizer that the garbage collector runs while a thread is started may leave a repair.
        self._starting = threading.RLock()
        self._started = False
        self._loops = 0
        self._running: dict[str, object] = {}
        self._kept: dict[str, Watchdog] = {}
        """Refers to this watchdog while it has something to send. The threads refer to that."""
        self.closed = False

    def watch(self, hold: Hold, now: float) -> None:
        """Keeps an eye on a hold: renews it, or tells when its lease ends. `now` is when the acquire was sent."""
        if hold.leases is None or hold.needs_renewal:
            if not self._grain_begins <= now < self._grain_ends:
                self._next_grain(now)
            due = self._renewal_due
            if hold.leases is not None:
                # A fixed lease may end before the first visit.
                due = min(due, int(hold.valid_until * 1000) + 1)
        else:
            due = int(hold.valid_until * 1000) + 1
        self._wheel.add(hold, due)
        if due < self._looks_at:
            self._look_earlier()

    def _next_grain(self, now: float) -> None:
        debug.look()
        grain = int(now * 1000) // self._grain
        self._renewal_due = grain * self._grain + self._round
        self._grain_begins = grain * self._grain / 1000
        self._grain_ends = (grain + 1) * self._grain / 1000

    def watch_nested(self, hold: Hold, now: float) -> None:
        """The same after a nested acquire: a renewal may come earlier by it, but never later."""
        if not hold.needs_renewal or hold.due < 0 or int(now * 1000) + self._round < hold.due:
            self.watch(hold, now)

    def remind(self, alarm: Alarm, when: float) -> None:
        """Has the alarm ring at that time, by the runtime's clock."""
        due = int(when * 1000) + 1
        self._wheel.add(alarm, due)
        if due < self._looks_at:
            self._look_earlier()

    def repair(self, payload: bytes) -> None:
        """Sends an idempotent command in the background until it has run, for `REPAIR_FOR` seconds at least."""
        self._repairs.append((payload, self._runtime.clock() + self._repair_for))
        self._kept["unsent"] = self
        self._look_earlier()
        self._work.set()

    def notify(self, payload: bytes) -> None:
        """Sends an idempotent command that wakes waiters, in the background, within a lease: then they look anyway."""
        self._notices.append((payload, self._runtime.clock() + self._lease))
        self._kept["unsent"] = self
        self._look_earlier()
        self._work.set()

    def unrepaired(self) -> list[bytes]:
        """The commands that have not run yet."""
        return [payload for payload, _ in list(self._repairs)]

    def drop_repairs(self) -> None:
        """They have been seen to."""
        self._repairs.clear()

    @property
    def started(self) -> bool:
        """Whether there is a thread of it."""
        return self._started

    def close(self) -> None:
        """Ends both loops."""
        self.closed = True
        self._earlier.set()
        self._work.set()

    def keep_time(self) -> Coroutine[Any, Any, None]:
        """Hands over what is due for renewal and declares lost what has ended, until closed."""
        return _repeat(weakref.ref(self), "keep_time", self._runtime, self._earlier, "_turn")

    async def _turn(self) -> float:
        """Looks at all that is due. Gives the seconds until the next look."""
        wheel = self._wheel
        now = self._ms()
        for holds in wheel.advance(now).values():
            for hold in cast(list[Hold | Alarm], holds):
                try:
                    if isinstance(hold, Alarm):
                        hold.ring()
                    else:
                        self._look(hold)
                except Exception:  # noqa: BLE001
                    # Whatever it was (a user's logging filter): all the other holds depend on this loop.
                    _report("looking at a hold failed")
        next_due = wheel.next_due()
        # An empty wheel is looked at once a round: a hold with a longer lease needs to wake nobody.
        idle = max(1, self._round // 2)
        looks_at = now + idle if next_due is None else min(next_due, now + idle)
        self._looks_at = looks_at
        # What was put in before that line, and is due before, did not know that it had to wake us.
        next_due = wheel.next_due()
        if next_due is not None and next_due < looks_at:
            looks_at = self._looks_at = next_due
        return max(0.0, looks_at / 1000 - self._runtime.clock())

    def _look(self, hold: Hold) -> None:
        if hold.state is not HELD or not self._holds.proven(hold):
            return
        self._wheel.add(hold, int(hold.valid_until * 1000) + 1)
        if hold.needs_renewal:
            self._due.append(hold)
            self._work.set()

    def renew(self) -> Coroutine[Any, Any, None]:
        """Extends leases and repeats what was left in doubt, until closed; a failure stops neither."""
        return _repeat(weakref.ref(self), "renew", self._runtime, self._work, "_work_once")

    async def _work_once(self) -> float:
        """One round. Gives the seconds until the next one."""
        try:
            failed = await self._renew_due()
            failed |= await self._notify_all()
            failed |= await self._repair_all()
        except ClosedError:
            # Then the loop is over.
            failed = False
        except Exception:  # noqa: BLE001
            # Whatever it was: the leases of all the others depend on this loop.
            _report("the watchdog failed and goes on")
            failed = True
        pause = self._lease / ROUNDS_A_LEASE
        if failed:
            pause *= (0.5 + self._runtime.jitter()) / RETRIES_A_ROUND
        # In this order: something may be added just now.
        self._kept.clear()
        if self._repairs or self._notices:
            self._kept["unsent"] = self
        return pause

    async def _renew_due(self) -> bool:
        due: dict[Renewal, list[Hold]] = {}
        while self._due:
            hold = self._due.popleft()
            if hold.state is HELD and hold.needs_renewal and not self._is_abandoned(hold):
                due.setdefault(hold.lock.renewal, []).append(hold)
        if not due:
            return False
        batches = [holds[i : i + BATCH] for holds in due.values() for i in range(0, len(holds), BATCH)]
        failed: list[Hold] = []
        applied = 0
        sent_at = self._runtime.clock()
        try:
            replies = await self._runtime.send_all([self._command(batch) for batch in batches])
            for batch, reply in zip(batches, replies, strict=True):
                try:
                    await self._apply(batch, reply, sent_at)
                except RedisError as error:
                    self._not_renewed(len(batch), error)
                    failed.extend(batch)
                applied += 1
        except NoReply as problem:
            self._not_renewed(sum(map(len, batches)), problem.error)
        except RedisError as error:
            self._not_renewed(sum(map(len, batches)), error)
        else:
            if self._failures and not failed:
                self._failures = 0
                self._runtime.on_command_served()
        finally:
            # Whatever happened, nobody's lease is forgotten.
            for batch in batches[applied:]:
                failed.extend(batch)
            self._due.extend(failed)
        return bool(failed)

    def _is_abandoned(self, hold: Hold) -> bool:
        """Whether the hold was released because its owner has ended; if only that is so, it is logged once."""
        owner = hold.taken_by
        if owner is None or not owner.calls.ended or not hold.renewed or hold in self._reported:
            return False
        if self._release_ended:
            # What is released in the background must not meet a later hold.
            owner.new_epoch()
            self._wheel.discard(hold)
            self._holds.declare_lost(hold, "the thread or task that took it has ended")
            self.repair(hold.lock.abandon_command(hold))
            return True
        self._reported = {other: None for other in self._reported if other.state is HELD}
        self._reported[hold] = None
        logger.warning(
            "lock %r is renewed although the thread or task that took it, owner %s, has ended: until another thread"
            " leaves its block, it is removed by force, or its client is closed (release_when_owner_ends releases it)",
            readable(hold.lock.key),
            readable(hold.owner),
        )
        return False

    def _not_renewed(self, count: int, error: RedisError) -> None:
        """Logs a failed attempt: as a warning when it is the first in a row and not part of a server's outage."""
        self._failures += 1
        outage = is_transient(error)
        level = logging.WARNING if self._failures == 1 and not outage else logging.DEBUG
        logger.log(level, "renewing %d locks failed and is tried again: %s", count, error)
        # One connection may be closed at any time.
        if outage and self._failures > 1:
            self._runtime.on_command_failed(error)

    async def _apply(self, batch: Sequence[Hold], reply: Reply, sent_at: float) -> None:
        if isinstance(reply, RedisError):
            reply, _ = await retry.repeat(self._runtime, self._command(batch), reply, attempts=0)
        ends = sent_at + self._lease
        due = int(sent_at * 1000) // self._grain * self._grain + self._round
        for hold, renewed in zip(batch, reply, strict=True):
            if hold.state is not HELD:
                # Given back or over meanwhile: the reply is no news about it.
                continue
            if renewed != 1:
                self._wheel.discard(hold)
                self._holds.declare_lost(hold, GONE)
            else:
                if hold.renewed:
                    hold.valid_until = max(hold.valid_until, ends)
                self._wheel.add(hold, min(due, int(hold.valid_until * 1000) + 1))
        if due < self._looks_at:
            self._look_earlier()

    def _command(self, batch: Sequence[Hold]) -> bytes:
        return batch[0].lock.renewal(self._runtime.scripts, batch, self._lease_ms)

    async def _repair_all(self) -> bool:
        # They stay in the list until they have run: who closes the client meanwhile has to see them.
        pending = list(itertools.islice(self._repairs, MOST_REPAIRS))
        if not pending:
            return False
        failed: list[tuple[bytes, float]] = pending
        try:
            # Over a connection that is made after whatever was cut: no late copy may run after them.
            replies = await self._send_scripts([payload for payload, _ in pending], new_connection=True)
            failed = [repair for repair, reply in zip(pending, replies, strict=True) if isinstance(reply, RedisError)]
            if failed:
                logger.info("%d releases were refused and are tried again", len(failed))
        except (NoReply, RedisError) as error:
            logger.info("%d releases failed and are tried again: %s", len(pending), error)
        finally:
            # Else whoever closed the client has seen to them.
            if not self.closed:
                now = self._runtime.clock()
                for _ in pending:
                    self._repairs.popleft()
                self._repairs.extend(repair for repair in failed if now < repair[1])
                if given_up := sum(now >= until for _, until in failed):
                    logger.warning("gave up repeating %d releases after %g s", given_up, self._repair_for)
        return bool(self._repairs)

    async def _notify_all(self) -> bool:
        pending = list(itertools.islice(self._notices, MOST_REPAIRS))
        if not pending:
            return False
        again = pending
        try:
            replies = await self._send_scripts([payload for payload, _ in pending])
            # What is refused for good (no right to the key) is not sent again: it would be refused each time.
            again = [
                notice
                for notice, reply in zip(pending, replies, strict=True)
                if isinstance(reply, RedisError) and is_transient_reply(reply)
            ]
        except (NoReply, RedisError) as problem:
            logger.debug("telling waiters of %d lost locks failed and is tried again: %s", len(pending), problem)
        finally:
            now = self._runtime.clock()
            for _ in pending:
                self._notices.popleft()
            self._notices.extend(notice for notice in again if now < notice[1])
        return bool(self._notices)

    async def _send_scripts(self, payloads: list[bytes], *, new_connection: bool = False) -> list[Reply]:
        """Their replies, error replies among them."""
        replies = await self._runtime.send_all(payloads, new_connection=new_connection)
        # All at once: one by one they would take as many round trips from the next renewal.
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            flags = self._runtime.scripts.flags
            again = await self._runtime.send_all([as_eval(payloads[i], flags=flags) for i in unknown])
            for i, reply in zip(unknown, again, strict=True):
                replies[i] = reply
        return replies

    def _look_earlier(self) -> None:
        if self._started:
            self._earlier.set()
            return
        with self._starting:
            # One after the other, each noted when it runs: where a thread can't start, the next hold tries again.
            # The timekeeper last: as soon as it runs, it is asked only for what is due before its next look.
            for loop in ("renew", "keep_time")[self._loops :]:
                self._start(_weakly(self, loop))
                self._loops += 1
            self._started = True

    def _is_first(self, loop: str) -> bool:
        """Whether nobody runs that loop yet: an interrupt right after a start has it started once more, and two
        that repair would take each other's commands off the list."""
        me = object()
        return self._running.setdefault(loop, me) is me

    def _ms(self) -> int:
        return int(self._runtime.clock() * 1000)


async def _repeat(reference: weakref.ref[Watchdog], loop: str, runtime: Runtime, signal: Wakeup, step: str) -> None:
    """One of the watchdog's loops. While it waits it refers only weakly to the watchdog, and so to the client."""
    watchdog = reference()
    if watchdog is None or not watchdog._is_first(loop):
        return
    while watchdog is not None:
        # In this order: `close` sets the signal last.
        signal.clear()
        if watchdog.closed:
            return
        pause = await getattr(watchdog, step)()
        watchdog = None
        await runtime.wait(signal, pause)
        watchdog = reference()


def _weakly(watchdog: Watchdog, loop: str) -> Loop:
    """That loop, for a thread that must not keep the watchdog alive."""
    reference = weakref.ref(watchdog)
    kept = watchdog._kept

    async def begin() -> None:
        watchdog = reference()
        if watchdog is not None:
            running = getattr(watchdog, loop)()
            watchdog = None
            await running
        kept.clear()

    begin.__name__ = loop
    return begin


def _report(what: str) -> None:
    """Logs the exception that is being handled."""
    try:
        logger.exception(what)
    except Exception:  # noqa: BLE001
        # A logging filter may raise too; what is wrong with it is told where `logging` itself would: nowhere, if that
        # is closed.
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exc()
