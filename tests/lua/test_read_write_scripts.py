"""Both sides of the read-write lock on servers old and new: by force, beside Java, and what servers refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .read_write import CLAIM, MY_WRITE, TURN, YOUR_WRITE, ReadWriteScripts, lease_key, near
from .scripted import ME, YOU, heard


@pytest.fixture
def at(server: Server, admin: Redis) -> ReadWriteScripts:
    return ReadWriteScripts(server, admin)


class TestForce:
    @pytest.mark.parametrize(("side", "payload"), [("read", b"0"), ("write", b"1")])
    def test_whoever_holds_it(self, at: ReadWriteScripts, ear: PubSub, side: str, payload: bytes) -> None:
        for number in range(2):
            at.redis.flushall()
            if side == "read":
                at.reading(YOU, 20_000)
            else:
                at.writing(YOU, 1, 20_000)
            if number:
                at.redis.hset("orders", ME, 1)
            assert at.force("write" if side == "read" else "read") == 0
            assert at.state()["mode"] == side
            assert at.force(side) == 1
            assert not at.redis.exists("orders")
            assert at.force(side) == 0
        assert heard(ear) == [payload, payload]

    @pytest.mark.parametrize("side", ["read", "write"])
    def test_a_lock_of_another_kind(self, at: ReadWriteScripts, side: str) -> None:
        at.redis.hset("orders", YOU, 1)
        assert at.force(side) == 0
        assert at.state() == {YOU: "1"}


class TestBesideJava:
    """Java's steps, on what we left, and ours on what it left."""

    def test_its_unlock_leaves_us_in(self, at: ReadWriteScripts) -> None:
        assert at.read(ME, 1, 10_000) is None
        assert at.read(ME, 2, 50_000) is None
        at.reading(YOU, 60_000)
        assert at.java_read_unlock(YOU) == 0
        assert at.state() == {"mode": "read", ME: "2"}
        assert near(at.left(), 50_000)
        assert near(at.write(YOUR_WRITE, 1, 30_000), 50_000)

    def test_its_unlock_after_a_partial_one_of_ours(self, at: ReadWriteScripts) -> None:
        """We believe in the longest lease of nested holds: it must stand where Java looks for it."""
        assert at.read(ME, 1, 10_000) is None
        assert at.read(ME, 2, 50_000) is None
        assert at.read_release(ME, 1) == 0
        at.reading(YOU, 60_000)
        assert at.java_read_unlock(YOU) == 0
        assert near(at.left(), 50_000)

    def test_its_own_unlocks_of_holds_like_ours(self, at: ReadWriteScripts, ear: PubSub) -> None:
        for hold in (1, 2):
            assert at.read(ME, hold, 30_000) is None
        assert at.java_read_unlock(ME) == 0
        assert at.java_read_unlock(ME) == 1
        assert at.redis.keys() == []
        for hold in (1, 2):
            assert at.write(MY_WRITE, hold, 30_000) is None
        assert at.read(ME, 1, 30_000) is None
        assert at.java_write_unlock(MY_WRITE) == 0
        assert at.java_write_unlock(MY_WRITE) == 1
        assert at.state() == {"mode": "read", ME: "1"}
        assert at.java_read_unlock(ME) == 1
        assert at.redis.keys() == []
        assert heard(ear) == [b"0", b"0"]

    def test_our_unlock_leaves_it_in(self, at: ReadWriteScripts) -> None:
        assert at.read(ME, 1, 60_000) is None
        at.reading(YOU, 30_000)
        assert at.read_release(ME, 0) == 0
        assert at.java_read_unlock(YOU) == 1
        assert at.redis.keys() == []

    def test_its_renewal_shortens_the_lock_and_ours_mends_that(self, at: ReadWriteScripts) -> None:
        assert at.read(ME, 1, 60_000) is None
        at.reading(YOU, 30_000)
        at.redis.pexpire("orders", 3_000)
        assert at.renew(("orders", ME, 0)) == [1]
        at.redis.delete(lease_key(YOU, 1))
        assert near(at.left(), 60_000)


class TestServers:
    """What servers refuse, and what must go on all the same."""

    def test_out_of_memory(self, at: ReadWriteScripts) -> None:
        at.reading(ME, 10_000, 20_000)
        at.reading(YOU, 10_000)
        with at.out_of_memory():
            if at.flags:
                # Older servers can't be told that these writes free more than they take.
                assert at.renew(("orders", ME, 30_000)) == [1]
                assert near(at.left(), 30_000)
                assert at.read_release(ME, 1) == 0
            assert at.renew(("orders", ME, 0)) == [1]
            assert at.read_release(ME, 0) == 0
            assert at.read_release(YOU, 0) == 1
            with pytest.raises(ResponseError, match="maxmemory"):
                at.read(ME, 1, 30_000)
            with pytest.raises(ResponseError, match="maxmemory"):
                at.write(MY_WRITE, 1, 30_000)
        assert at.redis.keys() == []

    def test_out_of_memory_while_writing(self, at: ReadWriteScripts) -> None:
        at.writing(ME, 1, 10_000)
        at.reading(ME, 10_000)
        at.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        with at.out_of_memory():
            assert at.read_locked() == 1
            assert at.give_up(YOU) == 1
            if at.flags:
                assert at.write_release(MY_WRITE, 0) == 1
                assert at.force("read") == 1
            else:
                assert at.read_release(ME, 0) == 0
                assert at.write_release(MY_WRITE, 0) == 1
        assert not at.redis.exists("orders")

    def test_without_permission_on_the_channel(self, at: ReadWriteScripts, ear: PubSub) -> None:
        rights = ("~orders", "~{orders*", f"~{CLAIM}", f"~{TURN}", "+@all", "resetchannels")
        with at.user(*rights) as deaf:
            assert at.read(ME, 1, 30_000, redis=deaf) is None
            assert at.write(YOUR_WRITE, 1, 30_000, waits=True, redis=deaf) == 1_000
            assert at.give_up(YOU, redis=deaf) == 1
            assert at.read_release(ME, 0, redis=deaf) == 1
            assert at.write(MY_WRITE, 1, 30_000, redis=deaf) is None
            assert at.write_release(MY_WRITE, 0, redis=deaf) == 1
            at.reading(YOU, 30_000)
            assert at.force("read", redis=deaf) == 1
        assert heard(ear) == []

    def test_a_replica_says_that_it_is_one(self, at: ReadWriteScripts) -> None:
        at.reading(ME, 30_000)
        with at.replica() as redis:
            calls: list[Callable[[], Any]] = [
                lambda: at.read(ME, 2, 60_000, redis=redis),
                lambda: at.read_release(ME, 0, redis=redis),
                lambda: at.renew(("orders", ME, 60_000), redis=redis),
                lambda: at.write(YOUR_WRITE, 1, 60_000, waits=True, redis=redis),
                lambda: at.force("read", redis=redis),
            ]
            if at.flags:
                # Also where the script would only have read: what a replica knows may be long over.
                calls.append(lambda: at.write(YOUR_WRITE, 1, 30_000, redis=redis))
                calls.append(lambda: at.write_release(MY_WRITE, 0, redis=redis))
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
        assert at.state() == {"mode": "read", ME: "1"}
