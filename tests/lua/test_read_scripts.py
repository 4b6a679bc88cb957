"""Each script of the reader's side on servers old and new: every branch, sent twice, and as Redisson reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .read_write import CLAIM, MY_WRITE, YOUR_WRITE, ReadWriteScripts, lease_key, near
from .scripted import ME, YOU, published


@pytest.fixture
def scripts(server: Server, admin: Redis) -> ReadWriteScripts:
    return ReadWriteScripts(server, admin)


class TestReadAcquire:
    def test_a_free_lock(self, scripts: ReadWriteScripts) -> None:
        for _ in range(2):
            assert scripts.read(ME, 1, 30_000) is None
            assert scripts.state() == {"mode": "read", ME: "1"}
            assert scripts.redis.get(lease_key(ME, 1)) == b"1"
            assert sorted(scripts.redis.keys()) == sorted([b"orders", lease_key(ME, 1).encode()])
            assert near(scripts.left(), 30_000)
            assert near(scripts.leases(ME)[1], 30_000)

    def test_beside_another_reader(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(YOU, 10_000, 20_000)
        for _ in range(2):
            assert scripts.read(ME, 1, 60_000) is None
            assert scripts.state() == {"mode": "read", YOU: "2", ME: "1"}
            assert near(scripts.left(), 60_000)
            assert near(scripts.leases(YOU)[1], 10_000)
            assert near(scripts.leases(YOU)[2], 20_000)
            assert near(scripts.leases(ME)[1], 60_000)

    def test_a_longer_lease_of_another_reader_stays(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(YOU, 60_000)
        for _ in range(2):
            assert scripts.read(ME, 1, 10_000) is None
            assert near(scripts.left(), 60_000)
            assert near(scripts.leases(ME)[1], 10_000)

    @pytest.mark.parametrize("lease", [10_000, 60_000])
    def test_another_level_has_a_lease_of_its_own(self, scripts: ReadWriteScripts, lease: int) -> None:
        scripts.reading(ME, 30_000)
        for _ in range(2):
            assert scripts.read(ME, 2, lease) is None
            assert scripts.state() == {"mode": "read", ME: "2"}
            first, second = scripts.leases(ME)[1], scripts.leases(ME)[2]
            assert near(first, 30_000)
            assert near(second, lease)
            assert near(scripts.left(), max(lease, 30_000))

    def test_a_lock_that_never_ends_gets_an_end(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(YOU, 10_000)
        scripts.redis.persist("orders")
        assert scripts.read(ME, 1, 30_000) is None
        assert near(scripts.left(), 30_000)

    def test_another_level_of_a_lost_hold(self, scripts: ReadWriteScripts) -> None:
        others: list[Callable[[], None]] = [
            lambda: scripts.reading(YOU, 30_000),
            lambda: scripts.writing(YOU, 1, 30_000),
        ]
        for prepare in (scripts.redis.flushall, *others):
            scripts.redis.flushall()
            prepare()
            before = scripts.state()
            for _ in range(2):
                assert scripts.read(ME, 2, 30_000) == -2
                assert scripts.state() == before
                assert scripts.leases(ME) == {}

    def test_another_owner_writes(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(YOU, 1, 20_000)
        for _ in range(2):
            assert near(scripts.read(ME, 1, 30_000), 20_000)
            assert scripts.state() == {"mode": "write", YOUR_WRITE: "1"}
            assert near(scripts.left(), 20_000)
            assert scripts.leases(ME) == {}

    def test_a_writer_with_an_endless_lease(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(YOU, 1, None)
        assert scripts.read(ME, 1, 30_000) == -1
        assert scripts.left() == -1

    @pytest.mark.parametrize(("lease", "left"), [(10_000, 30_000), (60_000, 60_000)])
    def test_the_writer_reads_too(self, scripts: ReadWriteScripts, lease: int, left: int) -> None:
        scripts.writing(ME, 1, 30_000)
        for hold in (1, 2):
            for _ in range(2):
                assert scripts.read(ME, hold, lease) is None
                assert scripts.state() == {"mode": "write", MY_WRITE: "1", ME: str(hold)}
                assert near(scripts.leases(ME)[hold], lease)
                assert near(scripts.left(), left)

    def test_the_writer_reads_under_another_name(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, 30_000)
        for _ in range(2):
            assert scripts.read(ME + ":1", 1, 30_000, writer=MY_WRITE) is None
            assert scripts.state() == {"mode": "write", MY_WRITE: "1", ME + ":1": "1"}

    def test_a_claim_holds_back_a_fresh_reader_only(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.set(CLAIM, YOUR_WRITE, px=2_000)
        for _ in range(2):
            assert 0 < scripts.read(ME, 1, 30_000) <= 2_000
            assert scripts.redis.keys() == [CLAIM.encode()]
        scripts.reading(YOU, 30_000)
        # Claims last for two seconds. Somebody else has written this one.
        for lasts in (60_000, None):
            scripts.redis.set(CLAIM, YOUR_WRITE, px=lasts)
            assert scripts.read(ME, 1, 30_000) == 2_000
            assert scripts.left(CLAIM) <= 2_000
        assert scripts.state() == {"mode": "read", YOU: "1"}
        assert scripts.read(YOU, 2, 30_000) is None
        assert scripts.state() == {"mode": "read", YOU: "2"}

    def test_a_claim_does_not_hold_back_a_second_copy(self, scripts: ReadWriteScripts) -> None:
        assert scripts.read(ME, 1, 30_000) is None
        scripts.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        assert scripts.read(ME, 1, 30_000) is None

    def test_a_claim_does_not_hold_back_the_writer(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        scripts.writing(ME, 1, 30_000)
        assert scripts.read(ME, 1, 30_000) is None

    def test_a_lock_of_another_kind(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.hset("orders", YOU, 1)
        assert scripts.read(ME, 1, 30_000) == -1
        scripts.redis.pexpire("orders", 20_000)
        for _ in range(2):
            assert near(scripts.read(ME, 1, 30_000), 20_000)
            assert scripts.state() == {YOU: "1"}

    def test_remains_of_an_earlier_hold_of_that_name(self, scripts: ReadWriteScripts) -> None:
        """The client counts that hold as lost by its own clock, but the server still has it."""
        scripts.reading(ME, 50_000, 50_000, 50_000)
        for _ in range(2):
            assert scripts.read(ME, 1, 10_000) is None
            assert scripts.state() == {"mode": "read", ME: "1"}
            assert list(scripts.leases(ME)) == [1]

    def test_a_lease_key_without_its_lock(self, scripts: ReadWriteScripts) -> None:
        """A lock that was removed by force leaves the lease keys: they are no leases of the next hold."""
        scripts.redis.set(lease_key(ME, 1), "1", px=60_000)
        assert scripts.read(ME, 1, 10_000) is None
        assert near(scripts.leases(ME)[1], 10_000)

    def test_another_type(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.read(ME, 1, 30_000)
        assert scripts.redis.keys() == [b"orders"]


DAMAGED = ("1000000000", "9" * 400, "0", "-3", "1.5", "text", "nan", "inf", "")


@pytest.mark.parametrize("levels", DAMAGED)
class TestDamagedLevels:
    """Somebody else has written a reader's number of levels. The reader has a lease, so it keeps the lock."""

    @pytest.fixture(autouse=True)
    def damaged(self, scripts: ReadWriteScripts, levels: str) -> None:
        scripts.reading(YOU, 5_000, 20_000)
        scripts.redis.hset("orders", YOU, levels)

    def test_another_reader_leaves(self, scripts: ReadWriteScripts) -> None:
        assert scripts.read(ME, 1, 30_000) is None
        assert scripts.read_release(ME, 0) == 0
        assert set(scripts.state()) == {"mode", YOU}
        assert near(scripts.left(), 20_000)

    def test_it_is_renewed(self, scripts: ReadWriteScripts) -> None:
        assert scripts.renew(("orders", YOU, 30_000)) == [1]
        assert [near(left, 30_000) for left in scripts.leases(YOU).values()] == [True, True]
        assert near(scripts.left(), 30_000)
        assert scripts.renew(("orders", YOU, 0)) == [1]

    def test_it_releases_a_level_and_all(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        assert scripts.read_release(YOU, 1) == 0
        assert scripts.state()[YOU] == "1"
        # The longest lease of the levels is valid for the one that remains.
        assert near(scripts.leases(YOU)[1], 20_000)
        scripts.redis.hset("orders", YOU, "text")
        assert scripts.read_release(YOU, 0) == 1
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"0"]

    def test_another_level(self, scripts: ReadWriteScripts) -> None:
        assert scripts.read(YOU, 3, 30_000) is None
        assert scripts.state()[YOU] == "3"
        assert sorted(scripts.leases(YOU)) == [1, 2, 3]

    def test_a_writer_reads(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.hset("orders", mapping={"mode": "write", MY_WRITE: "1"})
        assert scripts.write_release(MY_WRITE, 0) == 1
        assert set(scripts.state()) == {"mode", YOU}


def test_many_readers_with_damaged_levels(scripts: ReadWriteScripts) -> None:
    """Not all leases are looked at, so the lock lasts as long as it does."""
    scripts.reading(ME, 30_000)
    scripts.redis.hset("orders", mapping={f"{YOU}{number}": "text" for number in range(100)})
    scripts.redis.config_resetstat()
    assert scripts.read_release(ME, 0) == 0
    calls = sum(entry["calls"] for entry in scripts.redis.info("commandstats").values())
    assert calls < 12_000
    assert near(scripts.left(), 30_000)


def test_more_levels_than_scripts_look_at(scripts: ReadWriteScripts) -> None:
    scripts.reading(ME, 30_000)
    with pytest.raises(ResponseError, match="at most 1000 levels"):
        scripts.read(ME, 1_001, 30_000)
    assert scripts.read(ME, 1_000, 30_000) is None


class TestReadRelease:
    def test_the_last_reader(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.reading(ME, 30_000)
        assert scripts.read_release(ME, 0) == 1
        assert scripts.redis.keys() == []
        assert scripts.read_release(ME, 0) is None
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"0"]

    def test_all_holds_at_once(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.reading(ME, 30_000, 30_000, 30_000)
        assert scripts.read_release(ME, 0) == 1
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"0"]

    def test_an_inner_hold(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.reading(ME, 30_000, 20_000, 20_000)
        for _ in range(2):
            assert scripts.read_release(ME, 2) == 0
            assert scripts.state() == {"mode": "read", ME: "2"}
            assert sorted(scripts.leases(ME)) == [1, 2]
            assert near(scripts.leases(ME)[1], 30_000)
            assert near(scripts.leases(ME)[2], 20_000)
            assert near(scripts.left(), 30_000)
        assert published(subscription) == []

    @pytest.mark.parametrize("left", [1, 2])
    def test_the_longest_lease_counts_for_the_outer_holds(self, scripts: ReadWriteScripts, left: int) -> None:
        scripts.reading(ME, 10_000, 5_000, 60_000, 20_000)
        for _ in range(2):
            assert scripts.read_release(ME, left) == 0
            assert len(scripts.leases(ME)) == left
            assert near(scripts.leases(ME)[left], 60_000)
            assert near(scripts.left(), 60_000)

    @pytest.mark.parametrize("hold", [0, 1])
    def test_another_owners_lock(self, scripts: ReadWriteScripts, subscription: PubSub, hold: int) -> None:
        others: list[Callable[[], None]] = [
            lambda: scripts.reading(YOU, 20_000, 20_000),
            lambda: scripts.writing(YOU, 2, 20_000),
        ]
        for prepare in others:
            scripts.redis.flushall()
            prepare()
            before = scripts.state()
            for _ in range(2):
                assert scripts.read_release(ME, hold) is None
                assert scripts.state() == before
                assert near(scripts.left(), 20_000)
        assert published(subscription) == []

    def test_a_free_lock(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        for hold in (0, 1):
            assert scripts.read_release(ME, hold) is None
        assert scripts.redis.keys() == []
        assert published(subscription) == []

    def test_another_reader_with_less_time_left(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.reading(YOU, 10_000, 20_000)
        scripts.reading(ME, 60_000)
        assert scripts.read_release(ME, 0) == 0
        assert scripts.read_release(ME, 0) is None
        assert scripts.state() == {"mode": "read", YOU: "2"}
        assert near(scripts.left(), 20_000)
        assert scripts.left() >= max(scripts.leases(YOU).values())
        assert scripts.leases(ME) == {}
        assert sorted(scripts.leases(YOU)) == [1, 2]
        assert published(subscription) == []

    def test_another_reader_with_more_time_left(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.reading(YOU, 60_000)
        scripts.reading(ME, 20_000)
        assert scripts.read_release(ME, 0) == 0
        assert scripts.state() == {"mode": "read", YOU: "1"}
        assert near(scripts.left(), 60_000)
        assert near(scripts.leases(YOU)[1], 60_000)
        assert published(subscription) == []

    def test_a_lock_that_java_shortened(self, scripts: ReadWriteScripts) -> None:
        """The renewal of a reader that left meanwhile shortened it: the remaining readers get their full leases."""
        scripts.reading(YOU, 60_000)
        scripts.reading(ME, 40_000)
        scripts.redis.pexpire("orders", 1_000)
        assert scripts.read_release(ME, 0) == 0
        assert near(scripts.left(), 60_000)

    def test_many_readers_with_equal_leases(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        """Not all leases are read: that would be work for n * n readers when n of them release the lock."""
        readers = [f"{YOU}{number}" for number in range(50)]
        for reader in readers:
            scripts.reading(reader, 30_000)
        ends = scripts.redis.pexpiretime("orders") if scripts.with_shebang else None
        before = scripts.redis.info("commandstats")["cmdstat_pttl"]["calls"]
        for reader in readers[1:]:
            assert scripts.read_release(reader, 0) == 0
        assert scripts.redis.info("commandstats")["cmdstat_pttl"]["calls"] - before < 500
        assert scripts.state() == {"mode": "read", readers[0]: "1"}
        assert near(scripts.left(), 30_000)
        assert scripts.left() >= scripts.leases(readers[0])[1]
        if ends is not None:
            assert scripts.redis.pexpiretime("orders") <= ends
        assert scripts.read_release(readers[0], 0) == 1
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"0"]

    @pytest.mark.parametrize("endless", [False, True])
    def test_readers_whose_leases_ended_are_swept(
        self, scripts: ReadWriteScripts, subscription: PubSub, endless: bool
    ) -> None:
        scripts.reading(YOU, 60_000)
        scripts.redis.delete(lease_key(YOU, 1))
        scripts.reading(ME, 60_000)
        if endless:
            scripts.redis.persist("orders")
        assert scripts.read_release(ME, 0) == 1
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"0"]

    @pytest.mark.parametrize("lease", [10_000, 60_000])
    def test_the_writer_goes_on_writing(self, scripts: ReadWriteScripts, subscription: PubSub, lease: int) -> None:
        scripts.writing(ME, 1, 30_000)
        assert scripts.read(ME, 1, lease) is None
        assert scripts.read_release(ME, 0) == 0
        assert scripts.read_release(ME, 0) is None
        assert scripts.state() == {"mode": "write", MY_WRITE: "1"}
        assert scripts.leases(ME) == {}
        # Never shorter than the writer's own lease, which is stored nowhere else.
        assert near(scripts.left(), max(lease, 30_000))
        assert published(subscription) == []

    def test_another_type(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.read_release(ME, 0)
        assert scripts.redis.get("orders") == b"text"


class TestReadRenew:
    def test_ours_and_others(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(ME, 1_000, 1_000, key="a")
        scripts.reading(YOU, 1_000, key="a")
        scripts.reading(YOU, 1_000, key="b")
        for _ in range(2):
            assert scripts.renew(("a", ME, 30_000), ("b", ME, 30_000), ("c", ME, 30_000)) == [1, 0, 0]
            assert near(scripts.left("a"), 30_000)
            assert [near(left, 30_000) for left in scripts.leases(ME, "a").values()] == [True, True]
            # A dead reader must not be kept alive by others.
            assert scripts.leases(YOU, "a")[1] <= 1_000
            assert scripts.left("b") <= 1_000
            assert not scripts.redis.exists("c")

    def test_longer_leases_stay(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(ME, 60_000, 1_000)
        assert scripts.renew(("orders", ME, 30_000)) == [1]
        assert near(scripts.leases(ME)[1], 60_000)
        assert near(scripts.leases(ME)[2], 30_000)
        assert near(scripts.left(), 60_000)

    def test_several_readers_of_one_lock(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(ME, 1_000)
        scripts.reading(YOU, 1_000)
        assert scripts.renew(("orders", ME, 30_000), ("orders", YOU, 40_000)) == [1, 1]
        assert near(scripts.leases(ME)[1], 30_000)
        assert near(scripts.leases(YOU)[1], 40_000)
        assert near(scripts.left(), 40_000)

    def test_a_fixed_lease_only_keeps_the_lock(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(ME, 20_000, 60_000)
        scripts.redis.pexpire("orders", 1_000)
        for _ in range(2):
            assert scripts.renew(("orders", ME, 0)) == [1]
            assert near(scripts.left(), 60_000)
            assert near(scripts.leases(ME)[1], 20_000)
            assert near(scripts.leases(ME)[2], 60_000)

    def test_a_fixed_lease_that_ended(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(ME, 20_000)
        scripts.reading(YOU, 20_000)
        scripts.redis.delete(lease_key(ME, 1))
        for _ in range(2):
            assert scripts.renew(("orders", ME, 0)) == [0]
            assert scripts.leases(ME) == {}
            assert scripts.state() == {"mode": "read", ME: "1", YOU: "1"}
            assert near(scripts.left(), 20_000)

    def test_a_missing_lease_key_is_set_again(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(ME, 1_000, 1_000)
        scripts.redis.delete(lease_key(ME, 1))
        scripts.redis.persist(lease_key(ME, 2))
        assert scripts.renew(("orders", ME, 30_000)) == [1]
        assert [near(left, 30_000) for left in scripts.leases(ME).values()] == [True, True]
        assert scripts.redis.get(lease_key(ME, 1)) == b"1"

    def test_the_writers_own(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.reading(ME, 1_000)
        assert scripts.renew(("orders", ME, 30_000)) == [1]
        assert near(scripts.leases(ME)[1], 30_000)
        assert near(scripts.left(), 60_000)

    @pytest.mark.parametrize("kind", ["string", "list", "set", "zset", "stream"])
    def test_a_neighbour_of_another_type(self, scripts: ReadWriteScripts, kind: str) -> None:
        make = {
            "string": ("SET", "b", "text"),
            "list": ("RPUSH", "b", "x"),
            "set": ("SADD", "b", ME),
            "zset": ("ZADD", "b", "1", ME),
            "stream": ("XADD", "b", "*", ME, "1"),
        }
        scripts.redis.execute_command(*make[kind])
        scripts.reading(ME, 1_000, key="a")
        scripts.reading(ME, 1_000, key="c")
        assert scripts.renew(("a", ME, 30_000), ("b", ME, 30_000), ("c", ME, 30_000)) == [1, 0, 1]
        assert near(scripts.left("a"), 30_000)
        assert near(scripts.left("c"), 30_000)
        assert scripts.left("b") == -1

    def test_a_whole_batch(self, scripts: ReadWriteScripts) -> None:
        for number in range(100):
            scripts.reading(ME, 15_000, key=f"lock{number}")
        assert scripts.renew(*[(f"lock{number}", ME, 30_000) for number in range(100)]) == [1] * 100
        assert all(near(scripts.left(f"lock{number}"), 30_000) for number in range(100))


class TestReadLocked:
    def test_of_each_kind(self, scripts: ReadWriteScripts) -> None:
        assert scripts.read_locked() == 0
        scripts.writing(ME, 2, 30_000)
        assert scripts.read_locked() == 0
        scripts.reading(ME, 30_000)
        assert scripts.read_locked() == 1
        assert scripts.write_release(MY_WRITE, 0) == 1
        assert scripts.read_locked() == 1
        scripts.redis.delete("orders")
        scripts.redis.hset("orders", YOU, 1)
        assert scripts.read_locked() == 0
