"""Each script of the count-down latch on real servers, old and new: every branch, sent twice, and late."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import Scripted, published

SLOT, OTHER = "pyredisson_once:{done}:me:0", "pyredisson_once:{done}:me:1"


class LatchScripts(Scripted):
    channel = "redisson_countdownlatch__channel__{done}"

    def set(self, number: int, count: int, slot: str = SLOT, redis: Any = None) -> Any:
        return self.run("latch_set", ["done", slot], number, count, self.channel, redis=redis)

    def count_down(self, number: int, slot: str = SLOT, redis: Any = None) -> Any:
        return self.run("latch_count_down", ["done", slot], number, self.channel, redis=redis)

    def delete(self, number: int, slot: str = SLOT, redis: Any = None) -> Any:
        return self.run("exactly_once_delete", ["done", slot], number, self.channel, "1", redis=redis)

    def count(self) -> str | None:
        """The count, as Redisson reads it."""
        return self.text("done")


@pytest.fixture
def scripts(server: Server, admin: Redis) -> LatchScripts:
    return LatchScripts(server, admin)


class TestSet:
    @pytest.mark.parametrize("before", [None, 0, -2])
    def test_an_open_latch(self, scripts: LatchScripts, subscription: PubSub, before: int | None) -> None:
        if before is not None:
            scripts.redis.set("done", before)
        for _ in range(2):
            assert scripts.set(2, 3) == 1
            assert scripts.count() == "3"
            assert scripts.redis.pttl("done") == -1
        assert 650_000 < scripts.redis.pttl(SLOT) <= 660_000
        # The message makes Redisson's clients wait for the new count.
        assert published(subscription) == [b"1"]

    def test_one_that_counts(self, scripts: LatchScripts, subscription: PubSub) -> None:
        scripts.redis.set("done", 2)
        assert scripts.set(2, 3) == 0
        assert scripts.count() == "2"
        scripts.redis.delete("done")
        assert scripts.set(2, 3) == 0
        assert scripts.count() is None
        assert published(subscription) == []

    def test_late_and_after_a_newer_call(self, scripts: LatchScripts) -> None:
        scripts.set(4, 3)
        scripts.redis.delete("done")
        scripts.set(2, 5)
        assert scripts.count() is None

    def test_the_largest_count(self, scripts: LatchScripts, subscription: PubSub) -> None:
        assert scripts.set(2, 2**63 - 1) == 1
        assert scripts.count_down(4) == 0
        assert scripts.count() == str(2**63 - 2)
        assert published(subscription) == [b"1"]


class TestCountDown:
    def test_to_one(self, scripts: LatchScripts, subscription: PubSub) -> None:
        scripts.redis.set("done", 3)
        for _ in range(2):
            assert scripts.count_down(2) == 0
            assert scripts.count() == "2"
        for _ in range(2):
            assert scripts.count_down(4) == 0
            assert scripts.count() == "1"
        assert published(subscription) == []

    def test_to_zero(self, scripts: LatchScripts, subscription: PubSub) -> None:
        scripts.redis.set("done", 1)
        for _ in range(2):
            assert scripts.count_down(2) == 1
            assert scripts.count() is None
        assert published(subscription) == [b"0"]

    @pytest.mark.parametrize("before", [None, 0, -2])
    def test_an_open_latch(self, scripts: LatchScripts, subscription: PubSub, before: int | None) -> None:
        if before is not None:
            scripts.redis.set("done", before)
        assert scripts.count_down(2) == 0
        assert scripts.count() is None
        # A copy doesn't count the next latch down either.
        scripts.redis.set("done", 2)
        assert scripts.count_down(2) == 0
        assert scripts.count() == "2"
        assert published(subscription) == []

    def test_two_session_slots(self, scripts: LatchScripts) -> None:
        scripts.redis.set("done", 3)
        scripts.count_down(6)
        scripts.count_down(2, slot=OTHER)
        assert scripts.count() == "1"

    def test_late_and_after_a_newer_call(self, scripts: LatchScripts) -> None:
        scripts.redis.set("done", 3)
        scripts.count_down(4)
        scripts.count_down(2)
        assert scripts.count() == "2"

    def test_another_type(self, scripts: LatchScripts) -> None:
        scripts.redis.hset("done", "me", 1)
        for call in (scripts.count_down, lambda number: scripts.set(number, 3)):
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                call(2)
        assert scripts.redis.hgetall("done") == {b"me": b"1"}


class TestDelete:
    def test_one_that_counts(self, scripts: LatchScripts, subscription: PubSub) -> None:
        scripts.redis.set("done", 3)
        for _ in range(2):
            assert scripts.delete(2) == 1
            assert scripts.count() is None
        assert published(subscription) == [b"1"]

    def test_one_that_is_not_there(self, scripts: LatchScripts, subscription: PubSub) -> None:
        assert scripts.delete(2) == 0
        assert published(subscription) == []


class TestServers:
    def test_out_of_memory(self, scripts: LatchScripts) -> None:
        scripts.redis.set("done", 2)
        with scripts.out_of_memory():
            if scripts.with_shebang:
                # Older servers don't know the flag of a script whose writes free more memory than they take.
                assert scripts.count_down(2) == 0
                assert scripts.count_down(4) == 1
            else:
                with pytest.raises(ResponseError, match="maxmemory"):
                    scripts.count_down(2)
            with pytest.raises(ResponseError, match="maxmemory"):
                scripts.set(6, 3)

    def test_without_permission_on_the_channel(self, scripts: LatchScripts, subscription: PubSub) -> None:
        with scripts.user("~*", "+@all", "resetchannels") as deaf:
            assert scripts.set(2, 1, redis=deaf) == 1
            assert scripts.count_down(4, redis=deaf) == 1
            assert scripts.count() is None
        assert published(subscription) == []

    def test_without_permission_to_remember(self, scripts: LatchScripts) -> None:
        scripts.redis.set("done", 2)
        with scripts.user("~*", "&*", "+@all", "-set") as forgetful:
            for _ in range(2):
                with pytest.raises(ResponseError, match=r"permission|can't run"):
                    scripts.count_down(2, redis=forgetful)
        assert scripts.count() == "2"
