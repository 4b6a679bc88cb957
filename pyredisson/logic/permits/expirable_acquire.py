"""One acquire of permits with ids, and who of those waiting for some is woken."""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom
from typing import Protocol

from redis.exceptions import RedisError

from pyredisson.logic import retry
from pyredisson.logic.permits.claims import Claimant
from pyredisson.logic.permits.semaphore import LOOK_AGAIN, PermitChannel, tell_missing
from pyredisson.logic.session import Session

ID_BYTES = 16
MOST_AT_ONCE = 1_000_000
"""Permits in one command: servers take only little more."""
SOME_ENDED = -2
NO_SEMAPHORE = -3
PASSED_ON = b"+"
"""Before a number of free permits that one waiter found, and leaves to others who need less."""


class ExpirablePermitChannel(PermitChannel):
    """The waiters for such permits, each of whom needs so many."""

    __slots__ = ()

    def on_message(self, payload: bytes) -> None:
        """So many permits are free; or only so many were given back, where Redisson released several at once."""
        super().on_message(payload.removeprefix(PASSED_ON))
        if payload.isdigit() and len(payload) <= len(b"%d" % MOST_AT_ONCE):
            said = int(payload)
            for wakeup in list(self.waiters):
                if 0 < said < self.waiters.get(wakeup, 0):
                    # There may be more than it says: the first of those that it doesn't serve finds out.
                    wakeup.set()
                    return


class AcquireCommands(Protocol):
    """The commands that an acquire needs."""

    @property
    def channel(self) -> bytes: ...
    def acquire(self, ids: Sequence[bytes], lease: int, claimant: bytes = b"") -> bytes: ...


class Permits(Protocol):
    """What an acquire needs of its semaphore."""

    session: Session
    key: bytes
    must_exist: bool

    @property
    def commands(self) -> AcquireCommands: ...
    def release_in_background(self, ids: Sequence[bytes]) -> None:
        """Releases in the background those of the permits that exist."""


class Attempt:
    """One acquire: all its tries are for the same ids, so that it takes its permits once."""

    __slots__ = ("_deadline", "_doubted", "_free", "_lease", "_logic", "_unsettled", "claimant", "ids", "sent_at")

    def __init__(self, logic: Permits, permits: int, lease: int, deadline: float | None) -> None:
        self.ids = _new_ids(permits)
        self.sent_at = 0.0
        """When the copy was sent that took them: their leases don't begin before that."""
        self.claimant: Claimant | None = None
        """Since it waits."""
        self._logic = logic
        self._lease = lease
        self._deadline = deadline
        self._free = 0
        self._doubted = False
        self._unsettled = False

    async def take(self) -> float | None:
        """One try. None: taken; else how long to wait at most, in seconds."""
        logic = self._logic
        session = logic.session
        if session.closed:
            session.check_open()
        claimant = self.claimant
        payload = logic.commands.acquire(self.ids, self._lease, claimant.claims() if claimant is not None else b"")
        self._unsettled = True
        try:
            reply, sent_at = await retry.send(
                session.runtime,
                payload,
                attempts=session.attempts,
                deadline=self._deadline,
                on_doubt=self._doubt,
            )
        except RedisError:
            self._unsettled = self._doubted
            raise
        if reply is None:
            if self._lease < 0 or session.clock() < sent_at + self._lease / 1000:
                self.sent_at = sent_at
                return None
            # Known only after the end of their lease: somebody else may have them by now.
            self._take_others()
            if self._deadline is not None and session.clock() >= self._deadline:
                return 0.0
            return await self.take()
        left, self._free = reply
        self._unsettled = self._doubted
        if left == SOME_ENDED:
            # An earlier copy's, whose reply was lost. What is left of them is given back, and others are taken.
            self._take_others()
            return await self.take()
        if left == NO_SEMAPHORE:
            tell_missing(session, logic.key, must_exist=logic.must_exist)
        busy = LOOK_AGAIN if left < 0 else min((left + 1) / 1000, LOOK_AGAIN)
        return busy if claimant is None else claimant.rest(busy)

    async def take_again(self) -> float | None:
        """The same after a wake-up, which may serve others who need less if it doesn't serve this one."""
        busy = await self.take()
        if busy is not None and self._free > 0:
            self._logic.session.channels.deliver(self._logic.commands.channel, PASSED_ON + b"%d" % self._free)
        return busy

    def give_up(self) -> None:
        """Gives back what may have been taken, or may be taken late, and what is claimed."""
        if self.claimant is not None:
            self.claimant.give_up()
        if self._unsettled:
            self._doubt()
            self._logic.release_in_background(self.ids)

    def _take_others(self) -> None:
        """Gives back what there is of these permits, and goes on with new ids."""
        self._doubt()
        self._logic.release_in_background(self.ids)
        self.ids = _new_ids(len(self.ids))
        self._doubted = self._unsettled = False

    def _doubt(self) -> None:
        self._doubted = True
        # A copy looks whether this one was withdrawn.
        self._logic.session.permits.in_doubt.add(self.ids[0])


def _new_ids(permits: int) -> list[bytes]:
    random = urandom(ID_BYTES * permits)
    return [random[i : i + ID_BYTES] for i in range(0, len(random), ID_BYTES)]
