"""The commands of the semaphore whose permits have ids and leases, as bytes."""

from __future__ import annotations

from binascii import hexlify, unhexlify
from collections.abc import Sequence

from pyredisson._core import command, pack, prefixed, suffixed
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.holds import Hold
from pyredisson.logic.permits.commands import PermitPoolCommands
from pyredisson.logic.session import Session

IN_USE = b"timeout"
"""What follows the name of a semaphore in the key of its permits in use."""
ENDLESS = -1
"""The lease of a permit that doesn't expire."""
ID_BYTES = 16
MOST_AT_ONCE = 1_000_000
"""Permits in one command. Servers accept few more arguments than that."""


def renew_permits(scripts: ScriptSet, holds: Sequence[Hold], lease: int) -> bytes:
    """The command that extends the leases of permits, which may belong to several semaphores. 0: it only asks."""
    return command(
        b"EVALSHA",
        scripts.permit_renew,
        len(holds),
        *[suffixed(hold.commands.key, IN_USE) for hold in holds],
        lease,
        *[unhexlify(hold.owner) for hold in holds],
    )


class PermitCommands(PermitPoolCommands):
    """The commands of one semaphore whose permits have ids and leases. A lease is in milliseconds, or `ENDLESS`.

    The caller chooses the ids. So a permit can be acquired and released by idempotent commands, without a slot.
    """

    __slots__ = ("in_use",)

    kind = "permit"
    renew = restore = staticmethod(renew_permits)
    renews_fixed_leases = False

    def __init__(self, session: Session, key: bytes) -> None:
        super().__init__(session, key)
        self.in_use = suffixed(key, IN_USE)
        """The key of the permits in use."""

    def acquire(self, ids: Sequence[bytes], lease: int, claimant: bytes = b"") -> bytes:
        """Acquires permits with these ids: all of them or none. The reply is None if they were acquired.

        Else the reply has two numbers: after how many ms to ask again (-1: after a message), and how many permits are
        free. Permits that can't be acquired now are claimed for the waiter `claimant`, if that is not empty.
        """
        return command(
            b"EVALSHA",
            self.session.runtime.scripts.permit_acquire,
            5,
            self.key,
            self.in_use,
            self._withdrawn(ids[0]),
            self._claim,
            self._claims_period,
            self.channel,
            lease,
            claimant,
            *ids,
        )

    def release(self, ids: Sequence[bytes], *, all_or_none: bool) -> bytes:
        """Releases permits. No late copy of their acquire can acquire them after that.

        The reply is empty if it was done. Else it has the number of unknown permits, and then the ids of any that
        are unknown or have expired.
        """
        in_doubt = self.session.permits.in_doubt
        withdrawn = [self._withdrawn(permit) for permit in ids if permit in in_doubt]
        return command(
            b"EVALSHA",
            self.session.runtime.scripts.permit_release,
            2 + len(withdrawn),
            self.key,
            self.in_use,
            *withdrawn,
            self.channel,
            int(all_or_none),
            *ids,
        )

    def abandon(self, hold: Hold) -> bytes:
        """Releases the permit of that hold, when the client is closed."""
        return self.release([unhexlify(hold.owner)], all_or_none=False)

    def wake_waiters(self) -> None:
        """None: waiters ask the server every few seconds anyway.

        A permit that was lost together with its semaphore frees nothing for them.
        """

    def read_lease(self, permit: bytes) -> bytes:
        """Reads the remaining lease of a permit. The reply is None if the permit is unknown or has expired."""
        return command(b"EVALSHA", self.session.runtime.scripts.permit_lease, 1, self.in_use, permit)

    def update_lease(self, permit: bytes, lease: int) -> bytes:
        """Gives a permit another lease from now on. The reply is None if the permit is unknown or has expired."""
        return command(b"EVALSHA", self.session.runtime.scripts.permit_lease, 1, self.in_use, permit, lease)

    def count(self) -> bytes:
        """Counts the permits. The reply has the number of free ones (None: no semaphore) and of those in use."""
        return pack(self.session.runtime.scripts.permit_count, self.key, self.in_use, self.channel)

    def set(self, slot: SessionSlot, permits: int) -> bytes:
        """Sets the number of permits, free and in use together."""
        return pack(
            self.session.runtime.scripts.permit_set,
            self.key,
            self.in_use,
            self._replies(slot),
            slot.number,
            permits,
            self.channel,
        )

    def delete(self, slot: SessionSlot) -> bytes:
        """Removes the semaphore with all permits in use. The reply is 1 if it existed."""
        return self._delete(slot, self.key, self.in_use)

    def _withdrawn(self, permit: bytes) -> bytes:
        """The key that keeps late copies of an acquire from running; `permit` is the first of its permits."""
        return prefixed(b"pyredisson_permit_withdrawn", self.key) + b":" + hexlify(permit)
