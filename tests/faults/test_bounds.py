"""Bounds: a call on a broken or odd server ends in time, with an error of its own; temporary errors are retried."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis import OutOfMemoryError, Redis
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError, RedisError, TimeoutError

import pyredisson
from pyredisson._protocol.replies import copy_error
from pyredisson.testing import Proxy, Server
from tests.support.backends import RawBackend, scripts_run, within
from tests.support.faults import ACQUIRE

from .kinds import Log, Patch, Trouble, busy, do_all, taken_by_another, unreachable, usual
from .stub import Answer, Stub, bulk, shake

LOST = TimeoutError, ConnectionError
TIMEOUT = 0.3
LATE = 1.5
"""Seconds that a deadline of less than a second may be late, on a busy machine."""
LONGEST = 1.0 + LATE
"""About three reply deadlines and a pause, and what a busy machine adds. The default retries take at least 2.6 s."""


async def fails(backend: RawBackend, call: Any, error: Any = LOST, least: float = 0, most: float = LONGEST) -> str:
    """The call raises such an error, in time. Returns its text."""
    with within(most, least=least):
        return str(await backend.fails(error, call))


@pytest.mark.parametrize("connected", [True, False])
async def test_a_server_that_hangs(backend: RawBackend, own_server: Server, root: Redis, connected: bool) -> None:
    client = backend.connect(own_server.url, timeout=TIMEOUT, retry_attempts=1)
    lock, held = (client.get_lock(name) for name in "ab")
    calls = [lock.try_lock, lock.is_locked, lambda: lock.try_lock(1.0)]
    if connected:
        await backend.do(held.lock())
        calls.append(held.unlock)
    own_server.pause()
    for call in calls:
        await fails(backend, call)
    own_server.resume()
    # What was given up is undone, a release is done later, and all is well again.
    assert (await do_all(backend, lock.lock, lock.get_hold_count, lock.unlock))[1] == 1
    await backend.until(lambda: not root.exists("b"), 5)


async def test_a_server_that_has_no_room(backend: RawBackend, own_server: Server, root: Redis) -> None:
    lock = backend.connect(own_server.url, timeout=TIMEOUT, retry_attempts=1).get_lock("a")
    root.ping()
    root.config_set("maxclients", 1)
    for wait in (0, 0.2):
        # One more try, a quarter of a second later. What the server says is lost where its RST overtakes it.
        await fails(backend, partial(lock.try_lock, wait), ConnectionError)
    root.config_set("maxclients", 100)
    assert await backend.do(lock.try_lock())


async def test_a_wrong_password_fails_at_once_and_is_not_tried_again(backend: RawBackend) -> None:
    with Server(password="right") as server, Proxy(server.host, server.port) as proxy:
        lock = backend.connect(proxy.url, password="wrong", timeout=2).get_lock("a")
        for call in (lock.lock, lambda: lock.try_lock(5)):
            await fails(backend, call, AuthenticationError)
        # Once for each call; nothing continues in the background.
        await backend.sleep(1.5)
        assert proxy.seen(b"AUTH") == 2
        await fails(backend, backend.connect(proxy.url, timeout=2).get_lock("a").lock, AuthenticationError)


async def test_after_a_script_flush_one_more_round_trip_does(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    lock = backend.connect(proxy.url).get_lock("a")
    await do_all(backend, lock.lock, lock.unlock)
    admin.script_flush()
    before = scripts_run(admin)
    for expected in ([b"EVALSHA", b"EVAL"], [b"EVALSHA"]):
        for call in (lock.lock, lock.unlock):
            proxy.forget()
            await backend.do(call())
            assert [words[0].upper() for words in proxy.commands] == expected
    assert scripts_run(admin) - before <= 6


@pytest.mark.parametrize(("trouble", "error"), [(unreachable, "read only replica"), (busy, "BUSY")])
async def test_a_temporary_error_passes_within_the_callers_deadline(
    backend: RawBackend, own_server: Server, root: Redis, caplog: Log, trouble: Trouble, error: str
) -> None:
    """One warning says when it begins, and one when it ends."""
    client = await backend.connected(own_server.url, timeout=2)
    lock, other = (client.get_lock(name, owner=1) for name in "ab")
    for call in (lambda: lock.try_lock(10), lock.unlock):
        trouble(root)
        assert error in await fails(backend, partial(other.try_lock, 0.3), RedisError)
        begun = backend.start(call)
        await backend.sleep(0.2)
        usual(root, trouble)
        assert await begun.result() is not False
    assert not root.exists("a", "b")
    said = [f"is not available: .*{error}", "is available again after"] * 2
    assert [bool(re.search(*each)) for each in zip(said, caplog.messages, strict=True)] == [True] * 4


@pytest.mark.slow
async def test_loading_passes_within_the_callers_deadline(backend: RawBackend) -> None:
    """A server that restarts with its data answers LOADING for as long as that takes."""
    slowly = {"key-load-delay": "5000", "loading-process-events-interval-bytes": "1024"}
    with Server(config=slowly) as server, server.redis() as root:
        lock = (await backend.connected(server.url, timeout=2)).get_lock("a")
        root.mset({f"key{number}": "x" * 100 for number in range(500)})
        root.save()
        server.kill()
        # It returns when the data is loaded.
        starting = backend.start(backend.run_blocking, server.start)
        assert await backend.start(lock.try_lock, 10).result(20) is True
        await starting.result()
        assert root.dbsize() == 501
        stats: dict[str, Any] = root.info("commandstats")
        assert sum(entry["rejected_calls"] for name, entry in stats.items() if "eval" in name) >= 1


async def test_out_of_memory_only_a_release_works(backend: RawBackend, own_server: Server, root: Redis) -> None:
    lock = backend.connect(own_server.url, timeout=TIMEOUT).get_lock("a")
    await do_all(backend, lock.lock, lock.lock)
    root.config_set("maxmemory", 1)
    await fails(backend, lock.lock, OutOfMemoryError)
    assert await backend.do(lock.get_hold_count()) == 2
    for left in ([b"1"], []):
        await backend.do(lock.unlock())
        assert root.hvals("a") == left


def five(words: list[bytes]) -> bytes:
    """Redis 5 knows neither HELLO nor CLIENT INFO."""
    if words[0].upper() == b"INFO":
        return bulk("# Server\r\nredis_version:5.0.14\r\nredis_mode:standalone\r\n")
    return b"-ERR unknown command `%b`\r\n" % words[0]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (five, r"version 5\.0\.14; Redis 6\.2"),
        (partial(shake, version="6.0.16"), r"version 6\.0\.16; Redis 6\.2"),
        (partial(shake, mode="sentinel"), r"redis\+sentinel://"),
        (partial(shake, mode="cluster"), r"\d+ is a node of a cluster.*redis\+cluster://"),
    ],
)
async def test_a_server_that_cannot_be_served(backend: RawBackend, answer: Answer, text: str) -> None:
    before = set(threading.enumerate())
    with Stub(answer) as stub:
        client = backend.connect(stub.url)
        for call in (client.get_lock("a").lock, client.get_semaphore("s").acquire, client.get_lock("a").is_locked):
            await backend.fails(pyredisson.ConfigError, call, match=text)
        # Once for each call; nothing continues in the background.
        assert stub.connections == 3
        assert "pyredisson-renew" not in {thread.name for thread in threading.enumerate() if thread not in before}


@pytest.mark.parametrize("has_info", [True, False])
async def test_a_server_without_hello(backend: RawBackend, has_info: bool) -> None:
    """Some providers rename it. A server whose version can't be asked is taken for one that can be served."""
    users = ["app on >secret ~* &* +@all -info -hello"]
    fields = {} if has_info else {"username": "app", "password": "secret"}
    with Server(config={"rename-command": "HELLO ''"}) if has_info else Server(users=users) as server:
        lock = backend.connect(server.url, **fields).get_lock("a")
        await do_all(backend, lock.lock, lock.unlock)


