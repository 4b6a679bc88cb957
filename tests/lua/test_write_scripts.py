"""Each script of the writer's side on servers old and new: every branch, sent twice, and as Redisson reads it."""

from __future__ import annotations

from collections.abc import Callable

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


class TestWriteAcquire:
    def test_a_free_lock(self, scripts: ReadWriteScripts) -> None:
        for _ in range(2):
            assert scripts.write(MY_WRITE, 1, 30_000) is None
            assert scripts.state() == {"mode": "write", MY_WRITE: "1"}
            assert scripts.redis.keys() == [b"orders"]
            assert near(scripts.left(), 30_000)

    @pytest.mark.parametrize(("lease", "left"), [(10_000, 30_000), (40_000, 40_000)])
    def test_another_level(self, scripts: ReadWriteScripts, lease: int, left: int) -> None:
        scripts.writing(ME, 1, 30_000)
        for _ in range(2):
            assert scripts.write(MY_WRITE, 2, lease) is None
            assert scripts.state() == {"mode": "write", MY_WRITE: "2"}
            assert near(scripts.left(), left)

    def test_another_level_of_a_lost_hold(self, scripts: ReadWriteScripts) -> None:
        for _ in range(2):
            assert scripts.write(MY_WRITE, 2, 30_000) == -2
            assert scripts.redis.keys() == []

    @pytest.mark.parametrize("waits", [False, True])
    @pytest.mark.parametrize("hold", [1, 2])
    def test_somebody_writes(self, scripts: ReadWriteScripts, hold: int, waits: bool) -> None:
        scripts.writing(YOU, 3, 20_000)
        for _ in range(2):
            assert near(scripts.write(MY_WRITE, hold, 30_000, waits=waits), 20_000)
            assert scripts.state() == {"mode": "write", YOUR_WRITE: "3"}
            assert near(scripts.left(), 20_000)
            # After a writer, readers have their turn.
            assert scripts.redis.keys() == [b"orders"]

    def test_somebody_writes_for_ever(self, scripts: ReadWriteScripts) -> None:
        scripts.writing(YOU, 1, None)
        assert scripts.write(MY_WRITE, 1, 30_000, waits=True) == -1

    @pytest.mark.parametrize("reader", [ME, YOU])
    def test_somebody_reads(self, scripts: ReadWriteScripts, reader: str) -> None:
        scripts.reading(reader, 20_000)
        for _ in range(2):
            assert near(scripts.write(MY_WRITE, 1, 30_000), 20_000)
            assert scripts.state() == {"mode": "read", reader: "1"}
            assert not scripts.redis.exists(CLAIM)

    def test_who_waits_for_readers_claims(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(YOU, 20_000)
        for _ in range(2):
            assert scripts.write(MY_WRITE, 1, 30_000, waits=True) == CLAIMED - 1_000
            assert scripts.redis.get(CLAIM) == MY_WRITE.encode()
            assert 1_000 < scripts.left(CLAIM) <= 2_000
            scripts.redis.pexpire(CLAIM, 1_000)
        scripts.redis.persist("orders")
        assert scripts.write(YOUR_WRITE, 1, 30_000, waits=True) == CLAIMED - 1_000
        assert scripts.redis.get(CLAIM) == YOUR_WRITE.encode()
        scripts.redis.pexpire("orders", 500)
        assert 0 < CLAIMED - scripts.write(MY_WRITE, 1, 30_000, waits=True) <= 500

    def test_claims_of_all_writers_end_together(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(YOU, 60_000)
        scripts.write(MY_WRITE, 1, 30_000, waits=True)
        assert 5_000 < scripts.left(TURN) <= 6_000
        scripts.redis.pexpire(TURN, 1_700)
        for writer in (YOUR_WRITE, MY_WRITE, MY_WRITE):
            assert 0 < CLAIMED - scripts.write(writer, 1, 30_000, waits=True) <= 700
            assert scripts.redis.get(CLAIM) == writer.encode()
            left = scripts.left(TURN)
            assert scripts.left(CLAIM) <= left - 999

    def test_nobody_claims_while_readers_have_their_turn(self, scripts: ReadWriteScripts) -> None:
        scripts.reading(YOU, 60_000)
        scripts.redis.set(TURN, "1", px=1_000)
        for writer in (MY_WRITE, MY_WRITE, YOUR_WRITE):
            assert 0 < scripts.write(writer, 1, 30_000, waits=True) <= 1_000
            assert not scripts.redis.exists(CLAIM)
        assert scripts.read(ME, 1, 30_000) is None
        scripts.redis.delete(TURN)
        assert scripts.write(MY_WRITE, 1, 30_000, waits=True) == CLAIMED - 1_000
        assert scripts.redis.exists(CLAIM)

    def test_a_writer_may_come_in_while_readers_have_their_turn(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.set(TURN, "1", px=1_000)
        for _ in range(2):
            assert scripts.write(MY_WRITE, 1, 30_000, waits=True) is None
            assert scripts.redis.keys() == [b"orders"]

    @pytest.mark.parametrize("claimant", [MY_WRITE, YOUR_WRITE])
    def test_a_claim_ends_when_a_writer_comes_in(self, scripts: ReadWriteScripts, claimant: str) -> None:
        scripts.redis.set(CLAIM, claimant, px=2_000)
        scripts.redis.set(TURN, "1", px=6_000)
        for _ in range(2):
            assert scripts.write(MY_WRITE, 1, 30_000, waits=True) is None
            assert scripts.redis.keys() == [b"orders"]

    def test_a_lock_of_another_kind(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.hset("orders", YOU, 1)
        assert scripts.write(MY_WRITE, 1, 30_000, waits=True) == -1
        scripts.redis.pexpire("orders", 20_000)
        for _ in range(2):
            assert near(scripts.write(MY_WRITE, 1, 30_000, waits=True), 20_000)
            assert scripts.state() == {YOU: "1"}
            assert scripts.redis.keys() == [b"orders"]

    def test_another_type(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.write(MY_WRITE, 1, 30_000)
        assert scripts.redis.get("orders") == b"text"


class TestWriteRelease:
    def test_the_last_level(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(ME, 2, 30_000)
        assert scripts.write_release(MY_WRITE, 0) == 1
        assert scripts.redis.keys() == []
        assert scripts.write_release(MY_WRITE, 0) is None
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"1"]

    def test_several_clients_hear_of_it(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        with scripts.redis.pubsub() as another:
            another.subscribe(scripts.channel)
            assert another.get_message(timeout=10)["type"] == "subscribe"
            scripts.writing(ME, 1, 30_000)
            assert scripts.write_release(MY_WRITE, 0) == 3
        assert published(subscription) == [b"1"]

    def test_an_inner_level(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(ME, 3, 30_000)
        for _ in range(2):
            assert scripts.write_release(MY_WRITE, 2) == 0
            assert scripts.state() == {"mode": "write", MY_WRITE: "2"}
            assert near(scripts.left(), 30_000)
        assert published(subscription) == []

    def test_the_writer_goes_on_reading(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.reading(ME, 10_000, 20_000)
        assert scripts.write_release(MY_WRITE, 0) == 1
        assert scripts.state() == {"mode": "read", ME: "2"}
        assert near(scripts.left(), 20_000)
        assert scripts.left() >= max(scripts.leases(ME).values())
        assert scripts.write_release(MY_WRITE, 0) is None
        assert scripts.state() == {"mode": "read", ME: "2"}
        # Waiting readers are notified.
        assert published(subscription) == [b"1"]
        assert scripts.read(YOU, 1, 30_000) is None

    def test_the_writers_reads_have_ended(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(ME, 1, 60_000)
        scripts.reading(ME, 10_000)
        scripts.redis.delete(lease_key(ME, 1))
        assert scripts.write_release(MY_WRITE, 0) == 1
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"1"]

    @pytest.mark.parametrize("hold", [0, 1])
    def test_another_owners_lock(self, scripts: ReadWriteScripts, subscription: PubSub, hold: int) -> None:
        others: list[Callable[[], None]] = [
            lambda: scripts.writing(YOU, 2, 20_000),
            lambda: scripts.reading(ME, 20_000),
        ]
        for prepare in (scripts.redis.flushall, *others):
            scripts.redis.flushall()
            prepare()
            before = scripts.state()
            for _ in range(2):
                assert scripts.write_release(MY_WRITE, hold) is None
                assert scripts.state() == before
        assert published(subscription) == []

    def test_another_type(self, scripts: ReadWriteScripts) -> None:
        scripts.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.write_release(MY_WRITE, 0)
        assert scripts.redis.get("orders") == b"text"


class TestGivingUp:
    @pytest.mark.parametrize("read", [False, True])
    def test_the_claim_is_removed_and_readers_are_notified(
        self, scripts: ReadWriteScripts, subscription: PubSub, read: bool
    ) -> None:
        if read:
            scripts.reading(YOU, 30_000)
        # Also if the writer has another name than when it claimed.
        for claimant in (MY_WRITE, ME + ":3:write"):
            scripts.redis.set(CLAIM, claimant, px=2_000)
            assert scripts.withdraw_claim(ME) == 1
            assert not scripts.redis.exists(CLAIM)
            assert scripts.withdraw_claim(ME) == 0
        assert published(subscription) == [b"1", b"1"]

    def test_under_a_writer_nobody_is_notified(self, scripts: ReadWriteScripts, subscription: PubSub) -> None:
        scripts.writing(YOU, 1, 30_000)
        scripts.redis.set(CLAIM, MY_WRITE, px=2_000)
        assert scripts.withdraw_claim(ME) == 1
        assert scripts.redis.keys() == [b"orders"]
        assert published(subscription) == []

    @pytest.mark.parametrize("claimant", [YOUR_WRITE, ME + "0:write"])
    def test_another_owners_claim_stays(self, scripts: ReadWriteScripts, subscription: PubSub, claimant: str) -> None:
        scripts.redis.set(CLAIM, claimant, px=2_000)
        assert scripts.withdraw_claim(ME) == 0
        assert scripts.redis.get(CLAIM) == claimant.encode()
        assert published(subscription) == []

    def test_another_type_where_the_lock_should_be(self, scripts: ReadWriteScripts) -> None:
        """The command is sent again until it has run: after an error it would be sent again for minutes."""
        scripts.redis.set("orders", "text")
        scripts.redis.set(CLAIM, MY_WRITE, px=2_000)
        assert scripts.withdraw_claim(ME) == 1
        assert scripts.redis.keys() == [b"orders"]
