"""One object on the server: its keys, the command that reads all of it, and what kind of object it is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyredisson._core import latch_channel, pack, prefixed, suffixed
from pyredisson._diagnostics import readable
from pyredisson._protocol.replies import Reply
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.holder import seconds_of
from pyredisson.inspection.model import Companion, Evidence, Kind
from pyredisson.logic.announcement import CLIENT_PREFIX

NO_KEY = -2
"""The reply of PTTL if there is no such key."""
NO_TYPE = "none"
FOREVER = 922337203685477
"""The end of a permit without a lease, ms."""
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
    b"pyredisson_waiting": "clients that wait",
    b"pyredisson_woken": "client that was woken",
    b"pyredisson_waiting_readers": "clients that wait to read",
}
"""The companion keys that are called `prefix:{name}`, with their purposes."""
_IN_USE = b"timeout"
_KINDS = {b"semaphore": Evidence.SEMAPHORE, b"permit": Evidence.PERMITS, b"latch": Evidence.LATCH}
_UUID = rb"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_REPLY_CACHE = re.compile(rb"pyredisson_once:(.*):" + _UUID + rb":[0-9]+(?::(semaphore|permit|latch))?", re.DOTALL)
_WITHDRAWN = re.compile(rb"pyredisson_permit_withdrawn:(.*):[0-9a-f]{32}", re.DOTALL)
_CHANNELS = {"lock": 0, "fenced": 0, "group": 0, "read-write": 1, "semaphore": 2, "permits": 2, "latch": 3}
"""The places of the channels, in `Raw.subscribed`, whose subscribers are waiters. A waiter for a fair lock has one of
its own, one for a spin lock none."""
_ANNOUNCED: dict[str, Kind] = {"lock": "lock", "fair": "fair", "fenced": "fenced", "spin": "spin"}
"""The kinds of locks that may look the same, as clients announce them."""


def state_command(scripts: ScriptSet, key: bytes, limit: int) -> bytes:
    """The command that reads the state of one object with at most `limit` owners, waiters and permits."""
    keys = [companion for companion, _ in companions_of(key)]
    channels = [prefixed(prefix, key) for prefix in (b"redisson_lock__channel", b"redisson_rwlock", b"redisson_sc")]
    # Behind the companions: the beginning of the names of the readers' lease keys.
    return pack(scripts.inspect_state, key, *keys, suffixed(key, b""), limit, *channels, latch_channel(key))


class QueuePlace(NamedTuple):
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
    now: int
    """The server's time, ms."""
    type: str
    """`none`: there is no such key."""
    owner_ttl: int
    """What PTTL replies for the object."""
    companions: tuple[Companion, ...]
    """The companion keys that exist."""
    hash_class: str
    """What it is as a hash: `lock`, `read-write`, `group`, `rate-limiter`. Empty: none of them."""
    mode: str
    fields: Mapping[bytes, bytes]
    """Of a hash; not all, if there are many."""
    size: int
    """The number of fields."""
    leases: Mapping[bytes, int]
    """For each field of a read-write lock the remaining lease of the reader, ms; `NO_KEY`: there is none."""
    number: int | None
    """The object as a decimal number. None: it is none."""
    queue_length: int
    queue: Sequence[QueuePlace]
    token: bytes | None
    in_use: int
    ended: int
    """Permits that have ended, and were not freed yet."""
    permits: Mapping[bytes, float]
    """Permits in use and how many seconds they last, the first ones."""
    subscribed: Sequence[int]
    """How many connections are subscribed to each channel of `state_command`. -1: not known."""
    waiting: Sequence[str]
    """The ids of the clients that wait for a release, the first ones."""

    def has(self, *prefixes: bytes) -> bool:
        """Whether a companion key with one of these prefixes exists."""
        return any(companion.key.partition(b":")[0] in prefixes for companion in self.companions)

    def waiting_clients(self, kind: Kind) -> int | None:
        """How many connections are subscribed to the channel of an object of that kind. None: not known."""
        place = _CHANNELS.get(kind)
        return None if place is None or self.subscribed[place] < 0 else self.subscribed[place]

    @property
    def time_to_live(self) -> float | None:
        return None if self.owner_ttl == NO_KEY else seconds_of(self.owner_ttl)


def raw_state(key: bytes, reply: Reply) -> Raw:
    """The reply to `state_command` for this object."""
    now, types, ttls, hash_class, mode, size, fields, leases, text, length, waiters, token = reply[:12]
    in_use, ended, permits, subscribed, entries = reply[12:]
    type_, *types = (each.decode() for each in types)
    companions = [
        Companion(companion, its_type, seconds_of(ttl), purpose)
        for (companion, purpose), its_type, ttl in zip(companions_of(key), types, ttls[1:], strict=True)
        if its_type != NO_TYPE
    ]
    owners = fields[::2]
    places = [waiters[at : at + 4] for at in range(0, len(waiters), 4)]
    # Another program may have written any score, also an infinite one.
    lasts = [math.inf if end >= FOREVER else (max(end, 0.0) - now) / 1000 for end in map(float, permits[1::2])]
    return Raw(
        key=key,
        now=now,
        type=type_,
        owner_ttl=ttls[0],
        companions=tuple(companions),
        hash_class=hash_class.decode(),
        mode=mode.decode(),
        fields=dict(zip(owners, fields[1::2], strict=True)),
        size=size,
        leases=dict(zip(owners, leases, strict=bool(leases))),
        number=number_of(text),
        queue_length=length,
        queue=[QueuePlace(owner, *(number_of(value) for value in values)) for owner, *values in places],
        token=token,
        in_use=in_use,
        ended=ended,
        permits=dict(zip(permits[::2], lasts, strict=True)),
        subscribed=subscribed,
        waiting=[readable(entry.partition(b":")[0]) for entry in entries],
    )


