"""The fenced lock's scripts on real servers, old and new: every branch, sent twice, and read as Redisson would."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import ME, YOU, ScriptedLock, published

TOKEN = "redisson_lock_token:{orders}"
DELETED = "pyredisson_fenced_newest:{orders}"
DAY = 86_400_000
HOUR = 3_600_000_000
"""Microseconds, as tokens are."""


class FencedScripts(ScriptedLock):
    channel = "redisson_lock__channel:{orders}"

    def acquire(self, owner: str, holds: int, lease: int, redis: Any = None) -> Any:
        return self.run("fenced_acquire", ["orders", TOKEN, DELETED], owner, holds, lease, redis=redis)

    def delete(self, redis: Any = None) -> Any:
        return self.run("fenced_delete", ["orders", TOKEN, DELETED], self.channel, redis=redis)

    def release(self, name: str, *args: str | int) -> Any:
        return self.run(name, ["orders"], *args)

    def newest(self) -> int:
        """The token as Redisson reads it: decimal text in a key without a TTL."""
        text: bytes = self.redis.get(TOKEN)
        assert self.redis.pttl(TOKEN) == -1
        assert text == b"%d" % int(text)
        return int(text)

    def newest_kept(self) -> int:
        """The newest token of the counter that was deleted, and nothing else is left."""
        assert self.redis.keys() == [DELETED.encode()]
        assert DAY - 5_000 < self.redis.pttl(DELETED) <= DAY
        return int(self.redis.get(DELETED))

    def microseconds(self) -> int:
        seconds, rest = self.redis.time()
        return int(seconds) * 1_000_000 + int(rest)


@pytest.fixture
def scripts(server: Server, admin: Redis) -> FencedScripts:
    return FencedScripts(server, admin)


class TestAcquire:
    def test_a_free_lock(self, scripts: FencedScripts) -> None:
        tokens = [0]
        for _ in range(2):
            begun = scripts.microseconds()
            [token] = scripts.acquire(ME, 1, 30_000)
            assert begun <= token <= scripts.microseconds()
            assert token > tokens[-1]
            assert scripts.newest() == token
            tokens.append(token)
            assert scripts.state() == {ME: "1"}
            assert 29_000 < scripts.left() <= 30_000

    def test_another_level(self, scripts: FencedScripts) -> None:
        scripts.hold(ME, 1, 1_000)
        first, second = scripts.acquire(ME, 2, 30_000), scripts.acquire(ME, 2, 30_000)
        assert first < second == [scripts.newest()]
        assert scripts.state() == {ME: "2"}
        assert 29_000 < scripts.left() <= 30_000

    def test_another_level_does_not_shorten_the_lease(self, scripts: FencedScripts) -> None:
        scripts.hold(ME, 1, 60_000)
        scripts.acquire(ME, 2, 100)
        assert scripts.left() > 50_000

    def test_an_endless_hold_gets_a_lease(self, scripts: FencedScripts) -> None:
        scripts.hold(ME, 1, None)
        assert scripts.acquire(ME, 2, 30_000) == [scripts.newest()]
        assert 29_000 < scripts.left() <= 30_000

    @pytest.mark.parametrize("holds", [1, 2])
    def test_another_owners_lock(self, scripts: FencedScripts, holds: int) -> None:
        scripts.hold(YOU, 3, 20_000)
        scripts.redis.set(TOKEN, 5)
        for _ in range(2):
            assert 19_000 < scripts.acquire(ME, holds, 30_000) <= 20_000
            assert scripts.state() == {YOU: "3"}
            assert scripts.newest() == 5

    def test_another_owners_endless_lock(self, scripts: FencedScripts) -> None:
        scripts.hold(YOU, 1, None)
        assert scripts.acquire(ME, 1, 30_000) == -1
        assert scripts.state() == {YOU: "1"}
        assert not scripts.redis.exists(TOKEN)

    def test_another_level_of_a_lost_hold(self, scripts: FencedScripts) -> None:
        for _ in range(2):
            assert scripts.acquire(ME, 2, 30_000) == -2
            assert scripts.redis.keys() == []

    def test_a_counter_of_redisson_goes_on_upwards(self, scripts: FencedScripts) -> None:
        scripts.redis.set(TOKEN, 7)
        begun = scripts.microseconds()
        [token] = scripts.acquire(ME, 1, 30_000)
        assert token >= begun
        # Java counts on from there.
        assert scripts.redis.incr(TOKEN) == token + 1
        [later] = scripts.acquire(ME, 2, 30_000)
        assert later > token + 1

    def test_a_counter_ahead_of_the_clock_counts_one_by_one(self, scripts: FencedScripts) -> None:
        """Somebody raised it, or the server's clock was set back."""
        ahead = scripts.microseconds() + 10**12
        scripts.redis.set(TOKEN, ahead)
        assert [scripts.acquire(ME, 1, 30_000) for _ in range(3)] == [[ahead + 1], [ahead + 2], [ahead + 3]]
        assert scripts.newest() == ahead + 3

    def test_the_last_numbers_are_exact(self, scripts: FencedScripts) -> None:
        scripts.redis.set(TOKEN, 2**53 - 2)
        assert scripts.acquire(ME, 1, 30_000) == [2**53 - 1]
        assert scripts.newest() == 2**53 - 1
        scripts.redis.delete("orders")
        for _ in range(2):
            with pytest.raises(ResponseError, match="beyond 2\\^53"):
                scripts.acquire(ME, 1, 30_000)
            assert not scripts.redis.exists("orders")

    @pytest.mark.parametrize("wrong", ["text", "", "1.5", str(2**63 - 1), "list"])
    def test_a_counter_that_is_no_number(self, scripts: FencedScripts, wrong: str) -> None:
        if wrong == "list":
            scripts.redis.rpush(TOKEN, "1")
        else:
            scripts.redis.set(TOKEN, wrong)
        before = scripts.redis.dump(TOKEN)
        with pytest.raises(ResponseError):
            scripts.acquire(ME, 1, 30_000)
        assert scripts.redis.dump(TOKEN) == before
        assert not scripts.redis.exists("orders")

    def test_another_type(self, scripts: FencedScripts) -> None:
        scripts.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.acquire(ME, 1, 30_000)
        assert scripts.redis.keys() == [b"orders"]
        assert scripts.redis.get("orders") == b"text"

    def test_out_of_memory(self, scripts: FencedScripts) -> None:
        with scripts.out_of_memory(), pytest.raises(ResponseError, match="maxmemory"):
            scripts.acquire(ME, 1, 30_000)
        assert scripts.redis.keys() == []


