"""What the server replies to an acquire of permits without ids that it refuses."""

from __future__ import annotations

from typing import NamedTuple

LONGEST_WAIT = 5.0
"""Seconds between two attempts of a waiter: a message may be lost, and nobody knows when a permit without a lease is
released."""
NO_SEMAPHORE = -(2**52)
"""The reply to an acquire if there is no semaphore."""
FREE_BITS = 32
"""The lower bits of a refusal are the number of free permits. The upper bits are milliseconds: so long another
waiter's claim lasts, or so long the caller is to wait before it asks again."""


class Refusal(NamedTuple):
    """What the server replied to an acquire that it refused."""

    free: int
    """The number of permits that waiters may take that want fewer."""
    wait: float
    """Seconds to wait for a message at most."""

    @staticmethod
    def decode(reply: int) -> Refusal:
        """From the reply, which is zero or negative."""
        milliseconds = -reply >> FREE_BITS
        wait = min((milliseconds + 1) / 1000, LONGEST_WAIT) if milliseconds else LONGEST_WAIT
        return Refusal(-reply % (1 << FREE_BITS), wait)