def number_of(text: bytes | None) -> int | None:
    """A decimal number that Redis has sent as text. None: it is no number."""
    if text is None or not text.removeprefix(b"-").isdigit() or len(text) > 20:
        return None
    return int(text)


# --- From a name to its companion keys, and back


def companions_of(name: bytes) -> list[tuple[bytes, str]]:
    """The companion keys in the order of `inspect_state.lua`, from its second key on, with their purposes."""
    keys = [(prefixed(prefix, name), purpose) for prefix, purpose in _PREFIXED.items()]
    keys.insert(6, (suffixed(name, _IN_USE), "permits in use"))
    return keys


def client_of(key: bytes) -> str | None:
    """The client that announces itself in this key. None: it is another key."""
    prefix, _, rest = key.partition(b":")
    if prefix != CLIENT_PREFIX or not (rest.startswith(b"{") and rest.endswith(b"}")):
        return None
    return readable(rest[1:-1])


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


# --- Kinds


class Recognized(NamedTuple):
    """The kind of an object, and why it is taken for that."""

    kind: Kind
    certain: bool
    why: str


def recognize(raw: Raw, evidence: Evidence | None, announced: str | None) -> Recognized:
    """The kind of an object.

    `evidence`: why the walk takes it for one; None: a user has named it, so it is taken for one more easily.
    `announced`: the kind that its holder has announced.
    """
    if raw.type == "hash":
        return _hash(raw, evidence, announced)
    if raw.type == "string" and raw.number is not None:
        return _counter(raw, evidence)
    if raw.type == NO_TYPE:
        return _absent(raw, evidence)
    what = "a string that is no number" if raw.type == "string" else f"a key of type {raw.type}"
    return Recognized("unknown", True, f"{what}: neither a lock nor another object")


def _hash(raw: Raw, evidence: Evidence | None, announced: str | None) -> Recognized:
    if raw.hash_class == "read-write":
        return Recognized("read-write", True, f"a hash with the mode {raw.mode}")
    if raw.hash_class == "group":
        return Recognized("group", True, "several locks of Redisson in one hash")
    # The fields may be owners of other clients, whose ids aren't UUIDs.
    like_owners = all(b":" in owner and (number_of(levels) or 0) > 0 for owner, levels in raw.fields.items())
    if raw.hash_class != "lock" and not (evidence is None and raw.fields and like_owners):
        what = "a rate limiter of Redisson" if raw.hash_class == "rate-limiter" else "a hash without owners"
        return Recognized("unknown", True, f"{what}: not a lock")
    if announced in _ANNOUNCED:
        return Recognized(_ANNOUNCED[announced], True, "its holder has announced the kind")
    if raw.has(b"redisson_lock_queue", b"redisson_lock_timeout", b"pyredisson_fair_waiters"):
        return Recognized("fair", True, "it has a queue")
    if raw.has(b"redisson_lock_token"):
        return Recognized("fenced", False, "a counter of tokens exists, perhaps from an earlier use of the name")
    if raw.hash_class != "lock":
        return Recognized("lock", False, "a hash of owners, none of which has an id of Redisson or of this library")
    return Recognized("lock", False, "a fair lock without waiters, a spin lock or a member of a group looks the same")


def _counter(raw: Raw, evidence: Evidence | None) -> Recognized:
    if raw.in_use or raw.ended:
        return Recognized("permits", True, "its permits in use have ids")
    if evidence is Evidence.PERMITS:
        return Recognized("permits", True, "calls for its permits are remembered")
    if evidence is Evidence.LATCH:
        return Recognized("latch", True, "calls for it as a latch are remembered")
    if evidence is Evidence.SEMAPHORE or raw.has(b"pyredisson_semaphore_claim", b"pyredisson_semaphore_turn"):
        return Recognized("semaphore", True, "calls for its permits, or claims, are remembered")
    if raw.waiting_clients("latch"):
        return Recognized("latch", False, "clients wait for messages of a latch of this name")
    if raw.waiting_clients("semaphore"):
        return Recognized("semaphore", False, "clients wait for messages of a semaphore of this name")
    if evidence is Evidence.COUNTER:
        return Recognized("semaphore", False, "calls are remembered that may also be those for a latch")
    return Recognized("unknown", False, "a number: a semaphore or a latch, if it is one of ours")


def _absent(raw: Raw, evidence: Evidence | None) -> Recognized:
    if raw.has(b"redisson_lock_queue", b"pyredisson_fair_waiters"):
        return Recognized("fair", True, "a queue is left, or what its waiters have left")
    if raw.in_use or raw.ended:
        return Recognized("permits", True, "permits in use are left")
    if evidence is Evidence.LATCH:
        return Recognized("latch", True, "calls for it as a latch are remembered")
    if raw.waiting_clients("latch"):
        return Recognized("latch", False, "clients wait for messages of a latch of this name")
    if raw.has(b"redisson_lock_token", b"pyredisson_fenced_newest"):
        return Recognized("fenced", False, "a counter of tokens is left")
    return Recognized("unknown", True, "there is no such key")
