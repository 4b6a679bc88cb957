"""Which owner the calling thread is."""

from __future__ import annotations

import threading
from asyncio import _get_running_loop

from pyredisson._diagnostics import warn_user
from pyredisson.logic.owners import Owner
from pyredisson.logic.session import Session

ON_AN_EVENT_LOOP = (
    "a client for threads is used on a thread that runs an event loop: its calls block the loop, and all tasks of the"
    " loop are one owner, so a lock doesn't exclude one of them from another. Use pyredisson.asyncio.connect() there,"
    " or asyncio.to_thread()"
)


class _Local(threading.local):
    """The owner of each thread."""

    owner: Owner | None = None
    end_notice: _EndNotice | None = None


class _EndNotice:
    """Marks an owner as ended when its thread ends, because Python destroys thread-local objects then."""

    __slots__ = ("_calls",)

    def __init__(self, owner: Owner) -> None:
        self._calls = owner.calls

    def __del__(self) -> None:
        self._calls.ended = True


class Callers:
    """Assigns an owner to each calling thread. An owner's id is never used twice, unlike a thread's id."""

    local: _Local
    _warned_of_loop = False
    """Whether the user was warned that a client for threads is used on the thread of an event loop."""
    warned_of_exit = False
    """Whether the user was warned of a `with` block that one thread entered and another one exited."""

    def begin(self, session: Session) -> None:
        """Starts without any owner: for a new client, and after a fork."""
        self._session = session
        self.local = _Local()

    def current(self) -> Owner:
        if _get_running_loop() is not None:
            self.warn_of_loop()
        return self.local.owner or self._adopt()

    def known(self) -> Owner | None:
        """The calling thread's owner. None: it has none yet."""
        return self.local.owner

    def warn_of_loop(self) -> None:
        if not self._warned_of_loop:
            self._warned_of_loop = True
            warn_user(ON_AN_EVENT_LOOP)

    def _adopt(self) -> Owner:
        owner = self.local.owner = self._session.owners.new()
        self.local.end_notice = _EndNotice(owner)
        return owner
