"""Both sides of the read-write lock on servers old and new: by force, beside Java, and what servers refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.logic.locks.read_write_lock import CLAIMED
from pyredisson.testing import Server

from .read_write import CLAIM, MY_WRITE, TURN, YOUR_WRITE, ReadWriteScripts, lease_key, near
from .scripted import ME, YOU, published


@pytest.fixture
def scripts(server: Server, admin: Redis) -> ReadWriteScripts:
    return ReadWriteScripts(server, admin)


class TestForce:
    @pytest.mark.parametrize(("side", "payload"), [("read", b"0"), ("write", b"1")])
    def test_whoever_holds_it(self, scripts: ReadWriteScripts, subscription: PubSub, side: str, payload: bytes) -> None:
        for number in range(2):
            scripts.redis.flushall()
            if side == "read":
                scripts.reading(YOU, 20_000)
            else:
                scripts.writing(YOU, 1, 20_000)
            if number:
                scripts.redis.hset("orders", ME, 1)
            assert scripts.force("write" if side == "read" else "read") == 0
            assert scripts.state()["mode"] == side
            assert scripts.force(side) == 1
            assert not scripts.redis.exists("orders")
            assert scripts.force(side) == 0
        assert published(subscription) == [payload, payload]

    @pytest.mark.parametrize("side", ["read", "write"])
    def test_a_lock_of_another_kind(self, scripts: ReadWriteScripts, side: str) -> None:
        scripts.redis.hset("orders", YOU, 1)
        assert scripts.force(side) == 0
        assert scripts.state() == {YOU: "1"}


class TestBesideJava:
    """Java's steps on keys that pyredisson wrote, and the other way round."""

    def test_its_unlock_leaves_us_in(self, scripts: ReadWriteScripts) -> None:
        assert scripts.read(ME, 1, 10_000) is None
        assert scripts.read(ME, 2, 50_000) is None
        scripts.reading(YOU, 60_000)
        assert scripts.java_read_unlock(YOU) == 0
        assert scripts.state() == {"mode": "read", ME: "2"}
        assert near(scripts.left(), 50_000)
        assert near(scripts.write(YOUR_WRITE, 1, 30_000), 50_000)

    def test_its_unlock_after_a_partial_one_of_ours(self, scripts: ReadWriteScripts) -> None:
        """This client relies on the longest lease of a hold's levels: it must be in the key that Java reads."""
        assert scripts.read(ME, 1, 10_000) is None
        assert scripts.read(ME, 2, 50_000) is None
        assert scripts.read_release(ME, 1) == 0
        scripts.reading(YOU, 60_000)
        assert scripts.java_read_unlock(YOU) == 0
        assert near(scripts.left(), 50_000)

    def test_its_own_unlocks_of_holds_like_ours(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        for hold in (1, 2):
            assert scripts.read(ME, hold, 30_000) is None
        assert scripts.java_read_unlock(ME) == 0
        assert scripts.java_read_unlock(ME) == 1
        assert scripts.redis.keys() == []
        for hold in (1, 2):
            assert scripts.write(MY_WRITE, hold, 30_000) is None
        assert scripts.read(ME, 1, 30_000) is None
        assert scripts.java_write_unlock(MY_WRITE) == 0
        assert scripts.java_write_unlock(MY_WRITE) == 1
        assert scripts.state() == {"mode": "read", ME: "1"}
        assert scripts.java_read_unlock(ME) == 1
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"0", b"0"]

    def test_our_unlock_leaves_it_in(self, scripts: ReadWriteScripts) -> None:
        assert scripts.read(ME, 1, 60_000) is None
        scripts.reading(YOU, 30_000)
        assert scripts.read_release(ME, 0) == 0
        assert scripts.java_read_unlock(YOU) == 1
        assert scripts.redis.keys() == []

    def test_its_renewal_shortens_the_lock_and_ours_mends_that(self, scripts: ReadWriteScripts) -> None:
        assert scripts.read(ME, 1, 60_000) is None
        scripts.reading(YOU, 30_000)
        scripts.redis.pexpire("orders", 3_000)
        assert scripts.renew(("orders", ME, 0)) == [1]
        scripts.redis.delete(lease_key(YOU, 1))
        assert near(scripts.left(), 60_000)


class TestServers:
    """What servers refuse, and what must still work."""

    def test_out_of_memory(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(ME, 10_000, 20_000)
        scripts.reading(YOU, 10_000)
        with scripts.out_of_memory():
            if scripts.with_shebang:
                # Older servers don't know the flag of a script whose writes free more memory than they take.
                assert scripts.renew(("orders", ME, 30_000)) == [1]
                assert near(scripts.left(), 30_000)
                assert scripts.read_release(ME, 1) == 0
            assert scripts.renew(("orders", ME, 0)) == [1]
            assert scripts.read_release(ME, 0) == 0
            assert scripts.read_release(YOU, 0) == 1
            with pytest.raises(ResponseError, match="maxmemory"):
                scripts.read(ME, 1, 30_000)
            with pytest.raises(ResponseError, match="maxmemory"):
                scripts.write(MY_WRITE, 1, 30_000)
        assert scripts.redis.keys() == []

    def test_out_of_memory_while_writing(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, 10_000)
        scripts.reading(ME, 10_000)
        scripts.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        with scripts.out_of_memory():
            assert scripts.read_locked() == 1
            assert scripts.withdraw_claim(YOU) == 1
            if scripts.with_shebang:
                assert scripts.write_release(MY_WRITE, 0) == 1
                assert scripts.force("read") == 1
            else:
                assert scripts.read_release(ME, 0) == 0
                assert scripts.write_release(MY_WRITE, 0) == 1
        assert not scripts.redis.exists("orders")

    def test_without_permission_on_the_channel(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        rights = ("~orders", "~{orders*", f"~{CLAIM}", f"~{TURN}", "+@all", "resetchannels")
        with scripts.user(*rights) as deaf:
            assert scripts.read(ME, 1, 30_000, redis=deaf) is None
            assert scripts.write(YOUR_WRITE, 1, 30_000, waits=True, redis=deaf) == CLAIMED - 1_000
            assert scripts.withdraw_claim(YOU, redis=deaf) == 1
            assert scripts.read_release(ME, 0, redis=deaf) == 1
            assert scripts.write(MY_WRITE, 1, 30_000, redis=deaf) is None
            # Who has heard of it isn't known.
            assert scripts.write_release(MY_WRITE, 0, redis=deaf) == 3
            scripts.reading(YOU, 30_000)
            assert scripts.force("read", redis=deaf) == 1
        assert published(subscription) == []

    def test_a_replica_replies_readonly(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(ME, 30_000)
        with scripts.replica() as redis:
            calls: list[Callable[[], Any]] = [
                lambda: scripts.read(ME, 2, 60_000, redis=redis),
                lambda: scripts.read_release(ME, 0, redis=redis),
                lambda: scripts.renew(("orders", ME, 60_000), redis=redis),
                lambda: scripts.write(YOUR_WRITE, 1, 60_000, waits=True, redis=redis),
                lambda: scripts.force("read", redis=redis),
            ]
            if scripts.with_shebang:
                # Also where the script would only read: the data of a replica may be outdated.
                calls.append(lambda: scripts.write(YOUR_WRITE, 1, 30_000, redis=redis))
                calls.append(lambda: scripts.write_release(MY_WRITE, 0, redis=redis))
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
        assert scripts.state() == {"mode": "read", ME: "1"}
