"""The states of objects and clients, read in few round trips."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from redis.exceptions import RedisError

from pyredisson._diagnostics import readable
from pyredisson._protocol.node import Node
from pyredisson.holder import Holder, Waiter, holder_of
from pyredisson.inspection.announcements import Announced, ask_all, read_announced
from pyredisson.inspection.model import DISTANT, AnnouncedWait, Evidence, Kind, Owner, Side, State, States, WaitingOwner
from pyredisson.inspection.raw import QueuePlace, Raw, Recognized, number_of, raw_state, recognize, state_command
from pyredisson.logic.announcement import hold_field
from pyredisson.logic.session import Session

LIMIT = 100
MOST_LISTED = 1000
"""Owners, waiters and permits of one object, and clients whose announcements are read for one call."""
MOST_QUESTIONS = 100_000
"""Questions whether a client has a permit, in one call."""
ALIVE = 1500
"""Milliseconds for which a waiter counts as alive after it has asked for a lock, as in `fair_queue.lua`."""


class Inspector:
    """Reads the states of objects and clients, for any backend. Never writes.

    The user needs the rights `+@read +eval +evalsha +time` for all keys, beside the rights of every connection. Without
    `+pubsub` it isn't known how many clients wait.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    async def states(
        self, keys: Iterable[bytes], *, kind: Kind | None = None, clients: Sequence[str] = (), limit: int = LIMIT
    ) -> States:
        """The states of objects that a user has named, also of names that are none.

        `kind`: what they are, if the user knows that. `clients`: ids of clients that may have permits, or may wait: the
        server knows only the ids of permits, and not all that wait. `limit`: how many owners, waiters and permits of
        each are listed.
        """
        states, _ = await self.read(dict.fromkeys(keys), clients, limit, kind)
        return states

    async def waiters(self, key: bytes) -> list[Waiter]:
        """The waiters for one object, in order where there is one, else the oldest first. Raises what Redis reports."""
        states, _ = await self.read({key: None}, limit=MOST_LISTED)
        for error in states.failed.values():
            raise error
        return [
            Waiter(
                place=each.place,
                side=each.owner.side,
                **{field.name: getattr(each.owner.holder, field.name) for field in fields(Waiter)[2:]},
            )
            for each in states.known[0].waiters
        ]

    async def found(
        self, found: Mapping[bytes, Evidence], *, clients: Sequence[str] = (), limit: int = LIMIT
    ) -> States:
        """The states of the objects that a walk has found; without the names that turn out to be none."""
        (known, failed), _ = await self.read(found, clients, limit)
        return States(_without_doubles([state for state in known if state.kind != "unknown"]), failed)

    async def read(
        self,
        keys: Mapping[bytes, Evidence | None],
        clients: Sequence[str] = (),
        limit: int = LIMIT,
        kind: Kind | None = None,
    ) -> tuple[States, list[AnnouncedWait]]:
        """As `states`, and what the clients wait for that hold these objects or wait for them."""
        runtime = self.session.runtime
        limit = max(1, min(limit, MOST_LISTED))
        asked = await ask_all(self.session, [state_command(runtime.scripts, key, limit) for key in keys])
        replies = dict(zip(keys, asked, strict=True))
        failed = {key: reply for key, reply in replies.items() if isinstance(reply, RedisError)}
        raws = [raw_state(key, reply) for key, reply in replies.items() if key not in failed]
        announced = await read_announced(self.session, _wanted(raws, clients))
        waits = [wait for client in announced.values() for wait in client.waits]
        waits_of = by_key(waits)
        clients_of = {hold: client for client, its in announced.items() for hold in its.holds}
        said = None if kind is None else Recognized(kind, True, "the user says so")
        known = []
        for raw in raws:
            recognized = said or recognize(raw, keys[raw.key], _announced_kind(raw, announced))
            shard = runtime.shard_of(raw.key)
            server = shard.address if isinstance(shard, Node) else ""
            builder = _Builder(raw, announced, clients_of, limit, recognized.kind, waits_of.get(raw.key, ()))
            known.append(builder.state(recognized, server))
        return States(known, failed), waits


