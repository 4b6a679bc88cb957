"""Each script of the reader's side on servers old and new: every branch, sent twice, and as Redisson reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .read_write import CLAIM, MY_WRITE, YOUR_WRITE, ReadWriteScripts, lease_key, near
from .scripted import ME, YOU, heard


@pytest.fixture
def at(server: Server, admin: Redis) -> ReadWriteScripts:
    return ReadWriteScripts(server, admin)


class TestReadAcquire:
    def test_a_free_lock(self, at: ReadWriteScripts) -> None:
        for _ in range(2):
            assert at.read(ME, 1, 30_000) is None
            assert at.state() == {"mode": "read", ME: "1"}
            assert at.redis.get(lease_key(ME, 1)) == b"1"
            assert sorted(at.redis.keys()) == sorted([b"orders", lease_key(ME, 1).encode()])
            assert near(at.left(), 30_000)
            assert near(at.leases(ME)[1], 30_000)

    def test_beside_another_reader(self, at: ReadWriteScripts) -> None:
        at.reading(YOU, 10_000, 20_000)
        for _ in range(2):
            assert at.read(ME, 1, 60_000) is None
            assert at.state() == {"mode": "read", YOU: "2", ME: "1"}
            assert near(at.left(), 60_000)
            assert near(at.leases(YOU)[1], 10_000)
            assert near(at.leases(YOU)[2], 20_000)
            assert near(at.leases(ME)[1], 60_000)

    def test_a_longer_lease_of_another_reader_stays(self, at: ReadWriteScripts) -> None:
        at.reading(YOU, 60_000)
        for _ in range(2):
            assert at.read(ME, 1, 10_000) is None
            assert near(at.left(), 60_000)
            assert near(at.leases(ME)[1], 10_000)

    @pytest.mark.parametrize("lease", [10_000, 60_000])
    def test_a_further_hold_has_a_lease_of_its_own(self, at: ReadWriteScripts, lease: int) -> None:
        at.reading(ME, 30_000)
        for _ in range(2):
            assert at.read(ME, 2, lease) is None
            assert at.state() == {"mode": "read", ME: "2"}
            first, second = at.leases(ME)[1], at.leases(ME)[2]
            assert near(first, 30_000)
            assert near(second, lease)
            assert near(at.left(), max(lease, 30_000))

    def test_a_lock_that_never_ends_gets_an_end(self, at: ReadWriteScripts) -> None:
        at.reading(YOU, 10_000)
        at.redis.persist("orders")
        assert at.read(ME, 1, 30_000) is None
        assert near(at.left(), 30_000)

    def test_a_further_hold_of_what_is_lost(self, at: ReadWriteScripts) -> None:
        others: list[Callable[[], None]] = [lambda: at.reading(YOU, 30_000), lambda: at.writing(YOU, 1, 30_000)]
        for prepare in (at.redis.flushall, *others):
            at.redis.flushall()
            prepare()
            before = at.state()
            for _ in range(2):
                assert at.read(ME, 2, 30_000) == -2
                assert at.state() == before
                assert at.leases(ME) == {}

    def test_somebody_writes(self, at: ReadWriteScripts) -> None:
        at.writing(YOU, 1, 20_000)
        for _ in range(2):
            assert near(at.read(ME, 1, 30_000), 20_000)
            assert at.state() == {"mode": "write", YOUR_WRITE: "1"}
            assert near(at.left(), 20_000)
            assert at.leases(ME) == {}

    def test_somebody_writes_for_ever(self, at: ReadWriteScripts) -> None:
        at.writing(YOU, 1, None)
        assert at.read(ME, 1, 30_000) == -1
        assert at.left() == -1

    @pytest.mark.parametrize(("lease", "left"), [(10_000, 30_000), (60_000, 60_000)])
    def test_the_writer_reads_too(self, at: ReadWriteScripts, lease: int, left: int) -> None:
        at.writing(ME, 1, 30_000)
        for hold in (1, 2):
            for _ in range(2):
                assert at.read(ME, hold, lease) is None
                assert at.state() == {"mode": "write", MY_WRITE: "1", ME: str(hold)}
                assert near(at.leases(ME)[hold], lease)
                assert near(at.left(), left)

    def test_the_writer_reads_under_another_name(self, at: ReadWriteScripts) -> None:
        at.writing(ME, 1, 30_000)
        for _ in range(2):
            assert at.read(ME + ":1", 1, 30_000, writer=MY_WRITE) is None
            assert at.state() == {"mode": "write", MY_WRITE: "1", ME + ":1": "1"}

    def test_a_claim_holds_back_a_fresh_reader_only(self, at: ReadWriteScripts) -> None:
        at.redis.set(CLAIM, YOUR_WRITE, px=2_000)
        for _ in range(2):
            assert 0 < at.read(ME, 1, 30_000) <= 2_000
            assert at.redis.keys() == [CLAIM.encode()]
        at.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        at.reading(YOU, 30_000)
        assert near(at.read(ME, 1, 30_000), 60_000)
        assert at.state() == {"mode": "read", YOU: "1"}
        assert at.read(YOU, 2, 30_000) is None
        assert at.state() == {"mode": "read", YOU: "2"}

    def test_a_claim_does_not_hold_back_a_second_copy(self, at: ReadWriteScripts) -> None:
        assert at.read(ME, 1, 30_000) is None
        at.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        assert at.read(ME, 1, 30_000) is None

    def test_a_claim_does_not_hold_back_the_writer(self, at: ReadWriteScripts) -> None:
        at.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        at.writing(ME, 1, 30_000)
        assert at.read(ME, 1, 30_000) is None

    def test_a_lock_of_another_kind(self, at: ReadWriteScripts) -> None:
        at.redis.hset("orders", YOU, 1)
        assert at.read(ME, 1, 30_000) == -1
        at.redis.pexpire("orders", 20_000)
        for _ in range(2):
            assert near(at.read(ME, 1, 30_000), 20_000)
            assert at.state() == {YOU: "1"}

    def test_what_an_earlier_hold_of_that_name_left(self, at: ReadWriteScripts) -> None:
        """Lost here by our own clock alone: the server has still got it."""
        at.reading(ME, 50_000, 50_000, 50_000)
        for _ in range(2):
            assert at.read(ME, 1, 10_000) is None
            assert at.state() == {"mode": "read", ME: "1"}
            assert list(at.leases(ME)) == [1]

    def test_a_timeout_key_without_its_lock(self, at: ReadWriteScripts) -> None:
        """A lock that was removed by force leaves the timeout keys: they are no lease of the next hold."""
        at.redis.set(lease_key(ME, 1), "1", px=60_000)
        assert at.read(ME, 1, 10_000) is None
        assert near(at.leases(ME)[1], 10_000)

    def test_another_type(self, at: ReadWriteScripts) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.read(ME, 1, 30_000)
        assert at.redis.keys() == [b"orders"]


class TestReadRelease:
    def test_the_last_reader(self, at: ReadWriteScripts, ear: PubSub) -> None:
        at.reading(ME, 30_000)
        assert at.read_release(ME, 0) == 1
        assert at.redis.keys() == []
        assert at.read_release(ME, 0) is None
        assert at.redis.keys() == []
        assert heard(ear) == [b"0"]

    def test_all_holds_at_once(self, at: ReadWriteScripts, ear: PubSub) -> None:
        at.reading(ME, 30_000, 30_000, 30_000)
        assert at.read_release(ME, 0) == 1
        assert at.redis.keys() == []
        assert heard(ear) == [b"0"]

    def test_an_inner_hold(self, at: ReadWriteScripts, ear: PubSub) -> None:
        at.reading(ME, 30_000, 20_000, 20_000)
        for _ in range(2):
            assert at.read_release(ME, 2) == 0
            assert at.state() == {"mode": "read", ME: "2"}
            assert sorted(at.leases(ME)) == [1, 2]
            assert near(at.leases(ME)[1], 30_000)
            assert near(at.leases(ME)[2], 20_000)
            assert near(at.left(), 30_000)
        assert heard(ear) == []

    @pytest.mark.parametrize("left", [1, 2])
    def test_the_longest_lease_counts_for_the_outer_holds(self, at: ReadWriteScripts, left: int) -> None:
        at.reading(ME, 10_000, 5_000, 60_000, 20_000)
        for _ in range(2):
            assert at.read_release(ME, left) == 0
            assert len(at.leases(ME)) == left
            assert near(at.leases(ME)[left], 60_000)
            assert near(at.left(), 60_000)

    @pytest.mark.parametrize("hold", [0, 1])
    def test_somebody_elses(self, at: ReadWriteScripts, ear: PubSub, hold: int) -> None:
        others: list[Callable[[], None]] = [lambda: at.reading(YOU, 20_000, 20_000), lambda: at.writing(YOU, 2, 20_000)]
        for prepare in others:
            at.redis.flushall()
            prepare()
            before = at.state()
            for _ in range(2):
                assert at.read_release(ME, hold) is None
                assert at.state() == before
                assert near(at.left(), 20_000)
        assert heard(ear) == []

    def test_a_free_lock(self, at: ReadWriteScripts, ear: PubSub) -> None:
        for hold in (0, 1):
            assert at.read_release(ME, hold) is None
        assert at.redis.keys() == []
        assert heard(ear) == []

    def test_another_reader_with_less_time_left(self, at: ReadWriteScripts, ear: PubSub) -> None:
        at.reading(YOU, 10_000, 20_000)
        at.reading(ME, 60_000)
        assert at.read_release(ME, 0) == 0
        assert at.read_release(ME, 0) is None
        assert at.state() == {"mode": "read", YOU: "2"}
        assert near(at.left(), 20_000)
        assert at.left() >= max(at.leases(YOU).values())
        assert at.leases(ME) == {}
        assert sorted(at.leases(YOU)) == [1, 2]
        assert heard(ear) == []

    def test_another_reader_with_more_time_left(self, at: ReadWriteScripts, ear: PubSub) -> None:
        at.reading(YOU, 60_000)
        at.reading(ME, 20_000)
        assert at.read_release(ME, 0) == 0
        assert at.state() == {"mode": "read", YOU: "1"}
        assert near(at.left(), 60_000)
        assert near(at.leases(YOU)[1], 60_000)
        assert heard(ear) == []

    def test_a_lock_that_java_shortened(self, at: ReadWriteScripts) -> None:
        """The renewal of a reader that left meanwhile: whoever remains gets his time back."""
        at.reading(YOU, 60_000)
        at.reading(ME, 40_000)
        at.redis.pexpire("orders", 1_000)
        assert at.read_release(ME, 0) == 0
        assert near(at.left(), 60_000)

    @pytest.mark.parametrize("endless", [False, True])
    def test_readers_whose_leases_ended_are_swept(self, at: ReadWriteScripts, ear: PubSub, endless: bool) -> None:
        at.reading(YOU, 60_000)
        at.redis.delete(lease_key(YOU, 1))
        at.reading(ME, 60_000)
        if endless:
            at.redis.persist("orders")
        assert at.read_release(ME, 0) == 1
        assert at.redis.keys() == []
        assert heard(ear) == [b"0"]

    @pytest.mark.parametrize("lease", [10_000, 60_000])
    def test_the_writer_goes_on_writing(self, at: ReadWriteScripts, ear: PubSub, lease: int) -> None:
        at.writing(ME, 1, 30_000)
        assert at.read(ME, 1, lease) is None
        assert at.read_release(ME, 0) == 0
        assert at.read_release(ME, 0) is None
        assert at.state() == {"mode": "write", MY_WRITE: "1"}
        assert at.leases(ME) == {}
        # Never shorter than the writer's own lease, which stands nowhere else.
        assert near(at.left(), max(lease, 30_000))
        assert heard(ear) == []

    def test_another_type(self, at: ReadWriteScripts) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.read_release(ME, 0)
        assert at.redis.get("orders") == b"text"


class TestReadRenew:
    def test_ours_and_others(self, at: ReadWriteScripts) -> None:
        at.reading(ME, 1_000, 1_000, key="a")
        at.reading(YOU, 1_000, key="a")
        at.reading(YOU, 1_000, key="b")
        for _ in range(2):
            assert at.renew(("a", ME, 30_000), ("b", ME, 30_000), ("c", ME, 30_000)) == [1, 0, 0]
            assert near(at.left("a"), 30_000)
            assert [near(left, 30_000) for left in at.leases(ME, "a").values()] == [True, True]
            # A dead reader must not be kept alive by others.
            assert at.leases(YOU, "a")[1] <= 1_000
            assert at.left("b") <= 1_000
            assert not at.redis.exists("c")

    def test_longer_leases_stay(self, at: ReadWriteScripts) -> None:
        at.reading(ME, 60_000, 1_000)
        assert at.renew(("orders", ME, 30_000)) == [1]
        assert near(at.leases(ME)[1], 60_000)
        assert near(at.leases(ME)[2], 30_000)
        assert near(at.left(), 60_000)

    def test_several_readers_of_one_lock(self, at: ReadWriteScripts) -> None:
        at.reading(ME, 1_000)
        at.reading(YOU, 1_000)
        assert at.renew(("orders", ME, 30_000), ("orders", YOU, 40_000)) == [1, 1]
        assert near(at.leases(ME)[1], 30_000)
        assert near(at.leases(YOU)[1], 40_000)
        assert near(at.left(), 40_000)

    def test_a_fixed_lease_only_keeps_the_lock(self, at: ReadWriteScripts) -> None:
        at.reading(ME, 20_000, 60_000)
        at.redis.pexpire("orders", 1_000)
        for _ in range(2):
            assert at.renew(("orders", ME, 0)) == [1]
            assert near(at.left(), 60_000)
            assert near(at.leases(ME)[1], 20_000)
            assert near(at.leases(ME)[2], 60_000)

    def test_a_fixed_lease_that_ended(self, at: ReadWriteScripts) -> None:
        at.reading(ME, 20_000)
        at.reading(YOU, 20_000)
        at.redis.delete(lease_key(ME, 1))
        for _ in range(2):
            assert at.renew(("orders", ME, 0)) == [0]
            assert at.leases(ME) == {}
            assert at.state() == {"mode": "read", ME: "1", YOU: "1"}
            assert near(at.left(), 20_000)

    def test_a_missing_timeout_key_comes_back(self, at: ReadWriteScripts) -> None:
        at.reading(ME, 1_000, 1_000)
        at.redis.delete(lease_key(ME, 1))
        at.redis.persist(lease_key(ME, 2))
        assert at.renew(("orders", ME, 30_000)) == [1]
        assert [near(left, 30_000) for left in at.leases(ME).values()] == [True, True]
        assert at.redis.get(lease_key(ME, 1)) == b"1"

    def test_the_writers_own(self, at: ReadWriteScripts) -> None:
        at.writing(ME, 1, 60_000)
        at.reading(ME, 1_000)
        assert at.renew(("orders", ME, 30_000)) == [1]
        assert near(at.leases(ME)[1], 30_000)
        assert near(at.left(), 60_000)

    @pytest.mark.parametrize("kind", ["string", "list", "set", "zset", "stream"])
    def test_a_neighbour_of_another_type(self, at: ReadWriteScripts, kind: str) -> None:
        make = {
            "string": ("SET", "b", "text"),
            "list": ("RPUSH", "b", "x"),
            "set": ("SADD", "b", ME),
            "zset": ("ZADD", "b", "1", ME),
            "stream": ("XADD", "b", "*", ME, "1"),
        }
        at.redis.execute_command(*make[kind])
        at.reading(ME, 1_000, key="a")
        at.reading(ME, 1_000, key="c")
        assert at.renew(("a", ME, 30_000), ("b", ME, 30_000), ("c", ME, 30_000)) == [1, 0, 1]
        assert near(at.left("a"), 30_000)
        assert near(at.left("c"), 30_000)
        assert at.left("b") == -1

    def test_a_whole_batch(self, at: ReadWriteScripts) -> None:
        for number in range(100):
            at.reading(ME, 1_000, key=f"lock{number}")
        assert at.renew(*[(f"lock{number}", ME, 30_000) for number in range(100)]) == [1] * 100
        assert all(near(at.left(f"lock{number}"), 30_000) for number in range(100))


class TestReadLocked:
    def test_of_each_kind(self, at: ReadWriteScripts) -> None:
        assert at.read_locked() == 0
        at.writing(ME, 2, 30_000)
        assert at.read_locked() == 0
        at.reading(ME, 30_000)
        assert at.read_locked() == 1
        assert at.write_release(MY_WRITE, 0) == 1
        assert at.read_locked() == 1
        at.redis.delete("orders")
        at.redis.hset("orders", YOU, 1)
        assert at.read_locked() == 0
