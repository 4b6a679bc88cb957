"""Renews the leases of one shard, and sends the repairs for it: one loop on a thread of its own."""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redis.exceptions import NoScriptError, RedisError

from pyredisson._diagnostics import logger
from pyredisson._protocol.replies import NoReply, Redirected, Reply, code_of, is_transient
from pyredisson.errors import ClosedError
from pyredisson.logic.holds import FORGOTTEN, GONE, HELD, Hold, HoldTable, Renewal
from pyredisson.logic.loops import LoopOwner, log_exception, weak_loop
from pyredisson.logic.observing import Observing, described
from pyredisson.logic.ports import Runtime
from pyredisson.logic.repairs import RepairQueue, Unsent

if TYPE_CHECKING:
    from pyredisson.logic.announcement import Announcement
    from pyredisson.logic.watchdog import Watchdog

ROUNDS_PER_LEASE = 3
"""A lease is renewed after each third of it."""
GRID_STEP_MS = 50
"""How far two points of the grid are apart. Each point with holds costs two wake-ups of threads."""
STEPS_PER_ROUND = (20, 100)
"""How many points the grid has at least and at most in the time of one round. Fewer points have leases renewed earlier
than necessary, and more renewals in one write."""


class RenewalGrid:
    """The points of the grid for leases of one length. Times are in ms of the runtime's clock."""

    __slots__ = ("_steps", "round", "step")

    def __init__(self, lease_ms: int) -> None:
        self.round = max(1, lease_ms // ROUNDS_PER_LEASE)
        """How long after an acquire or a renewal the next renewal is due."""
        fewest, most = STEPS_PER_ROUND
        self.step = max(1, min(self.round // fewest, max(GRID_STEP_MS, self.round // most)))
        """How far two points are apart."""
        self._steps = self.round // self.step

    def next_renewal(self, sent_at: float) -> int:
        """When a lease is to be renewed that was granted by a command sent at `sent_at`, in seconds."""
        return int(sent_at * 1000) // self.step * self.step + self.round

    def next_renewal_of_slot(self, sent_at: float, slot: int) -> int:
        """The same, or somewhat earlier: at a point at which all holds of that slot are renewed."""
        # A script call takes the locks of one slot only. A client with a few locks in each of many slots would need a
        # call for each lock if they were due at different points.
        step = self.next_renewal(sent_at) // self.step
        return (step - (step - slot) % self._steps) * self.step


# --- Holds whose leases one script call extends


BATCH = 100
"""Locks in one script call, as Redisson's `lockWatchdogBatchSize`: a longer call would delay other clients."""
MOST_IN_ONE_WRITE = 20
"""Script calls. All replies to a write have to come within one timeout, which is 50 ms where leases are short."""


@dataclass(slots=True, eq=False)
class Batch:
    """Holds that one script call renews: of one kind, and in one slot."""

    renew: Renewal
    slot: int
    lease: int
    """In ms."""
    reason: str
    """Why a hold is lost that the server doesn't know."""
    holds: list[Hold]
    with_text: bool = False
    """Whether the text of the script is sent."""

    def command(self, runtime: Runtime) -> bytes:
        payload = self.renew(runtime.scripts, self.holds, self.lease)
        return runtime.scripts.as_eval(payload) if self.with_text else payload

    def changed_for(self, error: RedisError) -> list[Batch]:
        """What to send at once in its place after that error reply. Empty: it can only be tried again later."""
        if isinstance(error, NoScriptError) and not self.with_text:
            self.with_text = True
            return [self]
        if code_of(error) in ("TRYAGAIN", "NOPERM") and len(self.holds) > 1:
            # The slot is being moved, and one server has some of the keys and another one the others. Each key alone is
            # served by one of them, and a slot may stay like this for longer than a lease. Or the user has lost the
            # right to some of the keys.
            return [replace(self, holds=[hold]) for hold in self.holds]
        return []


PROMISE_STEP = 100
"""Milliseconds, to a multiple of which a fixed lease is rounded up that another server is to confirm."""
RETRIES_PER_ROUND = 10
"""How often a failed renewal is repeated in the time of one round."""
LOOK_EVERY = 1.0
"""Seconds after which it is found out that a single server has closed the connection, at the latest."""
IDLE_LEASES = 2
"""After so many leases without work a renewer ends, if its client may have several."""


class Renewer(LoopOwner):
    """The loop `renew` of one shard, with the holds that are due there, and the commands to be sent there.

    It waits for no other server than its own, so a server that is slow or dead delays no renewal of another shard.
    Other threads add to `due`, `repairs` and `chores` and then call `wake`. Only the loop takes anything out.
    """

    def __init__(self, shard: Hashable, watchdog: Watchdog, holds: HoldTable, runtime: Runtime, lease_ms: int) -> None:
        super().__init__()
        self.shard = shard
        self._watchdog = watchdog
        self._holds = holds
        self._runtime = runtime
        self._lease_ms = lease_ms
        self._lease_seconds = lease_ms / 1000
        self.due: dict[Hold, str] = {}
        """Holds that the server is to be asked about. The value is why such a hold is lost if the server doesn't know
        it."""
        self.repairs = RepairQueue(runtime)
        self.chores: deque[Announcement] = deque()
        self._failures = 0
        """Failed rounds in a row."""
        self._shortest_failed = math.inf
        """Seconds: the shortest lease that could not be renewed in the latest round."""
        self._wakeup = runtime.wakeup()
        self.started = False
        self.ended = False
        """Whether the loop has no work and ends. What is added after that must go to another renewer, too."""
        self._last_work = runtime.clock()
        self._idle_limit = IDLE_LEASES * self._lease_seconds
        self._look_every = math.inf if runtime.sharded else LOOK_EVERY
        self._next_look = math.inf
        """When to find out whether a single server has closed the connection."""

    # --- For other threads

    def start(self) -> None:
        """Starts the loop on a thread of its own. If that fails, it can be tried again."""
        self._next_look = self._runtime.clock() + self._look_every
        self._watchdog.start(weak_loop(self, "renew", self._runtime, self._wakeup, Renewer._renew_once))
        self.started = True

    def wake(self) -> None:
        """Has the loop look at its work. Takes no mutex."""
        self._wakeup.set()

    def add_unsent(self, unsent: Unsent) -> None:
        self.repairs.add(unsent)
        # Until it is sent, a client that the user has dropped is not collected.
        self.keep_alive["unsent"] = self

    def retire(self) -> None:
        """The shard is gone: the loop ends as soon as it has given its work to others."""
        self._idle_limit = -math.inf
        self._wakeup.set()

    @property
    def closed(self) -> bool:
        return self.ended or self._watchdog.closed

    # --- The loop

    async def _renew_once(self) -> float:
        """One round. Returns the seconds until the next one. No failure ends the loop."""
        self._look_for_restart()
        if self.due or self.repairs.unsent or self.chores:
            self._last_work = self._runtime.clock()
        try:
            failed = await self._renew_due()
            self._hand_over()
            unsent = await self.repairs.send()
            # What was redirected now.
            self._hand_over()
            if not failed and (self.repairs.answered or not unsent):
                await self._run_chores()
            failed |= unsent
        except ClosedError:
            # The loop ends before the next round.
            failed = False
        except Exception:  # noqa: BLE001
            # Any exception: the leases of all other holds depend on this loop.
            log_exception("the watchdog failed and goes on")
            failed = True
        # `clear` first: the test finds a repair that another thread has added before, and the entry that is added with
        # a later repair stays.
        self.keep_alive.clear()
        if self.repairs.unsent:
            self.keep_alive["unsent"] = self
        return self._pause(failed)

    def _pause(self, failed: bool) -> float:
        pause = self._lease_seconds / ROUNDS_PER_LEASE
        if failed:
            pause = min(pause, self._shortest_failed / ROUNDS_PER_LEASE)
            return min(pause * (0.5 + self._runtime.jitter()) / RETRIES_PER_ROUND, self._look_every)
        if self.repairs.unsent and not self.closed:
            # More than are sent in one round.
            return 0.0
        idle = self._runtime.clock() - self._last_work
        has_work = self.due or self.chores
        if self._runtime.sharded and idle > self._idle_limit and not has_work:
            self._end()
            return 0.0
        return min(pause, max(0.0, self._next_look - self._runtime.clock()))

    def _look_for_restart(self) -> None:
        """Has all holds checked if a single server has closed the connection: it may be another process, without data.

        Until the next renewal other owners could hold the same locks. In the first second there may be no connection.
        """
        now = self._runtime.clock()
        if now < self._next_look:
            return
        last_look, self._next_look = self._next_look - self._look_every, now + self._look_every
        if not self._holds.table:
            return
        # A renewal may have made another connection since the last look.
        if not self._runtime.is_open() or self._runtime.replaced_at(b"") >= last_look:
            for hold in list(self._holds.table.values()):
                if hold.state is HELD:
                    self.due.setdefault(hold, FORGOTTEN)

    def _end(self) -> None:
        # In this order: a thread that adds work and doesn't see `ended` has added it before the last two lines.
        self._watchdog.remove(self)
        self.ended = True
        while self.due:
            self._watchdog.dispatch(*self.due.popitem())
        self.repairs.hand_over(lambda _: False, self._watchdog.dispatch_unsent)
        while self.chores:
            self._watchdog.do(self.chores.popleft())

    async def _run_chores(self) -> None:
        """Runs the chores, one after the other, until a renewal is due. None is run while the server doesn't reply, as
        each would delay the next renewal by a timeout."""
        for _ in range(len(self.chores)):
            if self.due or self.closed:
                return
            chore = self.chores.popleft()
            if self._runtime.sharded and self._runtime.shard_of(chore.key) is not self.shard:
                self._watchdog.do(chore)
                continue
            try:
                await chore.run(self._runtime)
            except ClosedError:
                raise
            except Exception:  # noqa: BLE001
                # A chore must not keep the loop from renewing the leases.
                log_exception("a command of the watchdog other than a renewal failed; leases are renewed all the same")

    def _hand_over(self) -> None:
        """Gives the repairs and notices that another shard serves by now to its renewer."""
        if self._runtime.sharded:
            self.repairs.hand_over(self._serves_command, self._watchdog.dispatch_unsent)

    def _serves_command(self, payload: bytes) -> bool:
        return self._runtime.shard_of_command(payload) is self.shard

    # --- Renewals

    async def _renew_due(self) -> bool:
        """Renews the leases that are due. Returns whether any attempt failed."""
        remaining = self._take_due()
        self._shortest_failed = math.inf
        if not remaining:
            return False
        first = remaining[0]
        failed: list[tuple[Batch, RedisError]] = []
        try:
            # An end is certain: `changed_for` changes a batch in two ways, and in each of them only once.
            while remaining:
                remaining = await self._send(remaining, failed)
        finally:
            # After any exception, the leases that were not renewed are due again.
            for batch in (*remaining, *(batch for batch, _ in failed)):
                for hold in batch.holds:
                    self.due.setdefault(hold, batch.reason)
        others = [hold for batch, _ in failed for hold in batch.holds if hold.leases is not None]
        self._shortest_failed = min((hold.shortest_lease(self._lease_ms) for hold in others), default=math.inf) / 1000
        self._report(failed, first)
        return bool(failed)

    def _take_due(self) -> list[Batch]:
        """The holds that are due, in batches for one script call each."""
        due: defaultdict[tuple[Renewal, int, int, str], list[Hold]] = defaultdict(list)
        slot_of, now = self._runtime.slot_of, self._runtime.clock()
        while self.due:
            hold, reason = self.due.popitem()
            owner = hold.acquired_by
            if owner is not None:
                # Before the look at the state: who finds no mark after a release meets no renewal.
                owner.renewed_name = owner.name
            if hold.state is not HELD or (owner is not None and owner.calls.have_ended and self._is_released(hold)):
                continue
            commands = hold.commands
            renew = commands.renew
            # First what is true of most holds.
            renewed = self._lease_ms if hold.leases is None else hold.next_lease(self._lease_ms, now)
            # A hold with a fixed lease that the watchdog visits keeps that lease.
            lease = renewed or (self._lease_ms if hold.needs_renewal else 0)
            if reason is not GONE:
                renew, lease = commands.restore, max(renewed, self._promised(hold))
            # A level may have been released since the renewal was due: the only one that the watchdog renews.
            if lease:
                due[renew, slot_of(commands.key), lease, reason].append(hold)
        return [
            Batch(renew, slot, lease, reason, holds[i : i + BATCH])
            for (renew, slot, lease, reason), holds in due.items()
            if self._keeps(holds, reason)
            for i in range(0, len(holds), BATCH)
        ]

    def _promised(self, hold: Hold) -> int:
        """For how many ms from now on the hold is relied on; 0: it isn't."""
        # Another server that knows the hold may lack the extension of its lease by a nested acquire. Rounded up, so
        # that many holds share a call.
        remaining = 1000 * (hold.valid_until - self._runtime.clock())
        return max(0, math.ceil(remaining / PROMISE_STEP)) * PROMISE_STEP

    def _is_released(self, hold: Hold) -> bool:
        try:
            return self._watchdog.release_if_ended(hold)
        except Exception:  # noqa: BLE001
            # A logging filter of the user may raise. The hold must not miss its renewal.
            log_exception("looking for the owner of a hold failed")
            return False

    def _keeps(self, holds: Sequence[Hold], reason: str) -> bool:
        """Whether the slot of these holds is served here now. Else the renewer of the other shard gets them."""
        if not self._runtime.sharded or self._runtime.shard_of(holds[0].commands.key) is self.shard:
            return True
        for hold in holds:
            self._watchdog.dispatch(hold, reason)
        return False

    async def _send(self, batches: list[Batch], failed: list[tuple[Batch, RedisError]]) -> list[Batch]:
        """Sends the first batches and applies the replies. Returns what is to be sent next; adds to what `failed`."""
        batches, later = batches[:MOST_IN_ONE_WRITE], batches[MOST_IN_ONE_WRITE:]
        sent_at = self._runtime.clock()
        replies: Sequence[Reply]
        try:
            replies = await self._runtime.send_all([batch.command(self._runtime) for batch in batches])
        except (NoReply, RedisError) as problem:
            # The others would wait for as long, each time.
            batches, later = [*batches, *later], []
            replies = [problem.error if isinstance(problem, NoReply) else problem] * len(batches)
        again: list[Batch] = []
        for batch, reply in zip(batches, replies, strict=True):
            if not self._keeps(batch.holds, batch.reason):
                # The slot has moved meanwhile, so this reply may come from a server that has lost it.
                continue
            if not isinstance(reply, RedisError):
                self._apply(batch, reply, sent_at)
            elif changed := batch.changed_for(reply):
                again.extend(changed)
            else:
                failed.append((batch, reply))
        return again + later

    def _apply(self, batch: Batch, reply: Sequence[int], sent_at: float) -> None:
        """What the server has said of each hold."""
        ends = sent_at + self._lease_seconds
        first = due = self._watchdog.next_renewal(batch, sent_at)
        wheel = self._watchdog.wheel
        if self._watchdog.observing is not None and batch.lease:
            self._tell_renewed(self._watchdog.observing, batch, reply)
        for hold, known in zip(batch.holds, reply, strict=True):
            if hold.state is not HELD:
                # Released or lost meanwhile: that was decided without this reply.
                continue
            if known != 1:
                self._lose(hold, batch.reason)
            elif hold.leases is None:
                hold.lengthen(0, ends, HELD)
                wheel.add(hold, due)
            elif batch.lease:
                if lease := hold.next_lease(self._lease_ms, sent_at):
                    hold.lengthen(0, sent_at + min(lease, batch.lease) / 1000, HELD)
                # A lease that is fixed, or is renewed no more, may end before the next round.
                tick = min(self._watchdog.next_renewal_of(hold, sent_at, due), int(hold.valid_until * 1000) + 1)
                wheel.add(hold, tick)
                first = min(first, tick)
        self._watchdog.look_by(first)

    def _tell_renewed(self, observing: Observing, batch: Batch, reply: Sequence[int]) -> None:
        """Tells how late the renewal is, see `Event.late`. To be called before the holds are extended."""
        found = zip(batch.holds, reply, strict=True)
        renewed = [hold for hold, known in found if known == 1 and hold.renewed and hold.state is HELD]
        if renewed:
            first_end = min(hold.valid_until for hold in renewed)
            late = self._runtime.clock() - first_end + batch.lease / 1000 * 2 / 3
            observing.emit("renewed", count=len(renewed), late=late)

    def _lose(self, hold: Hold, reason: str) -> None:
        try:
            self._holds.declare_lost(hold, reason)
        except Exception:  # noqa: BLE001
            # A logging filter of the user may raise. The other holds must be renewed all the same.
            log_exception("reporting a lost hold failed")

    def _report(self, failed: Sequence[tuple[Batch, RedisError]], first: Batch) -> None:
        """Logs a failed round: as a warning if it is the first one in a row, and not part of a server's outage."""
        if not failed:
            if self._failures:
                self._failures = 0
                self._runtime.on_command_served(first.command(self._runtime))
            return
        self._failures += 1
        counts: dict[str, int] = {}
        for batch, error in failed:
            counts[str(error)] = counts.get(str(error), 0) + len(batch.holds)
        outage = all(is_transient(error) for _, error in failed)
        redirected = all(isinstance(error, Redirected) for _, error in failed)
        level = logging.DEBUG if outage or redirected or self._failures > 1 else logging.WARNING
        if self._watchdog.observing is not None:
            for batch, error in failed:
                self._watchdog.observing.emit("renewal_failed", count=len(batch.holds), error=described(error))
        for text, count in counts.items():
            logger.log(level, "renewing %d locks failed and is tried again: %s", count, text)
        # One failure is no outage: any single connection may be closed.
        if outage and self._failures > 1:
            batch, error = failed[0]
            self._runtime.on_command_failed(batch.command(self._runtime), error)
