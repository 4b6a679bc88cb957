"""A server with its scripts, and helpers for their tests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from redis import Redis
from redis.client import PubSub

from pyredisson._protocol.scripts import Script
from pyredisson.testing import Server

ME, YOU = "b983c153-7421-469a-addb-44fb92259a1b:1", "0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:7"


class Scripted:
    """A server and its scripts, in the form for that server. `redis` of a method is another client that sends."""

    channel: ClassVar[str]

    def __init__(self, server: Server, admin: Redis) -> None:
        self.server = server
        self.redis: Any = admin
        self.with_shebang = server.version >= (7,)

    def run(self, name: str, keys: Sequence[str], *args: str | int | bytes, redis: Any = None) -> Any:
        text = Script(name, with_shebang=self.with_shebang).text
        return (redis or self.redis).eval(text, len(keys), *keys, *args)

    def text(self, key: str) -> str | None:
        """A string, as Redisson reads it."""
        found = self.redis.get(key)
        return found if found is None else str(found.decode())

    @contextmanager
    def out_of_memory(self) -> Iterator[None]:
        self.redis.config_set("maxmemory", 1)
        try:
            yield
        finally:
            self.redis.config_set("maxmemory", 0)

    @contextmanager
    def user(self, *rights: str) -> Iterator[Any]:
        """A client of a user that has only these rights."""
        self.redis.execute_command("ACL", "SETUSER", "somebody", "on", ">x", *rights)
        try:
            with self.server.redis(username="somebody", password="x") as redis:
                yield redis
        finally:
            self.redis.execute_command("ACL", "DELUSER", "somebody")

    @contextmanager
    def replica(self) -> Iterator[Any]:
        """A client of a replica that has all data of this server."""
        self.redis.config_set("repl-diskless-sync-delay", 0)
        config = {"replicaof": f"{self.server.host} {self.server.port}"}
        with Server(executable=self.server.executable, config=config) as replica, replica.redis() as redis:
            deadline = time.monotonic() + 10
            while redis.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield redis


class ScriptedLock(Scripted):
    """Helpers for locks that are a hash of owners and their levels."""

    def hold(self, owner: str, holds: int, lease: int | None, key: str = "orders") -> None:
        """A hold as Redisson's scripts leave it."""
        self.redis.hset(key, owner, str(holds))
        if lease is not None:
            self.redis.pexpire(key, lease)

    def state(self, key: str = "orders") -> dict[str, str]:
        """The owners and their holds, as Redisson reads them."""
        return {owner.decode(): count.decode() for owner, count in self.redis.hgetall(key).items()}

    def left(self, key: str = "orders") -> int:
        return int(self.redis.pttl(key))


def published(subscription: PubSub) -> list[bytes]:
    """All messages so far. A message of the test itself marks the end."""
    any_ear: Any = subscription
    [channel] = any_ear.channels
    Redis(connection_pool=any_ear.connection_pool).publish(channel, "end")
    messages = []
    while (message := subscription.get_message(timeout=5)) is not None and message["data"] != b"end":
        messages.append(message["data"])
    assert message is not None
    return messages
