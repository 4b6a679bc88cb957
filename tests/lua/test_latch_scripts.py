"""Each script of the count-down latch on real servers, old and new: every branch, sent twice, and late."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import Scripted, heard

LANE, OTHER = "pyredisson_once:{done}:me:0", "pyredisson_once:{done}:me:1"


class LatchScripts(Scripted):
    channel = "redisson_countdownlatch__channel__{done}"

    def set(self, number: int, count: int, lane: str = LANE, redis: Any = None) -> Any:
        return self.run("latch_set", ["done", lane], number, count, self.channel, redis=redis)

    def count_down(self, number: int, lane: str = LANE, redis: Any = None) -> Any:
        return self.run("latch_count_down", ["done", lane], number, self.channel, redis=redis)

    def delete(self, number: int, lane: str = LANE, redis: Any = None) -> Any:
        return self.run("once_delete", ["done", lane], number, self.channel, "1", redis=redis)

    def count(self) -> str | None:
        """The count, as Redisson reads it."""
        return self.text("done")


@pytest.fixture
def at(server: Server, admin: Redis) -> LatchScripts:
    return LatchScripts(server, admin)


class TestSet:
    @pytest.mark.parametrize("before", [None, 0, -2])
    def test_an_open_latch(self, at: LatchScripts, ear: PubSub, before: int | None) -> None:
        if before is not None:
            at.redis.set("done", before)
        for _ in range(2):
            assert at.set(2, 3) == 1
            assert at.count() == "3"
            assert at.redis.pttl("done") == -1
        assert 650_000 < at.redis.pttl(LANE) <= 660_000
        # Redisson's waiters close the gate before anyone waits for the new count.
        assert heard(ear) == [b"1"]

    def test_one_that_counts(self, at: LatchScripts, ear: PubSub) -> None:
        at.redis.set("done", 2)
        assert at.set(2, 3) == 0
        assert at.count() == "2"
        at.redis.delete("done")
        assert at.set(2, 3) == 0
        assert at.count() is None
        assert heard(ear) == []

    def test_late_and_after_a_newer_call(self, at: LatchScripts) -> None:
        at.set(4, 3)
        at.redis.delete("done")
        at.set(2, 5)
        assert at.count() is None

    def test_the_largest_count(self, at: LatchScripts, ear: PubSub) -> None:
        assert at.set(2, 2**63 - 1) == 1
        assert at.count_down(4) == 0
        assert at.count() == str(2**63 - 2)
        assert heard(ear) == [b"1"]


class TestCountDown:
    def test_to_one(self, at: LatchScripts, ear: PubSub) -> None:
        at.redis.set("done", 3)
        for _ in range(2):
            assert at.count_down(2) == 0
            assert at.count() == "2"
        for _ in range(2):
            assert at.count_down(4) == 0
            assert at.count() == "1"
        assert heard(ear) == []

    def test_to_zero(self, at: LatchScripts, ear: PubSub) -> None:
        at.redis.set("done", 1)
        for _ in range(2):
            assert at.count_down(2) == 1
            assert at.count() is None
        assert heard(ear) == [b"0"]

    @pytest.mark.parametrize("before", [None, 0, -2])
    def test_an_open_latch(self, at: LatchScripts, ear: PubSub, before: int | None) -> None:
        if before is not None:
            at.redis.set("done", before)
        assert at.count_down(2) == 0
        assert at.count() is None
        # Nor does a copy count the next one down.
        at.redis.set("done", 2)
        assert at.count_down(2) == 0
        assert at.count() == "2"
        assert heard(ear) == []

    def test_two_lanes(self, at: LatchScripts) -> None:
        at.redis.set("done", 3)
        at.count_down(6)
        at.count_down(2, lane=OTHER)
        assert at.count() == "1"

    def test_late_and_after_a_newer_call(self, at: LatchScripts) -> None:
        at.redis.set("done", 3)
        at.count_down(4)
        at.count_down(2)
        assert at.count() == "2"

    def test_another_type(self, at: LatchScripts) -> None:
        at.redis.hset("done", "me", 1)
        for call in (at.count_down, lambda number: at.set(number, 3)):
            with pytest.raises(ResponseError, match="WRONGTYPE"):
                call(2)
        assert at.redis.hgetall("done") == {b"me": b"1"}


class TestDelete:
    def test_one_that_counts(self, at: LatchScripts, ear: PubSub) -> None:
        at.redis.set("done", 3)
        for _ in range(2):
            assert at.delete(2) == 1
            assert at.count() is None
        assert heard(ear) == [b"1"]

    def test_one_that_is_not_there(self, at: LatchScripts, ear: PubSub) -> None:
        assert at.delete(2) == 0
        assert heard(ear) == []


class TestServers:
    def test_out_of_memory(self, at: LatchScripts) -> None:
        at.redis.set("done", 2)
        with at.out_of_memory():
            if at.flags:
                # Older servers can't be told that these free more than they take.
                assert at.count_down(2) == 0
                assert at.count_down(4) == 1
            else:
                with pytest.raises(ResponseError, match="maxmemory"):
                    at.count_down(2)
            with pytest.raises(ResponseError, match="maxmemory"):
                at.set(6, 3)

    def test_without_permission_on_the_channel(self, at: LatchScripts, ear: PubSub) -> None:
        with at.user("~*", "+@all", "resetchannels") as deaf:
            assert at.set(2, 1, redis=deaf) == 1
            assert at.count_down(4, redis=deaf) == 1
            assert at.count() is None
        assert heard(ear) == []

    def test_without_permission_to_remember(self, at: LatchScripts) -> None:
        at.redis.set("done", 2)
        with at.user("~*", "&*", "+@all", "-set") as forgetful:
            for _ in range(2):
                with pytest.raises(ResponseError, match=r"permission|can't run"):
                    at.count_down(2, redis=forgetful)
        assert at.count() == "2"
