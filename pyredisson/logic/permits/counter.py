"""What the operations of semaphores and latches have in common: a counter on the server, changed exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import Reply
from pyredisson.errors import NotReplicatedError, NotSetError
from pyredisson.logic import retry
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.holds import Hold
from pyredisson.logic.observing import end_of_acquire
from pyredisson.logic.permits.commands import CounterCommands, PermitPoolCommands
from pyredisson.logic.session import Session

if TYPE_CHECKING:
    from pyredisson.logic.permits.permit_wait import PermitCall

MOST_REPORTED = 1000
"""Names for which one client logs that they don't exist. More names than that are no mistake of the program."""


class CounterLogic:
    """The operations of a counter; numbers and durations were checked before."""

    __slots__ = ("commands", "key", "must_exist", "session")

    commands_type: ClassVar[Any]
    """The class of the commands, which are made from the session and the key."""
    commands: CounterCommands
    kind = "semaphore"
    """For messages."""
    blocked_by: tuple[Hashable, ...] = ()
    """No owner is known whose release a waiter needs."""
    missing = (logging.WARNING, "doesn't exist: its permits were never set, it was deleted, or it has ended")
    """How it is logged that the counter doesn't exist."""

    def __init__(self, session: Session, key: bytes, *, must_exist: bool = False) -> None:
        self.session = session
        self.key = key
        self.must_exist = must_exist
        self.commands = self.commands_type(session, key)

    def report_missing(self) -> None:
        """There is no counter on the server. Raises `NotSetError` if it must exist; else logs that, once."""
        level, text = self.missing
        if self.must_exist:
            raise NotSetError(f"{self.kind} {readable(self.key)!r} {text}")
        reported, name = self.session.permits.reported_not_set, (self.kind, self.key)
        if name not in reported and len(reported) < MOST_REPORTED:
            reported.add(name)
            logger.log(level, "%s %r %s", self.kind, readable(self.key), text)

    async def once(self, make: Callable[[SessionSlot], bytes], *, complete: bool = False) -> Reply:
        """The reply to a command that changes the counter exactly once. `complete`: see `SessionSlots.send`."""
        self.session.check_open()
        slot = self.session.slots.allocate()
        return await self.session.slots.send(slot, make(slot), complete=complete)

    async def query(self, payload: bytes, deadline: float | None = retry.LIMITED_BY_RETRIES) -> Reply:
        """The reply to an idempotent command."""
        session = self.session
        session.check_open()
        reply, _ = await retry.send(session.runtime, payload, retries=session.retries, deadline=deadline)
        return reply

    async def delete(self) -> bool:
        """Removes everything that the counter has on the server; returns whether it existed."""
        return bool(await self.once(self.commands.delete))


class PermitPool(CounterLogic):
    """A semaphore of either kind."""

    __slots__ = ()

    commands: PermitPoolCommands

    async def try_set(self, permits: int, ttl: int | None = None) -> bool:
        """Creates the semaphore, for so many ms (None: without end). False: it exists already."""
        return bool(await self.once(lambda slot: self.commands.try_set(slot, permits, ttl or 0)))

    async def add(self, permits: int) -> None:
        """Adds permits to the semaphore, or takes some away if negative. Their number may become negative."""
        self.session.check_open()
        if permits:
            await self.once(lambda slot: self.commands.add(slot, permits))

    def not_confirmed(self, problem: NotConfirmed) -> NotReplicatedError:
        """The error for permits that too few replicas have confirmed. They are released."""
        return retry.not_replicated(f"a permit of semaphore {readable(self.key)!r}", problem)

    # For the log and the observer

    def tell_waiting(self, call: PermitCall) -> None:
        """A call begins to wait."""
        if tracing.debug:
            logger.debug("%d permits of semaphore %r are waited for", call.permits, readable(self.key))
        if self.session.observing is not None:
            self.session.observing.wait_begins(call, self.commands, count=call.permits)

    def tell_ended(
        self, what: str, call: PermitCall, error: BaseException | None = None, holds: Sequence[Hold] = ()
    ) -> None:
        """A call has ended. `what`: see `Observing.call_ended`. `holds`: the permits that the watchdog renews."""
        if tracing.debug:
            said = end_of_acquire("are", acquired=what == "acquired", error=error)
            logger.debug("%d permits of semaphore %r %s", call.permits, readable(self.key), said)
        observing = self.session.observing
        if observing is None:
            return
        # Each of them is a hold of its own.
        for hold in holds:
            observing.acquired(call, self.commands, None, hold, began=call.began)
        if not holds:
            observing.call_ended(what, call, self.commands, began=call.began, count=call.permits, error=error)

    def tell_released(self, permits: int, holds: int = 0) -> None:
        """Permits are released. So many of them are holds, whose ends are told by themselves."""
        if tracing.debug:
            logger.debug("%d permits of semaphore %r are released", permits, readable(self.key))
        if self.session.observing is not None and permits > holds:
            self.session.observing.emit("released", subject=self.commands, count=permits - holds)
