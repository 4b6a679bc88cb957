"""The key in which a client announces itself, and the fields that stand for its holds."""

from __future__ import annotations

from pyredisson._core import prefixed

CLIENT_PREFIX = b"pyredisson_client"
"""The prefix of the key."""
HOLD_PREFIX = b"h:"
"""The beginning of the fields that stand for a hold."""


def client_key(client_id: str) -> bytes:
    """The key in which that client announces itself."""
    return prefixed(CLIENT_PREFIX, client_id.encode())


def hold_field(owner: bytes, key: bytes) -> bytes:
    """The field for a hold of the lock `key`. `owner`: what follows the client's id in the owner's name; of a permit
    its id.

    It contains no space, so the first space separates it from the name of the lock.
    """
    return b"%b%b %b" % (HOLD_PREFIX, owner, key)
