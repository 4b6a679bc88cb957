"""The command that reads the state of one object, and its reply."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyredisson._core import pack
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.inspection.model import Companion
from pyredisson.inspection.names import Companions, companions_of

NO_KEY, ENDLESS = -2, -1
"""Replies of PTTL."""
NO_TYPE = "none"
FOREVER = 922337203685477
"""The end of a permit without a lease, ms."""


def state_command(scripts: ScriptSet, key: bytes, limit: int) -> bytes:
    """The command that reads the state of one object with at most `limit` owners, waiters and permits."""
    names = companions_of(key)
    keys = [companion for companion, _ in names.keys]
    return pack(scripts.inspect_state, key, *keys, names.leases, limit, *names.channels)


@dataclass(frozen=True)
class QueuePlace:
    """One place in the queue of a fair lock."""

    owner: bytes
    score: int | None
    """Until when Redisson keeps the place, ms of the server's clock."""
    asked_at: int | None
    """When the waiter last asked for the lock; 0 or less: it has left. None: it is a waiter of Java."""
    client_alive_until: int | None


@dataclass(frozen=True)
class Raw:
    """What the server knows of one object."""

    key: bytes
    names: Companions
    now: int
    """The server's time, ms."""
    types: Mapping[bytes, str]
    """Of the object and its companion keys; `none`: there is no such key."""
    ttls: Mapping[bytes, int]
    """What PTTL replies for them."""
    hash_class: str
    """What it is as a hash: `lock`, `read-write`, `group`, `rate-limiter`. Empty: none of them."""
    mode: str
    fields: Mapping[bytes, bytes]
    """Of a hash; not all, if there are many."""
    size: int
    """The number of fields."""
    leases: Mapping[bytes, int]
    """For each field of a read-write lock the remaining lease of the reader, ms; `NO_KEY`: there is none."""
    text: bytes | None
    """The beginning of a string."""
    queue_length: int
    queue: Sequence[QueuePlace]
    token: bytes | None
    in_use: int
    ended: int
    """Permits that have ended, and were not freed yet."""
    permits: Mapping[bytes, int]
    """Permits in use and when they end, the first ones."""
    subscribed: Sequence[int]
    """For each channel of `companions_of` how many connections are subscribed to it. -1: not known."""

    @cached_property
    def companions(self) -> tuple[Companion, ...]:
        """The companion keys that exist."""
        return tuple(
            Companion(key, self.types[key], seconds(self.ttls[key]), purpose)
            for key, purpose in self.names.keys
            if self.types[key] != NO_TYPE
        )

    def has(self, *prefixes: bytes) -> bool:
        """Whether a companion key with one of these prefixes exists."""
        return any(companion.key.partition(b":")[0] in prefixes for companion in self.companions)

    @property
    def type(self) -> str:
        return self.types[self.key]

    @property
    def number(self) -> int | None:
        """The object as a decimal number. None: it is none."""
        return number_of(self.text)

    @property
    def owner_ttl(self) -> int:
        """What PTTL replies for the object."""
        return self.ttls[self.key]


def raw_state(key: bytes, reply: Reply) -> Raw:
    """The reply to `state_command` for this object."""
    now, types, ttls, hash_class, mode, size, fields, leases, text, length, waiters, token = reply[:12]
    in_use, ended, permits, subscribed = reply[12:]
    names = companions_of(key)
    keys = [key, *(companion for companion, _ in names.keys)]
    owners = fields[::2]
    places = [waiters[at : at + 4] for at in range(0, len(waiters), 4)]
    return Raw(
        key=key,
        names=names,
        now=now,
        types=dict(zip(keys, (each.decode() for each in types), strict=True)),
        ttls=dict(zip(keys, ttls, strict=True)),
        hash_class=hash_class.decode(),
        mode=mode.decode(),
        fields=dict(zip(owners, fields[1::2], strict=True)),
        size=size,
        leases=dict(zip(owners, leases, strict=bool(leases))),
        text=text,
        queue_length=length,
        queue=[QueuePlace(owner, *(number_of(value) for value in values)) for owner, *values in places],
        token=token,
        in_use=in_use,
        ended=ended,
        permits=dict(zip(permits[::2], map(_end_of_permit, permits[1::2]), strict=True)),
        subscribed=subscribed,
    )


def _end_of_permit(score: bytes) -> int:
    """When a permit ends, ms. Another program may have written any score, also an infinite one."""
    return int(min(max(float(score), 0.0), FOREVER))


def number_of(text: bytes | None) -> int | None:
    """A decimal number that Redis has sent as text. None: it is no number."""
    if text is None or not text.removeprefix(b"-").isdigit() or len(text) > 20:
        return None
    return int(text)


def seconds(ttl: int) -> float:
    """The reply of PTTL as seconds."""
    return math.inf if ttl == ENDLESS else max(ttl, 0) / 1000
