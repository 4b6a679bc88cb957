"""The scripts that acquire permits of a semaphore and undo that: every branch, sent twice, and late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import published
from .semaphores import OTHER, SemaphoreScripts


@pytest.fixture
def scripts(server: Server, admin: Redis) -> SemaphoreScripts:
    return SemaphoreScripts(server, admin)


class TestAcquire:
    def test_enough(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 5)
        for _ in range(2):
            assert scripts.acquire(2, 3) == 3
            assert scripts.free() == "2"
            assert scripts.remembered() == "2 3"
        assert scripts.acquire(4, 2) == 2
        assert scripts.free() == "0"
        assert published(subscription) == []

    def test_too_few(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 2)
        for _ in range(2):
            assert scripts.acquire(2, 3) == -2
            assert scripts.free() == "2"
        # Not recorded: the same call may still acquire permits.
        assert scripts.remembered() is None
        assert scripts.acquire(2, 2) == 2

    @pytest.mark.parametrize("free", [None, 0, -3])
    @pytest.mark.parametrize("permits", [0, 1])
    def test_none(self, scripts: SemaphoreScripts, free: int | None, permits: int) -> None:
        if free is not None:
            scripts.redis.set("stock", free)
        for _ in range(2):
            assert scripts.acquire(2, permits) == (-(2**52) if free is None else 0)
        assert scripts.free() == (None if free is None else str(free))
        assert scripts.remembered() is None

    def test_all(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 7)
        for _ in range(2):
            assert scripts.acquire(2, 0) == 7
            assert scripts.free() == "0"
        assert scripts.acquire(4, 0) == 0

    def test_the_end_of_the_semaphore_stays(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 7, px=50_000)
        assert scripts.acquire(2, 3) == 3
        assert scripts.acquire(4, 0) == 4
        assert 45_000 < scripts.left() <= 50_000

    def test_session_slots_are_independent(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        assert scripts.acquire(8, 2) == 2
        assert scripts.acquire(2, 1, slot=OTHER) == 1
        assert scripts.free() == "2"

    def test_late_and_after_a_newer_call(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        assert scripts.acquire(4, 1) == 1
        scripts.acquire(2, 3)
        assert scripts.free() == "4"
        assert scripts.remembered() == "4 1"

    def test_late_and_after_a_newer_release(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        scripts.add(10, 1)
        scripts.acquire(9, 3)
        assert scripts.free() == "6"

    def test_numbers_are_numbers(self, scripts: SemaphoreScripts) -> None:
        """Call numbers are compared as numbers: as texts "10" would come before "9". No exponent is written."""
        scripts.redis.set("stock", 5)
        assert scripts.acquire(9, 1) == 1
        assert scripts.acquire(10, 1) == 1
        assert scripts.acquire(2 * 10**15, 1) == 1
        assert scripts.acquire(2 * 10**15 + 2, 1) == 1
        assert scripts.free() == "1"
        assert scripts.remembered() == "2000000000000002 1"

    def test_many_permits(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 2**53 - 1)
        assert scripts.acquire(2, 2**31 - 1) == 2**31 - 1
        assert scripts.free() == str(2**53 - 2**31)
        assert scripts.acquire(4, 0) == 2**53 - 2**31
        assert scripts.free() == "0"
        assert scripts.undo(4) == 2**53 - 2**31
        assert scripts.free() == str(2**53 - 2**31)

    @pytest.mark.parametrize("make", [("HSET", "stock", "me", "1"), ("SET", "stock", "text")])
    def test_another_type(self, scripts: SemaphoreScripts, make: tuple[str, ...]) -> None:
        scripts.redis.execute_command(*make)
        before = scripts.redis.dump("stock")
        for call in (scripts.acquire, scripts.add):
            with pytest.raises(ResponseError):
                call(2, 1)
        assert scripts.redis.dump("stock") == before


class TestUndo:
    def test_of_acquired_permits(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 5, px=50_000)
        scripts.acquire(2, 3)
        assert scripts.undo(2) == 3
        assert scripts.undo(2) == 0
        assert scripts.free() == "5"
        assert scripts.left() > 45_000
        assert scripts.remembered() == "3 0"
        assert published(subscription) == [b"5"]

    def test_of_all(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        scripts.acquire(2, 0)
        assert scripts.undo(2) == 5
        assert scripts.free() == "5"

    def test_before_the_acquire(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 5)
        scripts.acquire(2, 1)
        for _ in range(2):
            assert scripts.undo(4) == 0
            assert scripts.acquire(4, 3) == 0
        assert scripts.free() == "4"
        assert scripts.remembered() == "5 0"
        assert published(subscription) == []

    def test_of_an_acquire_that_got_nothing(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        """The copy that found too few was not the last one: permits came, and with them a late copy."""
        scripts.redis.set("stock", 2)
        assert scripts.acquire(2, 3) == -2
        scripts.redis.incrby("stock", 3)
        assert scripts.acquire(2, 3) == 3
        assert scripts.undo(2) == 3
        assert scripts.acquire(2, 3) == 0
        assert scripts.free() == "5"
        assert published(subscription) == [b"5"]

    def test_late_and_after_a_newer_call(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        scripts.acquire(2, 3)
        scripts.undo(2)
        scripts.acquire(4, 1)
        assert scripts.undo(2) == 1
        assert scripts.free() == "4"
        assert scripts.remembered() == "4 1"

    def test_below_zero_it_wakes_nobody(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 3)
        scripts.acquire(2, 3)
        scripts.add(2, -5, slot=OTHER)
        assert scripts.undo(2) == 3
        assert scripts.free() == "-2"
        assert published(subscription) == []

    def test_of_a_semaphore_that_is_gone(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 5)
        scripts.acquire(2, 3)
        scripts.redis.delete("stock")
        assert scripts.undo(2) == 0
        assert scripts.free() is None
        assert published(subscription) == []

    def test_on_a_new_server(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        scripts.acquire(2, 3)
        scripts.redis.flushall()
        scripts.redis.set("stock", 5)
        assert scripts.undo(2) == 0
        assert scripts.acquire(2, 3) == 0
        assert scripts.free() == "5"


class TestServers:
    """What servers refuse, and what must go on all the same."""

    def test_out_of_memory(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        scripts.acquire(2, 3)
        with scripts.out_of_memory():
            for call in (scripts.acquire, scripts.make):
                with pytest.raises(ResponseError, match="maxmemory"):
                    call(2, 1, slot=OTHER)
            if scripts.with_shebang:
                # Older servers don't know the flag of a script whose writes free more memory than they take.
                assert scripts.undo(2) == 3
                assert scripts.add(2, 1, slot=OTHER) == 1
                assert scripts.free() == "6"
                assert scripts.delete(4, slot=OTHER) == 1

    def test_without_permission_on_the_channel(self, scripts: SemaphoreScripts, subscription: PubSub) -> None:
        with scripts.user("~*", "+@all", "resetchannels") as deaf:
            assert scripts.make(2, 5, redis=deaf) == 1
            assert scripts.acquire(4, 2, redis=deaf) == 2
            assert scripts.undo(4, redis=deaf) == 2
            # How many clients have heard of it isn't known.
            assert scripts.add(6, 1, redis=deaf) == 3
            assert scripts.free() == "6"
            assert scripts.delete(8, message="1", redis=deaf) == 1
        assert published(subscription) == []

    def test_without_permission_to_remember(self, scripts: SemaphoreScripts) -> None:
        """What can't be remembered isn't done: a repeated call would do it twice."""
        scripts.redis.set("stock", 5)
        with scripts.user("~*", "&*", "+@all", "-set") as forgetful:
            calls: list[Callable[[], Any]] = [
                lambda: scripts.acquire(2, 1, redis=forgetful),
                lambda: scripts.add(2, 1, redis=forgetful),
                lambda: scripts.delete(2, redis=forgetful),
            ]
            for call in calls:
                with pytest.raises(ResponseError, match=r"permission|can't run"):
                    call()
        assert scripts.free() == "5"

    def test_a_replica_says_that_it_is_one(self, scripts: SemaphoreScripts) -> None:
        scripts.redis.set("stock", 5)
        with scripts.replica() as redis:
            calls: list[Callable[[], Any]] = [
                lambda: scripts.acquire(2, 1, redis=redis),
                lambda: scripts.undo(2, redis=redis),
                lambda: scripts.add(2, 1, redis=redis),
                lambda: scripts.make(2, 1, redis=redis),
                lambda: scripts.delete(2, redis=redis),
            ]
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
        assert scripts.free() == "5"
