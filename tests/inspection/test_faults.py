"""Servers that hang, replies that are lost, and calls that are ended in the middle."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

import pyredisson.asyncio
from pyredisson.errors import ClosedError
from pyredisson.inspection import discovery as walking
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.unlocking import release_shown
from pyredisson.testing import Proxy, Server
from tests.support.backends import Backend
from tests.support.inspecting import inspector, session_of, state_of, walked

pytestmark = pytest.mark.asyncio

OWNER = f"{uuid.UUID(int=3)}:1"
QUICK: dict[str, Any] = {"timeout": 1.0, "connect_timeout": 1.0, "retry_attempts": 1}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "KEYS_IN_A_STEP", 16)


@pytest.fixture
def locks(redis: Any) -> set[bytes]:
    """The names of some locks on the server."""
    names = [f"lock:{number}" for number in range(200)]
    for name in names:
        redis.hset(name, OWNER, 1)
    return {name.encode() for name in names}


async def walk_again(discovery: Discovery) -> None:
    discovery.restart()
    while await discovery.step():
        pass


async def test_replies_to_the_walk_that_are_lost(backend: Backend, proxy: Proxy, locks: set[bytes]) -> None:
    client = backend.connect(proxy.url, **QUICK)
    fault = proxy.drop_reply(b"DBSIZE", times=2)
    discovery = await walked(client)
    assert set(discovery.found) == locks
    assert not discovery.failed
    assert not fault.left


async def test_a_server_that_hangs(backend: Backend, own_server: Server) -> None:
    """The walk goes on without it, and says so; the next pass finds its objects."""
    client = backend.connect(own_server.url, **QUICK)
    with own_server.redis() as redis:
        redis.hset("orders", OWNER, 1)
    own_server.pause()
    discovery = await walked(client)
    assert discovery.done
    [error] = discovery.failed.values()
    assert isinstance(error, (RedisTimeoutError, RedisConnectionError))
    known, failed = await inspector(client).states([b"orders", b"other"])
    assert (known, [*failed]) == ([], [b"orders", b"other"])
    own_server.resume()
    await walk_again(discovery)
    assert set(discovery.found) == {b"orders"}
    assert not discovery.failed
    # What was found stays if a server doesn't answer: the objects may still be there.
    own_server.pause()
    await walk_again(discovery)
    assert set(discovery.found) == {b"orders"}
    assert discovery.failed
    own_server.resume()
    assert (await state_of(client, "orders")).held


async def test_a_step_that_is_cancelled_is_repeated(proxy: Proxy, locks: set[bytes]) -> None:
    async with pyredisson.asyncio.connect(proxy.url) as client:
        discovery = inspector(client).discovery()
        assert await discovery.step()
        for _ in range(3):
            reply = proxy.hold_reply(b"DBSIZE")
            task = asyncio.create_task(discovery.step())
            assert await asyncio.to_thread(reply.held.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(reply.deliver)
        while await discovery.step():
            pass
        assert set(discovery.found) == locks
        assert not discovery.failed


async def test_a_client_that_is_closed_during_the_walk(backend: Backend, locks: set[bytes]) -> None:
    client = backend.connect()
    discovery = inspector(client).discovery(rate=1.0)
    assert await discovery.step()
    waiter = backend.spawn(discovery.step)
    await backend.sleep(0.05)
    # It pauses for many seconds, as the rate demands.
    assert not waiter.done()
    await client.close()
    with pytest.raises(ClosedError):
        await waiter.result()


async def test_the_reply_to_a_release_is_lost(backend: Backend, proxy: Proxy, redis: Any) -> None:
    """It isn't repeated: a second copy would say that the owner holds nothing. The state says what has become of it."""
    redis.hset("orders", OWNER, 1)
    client = backend.connect(proxy.url, **QUICK)
    state = await state_of(client, "orders")
    fault = proxy.drop_reply(b"redisson_lock__channel:{orders}")
    with pytest.raises(RedisError):
        await release_shown(session_of(client), state, state.owners[0])
    assert not fault.left
    assert not (await state_of(client, "orders")).held