def _without_doubles(states: list[State]) -> list[State]:
    """Without the less likely one of two names that have the same companion keys, `orders` and `{orders}`.

    Only one of them exists as a key, as a rule. If none does, the name without braces counts.
    """
    by_key = {state.key: state for state in states}
    doubles = set()
    for key, state in by_key.items():
        other = by_key.get(b"{%b}" % key)
        if other is not None and b"{" not in key and None in (other.time_to_live, state.time_to_live):
            doubles.add(other.key if other.time_to_live is None else key)
    return [state for state in states if state.key not in doubles]


# --- Who holds what


def _wanted(raws: Sequence[Raw], clients: Sequence[str]) -> dict[str, list[bytes]]:
    """The clients whose announcements are needed, with the fields of the holds in question."""
    permits = [hold_field(id_.hex().encode(), raw.key) for raw in raws for id_ in raw.permits]
    # Any of the clients may have any of the permits.
    wanted = {client: permits[: MOST_QUESTIONS // max(1, len(clients))] for client in clients[:MOST_LISTED]}
    for raw in raws:
        owners = [*_group_owners(raw)] if raw.hash_class == "group" else [*raw.fields]
        for owner in (*owners, *(place.owner for place in raw.queue)):
            client_id, separator, rest = owner.partition(b":")
            name = readable(client_id)
            if separator and (name in wanted or len(wanted) < MOST_LISTED):
                wanted.setdefault(name, []).append(hold_field(rest, raw.key))
        for name in raw.waiting[: MOST_LISTED - len(wanted)]:
            wanted.setdefault(name, [])
    return wanted


def _announced_kind(raw: Raw, announced: Mapping[str, Announced]) -> str | None:
    for owner in raw.fields:
        client, _, rest = owner.partition(b":")
        its = announced.get(readable(client))
        if its is not None and (value := its.holds.get(hold_field(rest, raw.key))) is not None:
            return readable(value.partition(b" ")[2])
    return None


def _group_owners(raw: Raw) -> dict[bytes, int]:
    """The owners of values that a multi-lock of Redisson has locked in one hash, with their levels."""
    owners: dict[bytes, int] = {}
    for field, levels in raw.fields.items():
        if field.endswith(b":lock_count"):
            owner = field.removesuffix(b":lock_count").partition(b":")[2]
            owners[owner] = max(owners.get(owner, 0), number_of(levels) or 1)
    return owners


@dataclass(frozen=True)
class _Builder:
    """Makes the state of one object from what its server and its clients say."""

    raw: Raw
    announced: Mapping[str, Announced]
    clients_of: Mapping[bytes, str]
    """The client that announces each hold or permit."""
    limit: int
    kind: Kind
    waits: Sequence[AnnouncedWait]
    """For this object."""

    def state(self, recognized: Recognized, server: str) -> State:
        raw, kind = self.raw, self.kind
        owners, owner_count = self._owners()
        waiters = self._waiters()
        absent = len(raw.queue) - sum(not waiter.is_silent for waiter in waiters)
        free = permits = None
        if kind == "permits" and raw.number is not None:
            # What has ended is freed by whoever acquires next.
            free = raw.number + raw.ended
            permits = free + raw.in_use
        elif kind == "semaphore":
            free = raw.number
        count = (raw.number or 0) if kind == "latch" else None
        has_token = kind == "fenced" or (raw.token is not None and kind != "unknown")
        return State(
            key=raw.key,
            name=readable(raw.key),
            kind=kind,
            certain=recognized.certain,
            why=recognized.why,
            held=owner_count > 0 or free is not None or bool(count),
            owners=tuple(owners),
            owner_count=owner_count,
            waiters=tuple(waiters),
            waiter_count=raw.queue_length - absent if kind == "fair" else None,
            waiting_clients=raw.waiting_clients(kind),
            time_to_live=raw.time_to_live,
            token=number_of(raw.token) if has_token else None,
            permits=permits,
            free=free,
            count=count,
            companions=raw.companions,
            server=server,
        )

    # --- Owners

    def _owners(self) -> tuple[list[Owner], int]:
        """The owners that are listed, and how many there are."""
        raw = self.raw
        if self.kind == "permits":
            return [self._permit(id_, lasts) for id_, lasts in raw.permits.items()], raw.in_use
        if self.kind == "group":
            owners = _group_owners(raw)
            group = [self._owner(owner, levels, raw.owner_ttl) for owner, levels in sorted(owners.items())]
            return group[: self.limit], len(group)
        if raw.type != "hash" or self.kind == "unknown":
            return [], 0
        fields = sorted(field for field in raw.fields if field != b"mode" or self.kind != "read-write")
        return [self._hold(field) for field in fields[: self.limit]], raw.size - (self.kind == "read-write")

    def _hold(self, field: bytes) -> Owner:
        raw = self.raw
        levels = number_of(raw.fields[field]) or 1
        if self.kind != "read-write":
            return self._owner(field, levels, raw.owner_ttl, kept=field.endswith(b":kept"))
        side: Side = "write" if field.endswith(b":write") else "read"
        ttl = raw.owner_ttl if side == "write" else max(raw.leases.get(field, 0), 0)
        return self._owner(field, levels, ttl, side=side)

    def _owner(self, owner: bytes, levels: int, ttl: int, *, side: Side | None = None, kept: bool = False) -> Owner:
        holder = holder_of(owner, ttl)
        client, _, rest = owner.partition(b":")
        if announced := self.announced.get(readable(client)):
            holder = announced.complete(holder, hold_field(rest, self.raw.key))
        return Owner(readable(owner), holder, levels, side, kept, owner)

    def _permit(self, id_: bytes, lasts: float) -> Owner:
        holder = Holder(time_to_live=lasts)
        hold = hold_field(id_.hex().encode(), self.raw.key)
        if (client := self.clients_of.get(hold)) is not None:
            holder = self.announced[client].complete(replace(holder, client_id=client), hold)
        return Owner(id_.hex(), holder, id=id_)

    # --- Waiters

    def _waiters(self) -> list[WaitingOwner]:
        """The waiters, without waiters for a fair lock that have left."""
        if self.kind == "unknown":
            return []
        if self.kind != "fair":
            return waiters_of(self.waits)[: self.limit]
        present = [place for place in self.raw.queue if place.asked_at is None or place.asked_at > 0]
        since = {wait.node: wait.holder.since for wait in self.waits}
        return [self._waiter(place, number, since) for number, place in enumerate(present, 1)]

    def _waiter(self, place: QueuePlace, number: int, since: Mapping[Any, datetime | None]) -> WaitingOwner:
        now = self.raw.now
        alive = None
        if place.asked_at is not None:
            alive = place.asked_at + ALIVE >= now or (place.client_alive_until or 0) >= now
        lasts = None if place.score is None else max(place.score - now, 0) / 1000
        # Its hold has not begun, and the TTL of the lock isn't its own.
        owner = self._owner(place.owner, 1, 0)
        began = since.get((owner.holder.client_id, owner.holder.owner_id))
        owner = replace(owner, holder=replace(owner.holder, time_to_live=None, since=began), levels=0)
        return WaitingOwner(owner, number, alive, lasts)


def by_key(waits: Iterable[AnnouncedWait]) -> dict[bytes, list[AnnouncedWait]]:
    """The calls that wait for each object. A search for each object would take minutes for many of both."""
    found: dict[bytes, list[AnnouncedWait]] = {}
    for wait in waits:
        found.setdefault(wait.key, []).append(wait)
    return found


def waiters_of(waits: Iterable[AnnouncedWait]) -> list[WaitingOwner]:
    """The calls that wait for one object, as their clients say; the oldest first."""
    waiters = []
    for wait in sorted(waits, key=lambda wait: (wait.holder.since or DISTANT, str(wait.node))):
        side: Side | None = wait.kind if wait.kind in ("read", "write") else None  # type: ignore[assignment]
        raw = ":".join(str(part) for part in wait.node if part is not None)
        waiters.append(WaitingOwner(Owner(raw, wait.holder, 0, side, id=raw.encode())))
    return waiters
