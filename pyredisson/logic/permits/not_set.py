"""What to do about a semaphore or a latch that doesn't exist on the server: raise an error, or log it once."""

from __future__ import annotations

import logging

from pyredisson._diagnostics import logger, readable
from pyredisson.errors import NotSetError
from pyredisson.logic.session import Session

MOST_REPORTED = 1000
"""Names for which one client logs this. More names than that are no mistake of the program."""


def report_semaphore(session: Session, key: bytes, *, must_exist: bool) -> None:
    """An acquire found no semaphore. Raises `NotSetError` if it must exist; else logs a warning."""
    text = "doesn't exist: its permits were never set, it was deleted, or it has ended"
    _report(session, logging.WARNING, "semaphore", key, text, must_exist=must_exist)


def report_latch(session: Session, key: bytes, *, must_exist: bool) -> None:
    """A wait found no latch. Raises `NotSetError` if it must exist; else logs that."""
    text = "isn't counting: it has come to zero, was deleted, or was never set; wait() returns at once"
    _report(session, logging.INFO, "latch", key, text, must_exist=must_exist)


def _report(session: Session, level: int, kind: str, key: bytes, text: str, *, must_exist: bool) -> None:
    if must_exist:
        raise NotSetError(f"{kind} {readable(key)!r} {text}")
    reported = session.permits.reported_not_set
    if (kind, key) not in reported and len(reported) < MOST_REPORTED:
        reported.add((kind, key))
        logger.log(level, "%s %r %s", kind, readable(key), text)
