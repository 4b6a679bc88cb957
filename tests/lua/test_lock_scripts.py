"""Each script of the lock on real servers, old and new: every branch, sent twice, and read as Redisson would."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson._protocol.scripts import NAMES, Script
from pyredisson.testing import Server

from .scripted import ME, YOU, ScriptedLock, heard


class LockScripts(ScriptedLock):
    channel = "redisson_lock__channel:{orders}"

    def acquire(self, owner: str, holds: int, lease: int, redis: Any = None) -> Any:
        return self.run("lock_acquire", ["orders"], owner, holds, lease, redis=redis)

    def release(self, owner: str, holds: int, redis: Any = None) -> Any:
        return self.run("lock_release", ["orders"], self.channel, owner, holds, redis=redis)

    def force_release(self, redis: Any = None) -> Any:
        return self.run("lock_force_release", ["orders"], self.channel, redis=redis)

    def lost(self, redis: Any = None) -> Any:
        return self.run("lock_lost", ["orders"], self.channel, "0", redis=redis)

    def renew(self, lease: int, *locks: tuple[str, str], redis: Any = None) -> Any:
        keys = [key for key, _ in locks]
        return self.run("lock_renew", keys, lease, *[owner for _, owner in locks], redis=redis)


@pytest.fixture
def at(server: Server, admin: Redis) -> LockScripts:
    return LockScripts(server, admin)


class TestAcquire:
    def test_a_free_lock(self, at: LockScripts) -> None:
        for _ in range(2):
            assert at.acquire(ME, 1, 30_000) is None
            assert at.state() == {ME: "1"}
            assert at.redis.type("orders") == b"hash"
            assert 29_000 < at.left() <= 30_000

    def test_a_further_hold(self, at: LockScripts) -> None:
        at.hold(ME, 1, 1_000)
        for _ in range(2):
            assert at.acquire(ME, 2, 30_000) is None
            assert at.state() == {ME: "2"}
            assert 29_000 < at.left() <= 30_000

    def test_a_further_hold_does_not_shorten_the_lease(self, at: LockScripts) -> None:
        at.hold(ME, 1, 60_000)
        for _ in range(2):
            assert at.acquire(ME, 2, 100) is None
            assert at.state() == {ME: "2"}
            assert at.left() > 50_000

    def test_a_hold_that_never_ends_gets_an_end(self, at: LockScripts) -> None:
        at.hold(ME, 1, None)
        assert at.acquire(ME, 2, 30_000) is None
        assert 29_000 < at.left() <= 30_000

    @pytest.mark.parametrize("holds", [1, 2])
    def test_somebody_elses(self, at: LockScripts, holds: int) -> None:
        at.hold(YOU, 3, 20_000)
        for _ in range(2):
            assert 19_000 < at.acquire(ME, holds, 30_000) <= 20_000
            assert at.state() == {YOU: "3"}
            assert 19_000 < at.left() <= 20_000

    def test_somebody_elses_for_ever(self, at: LockScripts) -> None:
        at.hold(YOU, 1, None)
        assert at.acquire(ME, 1, 30_000) == -1
        assert (at.state(), at.left()) == ({YOU: "1"}, -1)

    def test_a_further_hold_of_what_is_lost(self, at: LockScripts) -> None:
        for _ in range(2):
            assert at.acquire(ME, 2, 30_000) == -2
            assert at.redis.keys() == []

    def test_another_type(self, at: LockScripts) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.acquire(ME, 1, 30_000)
        assert at.redis.get("orders") == b"text"
        assert at.left() == -1


class TestRelease:
    def test_the_last_hold(self, at: LockScripts, ear: PubSub) -> None:
        at.hold(ME, 1, 30_000)
        assert at.release(ME, 0) == 1
        assert at.redis.keys() == []
        assert at.release(ME, 0) is None
        assert at.redis.keys() == []
        assert heard(ear) == [b"0"]

    def test_an_inner_hold(self, at: LockScripts, ear: PubSub) -> None:
        at.hold(ME, 3, 30_000)
        for _ in range(2):
            assert at.release(ME, 2) == 0
            assert at.state() == {ME: "2"}
            assert 29_000 < at.left() <= 30_000
        assert heard(ear) == []

    @pytest.mark.parametrize("holds", [0, 1])
    def test_somebody_elses(self, at: LockScripts, ear: PubSub, holds: int) -> None:
        at.hold(YOU, 2, 20_000)
        for _ in range(2):
            assert at.release(ME, holds) is None
            assert at.state() == {YOU: "2"}
            assert 19_000 < at.left() <= 20_000
        assert heard(ear) == []

    def test_a_free_lock(self, at: LockScripts, ear: PubSub) -> None:
        for holds in (0, 1):
            assert at.release(ME, holds) is None
        assert at.redis.keys() == []
        assert heard(ear) == []

    def test_another_type(self, at: LockScripts) -> None:
        at.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            at.release(ME, 0)
        assert at.redis.get("orders") == b"text"


class TestForceRelease:
    def test_whoever_holds_it(self, at: LockScripts, ear: PubSub) -> None:
        at.hold(YOU, 2, 30_000)
        assert at.force_release() == 1
        assert at.redis.keys() == []
        assert at.force_release() == 0
        assert heard(ear) == [b"0"]


class TestLost:
    def test_a_free_lock(self, at: LockScripts, ear: PubSub) -> None:
        for _ in range(2):
            assert at.lost() == 1
        assert at.redis.keys() == []
        assert heard(ear) == [b"0", b"0"]

    def test_a_held_lock(self, at: LockScripts, ear: PubSub) -> None:
        at.hold(YOU, 1, 30_000)
        for _ in range(2):
            assert at.lost() == 0
        assert at.state() == {YOU: "1"}
        assert at.left() > 20_000
        assert heard(ear) == []


class TestRenew:
    def test_ours_and_others(self, at: LockScripts) -> None:
        at.hold(ME, 1, 1_000, "a")
        at.hold(YOU, 1, 1_000, "b")
        at.hold(YOU, 2, 1_000, "d")
        for _ in range(2):
            assert at.renew(30_000, ("a", ME), ("b", ME), ("c", ME), ("d", YOU)) == [1, 0, 0, 1]
            assert [at.left(key) > 29_000 for key in "abd"] == [True, False, True]
            assert (at.state("a"), at.state("b"), at.state("d")) == ({ME: "1"}, {YOU: "1"}, {YOU: "2"})
            assert not at.redis.exists("c")

    def test_a_longer_lease_stays(self, at: LockScripts) -> None:
        at.hold(ME, 1, 60_000, "a")
        assert at.renew(30_000, ("a", ME)) == [1]
        assert at.left("a") > 50_000

    @pytest.mark.parametrize("kind", ["string", "list", "set", "zset", "stream"])
    def test_a_neighbour_of_another_type(self, at: LockScripts, kind: str) -> None:
        make = {
            "string": ("SET", "b", "text"),
            "list": ("RPUSH", "b", "x"),
            "set": ("SADD", "b", ME),
            "zset": ("ZADD", "b", "1", ME),
            "stream": ("XADD", "b", "*", ME, "1"),
        }
        at.redis.execute_command(*make[kind])
        at.hold(ME, 1, 1_000, "a")
        at.hold(ME, 1, 1_000, "c")
        assert at.renew(30_000, ("a", ME), ("b", ME), ("c", ME)) == [1, 0, 1]
        assert at.left("a") > 29_000
        assert at.left("c") > 29_000
        assert at.left("b") == -1

    def test_a_whole_batch(self, at: LockScripts) -> None:
        locks = [(f"lock{number}", ME) for number in range(100)]
        for key, owner in locks:
            at.hold(owner, 1, 1_000, key)
        assert at.renew(30_000, *locks) == [1] * 100
        assert all(at.left(key) > 29_000 for key, _ in locks)


class TestServers:
    """What servers refuse, and what must go on all the same."""

    def test_out_of_memory(self, at: LockScripts) -> None:
        at.hold(ME, 2, 10_000)
        with at.out_of_memory():
            assert at.renew(30_000, ("orders", ME)) == [1]
            assert at.left() > 29_000
            if at.flags:
                # Older servers can't be told that this write frees more than it takes.
                assert at.release(ME, 1) == 0
                assert at.state() == {ME: "1"}
            assert at.release(ME, 0) == 1
            with pytest.raises(ResponseError, match="maxmemory"):
                at.acquire(ME, 1, 30_000)
        assert at.redis.keys() == []

    def test_out_of_memory_and_by_force(self, at: LockScripts) -> None:
        at.hold(YOU, 2, 10_000)
        with at.out_of_memory():
            assert at.force_release() == 1
        assert at.redis.keys() == []

    def test_without_permission_on_the_channel(self, at: LockScripts, ear: PubSub) -> None:
        with at.user("~orders", "+@all", "resetchannels") as deaf:
            assert at.acquire(ME, 1, 30_000, redis=deaf) is None
            assert at.acquire(ME, 2, 30_000, redis=deaf) is None
            assert at.release(ME, 1, redis=deaf) == 0
            assert at.release(ME, 0, redis=deaf) == 1
            assert at.redis.keys() == []
            at.hold(YOU, 1, 30_000)
            assert at.force_release(redis=deaf) == 1
            assert at.lost(redis=deaf) == 1
            assert at.redis.keys() == []
        assert heard(ear) == []

    def test_a_replica_says_that_it_is_one(self, at: LockScripts) -> None:
        at.hold(ME, 1, 30_000)
        with at.replica() as redis:
            calls: list[Callable[[], Any]] = [
                lambda: at.acquire(ME, 2, 60_000, redis=redis),
                lambda: at.release(ME, 0, redis=redis),
                lambda: at.force_release(redis=redis),
                lambda: at.renew(60_000, ("orders", ME), redis=redis),
            ]
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
            if at.flags:
                # Also where the script would only have read: what a replica knows may be long over.
                with pytest.raises(ResponseError, match="read only"):
                    at.acquire(YOU, 1, 30_000, redis=redis)
        assert at.state() == {ME: "1"}


@pytest.mark.parametrize("name", NAMES)
class TestHeader:
    """Each file says what it is for, what it takes and gives, and how to run it by hand."""

    def parts(self, name: str) -> tuple[list[str], str]:
        lines = Script(name, flags=True).text.decode().splitlines()
        assert re.fullmatch(r"#!lua( flags=[a-z,-]+)?", lines[0])
        end = next(number for number, line in enumerate(lines[1:], 1) if not line.startswith("--"))
        return [line.removeprefix("--").strip() for line in lines[1:end]], "\n".join(lines[end:])

    def test_it_is_complete(self, name: str) -> None:
        header, body = self.parts(name)
        assert header[0].endswith(".")
        text = "\n".join(header)
        documented = set(re.findall(r"^((?:KEYS|ARGV)\[[^]]+\])", text, re.MULTILINE))
        used = set(re.findall(r"(?:KEYS|ARGV)\[[0-9]+\]", body))
        assert used <= documented
        assert documented
        assert re.search(r"^returns ", text, re.MULTILINE)

    def test_its_command_line_works(self, name: str, at: LockScripts) -> None:
        header, _ = self.parts(name)
        command = header[-1].split()
        assert command[:3] == ["redis-cli", "--eval", f"{name}.lua"]
        words = command[3:]
        comma = words.index(",")
        at.run(name, words[:comma], *words[comma + 1 :])
