"""What the inspection finds out: objects, their owners and waiters, and clients."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Literal, NamedTuple

from redis.exceptions import RedisError

from pyredisson.holder import Holder

Kind = Literal["lock", "fair", "fenced", "spin", "read-write", "semaphore", "permits", "latch", "group", "unknown"]
"""`permits`: a semaphore whose permits have ids. `group`: several locks of Redisson in one hash."""
LOCKS: tuple[Kind, ...] = ("lock", "fair", "fenced", "spin", "read-write", "group")
Side = Literal["read", "write"]
DISTANT = datetime.max.replace(tzinfo=UTC)
"""Sorts what has no known moment behind everything else."""


class Evidence(IntEnum):
    """Why a name is taken for the name of an object. Of several reasons the largest one counts."""

    COMPANION = 0
    """A companion key of it exists."""
    HASH = 1
    """It is a hash with owners."""
    COUNTER = 2
    """Calls for it were remembered by a version that doesn't say whether it is a semaphore or a latch."""
    SEMAPHORE = 3
    PERMITS = 4
    LATCH = 5


@dataclass(frozen=True, slots=True)
class Owner:
    """One owner of a hold, a permit or a place in a queue, as far as it is known."""

    raw: str
    """The name on the server: `client:owner...`; of a permit its id in hex digits."""
    holder: Holder
    levels: int = 1
    side: Side | None = None
    """Of a read-write lock."""
    kept: bool = False
    """The lock is only kept for a minimum time; the work is done."""
    id: bytes = b""
    """`raw` as the bytes on the server."""


@dataclass(frozen=True, slots=True)
class WaitingOwner:
    """A call that waits, or a place in the queue of a fair lock."""

    owner: Owner
    """`holder.since`: since when it waits. Known once it has waited for a second or two."""
    place: int | None = None
    """1: the next one. None: there is no queue."""
    alive: bool | None = True
    """Whether its client has sent a heartbeat lately. None: a waiter of Java, which sends none."""
    place_lasts: float | None = None
    """Seconds until Redisson drops the place. None: it is in no queue, or has no score there."""

    @property
    def is_silent(self) -> bool:
        """Whether it counts as dead: its client is silent, or of Redisson, whose place lasts no longer."""
        return not self.alive and (self.alive is not None or self.place_lasts == 0)


@dataclass(frozen=True, slots=True)
class Companion:
    """A further key of an object."""

    key: bytes
    type: str
    time_to_live: float
    """Seconds; `math.inf`: it stays."""
    purpose: str


@dataclass(frozen=True, slots=True)
class State:
    """One object on the server at one moment. One script reads all of it, except who its clients are."""

    key: bytes
    name: str
    """The key as text."""
    kind: Kind
    certain: bool
    """Whether the kind is known. False: it was guessed."""
    why: str
    """Why it is taken for this kind; of an unknown one, what it is."""
    held: bool
    """Whether it is in use: a lock with an owner, a semaphore that exists, a latch that is not open."""
    owners: tuple[Owner, ...] = ()
    """Some of the owners, sorted; owners of permits by their ends."""
    owner_count: int = 0
    """How many owners there are; of a group the number of `owners` only."""
    waiters: tuple[WaitingOwner, ...] = ()
    """The first waiters for a fair lock, in order. Of other objects, calls that have waited for a second or two, the
    oldest first, of clients that the server or the user has named."""
    waiter_count: int | None = None
    """The waiters in the queue of a fair lock, without waiters that have left it, and without `waiters` that are
    silent. None: not known."""
    waiting_clients: int | None = None
    """How many connections are subscribed to its channel at least, on the server that has it: each is a client with
    waiters, or one that had some in the last seconds. None: not known, or each waiter has a channel of its own."""
    time_to_live: float | None = None
    """Seconds until the server removes it. None: there is no such key; `math.inf`: it stays."""
    token: int | None = None
    permits: int | None = None
    """All permits of a semaphore, free or in use. None: not known."""
    free: int | None = None
    """Permits that are free, and permits whose leases have ended."""
    count: int | None = None
    """Of a latch; 0: it is open."""
    companions: tuple[Companion, ...] = ()
    server: str = ""

    @property
    def in_use(self) -> bool:
        return self.held or bool(self.waiter_count)

    @property
    def since(self) -> datetime | None:
        """When the oldest of the listed holds began. None: that is known of none."""
        return min((owner.holder.since for owner in self.owners if owner.holder.since is not None), default=None)

    @property
    def waiting(self) -> int:
        """How many wait, as far as it is known: places in the queue, and clients that listen for a release."""
        return (self.waiter_count or 0) + (self.waiting_clients or 0)


@dataclass(frozen=True, slots=True)
class AnnouncedWait:
    """A call that waits, as its client says."""

    kind: str
    """`lock`, `fair`, `fenced`, `spin`, `read`, `write`, `semaphore`, `permit` or `latch`."""
    key: bytes
    holder: Holder
    """The waiter; `since`: when the wait began. `owner_id` is None for what has no owners."""
    firm: bool
    """Whether the owner does nothing else until it has what it waits for."""

    @property
    def node(self) -> tuple[str | None, int | None]:
        """The waiter: the client, and the owner in it."""
        return self.holder.client_id, self.holder.owner_id


class States(NamedTuple):
    known: list[State]
    failed: Mapping[bytes, RedisError]
    """The objects whose server didn't answer, and why."""


class AnnouncedHold(NamedTuple):
    kind: str
    """`lock`, `fair`, `fenced`, `spin`, `read`, `write` or `permit`."""
    name: str
    owner: str
    """What follows the client's id in the owner's name; of a permit its id in hex digits."""
    since: datetime


@dataclass(frozen=True, slots=True)
class ClientState:
    """A client that has announced itself."""

    id: str
    name: str = ""
    host: str = ""
    pid: int | None = None
    program: str = ""
    version: str = ""
    since: datetime | None = None
    """When the client began, by the clock of its server."""
    time_to_live: float = 0.0
    """Seconds until the announcement ends, if it is not repeated."""
    holds: tuple[AnnouncedHold, ...] = ()
    """At most 100 holds that have lived for a second; the oldest first."""
    hold_count: int = 0
    """All such holds."""
    waits: int = 0
    """How many calls had to wait, since the client began."""
    waited: float = 0.0
    """Seconds for which they have waited together."""
    lost: int = 0
    waiting: tuple[AnnouncedWait, ...] = ()
    """At most 100 calls that have waited for a second, the oldest first."""
