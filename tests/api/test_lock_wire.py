"""The format of locks on the server: Redisson's, so that Java and Python share one lock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from redis.client import PubSub

from tests.support.backends import TIME_LIMIT, Backend
from tests.support.server_state import ServerState

from .kinds import JAVA

pytestmark = pytest.mark.asyncio


@pytest.fixture
def ear(server_state: ServerState) -> Iterator[PubSub]:
    """Hears every lock's messages, as any client would."""
    with server_state.redis.pubsub() as listening:
        listening.psubscribe("*")
        assert listening.get_message(timeout=TIME_LIMIT)["type"] == "psubscribe"
        yield listening


def heard(ear: PubSub) -> tuple[bytes, bytes]:
    message: Any = ear.get_message(timeout=TIME_LIMIT)
    assert message is not None, "nothing was published"
    return message["channel"], message["data"]


NAMES: list[tuple[str | bytes, bytes, bytes]] = [
    ("foo", b"foo", b"redisson_lock__channel:{foo}"),
    ("{t}foo", b"{t}foo", b"redisson_lock__channel:{t}foo"),
    ("a b", b"a b", b"redisson_lock__channel:{a b}"),
    ("a}b", b"a}b", b"redisson_lock__channel:{a}b}"),
    ("a{b", b"a{b", b"redisson_lock__channel:a{b"),
    ("{}x", b"{}x", b"redisson_lock__channel:{}x"),
    ("x}y{z}", b"x}y{z}", b"redisson_lock__channel:x}y{z}"),
    ("'\"\r\n", b"'\"\r\n", b"redisson_lock__channel:{'\"\r\n}"),
    ("Schlüssel☃", "Schlüssel☃".encode(), "redisson_lock__channel:{Schlüssel☃}".encode()),
    (b"\x00\xff", b"\x00\xff", b"redisson_lock__channel:{\x00\xff}"),
    (b"foo", b"foo", b"redisson_lock__channel:{foo}"),
]


@pytest.mark.parametrize(("name", "key", "channel"), NAMES)
async def test_keys_and_channels(
    backend: Backend, server_state: ServerState, ear: PubSub, name: str | bytes, key: bytes, channel: bytes
) -> None:
    lock = backend.connect().get_lock(name)
    assert lock.name == name
    assert type(lock.name) is type(name)
    await lock.lock()
    assert server_state.redis.keys() == [key]
    await lock.unlock()
    assert heard(ear) == (channel, b"0")
    assert server_state.redis.keys() == []


async def test_a_mapped_name(backend: Backend, server_state: ServerState, ear: PubSub) -> None:
    client = backend.connect(name_mapper=lambda name: f"test:{name}")
    for name in ("orders", b"orders"):
        lock = client.get_lock(name)
        assert lock.name == name
        await lock.lock()
        assert server_state.redis.keys() == [b"test:orders"]
        await lock.unlock()
        assert heard(ear) == (b"redisson_lock__channel:{test:orders}", b"0")


async def test_the_hash(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    assert client.id == str(UUID(client.id))
    assert UUID(client.id).version == 4
    lock = client.get_lock("orders")
    for count in (1, 2):
        await lock.lock()
        assert server_state.redis.type("orders") == b"hash"
        [(owner, holds)] = server_state.holds("orders").items()
        assert re.fullmatch(re.escape(client.id) + r":[0-9]+", owner)
        assert int(owner.rpartition(":")[2]) >= 2**32
        assert holds == str(count)
        assert 29_000 < server_state.redis.pttl("orders") <= 30_000
    await lock.unlock()
    assert list(server_state.holds("orders").values()) == ["1"]
    assert 29_000 < server_state.redis.pttl("orders") <= 30_000


async def test_every_owner_has_its_own_id(backend: Backend, server_state: ServerState) -> None:
    """Threads' and tasks' own ids are used again as soon as they have ended."""
    client = backend.connect()
    for number in range(20):
        await backend.as_another_owner(client.get_lock(f"orders{number}").lock)
    owners = {owner for number in range(20) for owner in server_state.holds(f"orders{number}")}
    assert len(owners) == 20
    for owner in (0, 2**32 - 1):
        await client.get_lock("explicit", owner=owner).lock()
        assert server_state.holds("explicit") == {f"{client.id}:{owner}": "1"}
        await client.get_lock("explicit", owner=owner).unlock()


async def test_messages(backend: Backend, ear: PubSub) -> None:
    """Nothing while the holder keeps a hold; `0` when it is free, however that came about."""
    lock = backend.connect().get_lock("orders")
    await lock.lock()
    await lock.lock()
    await lock.unlock()
    await lock.unlock()
    await lock.lock()
    await lock.force_unlock()
    assert not await lock.force_unlock()
    channel = b"redisson_lock__channel:{orders}"
    assert [heard(ear), heard(ear)] == [(channel, b"0")] * 2
    assert ear.get_message(timeout=0.05) is None


@pytest.mark.parametrize("payload", ["0", "1"])
async def test_a_release_by_java_wakes_us(backend: Backend, server_state: ServerState, payload: str) -> None:
    """Java's part is played with the plain commands that its scripts come down to."""
    server_state.redis.hset("orders", JAVA, 1)
    server_state.redis.pexpire("orders", 30_000)
    client = backend.connect()
    other = backend.spawn(client.get_lock("orders", owner=1).lock)
    await backend.until(lambda: server_state.listeners("orders") == 1)
    server_state.redis.delete("orders")
    server_state.redis.publish("redisson_lock__channel:{orders}", payload)
    await other.result()
    assert server_state.holds("orders") == {f"{client.id}:1": "1"}
