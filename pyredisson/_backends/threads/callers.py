"""Which owner the calling thread is."""

from __future__ import annotations

import threading
from asyncio import _get_running_loop

from pyredisson._diagnostics import warn_user
from pyredisson.logic.holds import Owner
from pyredisson.logic.session import Session

ON_AN_EVENT_LOOP = (
    "a client for threads is used on a thread that runs an event loop: its calls block the loop, and all tasks of the"
    " loop are one owner, so a lock doesn't exclude one of them from another. Use pyredisson.asyncio.connect() there,"
    " or asyncio.to_thread()"
)


class _Local(threading.local):
    """Per thread: the owner that it is."""

    owner: Owner | None = None
    life: _Life | None = None


class _Life:
    """Ends with the thread, like all that is local to it."""

    __slots__ = ("_overlap",)

    def __init__(self, owner: Owner) -> None:
        self._overlap = owner.calls

    def __del__(self) -> None:
        self._overlap.ended = True


class Callers:
    """Which owner the calling thread is; an owner's id is never given twice, unlike a thread's."""

    local: _Local
    on_event_loop = False
    """Whether the user was warned of a client for threads on the thread of an event loop."""
    left_elsewhere = False
    """Whether the user was warned of a block that another thread left than the one that entered it."""

    def begin(self, session: Session) -> None:
        """Nobody is an owner yet."""
        self._session = session
        self.local = _Local()

    def current(self) -> Owner:
        """The calling thread's owner."""
        if _get_running_loop() is not None:
            self.warn_of_loop()
        return self.local.owner or self._adopt()

    def warn_of_loop(self) -> None:
        """On a thread whose event loop is running; once."""
        if not self.on_event_loop:
            self.on_event_loop = True
            warn_user(ON_AN_EVENT_LOOP)

    def _adopt(self) -> Owner:
        owner = self.local.owner = self._session.new_owner()
        self.local.life = _Life(owner)
        return owner
