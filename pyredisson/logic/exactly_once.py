"""Calls that are executed exactly once, for scripts that add to a value and so can't be idempotent by themselves.

The scheme comes from the sessions of NFSv4.1 (RFC 5661, section 2.10.6), and so are its terms. A client has a session
with several slots. A slot carries one call at a time, and each call on it has a sequence number that is greater than
all numbers before it. For each slot the server remembers the number and the reply of the latest call. It replies to
a repeated call with the remembered reply, and does not execute a call with a number below the remembered one: such a
call is a late copy.

Here the server keeps this memory in one key for each slot and each object that was called over the slot
(`exactly_once.lua`). The key expires eleven minutes after the latest call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from redis.exceptions import RedisError

from pyredisson._core import ReleaseCall
from pyredisson._diagnostics import logger, tracing
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import Reply, is_transient
from pyredisson.logic import retry
from pyredisson.logic.ports import Runtime

REMEMBERED = 600.0
"""Seconds for which the server surely remembers a reply. Its keys live for a minute longer."""

DEBUG_CHECK_INTERVAL = 0.1
"""Seconds between two checks whether the logger takes DEBUG."""


class ReplyForgotten(Exception):
    """An acquire was in doubt for `REMEMBERED` seconds. The server may have forgotten its reply.

    One more copy could be taken for a new call, so none was sent. The call is undone in the background.
    """


@dataclass(slots=True, eq=False)
class SessionSlot:
    """A slot of the session. It carries one call at a time."""

    suffix: bytes
    """What the name of this slot's key for an object ends with, before the kind of the object."""
    number: int = 0
    """The sequence number of the present call. Its undo command has the next one."""
    in_doubt: bool = False
    """Whether a copy of the present call may have run, or may run late."""
    releaser: ReleaseCall | None = None
    """The present call, if it may hand permits on inside this client."""

    def note_doubt(self) -> None:
        self.in_doubt = True

    def copy_for(self, number: int) -> SessionSlot | None:
        """The slot as the call with this number has it. None: that call has ended, and the slot carries another one."""
        copy = SessionSlot(self.suffix, number, releaser=self.releaser)
        return copy if self.number == number else None


class SessionSlots:
    """The slots of one client. There are as many as the client ever had calls at the same time."""

    def __init__(self, client_id: str, runtime: Runtime, retries: int) -> None:
        self._suffix = f":{client_id}:"
        self._runtime = runtime
        self._acquire_sender = runtime.acquiring(retry.permits_granted)
        # Also of a release: one that a failover loses would be lost for good, as permits have no leases.
        self._change_sender = runtime.acquiring(retry.has_run)
        self._retries = retries
        self._ids = itertools.count()
        self._free: dict[SessionSlot, None] = {}
        self._next_debug_check = 0.0

    def allocate(self) -> SessionSlot:
        """A slot for one call, with new numbers. A slot that is dropped without a call does no harm."""
        try:
            slot, _ = self._free.popitem()
        except KeyError:
            slot = SessionSlot(f"{self._suffix}{next(self._ids)}".encode())
        slot.number += 2
        slot.in_doubt = False
        slot.releaser = None
        return slot

    def free(self, slot: SessionSlot) -> None:
        """The call on this slot has ended with a reply."""
        self._free[slot] = None

    async def send(self, slot: SessionSlot, payload: bytes, *, complete: bool = False) -> Reply:
        """Sends a command that has the slot's key and number, again where needed, and frees the slot.

        A call that fails or is interrupted was executed once or not at all. With `complete` it is then sent again in
        the background until it has run.
        """
        try:
            reply = await self._send_change(payload)
        except NotConfirmed as problem:
            reply = self._unconfirmed(problem)
        except BaseException:
            if complete:
                # The slot is not used again: a later call with a greater number would keep this one from running.
                self._runtime.post(payload)
            else:
                self._free[slot] = None
            raise
        # The last statement is an assignment. After a call of a function an interrupt could strike, and the caller
        # would not get the reply.
        self._free[slot] = None
        return reply

    async def send_hand_over(self, payload: bytes) -> int:
        """Sends a command that releases and acquires. A positive reply means that it has acquired something.

        Raises `NotConfirmed` if too few replicas have confirmed that. The server remembers any reply. The caller frees
        the slot after the reply. After an error it posts what finishes the call, and doesn't free the slot.
        """
        reply: int
        try:
            reply = await self._send_change(payload)
        except NotConfirmed as problem:
            if problem.reply > 0:
                raise
            reply = self._unconfirmed(problem)
        return reply

    async def _send_change(self, payload: bytes) -> Reply:
        until = self._now() + REMEMBERED
        reply, _ = await retry.send(self._change_sender, payload, retries=self._retries, idempotent_until=until)
        return reply

    def _unconfirmed(self, problem: NotConfirmed) -> int:
        """The reply of a call that the master has executed, and that can't be undone."""
        logger.info("a change of permits or of a count is done, but a failover may lose it: %s", problem)
        reply: int = problem.reply
        return reply

    async def send_or_undo(
        self, slot: SessionSlot, payload: bytes, undo: Callable[[SessionSlot], bytes], deadline: float | None
    ) -> int:
        """Sends a command that acquires something, again until `deadline` where needed, and frees the slot.

        A positive reply means that something was acquired; the server doesn't remember other replies. If the call fails
        or is interrupted, `undo` makes the command that releases in the background what the call has acquired, and
        keeps late copies of it from running. Raises `ReplyForgotten` after a long outage; then the caller may try
        again over another slot.
        """
        runtime = self._runtime
        forgotten_at = self._now() + REMEMBERED
        outlasts_memory = deadline is None or deadline > forgotten_at
        try:
            reply: int
            reply, _ = await retry.send(
                self._acquire_sender,
                payload,
                retries=self._retries,
                deadline=forgotten_at if outlasts_memory else deadline,
                idempotent_until=forgotten_at,
                on_doubt=slot.note_doubt,
            )
            if slot.in_doubt and reply <= 0:
                # This copy has acquired nothing and isn't remembered, so an earlier copy that comes late could still
                # acquire something. The undo prevents that. The slot is not used again, see below.
                runtime.post(undo(slot))
                return reply
        except BaseException as error:
            if retry.may_have_run(error, slot.in_doubt):
                # The slot is not used again: the server would remember the number of a later call, and could no longer
                # find out whether this one has acquired something.
                runtime.post(undo(slot))
            else:
                # The call has not run and never will.
                self._free[slot] = None
            is_outage = isinstance(error, RedisError) and is_transient(error)
            if outlasts_memory and runtime.clock() >= forgotten_at and is_outage:
                raise ReplyForgotten from error
            raise
        # An assignment, as in `send`: an interrupt here would lose what was acquired.
        self._free[slot] = None
        return reply

    def _now(self) -> float:
        """Reads the clock, and from time to time whether the logger takes DEBUG."""
        now = self._runtime.clock()
        if now >= self._next_debug_check:
            self._next_debug_check = now + DEBUG_CHECK_INTERVAL
            tracing.look()
        return now
