"""Fencing tokens: a fenced lock's, and at the resource, where a holder with an older token is refused."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from redis import Redis
from redis.exceptions import ResponseError

from pyredisson import LockNotHeldError, LockTimeoutError, StaleTokenError, fencing
from pyredisson.fencing import _is_in_transaction
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, Backend, ServerState, fails, finished, in_turn, listeners
from tests.support.faults import LOSSES, Lose

from .kinds import COUNTER, WAYS, assert_lost, use

DELETED = "pyredisson_fenced_newest:{orders}"
Write = Callable[..., Awaitable[Any]]
NEWEST = "pyredisson_fencing:{report}"
WRONG_TOKENS: list[tuple[Any, type[Exception], str | None]] = [
    *((token, ValueError, str(token)) for token in (0, -1, 2**53)),
    *((token, TypeError, None) for token in ("1", 1.0, True, None)),
]


@pytest.fixture(params=["threads", "asyncio"])
async def redis_client(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Any]:
    """redis-py's client of either backend."""
    with Redis(host=server.host, port=server.port) as threads:
        async with redis.asyncio.Redis(host=server.host, port=server.port) as tasks:
            yield threads if request.param == "threads" else tasks


@pytest.fixture
def write(redis_client: Any) -> Write:
    """`fencing.write` with that client, awaited."""

    async def awaited(*args: Any) -> Any:
        written: Any = fencing.write(redis_client, *args)
        return await written if isinstance(redis_client, redis.asyncio.Redis) else written

    return awaited


class TestTokens:
    """Every acquire has a token of its own, above all earlier ones."""

    async def test_every_way_to_take_it_gives_a_token(self, backend: Backend, state: ServerState) -> None:
        lock = backend.connect().get_fenced_lock("orders")
        assert await lock.get_token() == 0
        newest = await lock.lock_and_get_token()
        assert type(newest) is int
        ways: list[Any] = [lock.lock_and_get_token, lock.try_lock_and_get_token, *(partial(way, lock) for way in WAYS)]
        for number, way in enumerate(ways):
            given = await way()
            assert lock.token == await lock.get_token() > newest
            newest = lock.token
            assert number > 1 or given == newest
        for take, lease in ((lock.lock_and_get_token, 60), (lock.try_lock_and_get_token, 100)):
            newest = await take(lease_time=timedelta(seconds=lease)) or 0
            assert lease - 10 < (await lock.remain_time_to_live() or 0) <= lease
        await in_turn([lock.unlock] * (len(ways) + 3))
        assert (state.redis.keys(), state.redis.ttl(COUNTER)) == ([COUNTER.encode()], -1)
        assert await lock.get_token() == newest

    async def test_a_waiter_gets_a_token_above_the_holders(self, backend: Backend, state: ServerState) -> None:
        holder, waiter = backend.connect().get_fenced_lock("orders"), backend.connect().get_fenced_lock("orders")
        token = await holder.lock_and_get_token()
        assert await waiter.try_lock_and_get_token() is None
        assert await waiter.try_lock_and_get_token(wait_time=0.05) is None
        await fails(LockTimeoutError, waiter.hold(wait_time=0).__aenter__)
        assert await holder.get_token() == token

        async def take(wait: Callable[[], Awaitable[int | None]]) -> tuple[int | None, int]:
            mine, known = await wait(), waiter.token
            await waiter.unlock()
            return mine, known

        for wait in (waiter.lock_and_get_token, partial(waiter.try_lock_and_get_token, wait_time=TIME_LIMIT)):
            other = await backend.begin(partial(take, wait), lambda: listeners(state.redis, "orders") == 1)
            await holder.unlock()
            mine, known = await other.result()
            assert mine == known > token
            token = await holder.lock_and_get_token()
            assert token > known

    async def test_one_owner_in_many_calls_each_gets_its_own_token(self, backend: Backend) -> None:
        lock = backend.connect().get_fenced_lock("orders", owner=7)

        async def ask() -> list[int]:
            return [await lock.lock_and_get_token() for _ in range(20)]

        given = await finished([backend.spawn(ask) for _ in range(5)])
        tokens = [token for some in given for token in some]
        assert len(set(tokens)) == 100 == await lock.get_hold_count()
        assert all(some == sorted(some) for some in given)
        assert await lock.get_token() == lock.token == max(tokens)

    async def test_the_token_of_a_hold(self, client: Any, state: ServerState) -> None:
        lock, plain = client.get_fenced_lock("orders"), client.get_lock("orders")
        for _ in range(2):
            with pytest.raises(LockNotHeldError, match="'orders'"):
                _ = lock.token
            async with lock:
                # A plain lock of the name doesn't take it away.
                token = lock.token
                await use(plain)
                assert lock.token == token
        async with plain:
            with pytest.raises(LockNotHeldError, match="fenced"):
                _ = lock.token
        # It is not another owner's.
        async with client.get_fenced_lock("orders", owner=1) as other:
            token = other.token
            with pytest.raises(LockNotHeldError):
                _ = lock.token
        # Tokens grow after `delete`, too.
        assert await lock.delete() is True
        assert await lock.lock_and_get_token() > token
        token = lock.token
        assert await lock.delete() is True
        assert (state.redis.keys(), lock.lost.is_set(), await lock.get_token()) == ([DELETED.encode()], True, 0)
        await assert_lost(lock, r"delete\(\)")
        assert await lock.lock_and_get_token() > token
        await lock.unlock()
        assert (await lock.delete(), await lock.delete()) == (True, False)
        assert state.redis.keys() == [DELETED.encode()]

    @LOSSES
    async def test_a_lost_reply(self, backend: Backend, proxy: Proxy, state: ServerState, lose: Lose) -> None:
        lock = backend.connect(proxy.url, timeout=0.8).get_fenced_lock("orders")
        newest = await lock.lock_and_get_token()
        for take in (lock.lock_and_get_token, lock.try_lock_and_get_token):
            fault = lose(proxy, b"redisson_lock_token")
            token = await take() or 0
            assert fault.happened.is_set()
            assert lock.token == token == await lock.get_token() > newest
            newest = token
        assert list(state.holds("orders").values()) == ["3"]


