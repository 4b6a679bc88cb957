"""Waiting for something on the server: try, and whenever there is reason to hope, try again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pyredisson.fresh_error import fresh
from pyredisson.logic.holds import logger, shown, trace
from pyredisson.logic.hub import Channel
from pyredisson.logic.shared import Shared
from pyredisson.runtime import Signal

UNHEARD_WAIT = 1.0
"""Seconds between two looks while the subscription isn't confirmed: releases would go unnoticed."""

Attempt = Callable[[], Awaitable[float | None]]
"""One try. None: had; else how many seconds to wait at most before the next one."""


async def until(
    shared: Shared,
    channel: bytes,
    attempt: Attempt,
    busy: float,
    deadline: float | None,
    *,
    kind: type[Channel] = Channel,
    need: int = 1,
    signal: Signal | None = None,
) -> bool:
    """Waits for a successful attempt until `deadline` (None: as long as it takes). False: not had in time.

    The caller has tried once, and was told to wait `busy` seconds at most. Giving up never awaits; what an
    attempt got that was interrupted is for the attempt, or the caller, to give back. `signal` is the waiter at the
    hub, for a caller that must know it.
    """
    freed = shared.runtime.signal() if signal is None else signal
    try:
        return await _until(shared, channel, attempt, busy, deadline, freed, kind, need)
    except BaseException:
        # Interrupted on the way out, perhaps before it left the channel.
        shared.hub.leave(channel, freed)
        raise


async def _until(
    shared: Shared,
    name: bytes,
    attempt: Attempt,
    busy: float,
    deadline: float | None,
    freed: Signal,
    kind: type[Channel],
    need: int,
) -> bool:
    runtime = shared.runtime
    try:
        channel = shared.hub.join(name, freed, kind, need)
        while True:
            if channel.error is not None:
                raise fresh(channel.error)
            rest = busy if channel.confirmed else min(busy, UNHEARD_WAIT)
            if deadline is not None:
                left = deadline - shared.clock()
                if left <= 0:
                    return False
                rest = min(rest, left)
            trace.look()
            if trace.on:
                logger.debug("waiting on channel %r for %.3f s at most", shown(name), rest)
            await runtime.wait(freed, rest)
            if trace.on:
                logger.debug("%s on channel %r", "woken" if freed.is_set() else "nothing heard", shown(name))
            freed.clear()
            # Every wake-up is followed by a try: only a script's reply gives anything.
            again = await attempt()
            if again is None:
                return True
            busy = again
    except BaseException:
        # Woken, but it never came to a try that counts: leaving passes the wake-up on.
        freed.set()
        raise
    finally:
        shared.hub.leave(name, freed)
