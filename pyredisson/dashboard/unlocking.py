"""Releases the hold that a page shows, on request."""

from __future__ import annotations

import logging

from pyredisson.dashboard.collector import Collector
from pyredisson.dashboard.words import who
from pyredisson.inspection.states import MOST_LISTED
from pyredisson.inspection.unlocking import release_shown

logger = logging.getLogger("pyredisson.dashboard")


class Changed(Exception):
    """The owner that the page has shown doesn't hold it any more."""


async def unlock(collector: Collector, name: str, owner: str, address: str) -> str:
    """Releases the hold of that owner, and of no other one. Returns whose it was.

    `address`: of the browser. Raises `Changed`, `ValueError` for an object without holds of its own, `KeyError` for a
    name that isn't known, and the errors of Redis.
    """
    seen = collector.snapshot.named(name)
    if seen is None:
        raise KeyError(name)
    known, failed = await collector.inspector.states([seen.state.key], limit=MOST_LISTED)
    for error in failed.values():
        raise error
    state = known[0]
    if state.kind == "unknown":
        raise Changed
    shown = next((each for each in state.owners if each.raw == owner), None)
    if shown is None or not await release_shown(collector.session, state, shown):
        raise Changed
    # Any program can write anything to Redis, also line breaks: nobody shall write lines of this log.
    whose = who(shown.holder)
    logger.warning("the hold of %r (%r) on %r was released by force, from %s", whose, owner, name, address)
    return whose