class TestRedis:
    async def test_only_older_ones_are_refused(self, write: Write, admin: Redis) -> None:
        for token in (5, 5, 2**53 - 2, 2**53 - 1):
            assert await write(token, "SET", "report", f"by {token}") == b"OK"
            assert (admin.get("report"), admin.get(NEWEST)) == (b"by %d" % token, b"%d" % token)
            # It is remembered for a day after each write.
            assert 86_000 < admin.ttl(NEWEST) <= fencing.REMEMBERED == 86_400
            admin.expire(NEWEST, 10)
        for token in (1, 2**53 - 2):
            with pytest.raises(StaleTokenError, match=rf"(?s)\b{token}\b.*'report'.*\b{2**53 - 1}\b"):
                await write(token, "SET", "report", "old")
        assert (admin.get("report"), admin.get(NEWEST)) == (b"by %d" % (2**53 - 1), b"%d" % (2**53 - 1))
        # One that is refused doesn't count.
        assert (admin.ttl(NEWEST) <= 10, admin.ttl("report")) == (True, -1)

    async def test_any_command_that_writes_one_key(self, write: Write, admin: Redis) -> None:
        admin.script_flush()
        assert await write(1, "HSET", "report", "a", 1, "b", 2.5) == 2
        assert admin.hgetall("report") == {b"a": b"1", b"b": b"2.5"}
        assert await write(2, "DEL", "report") == 1
        assert await write(3, "RPUSH", b"report", "x", b"\xff") == 2
        assert await write(3, "LRANGE", "report", 0, -1) == [b"x", b"\xff"]
        assert await write(3, "LPOP", "nothing") is None
        # Each key has its own newest token.
        await write(1, "SET", "{shop}report", "y")
        assert admin.get("pyredisson_fencing:{shop}report") == b"1"

    async def test_what_redis_reports_passes_through(self, write: Write, admin: Redis) -> None:
        await write(1, "SET", "report", "text")
        await fails(ResponseError, write, 2, "RPUSH", "report", "x", match="WRONGTYPE")
        assert admin.get("report") == b"text"
        # That writer is known, all the same.
        await fails(StaleTokenError, write, 1, "SET", "report", "old")
        # What somebody else has put in the place of the newest token is none.
        for spoil in (admin.set, admin.rpush):
            admin.delete(NEWEST)
            spoil(NEWEST, "spoilt")
            await fails(ResponseError, write, 3, "SET", "report", "x")
        assert admin.get("report") == b"text"

    async def test_what_cannot_be(self, redis_client: Any, write: Write, state: ServerState) -> None:
        before = state.commands()
        for token, error, text in WRONG_TOKENS:
            await fails(error, write, token, "SET", "report", "x", match=text)
        await fails(ValueError, write, 1, "SET", "", "x")
        await fails(TypeError, write, 1, "SET", 5, "x")
        with pytest.raises(TypeError, match="pipeline"):
            fencing.write(redis_client.pipeline(), 1, "SET", "report", "x")
        assert state.commands() == before


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Callable[..., sqlite3.Connection]]:
    """Opens connections to one database that has the table."""
    with ExitStack() as stack:

        def connect(kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
            made = sqlite3.connect(tmp_path / "pages.db", timeout=TIME_LIMIT, factory=kind)
            return stack.enter_context(closing(made))

        with connect() as connection:
            fencing.create_table(connection)
            connection.execute("CREATE TABLE pages (name TEXT PRIMARY KEY, text TEXT)")
            connection.execute("INSERT INTO pages VALUES ('report', '')")
        yield connect


Database = Callable[..., sqlite3.Connection]


def newest(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT resource, token FROM pyredisson_fencing").fetchall())


@pytest.mark.parametrize("resource", ["redis", "database"])
async def test_a_late_writer_is_refused(backend: Backend, admin: Redis, database: Database, resource: str) -> None:
    """One writer is paused beyond its lease. Another one acquires the lock and writes. Then the first one continues."""

    def write(token: int, text: str) -> None:
        if resource == "redis":
            fencing.write(admin, token, "SET", "page", text)
        else:
            with database() as connection:
                fencing.claim(connection, "report", token)
                connection.execute("UPDATE pages SET text = ? WHERE name = 'report'", (text,))

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
    await assert_lost(late)
    assert await late.try_lock()
    write(late.token, "in time")
    [(text,)] = database().execute("SELECT text FROM pages").fetchall()
    assert (admin.get("page"), text) == ((b"in time", "") if resource == "redis" else (None, "in time"))


class TestSql:
    def test_only_older_ones_are_refused_in_the_callers_transaction(self, database: Database) -> None:
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
        # Each resource has its own.
        tokens = {"report": 2**53 - 1, "'; --": 6, "berichtä": 5}
        fencing.claim(connection, "berichtä", 7)
        assert connection.in_transaction
        connection.rollback()
        for resource, token in tokens.items():
            fencing.claim(connection, resource, token)
        assert newest(database()) == {"report": 6}
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

        monkeypatch.setitem(sys.modules, "another_database", SimpleNamespace(paramstyle=style))
        Connection.__module__ = "another_database.connections"
        # The latter as a user's own, derived from the module's.
        for kind in (Connection, type("Mine", (Connection,), {})):
            with database(kind) as made:
                fencing.claim(made, "report", 7)
                with pytest.raises(StaleTokenError, match="7"):
                    fencing.claim(made, "report", 6)
        assert newest(database()) == {"report": 7}
        assert [mark in statement for statement in statements] == [True] * 6

    def test_what_cannot_be(self, database: Database) -> None:
        connection = database()
        for token, error, text in WRONG_TOKENS:
            with pytest.raises(error, match=text):
                fencing.claim(connection, "report", token)

        async def execute(statement: str) -> None: ...

        # Of asyncio: a cursor has coroutine functions, as in psycopg, or has to be awaited itself, as in aiosqlite.
        cursors = (SimpleNamespace(execute=execute), object())
        kinds = [type("Other", (sqlite3.Connection,), {"cursor": lambda _, made=made: made}) for made in cursors]
        for made, resource, text in (
            (connection, b"report", "resource"),
            # No module says how the statements of that connection are written.
            (SimpleNamespace(), "report", "SimpleNamespace"),
            *((database(kind), "report", "asyncio") for kind in kinds),
        ):
            with pytest.raises(TypeError, match=text):
                fencing.claim(made, resource, 1)  # type: ignore[arg-type]
        assert newest(connection) == {}
        with closing(sqlite3.connect(":memory:")) as other, pytest.raises(sqlite3.OperationalError):
            fencing.claim(other, "report", 1)

    def test_a_connection_that_commits_each_statement(self, database: Database) -> None:
        """The claim would not keep others from coming between it and the write. As of sqlite3, and of psycopg."""
        connection = database()
        connection.isolation_level = None
        with pytest.raises(ValueError, match="autocommit"):
            fencing.claim(connection, "report", 1)
        connection.execute("BEGIN")
        fencing.claim(connection, "report", 2)
        connection.execute("COMMIT")
        assert newest(connection) == {"report": 2}
        assert not _is_in_transaction(SimpleNamespace(info=SimpleNamespace(transaction_status=0)))
        assert _is_in_transaction(SimpleNamespace(info=SimpleNamespace(transaction_status=2)))
        assert _is_in_transaction(SimpleNamespace())
