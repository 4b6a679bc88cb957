"""Sends many commands that only read, and repeats each command that was not served."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from redis.exceptions import NoPermissionError, RedisError, TryAgainError

from pyredisson._core import slot_of_command
from pyredisson._protocol.error_codes import is_transient
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson.logic import retry
from pyredisson.logic.session import Session

MOST_AT_ONCE = 100
"""Commands in one write. More would keep a server from its other clients for longer."""
_DENIED = ("ACL failure in script", "The user executing the script can't run this")
"""How servers of different versions say that a script has called a command to which the user has no right."""


async def ask_all(session: Session, payloads: Sequence[bytes]) -> list[Reply]:
    """The replies to several commands. In place of the reply to a command that isn't served in the end, its error."""
    session.check_open()
    # Waiting for a server that doesn't answer takes seconds. So of each such server, and of each slot whose keys are on
    # two servers, one command is repeated; and to such a server no further ones are sent.
    failed: dict[Hashable, RedisError] = {}
    replies: list[Reply] = []
    for first in range(0, len(payloads), MOST_AT_ONCE):
        replies += await _ask_together(session, payloads[first : first + MOST_AT_ONCE], failed)
    return replies


async def _ask_together(session: Session, payloads: Sequence[bytes], failed: dict[Hashable, RedisError]) -> list[Reply]:
    """`failed`: the servers and slots that don't serve, as far as it is known."""
    runtime = session.runtime
    replies: list[Reply] = [failed.get(runtime.shard_of_command(payload)) if failed else None for payload in payloads]
    asked = [at for at, failure in enumerate(replies) if failure is None]
    if not asked:
        return replies
    try:
        served = await runtime.send_all([payloads[at] for at in asked])
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
