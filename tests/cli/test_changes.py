"""Commands that change something: `unlock`, `permits` and `rm`. What they refuse is in `test_errors.py`."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.cli import reading, unlock
from pyredisson.errors import LockLostError
from pyredisson.testing import Proxy, Server
from tests.support.commands import TIMEOUT, Commands

from .conftest import JAVA, Run, announced, answered, moment_of_announced
from .test_errors import GUESS

SILENT = "11111111-1111-4111-8111-111111111111"


@pytest.fixture
def seats(client: pyredisson.Client) -> pyredisson.Semaphore:
    made = client.get_semaphore("seats")
    made.try_set_permits(3)
    made.acquire()
    return made


class TestUnlock:
    """It says whose it is, asks, and releases what it has shown and nothing else."""

    def test_it_says_whose_it_is_and_releases_it(
        self, cli: Run, server: Server, client: pyredisson.Client, redis: Any
    ) -> None:
        """A lock, or one permit of a semaphore."""
        db = client.get_permit_expirable_semaphore("db")
        db.try_set_permits(3)
        permit, _ = db.acquire(), db.acquire()
        ended = cli("unlock", "db", "--yes", "--permit", permit)
        assert (ended.status, db.available_permits()) == (0, 2)
        with announced(server.url, redis, "cron:nightly") as lock:
            ended = cli("unlock", "cron:nightly", "--yes")
            text = f"lock 'cron:nightly' is held by web-3 (pid 812) since {moment_of_announced()}.\n"
            assert ended == (0, f"{text}lock 'cron:nightly' is released.\n", "")
            assert not redis.exists("cron:nightly")
            with pytest.raises(LockLostError):
                lock.unlock()

    @pytest.mark.parametrize(
        ("answer", "kept", "status"), [(b"y\n", "", 0), (b"y\n", ":kept", 0), (b"n\n", "", 1), (b"\x04", "", 130)]
    )
    def test_it_asks(self, server: Server, redis: Any, answer: bytes, kept: str, status: int) -> None:
        """Only a yes releases anything. Nobody works under a lock that is only kept."""
        redis.hset("orders", f"{JAVA}:31{kept}", 1)
        ended = answered(answer, "unlock", "orders", "--url", server.url)
        done = "; its work is done, and it is only kept" if kept else ""
        assert ended.out.startswith(f"lock 'orders' is held by Redisson 00000000:31{done}.\n")
        warning = "" if kept else " The holder finds out at its next renewal, and may still be working."
        assert f"Release it?{warning} [y/N]: " in ended.err
        assert (ended.status, redis.exists("orders")) == (status, int(status != 0))

    def test_more_readers_than_are_shown(self, cli: Run, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only those that were shown are released, which is said."""
        monkeypatch.setattr(reading, "MOST_LISTED", 2)
        redis.hset("report", mapping={"mode": "read", f"{JAVA}:1": 1, f"{JAVA}:2": 1, f"{JAVA}:3": 1})
        for number in (1, 2, 3):
            redis.set(f"{{report}}:{JAVA}:{number}:rwlock_timeout:1", 1, px=60_000)
        redis.pexpire("report", 60_000)
        ended = cli("unlock", "report", "--yes", "--all-readers")
        assert (ended.status, "released.\n" in ended.out, ended.out.count("is held by")) == (1, False, 2)
        assert "2 of 3 holders of " in ended.err
        assert redis.hlen("report") == 2
        assert cli("unlock", "report", "--yes", "--all-readers").status == 0
        assert not redis.exists("report")

    def test_the_holder_changes_meanwhile(self, cli: Run, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The later holder keeps the lock."""
        redis.hset("orders", f"{JAVA}:31", 1)
        holder = unlock._holder

        def changes(owner: Any) -> str:
            redis.delete("orders")
            redis.hset("orders", f"{JAVA}:32", 1)
            return holder(owner)

        monkeypatch.setattr(unlock, "_holder", changes)
        ended = cli("unlock", "orders", "--yes")
        assert ended.status == 1
        assert ended.err == "pyredisson: the holder of lock 'orders' has changed meanwhile: nothing was done\n"
        assert redis.hkeys("orders") == [f"{JAVA}:32".encode()]

    def test_the_reply_is_lost(self, command: Commands, server: Server, proxy: Proxy, redis: Any) -> None:
        """It isn't said that nothing was held, which a second copy of the command would report."""
        redis.hset("orders", f"{JAVA}:31", 1)
        release = script("lock_release", with_shebang=server.version >= (7,))
        fault = proxy.drop_reply(release.sha)
        ended = command("unlock", "orders", "--yes", "--url", proxy.url, "--timeout", "1")
        assert not fault.left
        assert ended.status == 69
        assert "'pyredisson inspect' says whether lock 'orders' was released" in ended.err
        assert not redis.exists("orders")


class TestPermits:
    """It shows how many permits are free, and sets that number unless it has changed."""

    def test_a_lost_permit_is_put_back(self, cli: Run, redis: Any, seats: pyredisson.Semaphore) -> None:
        redis.pexpire("seats", 50_000)
        assert cli("permits", "seats") == (0, "semaphore 'seats' has 2 free permits.\n", "")
        waiter = threading.Thread(target=seats.acquire, args=(3,), daemon=True)
        waiter.start()
        ended = cli("permits", "seats", "--free", "3", "--yes")
        waiter.join(TIMEOUT)
        text = "semaphore 'seats' has 2 free permits.\nsemaphore 'seats' has 3 free permits.\n"
        assert ended == (0, text, "")
        assert redis.get("seats") == b"0"
        assert redis.pttl("seats") > 40_000

    def test_nothing_is_done_if_the_number_has_changed(
        self, cli: Run, redis: Any, seats: pyredisson.Semaphore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        correct = unlock._correct

        def late(*arguments: Any) -> None:
            redis.incr("seats")
            correct(*arguments)

        monkeypatch.setattr(unlock, "_correct", late)
        ended = cli("permits", "seats", "--free", "3", "--yes")
        assert (ended.status, redis.get("seats")) == (1, b"3")
        assert "of semaphore 'seats' has changed meanwhile: nothing was done" in ended.err

    @pytest.mark.parametrize(("answer", "status", "free"), [(b"y\n", 0, b"3"), (b"n\n", 1, b"2")])
    def test_it_asks(self, server: Server, redis: Any, answer: bytes, status: int, free: bytes) -> None:
        redis.set("seats", 2)
        ended = answered(answer, "permits", "seats", "--free", "3", "--url", server.url)
        # Nobody has used it lately.
        assert ended.out.startswith(f"semaphore 'seats' has 2 free permits (a guess: {GUESS}).\n")
        assert "Set it to 3 free permits? Those who have a permit now will add it when they release it." in ended.err
        assert (ended.status, redis.get("seats")) == (status, free)


class TestRm:
    """What a lock has left goes, and nothing that somebody uses."""

    def test_a_counter_of_tokens(self, cli: Run, client: pyredisson.Client, redis: Any) -> None:
        """Of several names those of which nothing is left are named, and the others are removed."""
        lock = client.get_fenced_lock("orders")
        with lock:
            before = lock.token
        redis.set("stock", 5)
        ended = cli("rm", "none", "orders", "stock")
        assert (ended.status, ended.out) == (1, "lock 'orders': removed counter of fencing tokens.\n")
        assert ended.err.splitlines()[0] == "pyredisson: nothing is left of lock 'none'"
        # It lasts for a day, in case that the server's clock is set back.
        assert sorted(redis.keys()) == [b"pyredisson_fenced_newest:{orders}", b"stock"]
        assert redis.pttl("pyredisson_fenced_newest:{orders}") > 0
        assert cli("rm", "orders") == (1, "", "pyredisson: nothing is left of lock 'orders'\n")
        with lock:
            assert lock.token > before

    def test_a_queue_whose_waiters_are_dead(self, cli: Run, redis: Any) -> None:
        """It isn't shown as in use, and can be removed."""
        # One of a client that was killed, and one of Redisson whose place has ended.
        for waiter in (f"{SILENT}:4294967296", f"{JAVA}:31"):
            redis.rpush("redisson_lock_queue:{orders}", waiter)
            redis.zadd("redisson_lock_timeout:{orders}", {waiter: 1})
        redis.hset("pyredisson_fair_waiters:{orders}", f"{SILENT}:4294967296", 1)
        redis.zadd("pyredisson_fair_clients:{orders}", {SILENT: 1})
        assert "nothing is held" in cli("ls").err
        [_, row] = cli("ls", "--all").out.splitlines()
        assert row.split() == ["orders", "fair", "-", "-", "-", "2", "silent"]
        redis.hset("orders", f"{JAVA}:5", 1)
        [_, row] = cli("ls").out.splitlines()
        assert row.split()[-2:] == ["2", "silent"]
        redis.delete("orders")
        ended = cli("rm", "orders")
        assert (ended.status, ended.err) == (0, "")
        assert "queue" in ended.out
        assert redis.keys("redisson*") == []