class TestDelete:
    def test_whoever_holds_it(self, scripts: FencedScripts, subscription: PubSub) -> None:
        [token] = scripts.acquire(YOU, 1, 30_000)
        assert scripts.delete() == 1
        assert scripts.newest_kept() == token
        assert scripts.delete() == 0
        assert scripts.newest_kept() == token
        assert published(subscription) == [b"0"]
        assert scripts.acquire(ME, 1, 30_000) > [token]

    def test_a_clock_that_was_set_back_since(self, scripts: FencedScripts) -> None:
        token = scripts.microseconds() + HOUR
        scripts.redis.set(TOKEN, token)
        assert scripts.delete() == 1
        assert scripts.newest_kept() == token
        # Meanwhile Java begins anew.
        for counted in (None, 7):
            scripts.redis.delete(TOKEN, "orders")
            if counted:
                scripts.redis.set(TOKEN, counted)
            assert scripts.acquire(ME, 1, 30_000) == [token + 1]
            assert scripts.newest() == token + 1
            assert scripts.acquire(ME, 2, 30_000) == [token + 2]
        # And what was deleted later is smaller.
        scripts.redis.set(TOKEN, token - 1)
        assert scripts.delete() == 1
        assert scripts.newest_kept() == token

    @pytest.mark.parametrize("wrong", ["7", "text", "", str(2**53), str(2**63 - 1), "list"])
    def test_a_counter_of_redisson(self, scripts: FencedScripts, wrong: str) -> None:
        if wrong == "list":
            scripts.redis.rpush(TOKEN, "1")
        else:
            scripts.redis.set(TOKEN, wrong)
        assert scripts.delete() == 1
        assert scripts.redis.keys() == []

    def test_a_free_lock_has_only_a_counter(self, scripts: FencedScripts, subscription: PubSub) -> None:
        scripts.redis.set(TOKEN, 7)
        assert scripts.delete() == 1
        assert scripts.redis.keys() == []
        assert published(subscription) == []

    def test_out_of_memory(self, scripts: FencedScripts) -> None:
        scripts.acquire(YOU, 1, 30_000)
        with scripts.out_of_memory():
            assert scripts.delete() == 1
        assert scripts.newest_kept()

    def test_without_permission_on_the_channel(self, scripts: FencedScripts, subscription: PubSub) -> None:
        scripts.acquire(YOU, 1, 30_000)
        with scripts.user("~*", "+@all", "resetchannels") as deaf:
            assert scripts.delete(redis=deaf) == 1
        assert scripts.newest_kept()
        assert published(subscription) == []


class TestWithoutAChannel:
    """What a spin lock sends: the lock's own scripts, which then publish nothing."""

    def test_a_release(self, scripts: FencedScripts, subscription: PubSub) -> None:
        with scripts.redis.pubsub() as nameless:
            nameless.subscribe("")
            assert nameless.get_message(timeout=5)["type"] == "subscribe"
            scripts.hold(ME, 2, 30_000)
            for _ in range(2):
                assert scripts.release("lock_release", "", ME, 1) == 0
                assert scripts.state() == {ME: "1"}
            assert scripts.release("lock_release", "", ME, 0) == 1
            assert scripts.redis.keys() == []
            assert scripts.release("lock_release", "", ME, 0) is None
            scripts.redis.publish("", "end")
            assert nameless.get_message(timeout=5)["data"] == b"end"
        assert published(subscription) == []

    def test_by_force(self, scripts: FencedScripts, subscription: PubSub) -> None:
        scripts.hold(YOU, 2, 30_000)
        assert scripts.release("lock_force_release", "") == 1
        assert scripts.redis.keys() == []
        assert scripts.release("lock_force_release", "") == 0
        assert published(subscription) == []


def test_a_replica_replies_readonly(scripts: FencedScripts) -> None:
    [token] = scripts.acquire(ME, 1, 30_000)
    with scripts.replica() as redis:
        with pytest.raises(ResponseError, match="read only"):
            scripts.acquire(ME, 2, 30_000, redis=redis)
        with pytest.raises(ResponseError, match="read only"):
            scripts.delete(redis=redis)
    assert scripts.newest() == token
