"""Each script of the semaphore on real servers, old and new: every branch, sent twice, late, and undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import Scripted, heard

CLAIM, TURN = "pyredisson_semaphore_claim:{stock}", "pyredisson_semaphore_turn:{stock}"
LANE, OTHER = "pyredisson_once:{stock}:me:0", "pyredisson_once:{stock}:me:1"


class SemaphoreScripts(Scripted):
    channel = "redisson_sc:{stock}"

    def acquire(self, number: int, permits: int, lane: str = LANE, redis: Any = None) -> Any:
        return self.run("semaphore_acquire", ["stock", CLAIM, lane], number, permits, redis=redis)

    def add(self, number: int, permits: int, existing: int = 0, lane: str = LANE, redis: Any = None) -> Any:
        return self.run("semaphore_add", ["stock", lane], number, permits, self.channel, existing, redis=redis)

    def make(self, number: int, permits: int, ttl: int = 0, lane: str = LANE, redis: Any = None) -> Any:
        return self.run("semaphore_set", ["stock", lane], number, permits, ttl, self.channel, redis=redis)

    def undo(self, number: int, lane: str = LANE, redis: Any = None) -> Any:
        """Of the acquire of that number."""
        return self.run("semaphore_undo", ["stock", lane], number + 1, self.channel, redis=redis)

    def delete(self, number: int, *more: str, message: str = "", lane: str = LANE, redis: Any = None) -> Any:
        return self.run("once_delete", ["stock", *more, lane], number, self.channel, message, redis=redis)

    def free(self) -> str | None:
        """The free permits, as Redisson reads them."""
        return self.text("stock")

    def left(self, key: str = "stock") -> int:
        return int(self.redis.pttl(key))

    def remembered(self, lane: str = LANE) -> str | None:
        found = self.text(lane)
        assert found is None or 650_000 < self.left(lane) <= 660_000
        return found


@pytest.fixture
def at(server: Server, admin: Redis) -> SemaphoreScripts:
    return SemaphoreScripts(server, admin)


class TestAcquire:
    def test_enough(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.set("stock", 5)
        for _ in range(2):
            assert at.acquire(2, 3) == 3
            assert at.free() == "2"
            assert at.remembered() == "2 3"
        assert at.acquire(4, 2) == 2
        assert at.free() == "0"
        assert heard(ear) == []

    def test_too_few(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 2)
        for _ in range(2):
            assert at.acquire(2, 3) == -2
            assert at.free() == "2"
        # Not remembered: the same call may still be had.
        assert at.remembered() is None
        assert at.acquire(2, 2) == 2

    @pytest.mark.parametrize("free", [None, 0, -3])
    @pytest.mark.parametrize("permits", [0, 1])
    def test_none(self, at: SemaphoreScripts, free: int | None, permits: int) -> None:
        if free is not None:
            at.redis.set("stock", free)
        for _ in range(2):
            assert at.acquire(2, permits) == (-(2**52) if free is None else 0)
        assert at.free() == (None if free is None else str(free))
        assert at.remembered() is None

    def test_all(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 7)
        for _ in range(2):
            assert at.acquire(2, 0) == 7
            assert at.free() == "0"
        assert at.acquire(4, 0) == 0

    def test_the_end_of_the_semaphore_stays(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 7, px=50_000)
        assert at.acquire(2, 3) == 3
        assert at.acquire(4, 0) == 4
        assert 45_000 < at.left() <= 50_000

    def test_lanes_know_nothing_of_each_other(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 5)
        assert at.acquire(8, 2) == 2
        assert at.acquire(2, 1, lane=OTHER) == 1
        assert at.free() == "2"

    def test_late_and_after_a_newer_call(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 5)
        assert at.acquire(4, 1) == 1
        at.acquire(2, 3)
        assert at.free() == "4"
        assert at.remembered() == "4 1"

    def test_late_and_after_a_newer_release(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 5)
        at.add(10, 1)
        at.acquire(9, 3)
        assert at.free() == "6"

    def test_numbers_are_numbers(self, at: SemaphoreScripts) -> None:
        """Not texts, of which "10" comes before "9"; nor such as are written with an exponent."""
        at.redis.set("stock", 5)
        assert at.acquire(9, 1) == 1
        assert at.acquire(10, 1) == 1
        assert at.acquire(2 * 10**15, 1) == 1
        assert at.acquire(2 * 10**15 + 2, 1) == 1
        assert at.free() == "1"
        assert at.remembered() == "2000000000000002 1"

    def test_many_permits(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 2**53 - 1)
        assert at.acquire(2, 2**31 - 1) == 2**31 - 1
        assert at.free() == str(2**53 - 2**31)
        assert at.acquire(4, 0) == 2**53 - 2**31
        assert at.free() == "0"
        assert at.undo(4) == 2**53 - 2**31
        assert at.free() == str(2**53 - 2**31)

    @pytest.mark.parametrize("make", [("HSET", "stock", "me", "1"), ("SET", "stock", "text")])
    def test_another_type(self, at: SemaphoreScripts, make: tuple[str, ...]) -> None:
        at.redis.execute_command(*make)
        before = at.redis.dump("stock")
        for call in (at.acquire, at.add):
            with pytest.raises(ResponseError):
                call(2, 1)
        assert at.redis.dump("stock") == before


class TestUndo:
    def test_of_what_was_taken(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.set("stock", 5, px=50_000)
        at.acquire(2, 3)
        assert at.undo(2) == 3
        assert at.undo(2) == 0
        assert at.free() == "5"
        assert at.left() > 45_000
        assert at.remembered() == "3 0"
        assert heard(ear) == [b"5"]

    def test_of_all(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 5)
        at.acquire(2, 0)
        assert at.undo(2) == 5
        assert at.free() == "5"

    def test_before_the_acquire(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.set("stock", 5)
        at.acquire(2, 1)
        for _ in range(2):
            assert at.undo(4) == 0
            assert at.acquire(4, 3) == 0
        assert at.free() == "4"
        assert at.remembered() == "5 0"
        assert heard(ear) == []

    def test_of_what_was_not_had(self, at: SemaphoreScripts, ear: PubSub) -> None:
        """The copy that found too few was not the last one: permits came, and with them a late copy."""
        at.redis.set("stock", 2)
        assert at.acquire(2, 3) == -2
        at.redis.incrby("stock", 3)
        assert at.acquire(2, 3) == 3
        assert at.undo(2) == 3
        assert at.acquire(2, 3) == 0
        assert at.free() == "5"
        assert heard(ear) == [b"5"]

    def test_late_and_after_a_newer_call(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 5)
        at.acquire(2, 3)
        at.undo(2)
        at.acquire(4, 1)
        assert at.undo(2) == 1
        assert at.free() == "4"
        assert at.remembered() == "4 1"

    def test_below_zero_it_wakes_nobody(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.set("stock", 3)
        at.acquire(2, 3)
        at.add(2, -5, lane=OTHER)
        assert at.undo(2) == 3
        assert at.free() == "-2"
        assert heard(ear) == []

    def test_of_a_semaphore_that_is_gone(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.set("stock", 5)
        at.acquire(2, 3)
        at.redis.delete("stock")
        assert at.undo(2) == 0
        assert at.free() is None
        assert heard(ear) == []

    def test_on_a_new_server(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 5)
        at.acquire(2, 3)
        at.redis.flushall()
        at.redis.set("stock", 5)
        assert at.undo(2) == 0
        assert at.acquire(2, 3) == 0
        assert at.free() == "5"


class TestAdd:
    def test_a_release(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.set("stock", 1, px=50_000)
        for _ in range(2):
            assert at.add(2, 2) == 1
            assert at.free() == "3"
        assert at.left() > 45_000
        assert at.remembered() == "2 1"
        assert heard(ear) == [b"3"]

    def test_where_there_is_no_semaphore(self, at: SemaphoreScripts, ear: PubSub) -> None:
        for _ in range(2):
            assert at.add(2, 2) == 1
            assert (at.free(), at.left()) == ("2", -1)
        assert heard(ear) == [b"2"]

    def test_only_an_existing_one(self, at: SemaphoreScripts, ear: PubSub) -> None:
        assert at.add(2, 2, existing=1) == 0
        assert at.free() is None
        # Also when there is one by the time that a copy comes.
        at.redis.set("stock", 1)
        assert at.add(2, 2, existing=1) == 0
        assert at.free() == "1"
        for _ in range(2):
            assert at.add(4, 2, existing=1) == 1
            assert at.free() == "3"
        assert heard(ear) == [b"3"]

    def test_fewer(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.set("stock", 5)
        for _ in range(2):
            assert at.add(2, -2) == 1
            assert at.free() == "3"
        assert at.add(4, -7) == 1
        assert at.free() == "-4"
        assert heard(ear) == []

    def test_out_of_the_red(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.set("stock", -4)
        at.add(2, 3)
        at.add(4, 1)
        assert heard(ear) == []
        at.add(6, 2)
        assert at.free() == "2"
        assert heard(ear) == [b"2"]

    def test_late_and_after_a_newer_call(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 5)
        at.add(4, 1)
        at.add(2, 1)
        assert at.free() == "6"

    def test_more_than_the_server_can_count(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 2**63 - 2)
        with pytest.raises(ResponseError, match="overflow"):
            at.add(2, 5)
        # And so it stays, however often it is repeated.
        assert at.add(2, 5) == 1
        assert at.free() == str(2**63 - 2)


class TestSet:
    def test_where_there_is_none(self, at: SemaphoreScripts, ear: PubSub) -> None:
        for _ in range(2):
            assert at.make(2, 5) == 1
            assert (at.free(), at.left()) == ("5", -1)
        assert heard(ear) == [b"5"]

    def test_with_an_end(self, at: SemaphoreScripts, ear: PubSub) -> None:
        assert at.make(2, 5, ttl=40_000) == 1
        assert at.free() == "5"
        assert 35_000 < at.left() <= 40_000
        assert heard(ear) == [b"5"]

    def test_without_permits(self, at: SemaphoreScripts, ear: PubSub) -> None:
        assert at.make(2, 0) == 1
        assert at.free() == "0"
        assert heard(ear) == []

    @pytest.mark.parametrize("free", [3, 0, -1])
    def test_where_there_is_one(self, at: SemaphoreScripts, ear: PubSub, free: int) -> None:
        at.redis.set("stock", free)
        assert at.make(2, 5) == 0
        assert at.free() == str(free)
        # Nor does a copy make one that comes when it is gone.
        at.redis.delete("stock")
        assert at.make(2, 5) == 0
        assert at.free() is None
        assert heard(ear) == []

    def test_a_copy_of_the_one_that_made_it(self, at: SemaphoreScripts) -> None:
        at.make(2, 5)
        at.acquire(2, 3, lane=OTHER)
        assert at.make(2, 5) == 1
        assert at.free() == "2"
        at.redis.delete("stock")
        assert at.make(2, 5) == 1
        assert at.free() is None


class TestDelete:
    def test_a_semaphore(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.set("stock", 3)
        for _ in range(2):
            assert at.delete(2) == 1
            assert at.free() is None
        assert at.delete(4) == 0
        assert heard(ear) == []

    def test_all_its_keys(self, at: SemaphoreScripts, ear: PubSub) -> None:
        at.redis.mset({"stock": 3, "{stock}:timeout": 1})
        assert at.delete(2, "{stock}:timeout", message="1") == 1
        assert at.redis.keys() == [LANE.encode()]
        at.redis.set("{stock}:timeout", 1)
        assert at.delete(4, "{stock}:timeout", message="1") == 0
        assert at.redis.keys() == [LANE.encode()]
        assert heard(ear) == [b"1"]

    def test_a_copy_spares_the_next_one(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 3)
        at.delete(2)
        at.redis.set("stock", 4)
        assert at.delete(2) == 1
        assert at.free() == "4"


class TestServers:
    """What servers refuse, and what must go on all the same."""

    def test_out_of_memory(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 5)
        at.acquire(2, 3)
        with at.out_of_memory():
            for call in (at.acquire, at.make):
                with pytest.raises(ResponseError, match="maxmemory"):
                    call(2, 1, lane=OTHER)
            if at.flags:
                # Older servers can't be told that these free more than they take.
                assert at.undo(2) == 3
                assert at.add(2, 1, lane=OTHER) == 1
                assert at.free() == "6"
                assert at.delete(4, lane=OTHER) == 1

    def test_without_permission_on_the_channel(self, at: SemaphoreScripts, ear: PubSub) -> None:
        with at.user("~*", "+@all", "resetchannels") as deaf:
            assert at.make(2, 5, redis=deaf) == 1
            assert at.acquire(4, 2, redis=deaf) == 2
            assert at.undo(4, redis=deaf) == 2
            assert at.add(6, 1, redis=deaf) == 1
            assert at.free() == "6"
            assert at.delete(8, message="1", redis=deaf) == 1
        assert heard(ear) == []

    def test_without_permission_to_remember(self, at: SemaphoreScripts) -> None:
        """What can't be remembered isn't done: a repeated call would do it twice."""
        at.redis.set("stock", 5)
        with at.user("~*", "&*", "+@all", "-set") as forgetful:
            calls: list[Callable[[], Any]] = [
                lambda: at.acquire(2, 1, redis=forgetful),
                lambda: at.add(2, 1, redis=forgetful),
                lambda: at.delete(2, redis=forgetful),
            ]
            for call in calls:
                with pytest.raises(ResponseError, match=r"permission|can't run"):
                    call()
        assert at.free() == "5"

    def test_a_replica_says_that_it_is_one(self, at: SemaphoreScripts) -> None:
        at.redis.set("stock", 5)
        with at.replica() as redis:
            calls: list[Callable[[], Any]] = [
                lambda: at.acquire(2, 1, redis=redis),
                lambda: at.undo(2, redis=redis),
                lambda: at.add(2, 1, redis=redis),
                lambda: at.make(2, 1, redis=redis),
                lambda: at.delete(2, redis=redis),
            ]
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
        assert at.free() == "5"
