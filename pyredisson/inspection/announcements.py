"""What clients say of themselves, each in a hash under a key of its own; and many commands that only read, at once."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import unquote_to_bytes

from redis.exceptions import NoPermissionError, RedisError, TryAgainError

from pyredisson._core import command, slot_of_command
from pyredisson._diagnostics import readable
from pyredisson._protocol.replies import NoReply, Reply, is_transient
from pyredisson.holder import ANNOUNCED, Holder, moment_of, seconds_of, with_announcement
from pyredisson.inspection.model import AnnouncedHold, AnnouncedWait, ClientState
from pyredisson.inspection.raw import NO_KEY, number_of
from pyredisson.logic import retry
from pyredisson.logic.announcement import HOLD_PREFIX, WAITING, client_key
from pyredisson.logic.session import Session

MOST_HOLDS = 100
"""Holds of one client that are returned."""
_FIELDS = (*map(readable, ANNOUNCED), "since", "waits", "waited", "lost", "more", "n", "lease", "waiting")
"""All other fields."""
_SAID = (*ANNOUNCED, b"since", WAITING)
"""The fields that are read for a client who holds something, or waits."""
_COMMANDS_EACH = 4
MOST_AT_ONCE = 100
"""Commands in one write. More would keep a server from its other clients for longer."""
_DENIED = ("ACL failure in script", "The user executing the script can't run this")
"""How servers of different versions say that a script has called a command to which the user has no right."""


@dataclass(frozen=True)
class Announced:
    """Who a client is, and what it says of the holds that were asked for."""

    values: Sequence[bytes | None]
    """The values of the fields `ANNOUNCED`."""
    holds: Mapping[bytes, bytes]
    """The value of each field of a hold that exists: when it began, and its kind."""
    waits: Sequence[AnnouncedWait]

    def complete(self, holder: Holder, hold: bytes) -> Holder:
        """The holder with what its client says of itself. `hold`: the field of the hold."""
        return with_announcement(holder, [*self.values, self.holds.get(hold)])


async def read_announced(session: Session, wanted: Mapping[str, Sequence[bytes]]) -> dict[str, Announced]:
    """What these clients say of themselves, and of these fields of holds.

    A client whose server doesn't answer is left out: the state of the locks is known without it.
    """
    payloads = [command(b"HMGET", client_key(client), *_SAID, *holds) for client, holds in wanted.items()]
    announced = {}
    for (client, holds), reply in zip(wanted.items(), await ask_all(session, payloads), strict=True):
        if not isinstance(reply, RedisError):
            *values, began, waiting = reply[: len(_SAID)]
            begun = {hold: value for hold, value in zip(holds, reply[len(_SAID) :], strict=True) if value is not None}
            announced[client] = Announced(values, begun, _waits(client, values, began, waiting))
    return announced


def _waits(
    client: str, values: Sequence[bytes | None], began: bytes | None, waiting: bytes | None
) -> list[AnnouncedWait]:
    """What a client says of its calls that wait. `values`: of the fields `ANNOUNCED`. Anybody may write any text."""
    here = with_announcement(Holder(client_id=client), [*values, None])
    waits = []
    for line in (waiting or b"").split(b"\n"):
        words = line.split(b" ")
        after = number_of(words[0])
        if len(words) == 5 and after is not None:
            _, kind, owner, firm, key = words
            since = moment_of(b"%d" % ((number_of(began) or 0) + after))
            holder = replace(here, owner_id=number_of(owner), since=since)
            waits.append(AnnouncedWait(readable(kind), unquote_to_bytes(key), holder, firm == b"1"))
    return waits


async def read_clients(session: Session, ids: Sequence[str]) -> tuple[list[ClientState], dict[str, RedisError]]:
    """The states of these clients, as far as they have announced themselves.

    And the ids of the clients whose server doesn't answer, or refuses the command.
    """
    payloads = []
    for client in ids:
        key = client_key(client)
        payloads += [
            command(b"HMGET", key, *_FIELDS),
            command(b"PTTL", key),
            command(b"HLEN", key),
            command(b"HSCAN", key, 0, b"MATCH", HOLD_PREFIX + b"*", b"COUNT", 2 * MOST_HOLDS),
        ]
    replies = await ask_all(session, payloads)
    known: list[ClientState] = []
    failed: dict[str, RedisError] = {}
    of_each = [replies[at : at + _COMMANDS_EACH] for at in range(0, len(replies), _COMMANDS_EACH)]
    for client, its in zip(ids, of_each, strict=True):
        error = next((reply for reply in its if isinstance(reply, RedisError)), None)
        if error is None:
            state = _client_state(client, *its)
            known += [] if state is None else [state]
        elif not str(error).startswith("WRONGTYPE"):
            # A key that isn't a hash has the name of an announcement only, and is no concern of ours.
            failed[client] = error
    return known, failed


def _client_state(client: str, values: Reply, ttl: int, size: int, scanned: Reply) -> ClientState | None:
    known = {field: value for field, value in zip(_FIELDS, values, strict=True) if value is not None}
    if ttl == NO_KEY or not known:
        # The announcement may have ended between the commands.
        return None
    text = {field: readable(known.get(field, b"")) for field in _FIELDS}
    number = {field: number_of(known.get(field)) or 0 for field in _FIELDS}
    cursor, pairs = scanned
    holds = [_announced_hold(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
    holds.sort(key=lambda hold: (hold.since, hold.name, hold.owner))
    # Unless the scan has returned all of them, the number counts the fields that are none of the others.
    listed = len(holds) if cursor == b"0" else max(size - len(known), len(holds))
    return ClientState(
        id=client,
        name=text["name"],
        host=text["host"],
        pid=number_of(known.get("pid")),
        program=text["program"],
        version=text["version"],
        since=moment_of(known.get("since", b"")),
        time_to_live=seconds_of(ttl),
        holds=tuple(holds[:MOST_HOLDS]),
        hold_count=listed + number["more"],
        waits=number["waits"],
        waited=number["waited"] / 1000,
        lost=number["lost"],
        waiting=tuple(_waits(client, values[: len(ANNOUNCED)], known.get("since"), known.get("waiting"))),
    )


def _announced_hold(field: bytes, value: bytes) -> AnnouncedHold:
    # The owner contains no space, so the first one ends it.
    owner, _, name = field.removeprefix(HOLD_PREFIX).partition(b" ")
    since, _, kind = value.partition(b" ")
    began = moment_of(since) or datetime.fromtimestamp(0, UTC)
    return AnnouncedHold(readable(kind), readable(name), readable(owner), began)


# --- Commands that only read. Each that was not served is repeated


async def ask_all(session: Session, payloads: Sequence[bytes]) -> list[Reply]:
    """The replies to several commands. In place of the reply to a command that isn't served in the end, its error."""
    session.check_open()
    # Waiting for a server that doesn't answer takes seconds. So of each such server, and of each slot whose keys are on
    # two servers, one command is repeated; and to such a server no further ones are sent.
    failed: dict[Hashable, RedisError] = {}
    runtime = session.runtime
    replies: list[Reply] = []
    for first in range(0, len(payloads), MOST_AT_ONCE):
        together = range(first, min(first + MOST_AT_ONCE, len(payloads)))
        replies += [failed.get(runtime.shard_of_command(payloads[at])) if failed else None for at in together]
        asked = [at for at in together if replies[at] is None]
        try:
            served = await runtime.send_all([payloads[at] for at in asked]) if asked else []
        except NoReply as failure:
            served = [failure.error] * len(asked)
        for at, reply in zip(asked, served, strict=True):
            replies[at] = await _repeated(session, payloads[at], failed) if isinstance(reply, RedisError) else reply
    return replies


async def _repeated(session: Session, payload: bytes, failed: dict[Hashable, RedisError]) -> Reply:
    """The reply to a command that was not served at first. `failed` gets its server or slot if it isn't now, either."""
    places = (session.runtime.shard_of_command(payload), slot_of_command(payload))
    known = next((failed[place] for place in places if place in failed), None)
    if known is not None:
        return known
    try:
        reply, _ = await retry.send(session.runtime, payload, retries=session.retries)
    except RedisError as error:
        if is_transient(error):
            failed[places[isinstance(error, TryAgainError)]] = error
        return with_missing_right(error)
    return reply


def with_missing_right(error: RedisError) -> RedisError:
    """The error, or a `NoPermissionError` if it says that the user has no right to a command that a script calls."""
    denied = any(text in str(error) for text in _DENIED)
    return NoPermissionError(str(error)) if denied and not isinstance(error, NoPermissionError) else error
