"""Claims: how a waiter that wants several permits gets them, although other waiters that want fewer overtake it.

A waiter that was overtaken for a second claims its permits. Callers of this library then leave that many permits free.
"""

from __future__ import annotations

import math

from pyredisson.logic.permits.commands import PermitPoolCommands
from pyredisson.logic.ports import Wakeup

CLAIM_DELAY = 1.0
"""Seconds for which a waiter waits before it claims."""


class Claimant:
    """A waiter for permits, which claims them when it may.

    Of the waiters for one semaphore in one client, only the leader of the channel claims.
    """

    __slots__ = ("_claims_from", "_commands", "name", "wakeup")

    def __init__(self, commands: PermitPoolCommands, permits: int) -> None:
        session = commands.session
        self.wakeup: Wakeup = session.runtime.wakeup()
        """The wakeup with which the waiter joins the channel."""
        self.name = b""
        """The name of the waiter on the server; empty: it has never claimed."""
        self._commands = commands
        # The first caller gets a single free permit. No other caller overtakes it by wanting less.
        self._claims_from = session.clock() + CLAIM_DELAY if permits > 1 else math.inf

    def name_if_claiming(self) -> bytes:
        """The name for a claim; empty: the waiter must not claim yet, or another waiter is the leader."""
        session = self._commands.session
        if session.clock() < self._claims_from:
            return b""
        if not session.channels.become_leader(self._commands.channel, self.wakeup):
            return b""
        if not self.name:
            self.name = f"{session.id}:{next(session.permits.claim_numbers)}".encode()
        return self.name

    def limit(self, wait: float) -> float:
        """How many of `wait` seconds to wait: not beyond the moment from which the waiter may claim."""
        remaining = self._claims_from - self._commands.session.clock()
        return min(wait, remaining) if remaining > 0 else wait

    def withdraw(self) -> None:
        """Withdraws the claim in the background, so that other waiters need not wait for its end.

        The claim of a closed client expires by itself.
        """
        session = self._commands.session
        if self.name and not session.closed:
            session.runtime.post(self._commands.withdraw_claim(self.name))
