"""What both backends have of leader elections: terms, states, and how a campaign is given up."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Generic, TypeVar

from redis.exceptions import RedisError

from pyredisson._api.arguments import package_of
from pyredisson._api.holds import AnyLost, release_left
from pyredisson._core import AcquireCall
from pyredisson._diagnostics import logger, readable
from pyredisson._protocol.replies import code_of, is_transient
from pyredisson.errors import LockNotHeldError, NotReplicatedError
from pyredisson.logic.holds import Hold
from pyredisson.logic.locks.fenced_lock import FencedLockLogic
from pyredisson.logic.owners import Owner

CLOSE_LIMIT = 2.0
"""Seconds for which `close` of a thread's election waits. While the server is away the thread ends when it is back."""
PAUSE = 1.0
"""Seconds between a term, or a campaign that failed, and the next campaign of the same election: others come first, and
a server that loses locks again and again gets no storm of calls. Half as much is added by chance."""


L = TypeVar("L", bound=AnyLost)


class ElectionState(Enum):
    """What an election does at the moment, as known without asking the server."""

    IDLE = "idle"
    """It takes no part."""
    CAMPAIGNING = "campaigning"
    """It waits until it is elected."""
    LEADING = "leading"
    """It was elected, and the term is valid."""
    DEPOSED = "deposed"
    """The term was lost, or the client was closed; the work or the block of the term hasn't ended yet."""
    CLOSED = "closed"
    """It was closed, and takes part no more."""


class AnyTerm(Generic[L]):
    def __init__(self, logic: FencedLockLogic, hold: Hold, token: int, lost: L) -> None:
        self._logic = logic
        self._hold = hold
        self.name = readable(logic.key)
        """The name of the election on the server."""
        self.token = token
        """The fencing token of the term: larger than the tokens of all terms before."""
        self.since = datetime.now(UTC)
        """When the term began here."""
        self.lost = lost
        """Whether the leadership was lost, as `lost` of a lock."""

    @property
    def valid(self) -> bool:
        """Whether this client may act as the leader. Sends nothing.

        At no moment two terms of an election are valid, by whichever clock: a term ends here before the lease does.
        """
        holds = self._logic.session.holds
        # In a forked child the holds belong to a new client.
        return holds.table.get(self._hold.key) is self._hold and not holds.expire_if_due(self._hold)

    def __repr__(self) -> str:
        state = "valid" if self.valid else "over"
        return f"<{package_of(type(self))}.Term {self.token} of election {self.name!r}: {state}>"


F = TypeVar("F", bound=Any)
T = TypeVar("T", bound=AnyTerm[Any])


class AnyElection(Generic[F, T]):
    _event: Callable[[], Any]
    """Makes what a thread or a task can wait for."""

    def __init__(
        self, lock: F, on_elected: Callable[[T], object] | None, on_deposed: Callable[[T], object] | None
    ) -> None:
        """`lock`: the fenced lock of that name."""
        self._on_elected = checked_callback(on_elected, "on_elected")
        self._on_deposed = checked_callback(on_deposed, "on_deposed")
        self._lock = lock
        self._logic: FencedLockLogic = lock._logic
        self._owner: Owner = lock._owner()
        self._process = os.getpid()
        self._busy = threading.Lock()
        """Held while a thread or a task takes part."""
        self._call: AcquireCall | None = None
        """The campaign."""
        self._term: T | None = None
        """The present one."""
        self._stop = self._event()
        """Set by `close`."""

    @property
    def state(self) -> ElectionState:
        """What this candidate does at the moment, as known without asking the server."""
        if (term := self._term) is not None:
            return ElectionState.LEADING if term.valid else ElectionState.DEPOSED
        if self._stop.is_set():
            return ElectionState.CLOSED
        return ElectionState.IDLE if self._call is None else ElectionState.CAMPAIGNING

    def __repr__(self) -> str:
        return f"<{package_of(type(self))}.Election {readable(self._logic.key)!r}: {self.state.value}>"

    def _begin(self) -> None:
        if self._process != os.getpid():
            # What took part in the parent process has not come along into this forked child.
            self._process, self._busy, self._term, self._call = os.getpid(), threading.Lock(), None, None
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(f"this candidate of {readable(self._logic.key)!r} takes part already: make another one")

    def _abandon(self) -> None:
        """Takes part no more for now. Releases what an interrupt or a cancellation has left."""
        self._term = None
        release_left(self._logic, self._owner)
        if self._busy.locked():
            self._busy.release()

    def _give_up(self, call: AcquireCall) -> None:
        """Has a campaign return False. While the server is away, when it is back."""
        # First: a call that comes to wait from now on sees it. One that waits already is woken, and sees it.
        session = self._logic.session
        call.deadline = session.clock()
        queue = session.lock_queues.get(self._logic.identity)
        for waiter in list(queue.waiters) if queue is not None else ():
            if waiter.call is call:
                waiter.wakeup.set()

    def _handle_campaign_error(self, error: Exception) -> None:
        """Raises the error of a campaign, or logs it: if it is about to pass, the next campaign follows."""
        if not _will_pass(error):
            raise error
        logger.warning("a campaign of election %r failed, and is repeated: %s", readable(self._logic.key), error)


def pause() -> float:
    return PAUSE * (1 + random.random() / 2)


def handle_release_error(term: AnyTerm[Any], error: BaseException) -> None:
    """Raises the error of the release at the end of a term, or logs it: if the term was lost, there is nothing to
    release, and if the error is about to pass, the release goes on in the background."""
    if not (isinstance(error, LockNotHeldError) or _will_pass(error)):
        raise error
    logger.info("the term %r ended: %s", term, error)


def checked_callback(callback: Callable[[T], object] | None, name: str) -> Callable[[T], object]:
    """The callback, or one that does nothing."""
    if callback is None:
        return lambda _: None
    if not callable(callback):
        raise TypeError(f"{name} must be a function, not {type(callback).__name__}")
    return callback


@contextmanager
def logged(text: str, *args: object) -> Iterator[None]:
    """Logs an exception in place of raising it: it must not end the election, or has no caller that it is raised to."""
    try:
        yield
    except Exception:  # noqa: BLE001
        logger.exception(text, *args)


def _will_pass(error: BaseException) -> bool:
    """Whether a candidate goes on after this error of a campaign, or of the release at the end of a term.

    The server is away or full, can't write to its disk, or too few replicas have confirmed a term. Other errors, as a
    wrong password or a missing right, stay until somebody changes the settings.
    """
    if isinstance(error, NotReplicatedError):
        return True
    return isinstance(error, RedisError) and (is_transient(error) or code_of(error) in ("OOM", "MISCONF"))
