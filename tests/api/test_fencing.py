"""Fencing tokens at the resource: a holder with an older token is refused, in Redis and in SQL."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio
import redis.asyncio
from redis import Redis
from redis.exceptions import ResponseError

import pyredisson
from pyredisson import StaleTokenError, fencing
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState

NEWEST = "pyredisson_fencing:{report}"
WRONG_TOKENS: list[tuple[Any, type[Exception], str | None]] = [
    *((token, ValueError, str(token)) for token in (0, -1, 2**53)),
    *((token, TypeError, None) for token in ("1", 1.0, True, None)),
]


class Writer:
    """redis-py's client of either backend, awaited."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def write(self, *args: Any) -> Any:
        written = fencing.write(self.client, *args)
        return await cast(Any, written) if isinstance(self.client, redis.asyncio.Redis) else written


@pytest_asyncio.fixture(params=["threads", "asyncio"])
async def writer(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Writer]:
    if request.param == "threads":
        with Redis(host=server.host, port=server.port) as client:
            yield Writer(client)
    else:
        async with redis.asyncio.Redis(host=server.host, port=server.port) as client:
            yield Writer(client)


@pytest.mark.asyncio
class TestRedis:
    async def test_only_older_ones_are_refused(self, writer: Writer, admin: Redis) -> None:
        for token in (5, 5, 2**53 - 2, 2**53 - 1):
            assert await writer.write(token, "SET", "report", f"by {token}") == b"OK"
            assert admin.get("report") == b"by %d" % token
            assert admin.get(NEWEST) == b"%d" % token
            # It is remembered for a day after each write.
            assert 86_000 < admin.ttl(NEWEST) <= fencing.REMEMBERED == 86_400
            admin.expire(NEWEST, 10)
        for token in (1, 2**53 - 2):
            with pytest.raises(StaleTokenError, match=rf"(?s)\b{token}\b.*'report'.*\b{2**53 - 1}\b"):
                await writer.write(token, "SET", "report", "old")
        assert admin.get("report") == b"by %d" % (2**53 - 1)
        assert admin.get(NEWEST) == b"%d" % (2**53 - 1)
        # One that is refused doesn't count.
        assert admin.ttl(NEWEST) <= 10
        assert admin.ttl("report") == -1

    @pytest.mark.usefixtures("no_scripts")
    async def test_any_command_that_writes_one_key(self, writer: Writer, admin: Redis) -> None:
        assert await writer.write(1, "HSET", "report", "a", 1, "b", 2.5) == 2
        assert admin.hgetall("report") == {b"a": b"1", b"b": b"2.5"}
        assert await writer.write(2, "DEL", "report") == 1
        assert await writer.write(3, "RPUSH", b"report", "x", b"\xff") == 2
        assert await writer.write(3, "LRANGE", "report", 0, -1) == [b"x", b"\xff"]
        assert await writer.write(3, "LPOP", "nothing") is None
        # Each key has its own newest token.
        await writer.write(1, "SET", "{shop}report", "y")
        assert admin.get("pyredisson_fencing:{shop}report") == b"1"

    async def test_what_redis_reports_passes_through(self, writer: Writer, admin: Redis) -> None:
        await writer.write(1, "SET", "report", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await writer.write(2, "RPUSH", "report", "x")
        assert admin.get("report") == b"text"
        # That writer is known, all the same.
        with pytest.raises(StaleTokenError):
            await writer.write(1, "SET", "report", "old")

        # What somebody else has put in the place of the newest token is none.
        for spoil in (admin.set, admin.rpush):
            admin.delete(NEWEST)
            spoil(NEWEST, "spoilt")
            with pytest.raises(ResponseError):
                await writer.write(3, "SET", "report", "x")
        assert admin.get("report") == b"text"

    async def test_what_cannot_be(self, writer: Writer, server_state: ServerState) -> None:
        before = server_state.commands()
        for token, error, text in WRONG_TOKENS:
            with pytest.raises(error, match=text):
                await writer.write(token, "SET", "report", "x")
        with pytest.raises(ValueError):
            await writer.write(1, "SET", "", "x")
        with pytest.raises(TypeError):
            await writer.write(1, "SET", 5, "x")
        with pytest.raises(TypeError, match="pipeline"):
            fencing.write(writer.client.pipeline(), 1, "SET", "report", "x")
        assert server_state.commands() == before


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Callable[..., sqlite3.Connection]]:
    """Opens connections to one database that has the table."""
    opened: list[sqlite3.Connection] = []

    def connect(kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
        opened.append(sqlite3.connect(tmp_path / "pages.db", timeout=TIME_LIMIT, factory=kind))
        return opened[-1]

    with connect() as connection:
        fencing.create_table(connection)
        connection.execute("CREATE TABLE pages (name TEXT PRIMARY KEY, text TEXT)")
        connection.execute("INSERT INTO pages VALUES ('report', '')")
    yield connect
    for connection in opened:
        connection.close()


Database = Callable[..., sqlite3.Connection]


def newest(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT resource, token FROM pyredisson_fencing").fetchall())


@pytest.mark.asyncio
@pytest.mark.parametrize("resource", ["redis", "database"])
async def test_a_late_writer_is_refused(backend: Backend, admin: Redis, database: Database, resource: str) -> None:
    """One writer is paused beyond its lease. Another one acquires the lock and writes. Then the first one continues."""

    written: list[str] = []

    def write(token: int, text: str) -> None:
        if resource == "redis":
            fencing.write(admin, token, "SET", "page", text)
        else:
            with database() as connection:
                fencing.claim(connection, "report", token)
                connection.execute("UPDATE pages SET text = ? WHERE name = 'report'", (text,))
        written.append(text)

    late, next_one = backend.connect().get_fenced_lock("report"), backend.connect().get_fenced_lock("report")
    async with late.hold(lease_time=60):
        write(late.token, "begun")
    await late.lock(0.05)
    write(late.token, "half done")
    # Paused here: it looks neither at the clock nor at `lost`.
    assert await next_one.try_lock(wait_time=TIME_LIMIT)
    write(next_one.token, "by the next one")
    write(next_one.token, "by the next one, again")
    with pytest.raises(StaleTokenError, match=f"{late.token}.*{next_one.token}"):
        write(late.token, "too late")
    await next_one.unlock()
    # Nobody holds it any more, and it is late even so.
    with pytest.raises(StaleTokenError):
        write(late.token, "too late")
    with pytest.raises(pyredisson.LockLostError):
        await late.unlock()
    assert await late.try_lock()
    write(late.token, "in time")
    assert written == ["begun", "half done", "by the next one", "by the next one, again", "in time"]
    [(text,)] = database().execute("SELECT text FROM pages").fetchall()
    assert (admin.get("page"), text) == ((b"in time", "") if resource == "redis" else (None, "in time"))


class TestSql:
    def test_only_older_ones_are_refused(self, database: Database) -> None:
        connection = database()
        for token in (5, 5, 6):
            with connection:
                fencing.claim(connection, "report", token)
            assert newest(database()) == {"report": token}
        with pytest.raises(StaleTokenError, match=r"\b5\b.*'report'.*\b6\b"), connection:
            connection.execute("UPDATE pages SET text = 'x'")
            fencing.claim(connection, "report", 5)
        assert newest(database()) == {"report": 6}
        assert database().execute("SELECT text FROM pages").fetchall() == [("",)]

    def test_each_resource_has_its_own_in_the_callers_transaction(self, database: Database) -> None:
        connection = database()
        tokens = {"report": 2**53 - 1, "'; --": 6, "berichtä": 5}
        fencing.claim(connection, "berichtä", 7)
        assert connection.in_transaction
        connection.rollback()
        for resource, token in tokens.items():
            fencing.claim(connection, resource, token)
        assert newest(database()) == {}
        # The table may be there already.
        fencing.create_table(connection)
        connection.commit()
        assert newest(database()) == tokens

    @pytest.mark.parametrize(
        ("style", "mark"), [("qmark", "?"), ("format", "%s"), ("pyformat", "%s"), ("numeric", ":1")]
    )
    def test_parameter_styles(self, database: Database, monkeypatch: pytest.MonkeyPatch, style: str, mark: str) -> None:
        """A module of that style, with the statements put into SQLite's."""
        statements: list[str] = []

        class Cursor(sqlite3.Cursor):
            def execute(self, statement: str, parameters: Any = ()) -> Cursor:
                statements.append(statement)
                return super().execute(re.sub(r"%s|:\d", "?", statement), parameters)

        class Connection(sqlite3.Connection):
            def cursor(self) -> Cursor:  # type: ignore[override]
                return super().cursor(Cursor)

        class Mine(Connection):
            """As a user's own, derived from the module's."""

        module = ModuleType("another_database")
        module.paramstyle = style  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "another_database", module)
        Connection.__module__ = "another_database.connections"
        for kind in (Connection, Mine):
            with database(kind) as made:
                fencing.claim(made, "report", 7)
                with pytest.raises(StaleTokenError, match="7"):
                    fencing.claim(made, "report", 6)
        assert newest(database()) == {"report": 7}
        assert len(statements) == 6
        assert all(mark in statement for statement in statements)

    def test_what_cannot_be(self, database: Database) -> None:
        connection = database()
        for token, error, text in WRONG_TOKENS:
            with pytest.raises(error, match=text):
                fencing.claim(connection, "report", token)
        with pytest.raises(TypeError, match="resource"):
            fencing.claim(connection, b"report", 1)  # type: ignore[arg-type]
        # No module says how the statements of that connection are written.
        with pytest.raises(TypeError, match="SimpleNamespace"):
            fencing.claim(SimpleNamespace(), "report", 1)
        assert newest(connection) == {}

    def test_without_the_table(self) -> None:
        with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(sqlite3.OperationalError):
            fencing.claim(connection, "report", 1)
