"""What the resource behind a fenced lock does: it takes no write with a token older than the newest it has seen.

`write` is for a key on Redis, `claim` for a database with SQL. Whoever writes must go through them.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol, overload

from pyredisson._api.arguments import Name, key_of
from pyredisson._core import prefixed
from pyredisson._protocol.scripts import script
from pyredisson.errors import StaleTokenError

if TYPE_CHECKING:
    import redis.asyncio

Value = str | bytes | int | float

REMEMBERED = 24 * 60 * 60
"""Seconds for which a key's newest token is remembered after each write: no writer may be later than that."""

_WRITE = script("fenced_write", flags=False).text
# Compared as doubles by scripts.
_MOST = 2**53 - 1


@overload
def write(client: redis.Redis, token: int, command: str, key: Name, *args: Value) -> Any: ...
@overload
def write(client: redis.asyncio.Redis, token: int, command: str, key: Name, *args: Value) -> Awaitable[Any]: ...
def write(client: Any, token: int, command: str, key: Name, *args: Value) -> Any:
    """Runs `command key *args` unless a newer token has written that key; gives what the server replies.

    `client` is redis-py's (`redis.Redis`, `redis.asyncio.Redis`, then to be awaited, or their cluster kinds):
    `write(client, lock.token, "SET", "report", text)`. Only the command's first key may be written.

    The newest token stands in a key of its own, `pyredisson_fencing:{key}`, for `REMEMBERED` seconds after
    each write. Raises `StaleTokenError`, and what Redis reports.
    """
    _check(token)
    if hasattr(client, "command_stack"):
        raise TypeError("a pipeline can't tell whether a write was refused; give the client itself")
    name = key_of(key, None)
    reply = client.register_script(_WRITE)(
        keys=[name, prefixed(b"pyredisson_fencing", name)], args=[token, REMEMBERED * 1000, command, *args]
    )
    return _awaited(reply, key, token) if isinstance(reply, Awaitable) else _told(reply, key, token)


async def _awaited(reply: Awaitable[list[Any]], key: Name, token: int) -> Any:
    return _told(await reply, key, token)


def _told(reply: list[Any], key: Name, token: int) -> Any:
    done, what = reply
    if not done:
        raise _stale(key, token, int(what))
    return what


class Connection(Protocol):
    """A connection by Python's DB-API: sqlite3's, psycopg's."""

    def cursor(self) -> Any: ...


def create_table(connection: Connection) -> None:
    """Makes the table `pyredisson_fencing`, where it isn't there yet; the caller commits."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS pyredisson_fencing (resource TEXT PRIMARY KEY, token BIGINT NOT NULL)"
        )


def claim(connection: Connection, resource: str, token: int) -> None:
    """Notes `token` as the newest for `resource`, or refuses it; `resource` is any name that all writers use.

    To be called in the transaction that then writes, first: until it ends, the row in `pyredisson_fencing`
    keeps other claims waiting, so a claim can't be overtaken before its write. For databases that know
    `INSERT ... ON CONFLICT` (SQLite 3.24, PostgreSQL 9.5 and later).

    Raises `StaleTokenError`, after which the caller rolls back, and what the database reports.
    """
    _check(token)
    if not isinstance(resource, str):
        raise TypeError(f"resource must be str, not {type(resource).__name__}")
    first, second = _placeholders(connection)
    with closing(connection.cursor()) as cursor:
        cursor.execute(
            f"INSERT INTO pyredisson_fencing (resource, token) VALUES ({first}, {second}) "
            "ON CONFLICT (resource) DO UPDATE SET token = excluded.token "
            "WHERE excluded.token >= pyredisson_fencing.token",
            (resource, token),
        )
        if cursor.rowcount != 1:
            cursor.execute(f"SELECT token FROM pyredisson_fencing WHERE resource = {first}", (resource,))
            (newest,) = cursor.fetchone()
            raise _stale(resource, token, newest)


def _check(token: int) -> None:
    if type(token) is not int:
        raise TypeError(f"token must be an int, not {type(token).__name__}")
    if not 0 < token <= _MOST:
        raise ValueError(f"token must be in 1 .. 2**53 - 1, not {token}")


def _stale(resource: Name, token: int, newest: int) -> StaleTokenError:
    return StaleTokenError(f"token {token} is too old for {resource!r}: {newest} has been seen there")


_PLACEHOLDERS = {"qmark": ("?", "?"), "format": ("%s", "%s"), "pyformat": ("%s", "%s"), "numeric": (":1", ":2")}


def _placeholders(connection: Connection) -> tuple[str, str]:
    # A module says how its statements are written; the connection's class may be one of the user's own.
    for kind in type(connection).__mro__:
        style = getattr(sys.modules.get(kind.__module__.partition(".")[0]), "paramstyle", None)
        if style in _PLACEHOLDERS:
            return _PLACEHOLDERS[style]
    raise TypeError(f"{type(connection).__name__} is no connection of a DB-API module with a paramstyle known here")
