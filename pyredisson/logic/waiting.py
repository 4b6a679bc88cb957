"""Waiting for something on the server: try, and whenever there is reason to hope, try again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pyredisson._diagnostics import debug, logger, readable
from pyredisson._protocol.error_copies import copy_error
from pyredisson.logic.channels import Channel
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.session import Session

UNHEARD_WAIT = 1.0
"""Seconds between two looks while the subscription isn't confirmed: releases would go unnoticed."""

Attempt = Callable[[], Awaitable[float | None]]
"""One try. None: had; else how many seconds to wait at most before the next one."""


async def until(
    session: Session,
    channel: bytes,
    attempt: Attempt,
    busy: float,
    deadline: float | None,
    *,
    kind: type[Channel] = Channel,
    need: int = 1,
    signal: Wakeup | None = None,
) -> bool:
    """Waits for a successful attempt until `deadline` (None: as long as it takes). False: not had in time.

    The caller has tried once, and was told to wait `busy` seconds at most. Giving up never awaits; what an
    attempt got that was interrupted is for the attempt, or the caller, to give back. `signal` is the waiter at the
    channels, for a caller that must know it.
    """
    wakeup = session.runtime.wakeup() if signal is None else signal
    try:
        return await _until(session, channel, attempt, busy, deadline, wakeup, kind, need)
    except BaseException:
        # Interrupted on the way out, perhaps before it left the channel.
        session.channels.leave(channel, wakeup)
        raise


async def _until(
    session: Session,
    name: bytes,
    attempt: Attempt,
    busy: float,
    deadline: float | None,
    wakeup: Wakeup,
    kind: type[Channel],
    need: int,
) -> bool:
    runtime = session.runtime
    try:
        channel = session.channels.join(name, wakeup, kind, need)
        while True:
            if channel.error is not None:
                raise copy_error(channel.error)
            rest = busy if channel.confirmed else min(busy, UNHEARD_WAIT)
            if deadline is not None:
                left = deadline - session.clock()
                if left <= 0:
                    return False
                rest = min(rest, left)
            debug.look()
            if debug.on:
                logger.debug("waiting on channel %r for %.3f s at most", readable(name), rest)
            await runtime.wait(wakeup, rest)
            if debug.on:
                logger.debug("%s on channel %r", "woken" if wakeup.is_set() else "nothing heard", readable(name))
            wakeup.clear()
            # Every wake-up is followed by a try: only a script's reply gives anything.
            again = await attempt()
            if again is None:
                return True
            busy = again
    except BaseException:
        # Woken, but it never came to a try that counts: leaving passes the wake-up on.
        wakeup.set()
        raise
    finally:
        session.channels.leave(name, wakeup)
