"""The scripts by which a writer hands the lock on: every branch, sent twice, and read as Redisson would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .read_write import CLAIM, MY_WRITE, TURN, YOUR_WRITE, ReadWriteScripts, lease_key, near
from .scripted import ME, YOU, published

READERS = [f"{YOU}{number}" for number in range(3)]
ALL = [(reader, 10_000 + 10_000 * number) for number, reader in enumerate(READERS)]


@pytest.fixture
def scripts(server: Server, admin: Redis) -> ReadWriteScripts:
    return ReadWriteScripts(server, admin)


class TestLettingReadersIn:
    def test_all_of_them(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(ME, 1, 60_000)
        for _ in range(2):
            assert scripts.let_in(MY_WRITE, *ALL) == [1, 1, 1]
            assert scripts.state() == {"mode": "read", **dict.fromkeys(READERS, "1")}
            for reader, lease in ALL:
                assert scripts.redis.get(lease_key(reader, 1)) == b"1"
                assert near(scripts.leases(reader)[1], lease)
            # Nothing of the writer's lease remains.
            assert near(scripts.left(), 30_000)
        # Once: the second copy has released nothing.
        assert published(subscription) == [b"1"]

    def test_a_writer_with_several_levels(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 3, 60_000)
        assert scripts.let_in(MY_WRITE, *ALL) == [1, 1, 1]
        assert MY_WRITE not in scripts.state()

    def test_a_writer_without_an_end(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, None)
        assert scripts.let_in(MY_WRITE, (YOU, 20_000)) == [1]
        assert near(scripts.left(), 20_000)

    @pytest.mark.parametrize(("lease", "left"), [(10_000, 30_000), (50_000, 50_000)])
    def test_the_writer_goes_on_reading(
        self, scripts: ReadWriteScripts, subscription: PubSub, lease: int, left: int
    ) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.reading(ME, lease)
        for _ in range(2):
            assert scripts.let_in(MY_WRITE, *ALL) == [1, 1, 1]
            assert scripts.state() == {"mode": "read", ME: "1", **dict.fromkeys(READERS, "1")}
            assert near(scripts.left(), left)
        assert published(subscription) == [b"1"]

    def test_readers_whose_leases_ended_are_swept(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.reading(ME, 60_000)
        scripts.redis.delete(lease_key(ME, 1))
        assert scripts.let_in(MY_WRITE, (YOU, 20_000)) == [1]
        assert scripts.state() == {"mode": "read", YOU: "1"}

    def test_remains_of_an_earlier_hold_of_that_name(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.reading(YOU, 50_000, 50_000)
        assert scripts.let_in(MY_WRITE, (YOU, 20_000)) == [1]
        assert scripts.state() == {"mode": "read", YOU: "1"}
        assert list(scripts.leases(YOU)) == [1]
        assert near(scripts.leases(YOU)[1], 20_000)

    def test_a_copy_does_not_shorten_leases(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.let_in(MY_WRITE, (YOU, 20_000))
        assert scripts.renew(("orders", YOU, 50_000)) == [1]
        assert scripts.let_in(MY_WRITE, (YOU, 20_000)) == [1]
        assert near(scripts.leases(YOU)[1], 50_000)
        assert near(scripts.left(), 50_000)

    def test_a_copy_extends_leases(self, scripts: ReadWriteScripts) -> None:
        """It may run long after the first one, and the readers count their leases from its sending."""
        scripts.writing(ME, 1, 60_000)
        scripts.let_in(MY_WRITE, (YOU, 20_000))
        scripts.redis.pexpire(lease_key(YOU, 1), 5_000)
        scripts.redis.pexpire("orders", 5_000)
        assert scripts.let_in(MY_WRITE, (YOU, 20_000)) == [1]
        assert near(scripts.leases(YOU)[1], 20_000)
        assert near(scripts.left(), 20_000)

    def test_a_copy_keeps_another_level(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.let_in(MY_WRITE, (YOU, 20_000))
        assert scripts.read(YOU, 2, 30_000) is None
        assert scripts.let_in(MY_WRITE, (YOU, 20_000)) == [1]
        assert scripts.state() == {"mode": "read", YOU: "2"}
        assert near(scripts.left(), 30_000)

    def test_a_copy_finds_some_of_them(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.let_in(MY_WRITE, *ALL)
        assert scripts.read_release(READERS[1], 0) == 0
        for _ in range(2):
            assert scripts.let_in(MY_WRITE, *ALL) == [1, 0, 1]
            assert scripts.state() == {"mode": "read", READERS[0]: "1", READERS[2]: "1"}
            assert scripts.leases(READERS[1]) == {}
        assert published(subscription) == [b"1"]

    def test_the_writer_has_lost_the_lock(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        """Nobody gets in by that."""
        others: list[Callable[[], None]] = [
            lambda: scripts.reading(ME, 20_000),
            lambda: scripts.writing(YOU, 1, 20_000),
        ]
        for prepare in (scripts.redis.flushall, *others):
            scripts.redis.flushall()
            prepare()
            before, keys = scripts.state(), scripts.redis.keys()
            for _ in range(2):
                assert scripts.let_in(MY_WRITE, *ALL) == 0
                assert scripts.state() == before
                assert scripts.redis.keys() == keys
        assert published(subscription) == []

    def test_a_hundred(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, 60_000)
        readers = [(f"{YOU}{number}", 20_000) for number in range(100)]
        assert scripts.let_in(MY_WRITE, *readers) == [1] * 100
        for reader, _ in readers[1:]:
            assert scripts.read_release(reader, 0) == 0
        assert scripts.read_release(readers[0][0], 0) == 1
        assert scripts.redis.keys() == []

    def test_java_reads_and_leaves(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(ME, 1, 60_000)
        assert scripts.let_in(MY_WRITE, (YOU, 20_000), (ME, 30_000)) == [1, 1]
        assert scripts.java_read_unlock(ME) == 0
        assert near(scripts.left(), 20_000)
        assert scripts.java_read_unlock(YOU) == 1
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"1", b"0"]


class TestHandingOver:
    def test_the_next_writer_is_entered(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(ME, 2, 30_000)
        for _ in range(2):
            assert scripts.hand_over(MY_WRITE, YOUR_WRITE, 20_000) == [0]
            assert scripts.state() == {"mode": "write", YOUR_WRITE: "1"}
            assert near(scripts.left(), 20_000)
        assert scripts.redis.keys() == [b"orders"]
        assert published(subscription) == []
        assert scripts.java_write_unlock(YOUR_WRITE) == 1
        assert scripts.redis.keys() == []

    def test_a_copy_does_not_shorten_the_lease(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, 30_000)
        scripts.hand_over(MY_WRITE, YOUR_WRITE, 20_000)
        scripts.redis.pexpire("orders", 60_000)
        assert scripts.hand_over(MY_WRITE, YOUR_WRITE, 20_000) == [0]
        assert near(scripts.left(), 60_000)

    def test_a_writer_that_reads_keeps_that(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        """Nobody else may write then: the lock is released, as by any writer that reads."""
        scripts.writing(ME, 1, 60_000)
        scripts.reading(ME, 10_000, 20_000)
        assert scripts.hand_over(MY_WRITE, YOUR_WRITE, 30_000) == 1
        assert scripts.hand_over(MY_WRITE, YOUR_WRITE, 30_000) == 0
        assert scripts.state() == {"mode": "read", ME: "2"}
        assert near(scripts.left(), 20_000)
        assert published(subscription) == [b"1"]

    def test_what_the_writer_read_has_ended(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.reading(ME, 60_000)
        scripts.redis.delete(lease_key(ME, 1))
        assert scripts.hand_over(MY_WRITE, YOUR_WRITE, 30_000) == [0]
        assert scripts.state() == {"mode": "write", YOUR_WRITE: "1"}
        assert published(subscription) == []

    def test_the_writer_has_lost_the_lock(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        others: list[Callable[[], None]] = [
            lambda: scripts.reading(ME, 20_000),
            lambda: scripts.writing(READERS[0], 1, 20_000),
        ]
        for prepare in (scripts.redis.flushall, *others):
            scripts.redis.flushall()
            prepare()
            before, keys = scripts.state(), scripts.redis.keys()
            for _ in range(2):
                assert scripts.hand_over(MY_WRITE, YOUR_WRITE, 30_000) == 0
                assert scripts.state() == before
                assert scripts.redis.keys() == keys
        assert published(subscription) == []

    def test_a_writer_without_an_end(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, None)
        assert scripts.hand_over(MY_WRITE, YOUR_WRITE, 20_000) == [0]
        assert near(scripts.left(), 20_000)


BOTH: dict[str, Callable[..., Any]] = {
    "readers": lambda scripts, **options: scripts.let_in(MY_WRITE, (YOU, 20_000), **options),
    "a writer": lambda scripts, **options: scripts.hand_over(MY_WRITE, YOUR_WRITE, 20_000, **options),
}


@pytest.mark.parametrize("whom", BOTH)
class TestErrors:
    def test_another_type(self, scripts: ReadWriteScripts, whom: str) -> None:
        scripts.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            BOTH[whom](scripts)
        assert scripts.redis.get("orders") == b"text"

    def test_out_of_memory(self, scripts: ReadWriteScripts, whom: str) -> None:
        scripts.writing(ME, 1, 10_000)
        with scripts.out_of_memory():
            assert BOTH[whom](scripts) in ([1], [0])
        assert MY_WRITE not in scripts.state()

    def test_a_replica_replies_readonly(self, scripts: ReadWriteScripts, whom: str) -> None:
        scripts.writing(ME, 1, 30_000)
        with scripts.replica() as replica, pytest.raises(ResponseError):
            BOTH[whom](scripts, redis=replica)
        assert scripts.state() == {"mode": "write", MY_WRITE: "1"}

    def test_without_permission_on_the_channel(self, scripts: ReadWriteScripts, whom: str) -> None:
        scripts.writing(ME, 1, 30_000)
        rights = ("~orders", "~{orders*", f"~{CLAIM}", f"~{TURN}", "+@all", "resetchannels")
        with scripts.user(*rights) as deaf:
            assert BOTH[whom](scripts, redis=deaf) in ([1], [0])
        assert MY_WRITE not in scripts.state()
