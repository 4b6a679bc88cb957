"""The fenced lock's scripts on real servers, old and new: every branch, sent twice, and read as Redisson would."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import ME, YOU, ScriptedLock, heard

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
def at(server: Server, admin: Redis) -> FencedScripts:
    return FencedScripts(server, admin)


class TestAcquire:
    def test_a_free_lock(self, at: FencedScripts) -> None:
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

    def test_a_further_hold(self, at: FencedScripts) -> None:
        at.hold(ME, 1, 1_000)
        first, second = at.acquire(ME, 2, 30_000), at.acquire(ME, 2, 30_000)
        assert first < second == [at.newest()]
        assert at.state() == {ME: "2"}
        assert 29_000 < at.left() <= 30_000

    def test_a_further_hold_does_not_shorten_the_lease(self, at: FencedScripts) -> None:
        at.hold(ME, 1, 60_000)
        at.acquire(ME, 2, 100)
        assert at.left() > 50_000

    def test_a_hold_that_never_ends_gets_an_end(self, at: FencedScripts) -> None:
        at.hold(ME, 1, None)
        assert at.acquire(ME, 2, 30_000) == [at.newest()]
        assert 29_000 < at.left() <= 30_000

    @pytest.mark.parametrize("holds", [1, 2])
    def test_somebody_elses(self, at: FencedScripts, holds: int) -> None:
        at.hold(YOU, 3, 20_000)
        at.redis.set(TOKEN, 5)
        for _ in range(2):
            assert 19_000 < at.acquire(ME, holds, 30_000) <= 20_000
            assert at.state() == {YOU: "3"}
            assert at.newest() == 5

    def test_somebody_elses_for_ever(self, at: FencedScripts) -> None:
        at.hold(YOU, 1, None)
        assert at.acquire(ME, 1, 30_000) == -1
        assert at.state() == {YOU: "1"}
        assert not at.redis.exists(TOKEN)

    def test_a_further_hold_of_what_is_lost(self, at: FencedScripts) -> None:
        for _ in range(2):
            assert at.acquire(ME, 2, 30_000) == -2
            assert at.redis.keys() == []

    def test_a_counter_of_redisson_goes_on_upwards(self, at: FencedScripts) -> None:
        at.redis.set(TOKEN, 7)
        begun = at.microseconds()
        [token] = at.acquire(ME, 1, 30_000)
        assert token >= begun
        # Java counts on from there.
        assert at.redis.incr(TOKEN) == token + 1
        [later] = at.acquire(ME, 2, 30_000)
        assert later > token + 1

    def test_a_counter_ahead_of_the_clock_counts_one_by_one(self, at: FencedScripts) -> None:
        """Somebody raised it, or the server's clock was set back."""
        ahead = at.microseconds() + 10**12
        at.redis.set(TOKEN, ahead)
        assert [at.acquire(ME, 1, 30_000) for _ in range(3)] == [[ahead + 1], [ahead + 2], [ahead + 3]]
        assert at.newest() == ahead + 3

    def test_the_last_numbers_are_exact(self, at: FencedScripts) -> None:
        at.redis.set(TOKEN, 2**53 - 2)
        assert at.acquire(ME, 1, 30_000) == [2**53 - 1]
        assert at.newest() == 2**53 - 1
        at.redis.delete("orders")
        for _ in range(2):
            with pytest.raises(ResponseError, match="beyond 2\\^53"):
                at.acquire(ME, 1, 30_000)
            assert not at.redis.exists("orders")

    @pytest.mark.parametrize("wrong", ["text", "", "1.5", str(2**63 - 1), "list"])
    def test_a_counter_that_is_none(self, at: FencedScripts, wrong: str) -> None:
        if wrong == "list":
            at.redis.rpush(TOKEN, "1")
        else:
            at.redis.set(TOKEN, wrong)
        before = at.redis.dump(TOKEN)
        with pytest.raises(ResponseError):
            at.acquire(ME, 1, 30_000)
        assert at.redis.dump(TOKEN) == before
        assert not at.redis.exists("orders")

    def test_another_type(self, at: FencedScripts) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.acquire(ME, 1, 30_000)
        assert at.redis.keys() == [b"orders"]
        assert at.redis.get("orders") == b"text"

    def test_out_of_memory(self, at: FencedScripts) -> None:
        with at.out_of_memory(), pytest.raises(ResponseError, match="maxmemory"):
            at.acquire(ME, 1, 30_000)
        assert at.redis.keys() == []


