"""A waiter that wants several permits and is passed over by others: when it claims them, so that they leave it some."""

from __future__ import annotations

import math

from pyredisson._core import pack, prefixed
from pyredisson.logic.ports import Wakeup
from pyredisson.logic.session import Session

CLAIM = b"pyredisson_semaphore_claim"
"""The prefix of a key that lives for two seconds: a waiter wants several permits, others leave it some."""
TURN = b"pyredisson_semaphore_turn"
"""The prefix of a key that bounds all claims: after five seconds of claims the others have a turn of five seconds."""
PASSED_OVER = 1.0
"""Seconds for which a waiter may be passed over before it claims."""


class Claimant:
    """One waiter. Of those in one client and of one semaphore, only one claims at a time: the leader of the channel."""

    __slots__ = ("_begins", "_channel", "_key", "_session", "name", "wakeup")

    def __init__(self, session: Session, key: bytes, channel: bytes, permits: int) -> None:
        self.wakeup: Wakeup = session.runtime.wakeup()
        """The waiter at the channels."""
        self.name = b""
        """By which the server knows it; empty: it never claimed."""
        self._session = session
        self._key = key
        self._channel = channel
        # A single permit that is free is had by whoever comes first: no claim would help.
        self._begins = session.clock() + PASSED_OVER if permits > 1 else math.inf

    def claims(self) -> bytes:
        """The name to claim by now; empty: not yet, or others come first."""
        if self._session.clock() < self._begins or not self._session.channels.become_leader(self._channel, self.wakeup):
            return b""
        if not self.name:
            self.name = f"{self._session.id}:{next(self._session.permits.claim_numbers)}".encode()
        return self.name

    def rest(self, busy: float) -> float:
        """How long to wait of `busy` seconds: no longer than until it may claim."""
        left = self._begins - self._session.clock()
        return min(busy, left) if left > 0 else busy

    def give_up(self) -> None:
        """Has the others go on without waiting for the end of the claim. A closed client leaves it to that."""
        session = self._session
        if self.name and not session.closed:
            script = session.runtime.scripts.semaphore_give_up
            session.runtime.post(pack(script, self._key, claim_key(self._key), self._channel, self.name))


def claim_key(key: bytes) -> bytes:
    """The claim's name on the server, for the semaphore of that name."""
    return prefixed(CLAIM, key)


def turn_key(key: bytes) -> bytes:
    """The name of what bounds the claims."""
    return prefixed(TURN, key)
