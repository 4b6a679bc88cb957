"""Messages while a slot is being moved: whoever waits is subscribed on the node that still serves the slot.

A release may follow ASK to the node that the slot is being moved to. Its script publishes there. A plain message
reaches the subscribers of all nodes, a sharded one doesn't. So the client repeats the sharded one on the node that has
sent ASK.
"""

from __future__ import annotations

import hiredis
from redis.exceptions import RedisError

from pyredisson._core import command
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.scripts import script_name

_ALL_PERMITS = b"2147483647"
"""Wakes all waiters for permits. Each of them finds out how many permits there are."""
_MESSAGES = {
    "lock_release": b"0",
    "lock_force_release": b"0",
    "lock_wake_waiters": b"1",
    "permit_release": _ALL_PERMITS,
    "read_write_force_release": b"1",
}
"""The scripts that publish, and that can run behind ASKING: they have one key, or all their keys exist. Their first
argument is the channel. The message wakes at least whom the script's own message wakes."""


def message_at_source(payload: bytes, reply: Reply) -> bytes | None:
    """The command that repeats the message of a call which has followed ASK. None: it has published nothing."""
    if reply == 0 or isinstance(reply, RedisError):
        # 0: an inner level was released, or somebody holds the lock. A nil may be the reply to a copy which ran before.
        return None
    reader = hiredis.Reader()
    reader.feed(payload)
    words = reader.gets()
    message = _MESSAGES.get(script_name(words))
    if message is None:
        return None
    channel = words[3 + int(words[2])]
    return command(b"SPUBLISH", channel, message) if channel else None
