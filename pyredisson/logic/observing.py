"""The events of one client for its observer.

The observer isn't called where something happens: a release may run on any line, in a finalizer too, and an observer
that is in the middle of a call on the same thread, with a mutex of its own, would wait for itself.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Protocol

from pyredisson._diagnostics import readable, tracing
from pyredisson.events import Event
from pyredisson.logic.holds import HELD, LOST, Hold


class Named(Protocol):
    """What events say about an object. Its commands have it."""

    key: bytes
    kind: str


class Observing:
    """Any thread adds an event, on any line.

    Whatever adds one takes no mutex. No function is called between an event and the note that its wait or its hold has
    begun or ended, so that no interrupt strikes there. Of several threads that note an end, one succeeds.
    """

    def __init__(
        self,
        handlers: Container[str],
        queue: deque[Any],
        wake: Callable[[], None],
        client_id: str,
        clock: Callable[[], float],
    ) -> None:
        """`handlers`: the methods that the observer has; no other events are added to `queue`. `wake` is called after
        that, on any line: it takes no mutex."""
        self._client_id = client_id
        self._clock = clock
        self._handlers = handlers
        self._queue = queue
        self._wake = wake
        self._numbers = itertools.count(1)
        self._waits: dict[object, int] = {}
        """The number of each wait whose end was not told, by the call that waits."""
        self._holds: dict[Hold, int] = {}
        """The number of each hold whose begin was told, and whose end was not."""
        tracing.observe()

    # --- Adding events

    def emit(self, what: str, **fields: Any) -> None:
        """Adds an event, if the observer has that method. `fields`: see `_event`."""
        event = self._event(what, **fields)
        if event is not None:
            self._queue.append(event)
            self._wake()

    def wait_begins(self, call: object, subject: Named, owner_id: int | None = None, count: int = 1) -> None:
        """A call waits from now on. `call` is any object that stands for it until `call_ended`."""
        number = next(self._numbers)
        event = self._event("waiting", subject, owner_id=owner_id, count=count, wait_id=number, context=copy_context())
        append = self._queue.append
        self._waits[call] = number
        if event is not None:
            append(event)
            self._wake()

    def is_waiting(self, call: object) -> bool:
        """Whether the begin of its wait was told, and the end was not."""
        return call in self._waits

    def call_ended(
        self,
        what: str,
        call: object,
        subject: Named,
        owner_id: int | None = None,
        *,
        began: float = 0.0,
        count: int = 1,
        error: BaseException | None = None,
        hold: Hold | None = None,
    ) -> None:
        """An acquire has ended. `what`: `acquired`, `timed_out` or `failed`.

        `began`: when it was sent, or began to wait; 0: it was granted at once. `hold`: see `acquired`.
        """
        wait_id = self._waits.get(call)
        hold_id = None if hold is None else next(self._numbers)
        event = self._event(
            what,
            subject,
            owner_id=owner_id,
            waited=max(0.0, self._clock() - began) if began else 0.0,
            count=count,
            token=hold.token or None if hold is not None else None,
            error=None if error is None else described(error),
            wait_id=wait_id,
            hold_id=hold_id,
            context=copy_context() if what == "acquired" else None,
        )
        queue = self._queue
        if wait_id is not None:
            del self._waits[call]
        # No call. Before the note of a hold, by which another thread may tell its end.
        queue += () if event is None else (event,)
        if hold is not None and hold_id is not None:
            self._holds[hold] = hold_id
        if event is not None:
            self._wake()

    def acquired(self, call: object, subject: Named, owner_id: int | None, hold: Hold, *, began: float = 0.0) -> None:
        """A new hold. Its end is told, too."""
        # Before the event: after it, an interrupt would prevent this.
        hold.listen(self.hold_ended)
        self.call_ended("acquired", call, subject, owner_id, began=began, hold=hold)
        if hold.state is not HELD:
            # It has ended before its begin was told, and so its end was not told.
            self.hold_ended(hold)

    def hold_ended(self, hold: Hold) -> None:
        """A listener of holds. Does nothing for a hold whose begin was not told."""
        number = self._holds.get(hold)
        if number is None:
            return
        lost = hold.state is LOST
        event = self._event(
            "lost" if lost else "released",
            hold.commands,
            owner_id=None if hold.acquired_by is None else hold.key[1],
            held=max(0.0, self._clock() - hold.begun),
            token=hold.token or None,
            reason=hold.reason if lost else None,
            hold_id=number,
        )
        append = self._queue.append
        with suppress(KeyError):
            del self._holds[hold]
            if event is not None:
                append(event)
                self._wake()

    def forget(self, hold: Hold) -> None:
        """The end of this hold is not to be told."""
        self._holds.pop(hold, None)

    def availability_changed(self, what: str, server: str, error: BaseException | None) -> None:
        """`what`: `discovered`, `disconnected` or `connected`."""
        self.emit(what, server=server, error=None if error is None else described(error))

    def _event(self, what: str, subject: Named | None = None, **fields: Any) -> Event | None:
        """None: the observer doesn't have that method."""
        if what not in self._handlers:
            return None
        if subject is not None:
            fields |= {"name": readable(subject.key), "kind": subject.kind}
        return Event(what=what, client_id=self._client_id, time_ns=time.time_ns(), **fields)


def end_of_acquire(verb: str, *, acquired: bool, error: BaseException | None = None) -> str:
    """How an acquire has ended, for a line of the log. `verb`: `is` or `are`."""
    if acquired:
        return f"{verb} acquired"
    return f"{verb} not acquired in time" if error is None else f"{verb} not acquired: {described(error)}"


def described(error: BaseException) -> str:
    """An exception in an event."""
    return f"{type(error).__name__}: {error}"
