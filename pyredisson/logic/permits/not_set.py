"""A semaphore or a latch that doesn't exist on the server: an error for those who want one, else a word in the log."""

from __future__ import annotations

from pyredisson._diagnostics import logger, readable
from pyredisson.errors import NotSetError
from pyredisson.logic.session import Session

MOST_TOLD = 1000
"""Names of which a client tells: more of them are no mistakes."""


def report(session: Session, level: int, what: str, key: bytes, text: str, *, must_exist: bool) -> None:
    """Raises `NotSetError` if it must exist; else logs it, once for each client and name."""
    if must_exist:
        raise NotSetError(f"{what} {readable(key)!r} {text}")
    told = session.permits.reported_not_set
    if (what, key) not in told and len(told) < MOST_TOLD:
        told.add((what, key))
        logger.log(level, "%s %r %s", what, readable(key), text)
