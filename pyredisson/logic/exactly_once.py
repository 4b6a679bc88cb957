"""Calls that add instead of stating a result: each is executed once, however often it is sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from redis.exceptions import RedisError

from pyredisson._core import command, prefixed
from pyredisson._diagnostics import debug
from pyredisson._protocol.error_codes import is_transient
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic import retry
from pyredisson.logic.ports import Runtime
from pyredisson.logic.retry import NO_WAIT

REMEMBERED = 600.0
"""Seconds for which the server surely knows what a call did: `exactly_once.lua` keeps that for a minute more."""


LOOK = 0.1
"""Seconds between two looks whether DEBUG is on."""


class Outlived(Exception):
    """What an outage of `REMEMBERED` seconds does to an acquire: whether it ran can't be known any more."""


class SessionSlot:
    """What at most one call at a time goes over; `number` is that call's, and only grows.

    The server keeps the latest number that it executed on a lane, for each name, and its result: a copy that
    comes again gets that result, and one that comes late is not executed. A call has two numbers, its own and the
    next one, which its undoing takes.
    """

    __slots__ = ("doubted", "number", "suffix")

    def __init__(self, suffix: bytes) -> None:
        self.suffix = suffix
        """What makes the key of this lane out of an object's `memory`."""
        self.number = 0
        self.doubted = False
        """Whether a copy of the present call may have run, or may run late."""

    def doubt(self) -> None:
        self.doubted = True


class SessionSlots:
    """The lanes of one client, as many as it ever had calls at the same time; and the calls on them."""

    def __init__(self, client_id: str, runtime: Runtime, attempts: int) -> None:
        self._suffix = f":{client_id}:"
        self._runtime = runtime
        self._attempts = attempts
        self._ids = itertools.count()
        self._free: dict[SessionSlot, None] = {}
        self._looks_at = 0.0

    def take(self) -> SessionSlot:
        """A lane for one call, with a new number. One that is never used is missed by nobody."""
        try:
            slot, _ = self._free.popitem()
        except KeyError:
            slot = SessionSlot(f"{self._suffix}{next(self._ids)}".encode())
        slot.number += 2
        slot.doubted = False
        return slot

    async def call(
        self,
        slot: SessionSlot,
        payload: bytes,
        *,
        deadline: float | None = NO_WAIT,
        undo: Callable[[SessionSlot], bytes] | None = None,
        complete: bool = False,
    ) -> Reply:
        """Sends a command that carries the lane's key and number, again where needed, and gives the lane back.

        A call that fails, or is interrupted, was executed once or not at all, and what happens then is done in
        the background: with `undo`, a command is posted that takes back what the call may have done, and keeps
        late copies of it from running; with `complete`, the call itself is repeated until it has run. Else
        nothing.

        With `undo`, a reply that isn't positive means that nothing was done, and nothing remembered. All other
        scripts remember whatever they reply. `Outlived` is raised, with `undo` only, instead of sending a copy that
        the server could take for a new call; the caller may go on over another lane.
        """
        runtime = self._runtime
        sent_at = runtime.clock()
        if sent_at >= self._looks_at:
            self._looks_at = sent_at + LOOK
            debug.look()
        forgotten_at = sent_at + REMEMBERED
        bounded = undo is not None and deadline != NO_WAIT and (deadline is None or deadline > forgotten_at)
        try:
            reply, _ = await retry.send(
                runtime,
                payload,
                attempts=self._attempts,
                deadline=forgotten_at if bounded else deadline,
                # After a long pause the server may have forgotten that it ran.
                idempotent_until=forgotten_at,
                on_doubt=slot.doubt,
            )
            if slot.doubted and undo is not None and reply <= 0:
                # Nothing was had, and a late copy must not have it.
                runtime.post(undo(slot))
                return reply
        except BaseException as error:
            # A lane about which something is posted is not used again: a later number would hide the doubtful one.
            if complete:
                runtime.post(payload)
            elif undo is not None and (retry.may_have_run(error, slot.doubted)):
                runtime.post(undo(slot))
            else:
                self._free[slot] = None
            if bounded and runtime.clock() >= forgotten_at and isinstance(error, RedisError) and is_transient(error):
                raise Outlived from error
            raise
        # An assignment: after a call a signal could strike, and what was done would be nobody's.
        self._free[slot] = None
        return reply


def memory(key: bytes) -> bytes:
    """What the keys begin with in which the server keeps what it executed for the object of that name."""
    return prefixed(b"pyredisson_once", key)


def delete_command(
    scripts: ScriptSet, slot: SessionSlot, memory: bytes, channel: bytes, message: bytes, *keys: bytes
) -> bytes:
    """Removes the object of these keys, and publishes `message` (empty: nothing). Its reply is 1 if it was there."""
    return command(
        b"EVALSHA",
        scripts.exactly_once_delete,
        len(keys) + 1,
        *keys,
        memory + slot.suffix,
        slot.number,
        channel,
        message,
    )
