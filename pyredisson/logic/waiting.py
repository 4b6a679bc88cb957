"""Waiting for something on the server: an attempt after each wakeup, until one succeeds.

These wake a waiter:
- a message: the holder has released. Another waiter that leaves may pass it on;
- the confirmation of the subscription, because messages published before it are lost, or its refusal;
- the loss of the subscription, because messages are lost until it is confirmed again;
- the closing of the client;
- its own timer. For a lock it is set to 1 ms after the end of the holder's lease, or to `lock_watchdog_timeout` if that
  is earlier. Only the timer wakes the waiters of a holder that was killed, because such a holder publishes nothing.

The fair lock waits in its own way, with heartbeats; see `locks.fair_wait`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pyredisson._diagnostics import logger, readable, tracing
from pyredisson._protocol.error_copies import copy_error
from pyredisson.logic.channels import Channel
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.session import Session

UNCONFIRMED_WAIT = 1.0
"""Seconds between two attempts while the subscription isn't confirmed: messages may be lost meanwhile."""

Attempt = Callable[[], Awaitable[float | None]]
"""One attempt. Returns None on success, else the longest time in seconds to wait for the next attempt."""


async def until(
    session: Session,
    channel_name: bytes,
    attempt: Attempt,
    longest_wait: float,
    deadline: float | None,
    *,
    channel_class: type[Channel] = Channel,
    need: int = 1,
    wakeup: Wakeup | None = None,
) -> bool:
    """Waits for a successful attempt until `deadline` (None: without limit). Returns False after the deadline.

    The caller has made one attempt, which returned `longest_wait`. `wakeup` is for a caller that registers its
    waiter's wakeup elsewhere, too; `channel_class` and `need` are as for `ChannelRegistry.join`.

    Leaving the channel never suspends. If an attempt was interrupted, the attempt or the caller undoes it.
    """
    if wakeup is None:
        wakeup = session.runtime.wakeup()
    try:
        return await _until(session, channel_name, attempt, longest_wait, deadline, wakeup, channel_class, need)
    except BaseException:
        # An interrupt may have prevented the `leave` in `_until`.
        session.channels.leave(channel_name, wakeup)
        raise


async def _until(
    session: Session,
    channel_name: bytes,
    attempt: Attempt,
    longest_wait: float,
    deadline: float | None,
    wakeup: Wakeup,
    channel_class: type[Channel],
    need: int,
) -> bool:
    runtime, began = session.runtime, session.begin_waiting()
    try:
        channel = session.channels.join(channel_name, wakeup, channel_class, need)
        while True:
            if channel.error is not None:
                raise copy_error(channel.error)
            seconds = longest_wait if channel.confirmed else min(longest_wait, UNCONFIRMED_WAIT)
            if deadline is not None:
                remaining = deadline - session.clock()
                if remaining <= 0:
                    return False
                seconds = min(seconds, remaining)
            tracing.look()
            if tracing.debug:
                logger.debug("waiting on channel %r for %.3f s at most", readable(channel_name), seconds)
            await runtime.wait(wakeup, seconds)
            if tracing.debug:
                logger.debug("%s on channel %r", "woken" if wakeup.is_set() else "no message", readable(channel_name))
            wakeup.clear()
            # A wakeup is only a hint: it may be late, or meant for another waiter. Only a script's reply counts.
            again = await attempt()
            if again is None:
                return True
            longest_wait = again
    except BaseException:
        # The wakeup may have been consumed by an attempt that did not finish: `leave` passes it on.
        wakeup.set()
        raise
    finally:
        session.channels.leave(channel_name, wakeup)
        session.end_waiting(began)
