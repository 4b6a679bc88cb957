"""Each script of the writer's side on servers old and new: every branch, sent twice, and as Redisson reads it."""

from __future__ import annotations

from collections.abc import Callable

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


class TestWriteAcquire:
    def test_a_free_lock(self, at: ReadWriteScripts) -> None:
        for _ in range(2):
            assert at.write(MY_WRITE, 1, 30_000) is None
            assert at.state() == {"mode": "write", MY_WRITE: "1"}
            assert at.redis.keys() == [b"orders"]
            assert near(at.left(), 30_000)

    @pytest.mark.parametrize(("lease", "left"), [(10_000, 30_000), (40_000, 40_000)])
    def test_a_further_hold(self, at: ReadWriteScripts, lease: int, left: int) -> None:
        at.writing(ME, 1, 30_000)
        for _ in range(2):
            assert at.write(MY_WRITE, 2, lease) is None
            assert at.state() == {"mode": "write", MY_WRITE: "2"}
            assert near(at.left(), left)

    def test_a_further_hold_of_what_is_lost(self, at: ReadWriteScripts) -> None:
        for _ in range(2):
            assert at.write(MY_WRITE, 2, 30_000) == -2
            assert at.redis.keys() == []

    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("hold", [1, 2])
    def test_somebody_writes(self, at: ReadWriteScripts, hold: int, waits: bool) -> None:
        at.writing(YOU, 3, 20_000)
        for _ in range(2):
            assert near(at.write(MY_WRITE, hold, 30_000, waits=waits), 20_000)
            assert at.state() == {"mode": "write", YOUR_WRITE: "3"}
            assert near(at.left(), 20_000)
            # After a writer, readers have their turn.
            assert at.redis.keys() == [b"orders"]

    def test_somebody_writes_for_ever(self, at: ReadWriteScripts) -> None:
        at.writing(YOU, 1, None)
        assert at.write(MY_WRITE, 1, 30_000, waits=True) == -1

    @pytest.mark.parametrize("reader", [ME, YOU])
    def test_somebody_reads(self, at: ReadWriteScripts, reader: str) -> None:
        at.reading(reader, 20_000)
        for _ in range(2):
            assert near(at.write(MY_WRITE, 1, 30_000), 20_000)
            assert at.state() == {"mode": "read", reader: "1"}
            assert not at.redis.exists(CLAIM)

    def test_who_waits_for_readers_claims(self, at: ReadWriteScripts) -> None:
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

    def test_claims_of_all_writers_end_together(self, at: ReadWriteScripts) -> None:
        at.reading(YOU, 60_000)
        at.write(MY_WRITE, 1, 30_000, waits=True)
        assert 5_000 < at.left(TURN) <= 6_000
        at.redis.pexpire(TURN, 1_700)
        for writer in (YOUR_WRITE, MY_WRITE, MY_WRITE):
            assert 0 < at.write(writer, 1, 30_000, waits=True) <= 700
            assert at.redis.get(CLAIM) == writer.encode()
            left = at.left(TURN)
            assert at.left(CLAIM) <= left - 999

    def test_nobody_claims_while_readers_have_their_turn(self, at: ReadWriteScripts) -> None:
        at.reading(YOU, 60_000)
        at.redis.set(TURN, "1", px=1_000)
        for writer in (MY_WRITE, MY_WRITE, YOUR_WRITE):
            assert 0 < at.write(writer, 1, 30_000, waits=True) <= 1_000
            assert not at.redis.exists(CLAIM)
        assert at.read(ME, 1, 30_000) is None
        at.redis.delete(TURN)
        assert at.write(MY_WRITE, 1, 30_000, waits=True) == 1_000
        assert at.redis.exists(CLAIM)

    def test_a_writer_may_come_in_while_readers_have_their_turn(self, at: ReadWriteScripts) -> None:
        at.redis.set(TURN, "1", px=1_000)
        for _ in range(2):
            assert at.write(MY_WRITE, 1, 30_000, waits=True) is None
            assert at.redis.keys() == [b"orders"]

    @pytest.mark.parametrize("claimant", [MY_WRITE, YOUR_WRITE])
    def test_a_claim_ends_when_a_writer_comes_in(self, at: ReadWriteScripts, claimant: str) -> None:
        at.redis.set(CLAIM, claimant, px=2_000)
        at.redis.set(TURN, "1", px=6_000)
        for _ in range(2):
            assert at.write(MY_WRITE, 1, 30_000, waits=True) is None
            assert at.redis.keys() == [b"orders"]

    def test_a_lock_of_another_kind(self, at: ReadWriteScripts) -> None:
        at.redis.hset("orders", YOU, 1)
        assert at.write(MY_WRITE, 1, 30_000, waits=True) == -1
        at.redis.pexpire("orders", 20_000)
        for _ in range(2):
            assert near(at.write(MY_WRITE, 1, 30_000, waits=True), 20_000)
            assert at.state() == {YOU: "1"}
            assert at.redis.keys() == [b"orders"]

    def test_another_type(self, at: ReadWriteScripts) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.write(MY_WRITE, 1, 30_000)
        assert at.redis.get("orders") == b"text"


