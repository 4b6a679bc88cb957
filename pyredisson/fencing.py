"""For the resource behind a fenced lock: it refuses a write whose token is smaller than the largest one it has seen.

`write` serves a key on Redis, `claim` a database with SQL. All programs that write to the resource must use them.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from contextlib import closing
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol, overload

from pyredisson._api.arguments import Name, key_of
from pyredisson._core import prefixed
from pyredisson._protocol.scripts import script
from pyredisson.errors import StaleTokenError

if TYPE_CHECKING:
    import redis.asyncio

Value = str | bytes | int | float

REMEMBERED = 24 * 60 * 60
"""Seconds for which a key's newest token is remembered after each write. A later writer isn't recognized as late."""

_WRITE = script("fenced_write", with_shebang=False).text
# Scripts compare tokens as doubles, which are exact up to here.
_MAX_TOKEN = 2**53 - 1


@overload
def write(client: redis.Redis, token: int, command: str, key: Name, *args: Value) -> Any: ...
@overload
def write(client: redis.asyncio.Redis, token: int, command: str, key: Name, *args: Value) -> Awaitable[Any]: ...
def write(client: Any, token: int, command: str, key: Name, *args: Value) -> Any:
    """Runs `command key *args`, unless a larger token has written that key before. Returns the server's reply.

    For example: `write(client, lock.token, "SET", "report", text)`. `client` is one of redis-py: `redis.Redis`,
    `redis.asyncio.Redis` (then the result must be awaited), or for a cluster. The command may write its first key only.

    The newest token is stored in the key `pyredisson_fencing:{key}`, for `REMEMBERED` seconds after each write.

    Raises `StaleTokenError` if a larger token was seen, `TypeError` or `ValueError` for a token that can't be one,
    `TypeError` for a pipeline, and redis-py's errors.
    """
    _check(token)
    if hasattr(client, "command_stack"):
        raise TypeError("a pipeline can't tell whether a write was refused; give the client itself")
    name = key_of(key, None)
    reply = client.register_script(_WRITE)(
        keys=[name, prefixed(b"pyredisson_fencing", name)], args=[token, REMEMBERED * 1000, command, *args]
    )
    return _awaited_result(reply, key, token) if isinstance(reply, Awaitable) else _result(reply, key, token)


async def _awaited_result(reply: Awaitable[list[Any]], key: Name, token: int) -> Any:
    return _result(await reply, key, token)


def _result(reply: list[Any], key: Name, token: int) -> Any:
    written, result_or_newest = reply
    if not written:
        raise _stale(key, token, int(result_or_newest))
    return result_or_newest


class Connection(Protocol):
    """A connection of Python's DB-API (PEP 249), as sqlite3 and psycopg have it."""

    def cursor(self) -> Any: ...


def create_table(connection: Connection) -> None:
    """Makes the table `pyredisson_fencing` if it doesn't exist. The caller commits."""
    columns = "resource TEXT PRIMARY KEY, token BIGINT NOT NULL"
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS pyredisson_fencing ({columns})")


def claim(connection: Connection, resource: str, token: int) -> None:
    """Records `token` as the newest one of `resource`, or refuses it. `resource` is any name that all writers use.

    Call it in the transaction that writes, before the write. Until the transaction ends, the row in
    `pyredisson_fencing` makes other claims wait, so none can come between this claim and its write. The database must
    support `INSERT ... ON CONFLICT` (SQLite 3.24, PostgreSQL 9.5, and later).

    Raises `StaleTokenError`, after which the caller rolls back; `TypeError` or `ValueError` for a token or a resource
    that can't be one; `TypeError` for a connection of an unknown module, or one of asyncio; `ValueError` if the
    connection commits each statement by itself, outside of a transaction; and the errors of the database.
    """
    _check(token)
    if not isinstance(resource, str):
        raise TypeError(f"resource must be str, not {type(resource).__name__}")
    first, second = _placeholders(connection)
    made = connection.cursor()
    if not hasattr(made, "execute") or iscoroutinefunction(made.execute):
        raise TypeError("a connection of asyncio can't be used here: use one for threads, or a column with the token")
    with closing(made) as cursor:
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
    if not _is_in_transaction(connection):
        raise ValueError("the connection has committed the claim at once (autocommit): begin a transaction before it")


def _is_in_transaction(connection: Any) -> bool:
    """Whether a transaction goes on, as sqlite3 says it and psycopg. True if that isn't known."""
    state = getattr(connection, "in_transaction", None)
    if state is None:
        state = getattr(getattr(connection, "info", None), "transaction_status", True)
    return bool(state)


def _check(token: int) -> None:
    if type(token) is not int:
        raise TypeError(f"token must be an int, not {type(token).__name__}")
    if not 0 < token <= _MAX_TOKEN:
        raise ValueError(f"token must be in 1 .. 2**53 - 1, not {token}")


def _stale(resource: Name, token: int, newest: int) -> StaleTokenError:
    return StaleTokenError(f"token {token} is too old for {resource!r}: {newest} has been seen there")


_PLACEHOLDERS = {"qmark": ("?", "?"), "format": ("%s", "%s"), "pyformat": ("%s", "%s"), "numeric": (":1", ":2")}


def _placeholders(connection: Connection) -> tuple[str, str]:
    # The module of the connection's class states the style of its placeholders. The class may be derived by the user,
    # so the modules of its base classes count, too.
    for kind in type(connection).__mro__:
        style = getattr(sys.modules.get(kind.__module__.partition(".")[0]), "paramstyle", None)
        if style in _PLACEHOLDERS:
            return _PLACEHOLDERS[style]
    raise TypeError(f"{type(connection).__name__} is no connection of a DB-API module with a paramstyle known here")
