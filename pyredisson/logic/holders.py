"""Who holds a lock: what its hash says, and what the client of the holder has announced."""

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from redis.exceptions import RedisError

from pyredisson._core import command, pack
from pyredisson._diagnostics import readable
from pyredisson._protocol.replies import NoReply, Reply
from pyredisson.holder import ANNOUNCED, Holder, for_how_long, holder_of, who, with_announcement
from pyredisson.identity import connection_name, identity
from pyredisson.logic import retry
from pyredisson.logic.announcement import client_key, hold_field
from pyredisson.logic.owners import owner_id
from pyredisson.logic.session import Session
from pyredisson.version import VERSION

WRITER = b":write"
"""The end of a writer's name."""


class Found(NamedTuple):
    """The owners of a lock."""

    holder: Holder
    field: bytes
    """The holder's name on the server."""
    owners: int
    """How many owners hold the lock: several if they only read."""
    own: bool
    """Whether the holder belongs to the client that has asked."""

    def text(self) -> str:
        """The words of a message, after the name of the lock."""
        name = f"{readable(self.field)} of this client" if self.own else who(self.holder, self.field)
        if self.holder.kept:
            return f"is kept for another {self.holder.time_to_live:.1f} s after a run on {name}"
        if self.owners > 1:
            name = f"{self.owners} readers, one of them {name}"
        return f"is held by {name}, {for_how_long(self.holder)}"


async def find(
    session: Session, key: bytes, identities: Sequence[Hashable], ask: Callable[[bytes], Awaitable[Reply]]
) -> Found | None:
    """Who holds the lock `key`; None: nobody. `ask` sends a command. Raises what it raises.

    `identities`: the lock in the table of holds, or both sides of it. The writer comes first, of several readers the
    first one by name. The announcement is read with a second command. It adds what it can, and raises nothing: it may
    be on another server of a cluster, and the user may have no right to read it.
    """
    ttl, count, *fields = await ask(pack(session.runtime.scripts.lock_holder, key))
    if not fields:
        return None
    field: bytes = fields[0] if fields[0].endswith(WRITER) else min(fields)
    if field.endswith(WRITER):
        # A writer may read, too.
        count = 1
    holder = holder_of(field, ttl)
    own = holder.client_id == session.id
    if own:
        holder = _own(session, identities, holder, field)
    elif holder.client_id is not None:
        rest = field.partition(b":")[2]
        payload = command(b"HMGET", client_key(holder.client_id), *ANNOUNCED, hold_field(rest, key))
        with contextlib.suppress(NoReply, RedisError):
            holder = with_announcement(holder, await retry.send_once(session.runtime, payload))
    return Found(holder, field, count, own)


def _own(session: Session, identities: Sequence[Hashable], holder: Holder, field: bytes) -> Holder:
    """A holder of this client, with what the client knows without asking."""
    process = identity()
    since = None
    for name in identities:
        hold = session.holds.table.get((name, owner_id(field)))
        if hold is not None and hold.owner == field:
            since = datetime.now(UTC) - timedelta(seconds=session.clock() - hold.begun)
    return dataclasses.replace(
        holder,
        client_name=session.config.client_name or connection_name(process),
        since=since,
        foreign=False,
        version=VERSION,
        **process._asdict(),
    )
