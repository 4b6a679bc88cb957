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

pytestmark = pytest.mark.asyncio

JAVA = "b983c153-7421-469a-addb-44fb92259a1b:1"


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


async def test_an_explicit_owner(backend: Backend, server_state: ServerState) -> None:
    client = backend.connect()
    for owner in (0, 2**32 - 1):
        await client.get_lock(f"orders{owner}", owner=owner).lock()
        assert server_state.holds(f"orders{owner}") == {f"{client.id}:{owner}": "1"}


async def test_every_owner_has_its_own_id(backend: Backend, server_state: ServerState) -> None:
    """Threads' and tasks' own ids are used again as soon as they have ended."""
    client = backend.connect()
    for number in range(20):
        await backend.as_another_owner(client.get_lock(f"orders{number}").lock)
    owners = {owner for number in range(20) for owner in server_state.holds(f"orders{number}")}
    assert len(owners) == 20


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


class TestBesideJava:
    """Java's part is played with the plain commands that its scripts come down to."""

    async def test_its_hold_excludes_us(self, backend: Backend, server_state: ServerState) -> None:
        server_state.redis.hset("orders", JAVA, 2)
        server_state.redis.pexpire("orders", 30_000)
        lock = backend.connect().get_lock("orders")
        assert await lock.is_locked()
        assert not await lock.is_held()
        assert not await lock.try_lock(wait_time=0.05)
        client_id, _, thread = JAVA.partition(":")
        with pytest.raises(RuntimeError, match=f"{client_id}, thread {thread}"):
            await lock.unlock()
        assert server_state.holds("orders") == {JAVA: "2"}

    @pytest.mark.parametrize("payload", ["0", "1"])
    async def test_its_release_wakes_us(self, backend: Backend, server_state: ServerState, payload: str) -> None:
        server_state.redis.hset("orders", JAVA, 1)
        server_state.redis.pexpire("orders", 30_000)
        client = backend.connect()
        other = backend.spawn(client.get_lock("orders", owner=1).lock)
        await backend.until(lambda: server_state.listeners("orders") == 1)
        server_state.redis.delete("orders")
        server_state.redis.publish("redisson_lock__channel:{orders}", payload)
        await other.result()
        assert server_state.holds("orders") == {f"{client.id}:1": "1"}

    async def test_it_forces_our_lock_open(self, backend: Backend, server_state: ServerState) -> None:
        client = backend.connect()
        await client.get_lock("orders", owner=1).lock()
        other = backend.spawn(client.get_lock("orders", owner=2).lock)
        await backend.until(lambda: server_state.listeners("orders") == 1)
        server_state.redis.delete("orders")
        server_state.redis.publish("redisson_lock__channel:{orders}", "0")
        await other.result()
        assert server_state.holds("orders") == {f"{client.id}:2": "1"}

    async def test_another_type_under_the_name_is_the_servers_error(
        self, backend: Backend, server_state: ServerState
    ) -> None:
        server_state.redis.set("orders", "a string")
        lock = backend.connect().get_lock("orders")
        with pytest.raises(Exception, match="WRONGTYPE"):
            await lock.lock()
        with pytest.raises(Exception, match="WRONGTYPE"):
            await lock.unlock()
        assert server_state.redis.get("orders") == b"a string"