class TestWriteRelease:
    def test_the_last_hold(self, at: ReadWriteScripts, ear: PubSub) -> None:
        at.writing(ME, 2, 30_000)
        assert at.write_release(MY_WRITE, 0) == 1
        assert at.redis.keys() == []
        assert at.write_release(MY_WRITE, 0) is None
        assert at.redis.keys() == []
        assert heard(ear) == [b"1"]

    def test_an_inner_hold(self, at: ReadWriteScripts, ear: PubSub) -> None:
        at.writing(ME, 3, 30_000)
        for _ in range(2):
            assert at.write_release(MY_WRITE, 2) == 0
            assert at.state() == {"mode": "write", MY_WRITE: "2"}
            assert near(at.left(), 30_000)
        assert heard(ear) == []

    def test_the_writer_goes_on_reading(self, at: ReadWriteScripts, ear: PubSub) -> None:
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

    def test_the_writers_reads_have_ended(self, at: ReadWriteScripts, ear: PubSub) -> None:
        at.writing(ME, 1, 60_000)
        at.reading(ME, 10_000)
        at.redis.delete(lease_key(ME, 1))
        assert at.write_release(MY_WRITE, 0) == 1
        assert at.redis.keys() == []
        assert heard(ear) == [b"1"]

    @pytest.mark.parametrize("hold", [0, 1])
    def test_somebody_elses(self, at: ReadWriteScripts, ear: PubSub, hold: int) -> None:
        others: list[Callable[[], None]] = [lambda: at.writing(YOU, 2, 20_000), lambda: at.reading(ME, 20_000)]
        for prepare in (at.redis.flushall, *others):
            at.redis.flushall()
            prepare()
            before = at.state()
            for _ in range(2):
                assert at.write_release(MY_WRITE, hold) is None
                assert at.state() == before
        assert heard(ear) == []

    def test_another_type(self, at: ReadWriteScripts) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.write_release(MY_WRITE, 0)
        assert at.redis.get("orders") == b"text"


class TestGivingUp:
    @pytest.mark.parametrize("read", [False, True])
    def test_our_claim_goes_and_readers_look(self, at: ReadWriteScripts, ear: PubSub, read: bool) -> None:
        if read:
            at.reading(YOU, 30_000)
        # Whatever its name was when it claimed.
        for claimant in (MY_WRITE, ME + ":3:write"):
            at.redis.set(CLAIM, claimant, px=2_000)
            assert at.give_up(ME) == 1
            assert not at.redis.exists(CLAIM)
            assert at.give_up(ME) == 0
        assert heard(ear) == [b"1", b"1"]

    def test_under_a_writer_nobody_needs_to_look(self, at: ReadWriteScripts, ear: PubSub) -> None:
        at.writing(YOU, 1, 30_000)
        at.redis.set(CLAIM, MY_WRITE, px=2_000)
        assert at.give_up(ME) == 1
        assert at.redis.keys() == [b"orders"]
        assert heard(ear) == []

    @pytest.mark.parametrize("claimant", [YOUR_WRITE, ME + "0:write"])
    def test_somebody_elses_claim_stays(self, at: ReadWriteScripts, ear: PubSub, claimant: str) -> None:
        at.redis.set(CLAIM, claimant, px=2_000)
        assert at.give_up(ME) == 0
        assert at.redis.get(CLAIM) == claimant.encode()
        assert heard(ear) == []

    def test_another_type_where_the_lock_should_be(self, at: ReadWriteScripts) -> None:
        """It is repeated until it has run: an error would be repeated for minutes."""
        at.redis.set("orders", "text")
        at.redis.set(CLAIM, MY_WRITE, px=2_000)
        assert at.give_up(ME) == 1
        assert at.redis.keys() == [b"orders"]