class TestDelete:
    def test_whoever_holds_it(self, at: FencedScripts, ear: PubSub) -> None:
        [token] = at.acquire(YOU, 1, 30_000)
        assert at.delete() == 1
        assert at.newest_kept() == token
        assert at.delete() == 0
        assert at.newest_kept() == token
        assert heard(ear) == [b"0"]
        assert at.acquire(ME, 1, 30_000) > [token]

    def test_a_clock_that_was_set_back_since(self, at: FencedScripts) -> None:
        token = at.microseconds() + HOUR
        at.redis.set(TOKEN, token)
        assert at.delete() == 1
        assert at.newest_kept() == token
        # Meanwhile Java begins anew.
        for counted in (None, 7):
            at.redis.delete(TOKEN, "orders")
            if counted:
                at.redis.set(TOKEN, counted)
            assert at.acquire(ME, 1, 30_000) == [token + 1]
            assert at.newest() == token + 1
            assert at.acquire(ME, 2, 30_000) == [token + 2]
        # And what was deleted later is smaller.
        at.redis.set(TOKEN, token - 1)
        assert at.delete() == 1
        assert at.newest_kept() == token

    @pytest.mark.parametrize("wrong", ["7", "text", "", str(2**53), str(2**63 - 1), "list"])
    def test_a_counter_that_is_none_of_ours(self, at: FencedScripts, wrong: str) -> None:
        if wrong == "list":
            at.redis.rpush(TOKEN, "1")
        else:
            at.redis.set(TOKEN, wrong)
        assert at.delete() == 1
        assert at.redis.keys() == []

    def test_a_free_lock_has_only_a_counter(self, at: FencedScripts, ear: PubSub) -> None:
        at.redis.set(TOKEN, 7)
        assert at.delete() == 1
        assert at.redis.keys() == []
        assert heard(ear) == []

    def test_out_of_memory(self, at: FencedScripts) -> None:
        at.acquire(YOU, 1, 30_000)
        with at.out_of_memory():
            assert at.delete() == 1
        assert at.newest_kept()

    def test_without_permission_on_the_channel(self, at: FencedScripts, ear: PubSub) -> None:
        at.acquire(YOU, 1, 30_000)
        with at.user("~*", "+@all", "resetchannels") as deaf:
            assert at.delete(redis=deaf) == 1
        assert at.newest_kept()
        assert heard(ear) == []


class TestWithoutAChannel:
    """What a spin lock sends: the lock's own scripts, which then publish nothing."""

    def test_a_release(self, at: FencedScripts, ear: PubSub) -> None:
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
        assert heard(ear) == []

    def test_by_force(self, at: FencedScripts, ear: PubSub) -> None:
        at.hold(YOU, 2, 30_000)
        assert at.release("lock_force_release", "") == 1
        assert at.redis.keys() == []
        assert at.release("lock_force_release", "") == 0
        assert heard(ear) == []


def test_a_replica_says_that_it_is_one(at: FencedScripts) -> None:
    [token] = at.acquire(ME, 1, 30_000)
    with at.replica() as redis:
        with pytest.raises(ResponseError, match="read only"):
            at.acquire(ME, 2, 30_000, redis=redis)
        with pytest.raises(ResponseError, match="read only"):
            at.delete(redis=redis)
    assert at.newest() == token
