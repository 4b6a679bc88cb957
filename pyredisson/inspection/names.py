"""From the name of an object to its companion keys, and back."""

from __future__ import annotations

import re
from typing import NamedTuple

from pyredisson._core import latch_channel, prefixed, suffixed
from pyredisson.inspection.model import Evidence
from pyredisson.logic.announced import CLIENT_PREFIX

_PREFIXED = {
    b"redisson_lock_queue": "queue",
    b"redisson_lock_timeout": "scores of the queue",
    b"pyredisson_fair_waiters": "when each waiter last asked",
    b"pyredisson_fair_clients": "clients with waiters",
    b"redisson_lock_token": "counter of fencing tokens",
    b"pyredisson_fenced_newest": "newest token before a deletion",
    b"pyredisson_semaphore_claim": "claim of a waiter for several permits",
    b"pyredisson_semaphore_turn": "period of the claims of permits",
    b"pyredisson_rwlock_writer": "claim of a writer that waits",
    b"pyredisson_rwlock_turn": "period of the claims of writers",
}
"""The companion keys that are called `prefix:{name}`, with their purposes."""
_IN_USE = b"timeout"
_UUID = rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_KINDS = {
    b"semaphore": Evidence.SEMAPHORE,
    b"permit": Evidence.PERMITS,
    b"latch": Evidence.LATCH,
}
_REPLY_CACHE = re.compile(rb"pyredisson_once:(.*):" + _UUID + rb":[0-9]+(?::(semaphore|permit|latch))?", re.DOTALL)
_WITHDRAWN = re.compile(rb"pyredisson_permit_withdrawn:(.*):[0-9a-f]{32}", re.DOTALL)


class Companions(NamedTuple):
    """The further keys and the channels of one object."""

    keys: tuple[tuple[bytes, str], ...]
    """In the order of `inspect_state.lua`, from its second key on, with their purposes."""
    leases: bytes
    """The beginning of the names of the readers' lease keys."""
    channels: tuple[bytes, ...]
    """Of a lock, a read-write lock, a semaphore and a latch."""


def companions_of(name: bytes) -> Companions:
    """The names of an object's companion keys."""
    keys = [(prefixed(prefix, name), purpose) for prefix, purpose in _PREFIXED.items()]
    keys.insert(6, (suffixed(name, _IN_USE), "permits in use"))
    channels = (
        prefixed(b"redisson_lock__channel", name),
        prefixed(b"redisson_rwlock", name),
        prefixed(b"redisson_sc", name),
        latch_channel(name),
    )
    return Companions(tuple(keys), suffixed(name, b""), channels)


def client_of(key: bytes) -> str | None:
    """The client that announces itself in this key. None: it is another key."""
    prefix, _, rest = key.partition(b":")
    if prefix != CLIENT_PREFIX or not (rest.startswith(b"{") and rest.endswith(b"}")):
        return None
    return rest[1:-1].decode("utf-8", "backslashreplace")


def objects_of(key: bytes) -> tuple[tuple[bytes, ...], Evidence]:
    """The objects that a companion key may belong to, none if it is no companion; and what it says of them.

    There are two if the name is in braces: `redisson_lock_queue:{orders}` belongs to `orders` and to `{orders}`, also
    in Redisson.
    """
    prefix, _, rest = key.partition(b":")
    if prefix in _PREFIXED:
        return _names(rest), Evidence.COMPANION
    if found := _REPLY_CACHE.fullmatch(key):
        return _names(found[1]), _KINDS.get(found[2], Evidence.COUNTER)
    if found := _WITHDRAWN.fullmatch(key):
        return _names(found[1]), Evidence.PERMITS
    if key.endswith(b":" + _IN_USE):
        return _names(key.removesuffix(b":" + _IN_USE)), Evidence.PERMITS
    return (), Evidence.COMPANION


def _names(text: bytes) -> tuple[bytes, ...]:
    """The names that are written like this inside the name of a companion key."""
    if text.startswith(b"{") and text.endswith(b"}") and b"{" not in text[1:]:
        return text[1:-1], text
    return (text,) if b"{" in text else ()
