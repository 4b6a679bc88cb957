"""Which leases to renew and which holds are over: two loops around one timer wheel, off everybody's hot path."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from redis.exceptions import RedisError

from pyredisson._core import Wheel, command
from pyredisson.errors import ClosedError
from pyredisson.logic import calls
from pyredisson.logic.holds import GONE, HELD, Hold, Holds, logger
from pyredisson.runtime import Cut, Reply, Runtime

BATCH = 100
"""Locks a script call, as Redisson's `lockWatchdogBatchSize`: more would keep the server from others."""
ROUNDS_A_LEASE = 3
GRAINS_A_ROUND = 100
"""Renewals fall due on a grid, so that many holds make few batches and the thread wakes seldom."""
REPAIR_FOR = 600.0
RETRIES_A_ROUND = 10
"""How often a failed renewal is tried again in the time of one round."""


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
        start: Callable[[Watchdog], None],
    ) -> None:
        """`start` sets `keep_time` and `renew` going, with the first hold."""
        self._holds = holds
        self._runtime = runtime
        self._lease_ms = lease_ms
        self._lease = lease_ms / 1000
        self._round = max(1, lease_ms // ROUNDS_A_LEASE)
        self._grain = max(1, self._round // GRAINS_A_ROUND)
        self._grains_a_second = 1000 / self._grain
        self._wheel = Wheel(self._ms())
        self._looks_at = math.inf
        self._earlier = runtime.signal()
        self._due: deque[Hold] = deque()
        self._work = runtime.signal()
        self._repairs: deque[tuple[bytes, float]] = deque()
        self._repair_for = max(REPAIR_FOR, self._lease)
        self._start = start
        self._starting = threading.Lock()
        self._started = False
        self.closed = False

    def watch(self, hold: Hold, now: float) -> None:
        """Keeps an eye on a hold: renews it, or tells when its lease ends. `now` is when the acquire was sent."""
        if hold.leases is None or hold.renewed:
            due = int(now * self._grains_a_second) * self._grain + self._round
        else:
            due = int(hold.ends * 1000) + 1
        self._wheel.add(hold, due)
        if due < self._looks_at:
            self._look_earlier()

    def watch_nested(self, hold: Hold, now: float) -> None:
        """The same after a nested acquire: a renewal may come earlier by it, but never later."""
        if not hold.renewed or hold.due < 0 or int(now * 1000) + self._round < hold.due:
            self.watch(hold, now)

    def forget(self, hold: Hold) -> None:
        """The hold is given back."""
        self._wheel.discard(hold)

    def repair(self, payload: bytes) -> None:
        """Sends an idempotent command in the background until it has run, for `REPAIR_FOR` seconds at least."""
        self._repairs.append((payload, self._runtime.clock() + self._repair_for))
        self._look_earlier()
        self._work.set()

    def unrepaired(self) -> list[bytes]:
        """The commands that have not run yet."""
        return [payload for payload, _ in list(self._repairs)]

    def close(self) -> None:
        """Ends both loops."""
        self.closed = True
        self._earlier.set()
        self._work.set()

    async def keep_time(self) -> None:
        """Hands over what is due for renewal and declares lost what has ended, until closed."""
        runtime, wheel = self._runtime, self._wheel
        while not self.closed:
            self._earlier.clear()
            now = self._ms()
            for holds in wheel.advance(now).values():
                for hold in cast(list[Hold], holds):
                    self._look(hold)
            next_due = wheel.next_due()
            # An empty wheel is looked at once a round: a hold with a longer lease needs to wake nobody.
            idle = max(1, self._round // 2)
            looks_at = now + idle if next_due is None else min(next_due, now + idle)
            self._looks_at = looks_at
            # What was put in before that line, and is due before, did not know that it had to wake us.
            next_due = wheel.next_due()
            if next_due is not None and next_due < looks_at:
                looks_at = self._looks_at = next_due
            await runtime.wait(self._earlier, max(0.0, looks_at / 1000 - runtime.clock()))

    def _look(self, hold: Hold) -> None:
        if hold.state is not HELD or not self._holds.proven(hold):
            return
        self._wheel.add(hold, int(hold.ends * 1000) + 1)
        if hold.renewed:
            self._due.append(hold)
            self._work.set()

    async def renew(self) -> None:
        """Extends leases and repeats what was left in doubt, until closed; a failure stops neither."""
        runtime = self._runtime
        while not self.closed:
            self._work.clear()
            try:
                failed = await self._renew_due()
                failed |= await self._repair_all()
            except ClosedError:
                return
            except Exception:  # noqa: BLE001
                # Whatever it was: the leases of all the others depend on this loop.
                logger.exception("the watchdog failed and goes on")
                failed = True
            pause = self._lease / ROUNDS_A_LEASE
            if failed:
                pause *= (0.5 + runtime.jitter()) / RETRIES_A_ROUND
            await runtime.wait(self._work, pause)

    async def _renew_due(self) -> bool:
        due = []
        while self._due:
            hold = self._due.popleft()
            if hold.state is HELD and hold.renewed:
                due.append(hold)
        if not due:
            return False
        batches = [due[i : i + BATCH] for i in range(0, len(due), BATCH)]
        failed: list[Hold] = []
        applied = 0
        sent_at = self._runtime.clock()
        try:
            replies = await self._runtime.send_all([self._command(batch) for batch in batches])
            for batch, reply in zip(batches, replies, strict=True):
                try:
                    await self._apply(batch, reply, sent_at)
                except RedisError as error:
                    logger.warning("renewing %d locks failed and is tried again: %s", len(batch), error)
                    failed.extend(batch)
                applied += 1
        except (Cut, RedisError) as problem:
            logger.warning("renewing %d locks failed and is tried again: %s", len(due), problem)
        finally:
            # Whatever happened, nobody's lease is forgotten.
            for batch in batches[applied:]:
                failed.extend(batch)
            self._due.extend(failed)
        return bool(failed)

    async def _apply(self, batch: Sequence[Hold], reply: Reply, sent_at: float) -> None:
        if isinstance(reply, RedisError):
            reply, _ = await calls.repeat(self._runtime, self._command(batch), reply, attempts=0)
        ends = sent_at + self._lease
        due = int(sent_at * self._grains_a_second) * self._grain + self._round
        for hold, renewed in zip(batch, reply, strict=True):
            if hold.state is not HELD:
                # Given back or over meanwhile: the reply is no news about it.
                continue
            if renewed != 1:
                self._wheel.discard(hold)
                self._holds.lose(hold, GONE)
            else:
                hold.ends = max(hold.ends, ends)
                self._wheel.add(hold, due)
        if due < self._looks_at:
            self._look_earlier()

    def _command(self, batch: Sequence[Hold]) -> bytes:
        return command(
            b"EVALSHA",
            self._runtime.scripts.lock_renew,
            len(batch),
            *[hold.lock.key for hold in batch],
            self._lease_ms,
            *[hold.owner for hold in batch],
        )

    async def _repair_all(self) -> bool:
        for _ in range(len(self._repairs)):
            # It stays in the list until it has run: who closes the client meanwhile has to see it.
            payload, until = self._repairs[0]
            done = False
            try:
                await self._repair_one(payload)
                done = True
            except RedisError as error:
                done = self._runtime.clock() >= until
                if done:
                    logger.warning("gave up repeating a release after %g s: %s", self._repair_for, error)
            finally:
                self._repairs.popleft()
                if not done:
                    self._repairs.append((payload, until))
        return bool(self._repairs)

    async def _repair_one(self, payload: bytes) -> None:
        try:
            await self._runtime.send(payload, fresh=True)
        except (Cut, RedisError) as problem:
            await calls.repeat(self._runtime, payload, problem, attempts=0)

    def _look_earlier(self) -> None:
        if self._started:
            self._earlier.set()
            return
        with self._starting:
            first = not self._started
            self._started = True
        if first:
            self._start(self)

    def _ms(self) -> int:
        return int(self._runtime.clock() * 1000)
