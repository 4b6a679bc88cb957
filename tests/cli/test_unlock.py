"""`pyredisson unlock`: says whose it is, asks, and releases what it has shown and nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.cli import naming
from pyredisson.cli import unlock as module
from pyredisson.errors import LockLostError
from pyredisson.testing import Proxy, Server
from tests.support.commands import Commands
from tests.support.commands import pyredisson as run

from .objects import JAVA, announced, moment_of_announced
from .running import answered

RELEASED = "lock 'cron:nightly' is released.\n"


def test_it_says_whose_it_is_and_releases_it(command: Commands, server: Server, redis: Any) -> None:
    with announced(server.url, redis, "cron:nightly") as lock:
        ended = command("unlock", "cron:nightly", "--yes", "--url", server.url)
        assert ended == (
            0,
            f"lock 'cron:nightly' is held by web-3 (pid 812) since {moment_of_announced()}.\n{RELEASED}",
            "",
        )
        assert not redis.exists("cron:nightly")
        with pytest.raises(LockLostError):
            lock.unlock()


@pytest.mark.parametrize(("answer", "status", "held"), [(b"y\n", 0, 0), (b"n\n", 1, 1), (b"\x04", 130, 1)])
def test_it_asks(server: Server, redis: Any, answer: bytes, status: int, held: int) -> None:
    """Only a yes releases anything."""
    redis.hset("orders", f"{JAVA}:31", 1)
    ended = answered(answer, "unlock", "orders", "--url", server.url)
    assert ended.out.startswith("lock 'orders' is held by Redisson 00000000:31.\n")
    assert "Release it? The holder finds out at its next renewal, and may still be working. [y/N]: " in ended.err
    assert (ended.status, redis.exists("orders")) == (status, held)


def test_nobody_works_under_a_lock_that_is_only_kept(server: Server, redis: Any) -> None:
    redis.hset("orders", f"{JAVA}:31:kept", 1)
    ended = answered(b"y\n", "unlock", "orders", "--url", server.url)
    assert "; its work is done, and it is only kept.\n" in ended.out
    assert ended.err.startswith("Release it? [y/N]: ")
    assert (ended.status, redis.exists("orders")) == (0, 0)


def test_nobody_can_be_asked(server: Server, redis: Any) -> None:
    redis.hset("orders", f"{JAVA}:31", 1)
    ended = run("unlock", "orders", "--url", server.url)
    assert (ended.status, redis.exists("orders")) == (2, 1)
    assert ended.err.startswith("pyredisson: nobody can be asked here: give --yes; ")


@pytest.mark.parametrize("kind", ["fair", "fenced", "write"])
def test_other_kinds(command: Commands, server: Server, redis: Any, kind: str) -> None:
    with pyredisson.connect(server.url) as client:
        if kind == "write":
            client.get_read_write_lock("orders").write_lock().lock()
        else:
            getattr(client, f"get_{kind}_lock")("orders").lock()
        ended = command("unlock", "orders", "--yes", "--url", server.url)
        assert (ended.status, ended.err, redis.exists("orders")) == (0, "", 0)
        assert client.id[:8] in ended.out


def test_readers(command: Commands, server: Server, redis: Any) -> None:
    with pyredisson.connect(server.url) as one, pyredisson.connect(server.url) as other:
        for client in (one, other):
            client.get_read_write_lock("report").read_lock().lock()
        ended = command("unlock", "report", "--yes", "--url", server.url)
        assert (ended.status, redis.hlen("report")) == (2, 3)
        assert ended.err.startswith("pyredisson: lock 'report' has 2 readers: --all-readers releases them; ")
        ended = command("unlock", "report", "--yes", "--all-readers", "--url", server.url)
        assert (ended.status, redis.exists("report")) == (0, 0)
        assert ended.out.count("is held by") == 2


def test_more_readers_than_are_shown(
    command: Commands, server: Server, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those that were shown are released, which is said."""
    monkeypatch.setattr(naming, "MOST_LISTED", 2)
    with contextlib.ExitStack() as clients:
        for _ in range(3):
            client = clients.enter_context(pyredisson.connect(server.url))
            client.get_read_write_lock("report").read_lock().lock()
        ended = command("unlock", "report", "--yes", "--all-readers", "--url", server.url)
        assert (ended.status, "released.\n" in ended.out) == (1, False)
        assert "2 of 3 holders of " in ended.err
        assert redis.exists("report")
        assert command("unlock", "report", "--yes", "--all-readers", "--url", server.url).status == 0
        assert not redis.exists("report")


def test_a_permit(command: Commands, server: Server) -> None:
    with pyredisson.connect(server.url) as client:
        db = client.get_permit_expirable_semaphore("db")
        db.try_set_permits(3)
        permit = db.acquire()
        db.acquire()
        ended = command("unlock", "db", "--yes", "--url", server.url)
        assert ended.status == 2
        assert "--permit; 'inspect' lists them" in ended.err
        ended = command("unlock", "db", "--yes", "--permit", permit, "--url", server.url)
        assert (ended.status, db.available_permits()) == (0, 2)
        ended = command("unlock", "db", "--yes", "--permit", permit, "--url", server.url)
        assert ended == (1, "", f"pyredisson: 'db' has no permit {permit} in use\n")


def test_nothing_is_held(command: Commands, server: Server) -> None:
    ended = command("unlock", "orders", "--yes", "--url", server.url)
    assert ended == (1, "", "pyredisson: lock 'orders' is free: there is no such key\n")


@pytest.mark.parametrize("kind", ["semaphore", "latch"])
def test_what_has_no_single_holds(command: Commands, server: Server, kind: str) -> None:
    with pyredisson.connect(server.url) as client:
        if kind == "latch":
            client.get_count_down_latch("stock").try_set_count(5)
        else:
            client.get_semaphore("stock").try_set_permits(5)
        ended = command("unlock", "stock", "--yes", "--url", server.url)
        assert ended.status == 2
        assert "of which no single hold can be released" in ended.err


def test_the_holder_changes_meanwhile(
    command: Commands, server: Server, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later holder keeps the lock."""
    redis.hset("orders", f"{JAVA}:31", 1)
    holder = module._holder

    def changes(owner: Any) -> str:
        redis.delete("orders")
        redis.hset("orders", f"{JAVA}:32", 1)
        return holder(owner)

    monkeypatch.setattr(module, "_holder", changes)
    ended = command("unlock", "orders", "--yes", "--url", server.url)
    assert ended.status == 1
    assert ended.err == "pyredisson: the holder of lock 'orders' has changed meanwhile: nothing was done\n"
    assert redis.hkeys("orders") == [f"{JAVA}:32".encode()]


def test_the_reply_is_lost(command: Commands, server: Server, proxy: Proxy, redis: Any) -> None:
    """It isn't said that nothing was held, which a second copy of the command would report."""
    redis.hset("orders", f"{JAVA}:31", 1)
    release = script("lock_release", with_shebang=server.version >= (7,))
    fault = proxy.drop_reply(release.sha)
    ended = command("unlock", "orders", "--yes", "--url", proxy.url, "--timeout", "1")
    assert not fault.left
    assert ended.status == 69
    assert "'pyredisson inspect' says whether lock 'orders' was released" in ended.err
    assert not redis.exists("orders")