@pytest.mark.parametrize("url", ["redis://h1:7000,h2:7001", "redis://u:p@h1:7000,h2", "rediss://h1,h2:1/0"])
def test_several_hosts_in_a_plain_url(url: str) -> None:
    with pytest.raises(pyredisson.ConfigError, match=r"one host.*redis\+cluster://.*redis\+sentinel://") as raised:
        pyredisson.connect(url)
    assert "p@" not in str(raised.value)


@pytest.mark.parametrize(("timeout", "connect_timeout"), [(2, 0.5), (0.5, 5)])
async def test_a_handshake_is_bounded_as_a_whole(backend: RawBackend, timeout: float, connect_timeout: float) -> None:
    """It has no more time than a reply, either."""
    with Stub(shake, drip=0.05) as stub:
        client = backend.connect(stub.url, timeout=timeout, connect_timeout=connect_timeout, retry_attempts=0)
        await fails(backend, client.get_lock("a").is_locked, least=0.25, most=0.5 + LATE)


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """An address that neither accepts nor refuses connections."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield listener.getsockname()


@pytest.mark.parametrize("silent_ones", [1, 4])
async def test_silent_addresses_share_the_time(
    backend: RawBackend, server: Server, silent: tuple[str, int], monkeypatch: Patch, silent_ones: int
) -> None:
    addresses = [silent] * silent_ones
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        ours = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
        return ours if host == "several.test" else real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    lock = backend.connect("redis://several.test", connect_timeout=0.8, retry_attempts=0).get_lock("a")
    await fails(backend, lock.is_locked, least=0.4, most=0.8 + LATE)
    # And leave some of it to the next address.
    addresses[:] = [silent, (server.host, server.port)]
    lock = backend.connect("redis://several.test", connect_timeout=2, retry_attempts=0).get_lock("a")
    assert not await backend.do(lock.is_locked())


async def all_fail(backend: RawBackend, kind: type[Exception], call: Callable[[int], Any], number: int) -> None:
    """So many owners at the same time get an error each, of its own and with a short traceback."""
    outcomes = [backend.start(call, i) for i in range(number)]
    errors = [await backend.fails(RedisError, outcome.result, 30) for outcome in outcomes]
    assert ({type(error) for error in errors}, len(set(map(id, errors)))) == ({kind}, number)
    for error in errors:
        link: BaseException | None = error
        while link is not None:
            # The frames of its traceback, its causes not counted.
            assert len(list(traceback.walk_tb(link.__traceback__))) <= 40
            link = link.__cause__ or link.__context__


@pytest.mark.parametrize(
    ("password", "kind", "number"), [(None, ConnectionError, 1000), ("wrong", AuthenticationError, 100)]
)
async def test_a_connection_that_many_tasks_need(
    tasks: RawBackend, server: Server, password: str | None, kind: type[Exception], number: int
) -> None:
    url = "redis://127.0.0.1:1" if password is None else server.url
    client = tasks.connect(url, password=password, retry_attempts=0)
    await all_fail(tasks, kind, lambda i: client.get_lock(f"a{i}").try_lock(), number)


async def test_a_connection_of_many_tasks_is_cut(tasks: RawBackend, proxy: Proxy) -> None:
    client = await tasks.connected(proxy.url, retry_attempts=0)
    late = proxy.hold_reply(ACQUIRE)

    async def cut(i: int) -> None:
        if not i:
            await tasks.until(late.held.is_set)
            proxy.close()
        await client.get_lock(f"a{i}").try_lock()

    await all_fail(tasks, ConnectionError, cut, 100)


async def test_a_channel_that_is_refused(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    admin.acl_setuser("deaf", enabled=True, nopass=True, keys=["*"], categories=["+@all"], reset_channels=True)
    taken_by_another(admin)
    client = backend.connect(proxy.url, username="deaf", password="any")
    asking = proxy.hold_request(b"SUBSCRIBE")
    waiting = client._session.channels.waiting

    async def take(i: int) -> None:
        if i == 9:
            # The refusal comes when all others wait.
            await backend.until(asking.held.is_set)
            await backend.until(lambda: len(waiting) == 9)
            asking.deliver()
        await backend.do(client.get_lock("a").lock())

    await all_fail(backend, NoPermissionError, take, 10)
    admin.delete("a")
    # Alone it can take the lock, and give it back though its message is refused.
    await do_all(backend, client.get_lock("a").lock, client.get_lock("a").unlock)
    assert not admin.exists("a")
    admin.acl_deluser("deaf")


class Odd(Exception):
    """Takes other arguments than it gives to `Exception`."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code}")
        self.where = where


class Picky(Odd):
    """Can't be copied."""

    def __new__(cls, code: int, /, *, where: str) -> Picky:
        return super().__new__(cls, f"{where}: {code}")


ERRORS = [Odd(3, where="there"), OSError(2, "nothing there", "a file"), KeyError("key"), Exception()]
ERRORS.append(UnicodeDecodeError("ascii", b"\xff", 0, 1, "not ASCII"))
ERRORS.append(ExceptionGroup("several", [ValueError("one"), KeyError("two")]))


@pytest.mark.parametrize("error", ERRORS)
def test_a_copy_has_the_text_of_the_original(error: Exception) -> None:
    cause = ValueError("why")
    error.__cause__ = cause
    twin = copy_error(error)
    assert twin is not error
    assert (type(twin), twin.args, str(twin), vars(twin)) == (type(error), error.args, str(error), vars(error))
    assert twin.__cause__ is cause
    with pytest.raises(type(error)):
        raise twin
    assert error.__traceback__ is None
    twin.add_note("for one caller only")
    assert not hasattr(error, "__notes__")
    picky = Picky(3, where="there")
    assert copy_error(picky) is picky
