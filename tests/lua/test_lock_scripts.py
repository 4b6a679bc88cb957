"""Each script of the lock on real servers, old and new: every branch, sent twice, and read as Redisson would."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson._protocol.scripts import NAMES, Script, ScriptSet
from pyredisson.testing import Server
from tests.support.script_headers import header

from .scripted import ME, YOU, ScriptedLock, published


class LockScripts(ScriptedLock):
    channel = "redisson_lock__channel:{orders}"

    def acquire(self, owner: str, holds: int, lease: int, redis: Any = None) -> Any:
        return self.run("lock_acquire", ["orders"], owner, holds, lease, redis=redis)

    def release(self, owner: str, holds: int, redis: Any = None) -> Any:
        return self.run("lock_release", ["orders"], self.channel, owner, holds, redis=redis)

    def force_release(self, redis: Any = None) -> Any:
        return self.run("lock_force_release", ["orders"], self.channel, redis=redis)

    def wake_waiters(self, redis: Any = None) -> Any:
        return self.run("lock_wake_waiters", ["orders"], self.channel, "0", redis=redis)

    def renew(self, lease: int, *locks: tuple[str, str], redis: Any = None) -> Any:
        keys = [key for key, _ in locks]
        return self.run("lock_renew", keys, lease, *[owner for _, owner in locks], redis=redis)


@pytest.fixture
def scripts(server: Server, admin: Redis) -> LockScripts:
    return LockScripts(server, admin)


class TestAcquire:
    def test_a_free_lock(self, scripts: LockScripts) -> None:
        for _ in range(2):
            assert scripts.acquire(ME, 1, 30_000) is None
            assert scripts.state() == {ME: "1"}
            assert scripts.redis.type("orders") == b"hash"
            assert 29_000 < scripts.left() <= 30_000

    def test_another_level(self, scripts: LockScripts) -> None:
        scripts.hold(ME, 1, 1_000)
        for _ in range(2):
            assert scripts.acquire(ME, 2, 30_000) is None
            assert scripts.state() == {ME: "2"}
            assert 29_000 < scripts.left() <= 30_000

    def test_another_level_does_not_shorten_the_lease(self, scripts: LockScripts) -> None:
        scripts.hold(ME, 1, 60_000)
        for _ in range(2):
            assert scripts.acquire(ME, 2, 100) is None
            assert scripts.state() == {ME: "2"}
            assert scripts.left() > 50_000

    def test_an_endless_hold_gets_a_lease(self, scripts: LockScripts) -> None:
        scripts.hold(ME, 1, None)
        assert scripts.acquire(ME, 2, 30_000) is None
        assert 29_000 < scripts.left() <= 30_000

    @pytest.mark.parametrize("holds", [1, 2])
    def test_another_owners_lock(self, scripts: LockScripts, holds: int) -> None:
        scripts.hold(YOU, 3, 20_000)
        for _ in range(2):
            assert 19_000 < scripts.acquire(ME, holds, 30_000) <= 20_000
            assert scripts.state() == {YOU: "3"}
            assert 19_000 < scripts.left() <= 20_000

    def test_another_owners_endless_lock(self, scripts: LockScripts) -> None:
        scripts.hold(YOU, 1, None)
        assert scripts.acquire(ME, 1, 30_000) == -1
        assert (scripts.state(), scripts.left()) == ({YOU: "1"}, -1)

    def test_another_level_of_a_lost_hold(self, scripts: LockScripts) -> None:
        for _ in range(2):
            assert scripts.acquire(ME, 2, 30_000) == -2
            assert scripts.redis.keys() == []

    def test_another_type(self, scripts: LockScripts) -> None:
        scripts.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.acquire(ME, 1, 30_000)
        assert scripts.redis.get("orders") == b"text"
        assert scripts.left() == -1


class TestRelease:
    def test_the_last_level(self, scripts: LockScripts, subscription: PubSub) -> None:
        scripts.hold(ME, 1, 30_000)
        assert scripts.release(ME, 0) == 1
        assert scripts.redis.keys() == []
        assert scripts.release(ME, 0) is None
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"0"]

    def test_an_inner_level(self, scripts: LockScripts, subscription: PubSub) -> None:
        scripts.hold(ME, 3, 30_000)
        for _ in range(2):
            assert scripts.release(ME, 2) == 0
            assert scripts.state() == {ME: "2"}
            assert 29_000 < scripts.left() <= 30_000
        assert published(subscription) == []

    @pytest.mark.parametrize("holds", [0, 1])
    def test_another_owners_lock(self, scripts: LockScripts, subscription: PubSub, holds: int) -> None:
        scripts.hold(YOU, 2, 20_000)
        for _ in range(2):
            assert scripts.release(ME, holds) is None
            assert scripts.state() == {YOU: "2"}
            assert 19_000 < scripts.left() <= 20_000
        assert published(subscription) == []

    def test_a_free_lock(self, scripts: LockScripts, subscription: PubSub) -> None:
        for holds in (0, 1):
            assert scripts.release(ME, holds) is None
        assert scripts.redis.keys() == []
        assert published(subscription) == []

    def test_another_type(self, scripts: LockScripts) -> None:
        scripts.redis.set("orders", "text")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.release(ME, 0)
        assert scripts.redis.get("orders") == b"text"


class TestForceRelease:
    def test_whoever_holds_it(self, scripts: LockScripts, subscription: PubSub) -> None:
        scripts.hold(YOU, 2, 30_000)
        assert scripts.force_release() == 1
        assert scripts.redis.keys() == []
        assert scripts.force_release() == 0
        assert published(subscription) == [b"0"]


class TestLost:
    def test_a_free_lock(self, scripts: LockScripts, subscription: PubSub) -> None:
        for _ in range(2):
            assert scripts.wake_waiters() == 1
        assert scripts.redis.keys() == []
        assert published(subscription) == [b"0", b"0"]

    def test_a_held_lock(self, scripts: LockScripts, subscription: PubSub) -> None:
        scripts.hold(YOU, 1, 30_000)
        for _ in range(2):
            assert scripts.wake_waiters() == 0
        assert scripts.state() == {YOU: "1"}
        assert scripts.left() > 20_000
        assert published(subscription) == []


class TestRenew:
    def test_ours_and_others(self, scripts: LockScripts) -> None:
        scripts.hold(ME, 1, 1_000, "a")
        scripts.hold(YOU, 1, 1_000, "b")
        scripts.hold(YOU, 2, 1_000, "d")
        for _ in range(2):
            assert scripts.renew(30_000, ("a", ME), ("b", ME), ("c", ME), ("d", YOU)) == [1, 0, 0, 1]
            assert [scripts.left(key) > 29_000 for key in "abd"] == [True, False, True]
            assert (scripts.state("a"), scripts.state("b"), scripts.state("d")) == ({ME: "1"}, {YOU: "1"}, {YOU: "2"})
            assert not scripts.redis.exists("c")

    def test_a_longer_lease_stays(self, scripts: LockScripts) -> None:
        scripts.hold(ME, 1, 60_000, "a")
        assert scripts.renew(30_000, ("a", ME)) == [1]
        assert scripts.left("a") > 50_000

    def test_a_lease_of_0_only_asks(self, scripts: LockScripts) -> None:
        scripts.hold(ME, 1, 20_000, "a")
        scripts.hold(YOU, 1, 20_000, "b")
        scripts.hold(ME, 1, 20_000, "d")
        # Redisson sets no lock without an end, but a person may.
        scripts.redis.persist("d")
        for _ in range(2):
            assert scripts.renew(0, ("a", ME), ("b", ME), ("c", ME), ("d", ME)) == [1, 0, 0, 1]
            assert 10_000 < scripts.left("a") <= 20_000
            assert scripts.left("d") == -1
            assert not scripts.redis.exists("c")

    @pytest.mark.parametrize("kind", ["string", "list", "set", "zset", "stream"])
    def test_a_neighbour_of_another_type(self, scripts: LockScripts, kind: str) -> None:
        make = {
            "string": ("SET", "b", "text"),
            "list": ("RPUSH", "b", "x"),
            "set": ("SADD", "b", ME),
            "zset": ("ZADD", "b", "1", ME),
            "stream": ("XADD", "b", "*", ME, "1"),
        }
        scripts.redis.execute_command(*make[kind])
        scripts.hold(ME, 1, 1_000, "a")
        scripts.hold(ME, 1, 1_000, "c")
        assert scripts.renew(30_000, ("a", ME), ("b", ME), ("c", ME)) == [1, 0, 1]
        assert scripts.left("a") > 29_000
        assert scripts.left("c") > 29_000
        assert scripts.left("b") == -1

    def test_a_whole_batch(self, scripts: LockScripts) -> None:
        locks = [(f"lock{number}", ME) for number in range(100)]
        for key, owner in locks:
            scripts.hold(owner, 1, 1_000, key)
        assert scripts.renew(30_000, *locks) == [1] * 100
        assert all(scripts.left(key) > 29_000 for key, _ in locks)


class TestServers:
    """What servers refuse, and what must still work."""

    def test_out_of_memory(self, scripts: LockScripts) -> None:
        scripts.hold(ME, 2, 10_000)
        with scripts.out_of_memory():
            assert scripts.renew(30_000, ("orders", ME)) == [1]
            assert scripts.left() > 29_000
            if scripts.with_shebang:
                # Older servers don't know the flag of a script whose writes free more memory than they take.
                assert scripts.release(ME, 1) == 0
                assert scripts.state() == {ME: "1"}
            assert scripts.release(ME, 0) == 1
            with pytest.raises(ResponseError, match="maxmemory"):
                scripts.acquire(ME, 1, 30_000)
        assert scripts.redis.keys() == []

    def test_out_of_memory_and_by_force(self, scripts: LockScripts) -> None:
        scripts.hold(YOU, 2, 10_000)
        with scripts.out_of_memory():
            assert scripts.force_release() == 1
        assert scripts.redis.keys() == []

    def test_without_permission_on_the_channel(self, scripts: LockScripts, subscription: PubSub) -> None:
        with scripts.user("~orders", "+@all", "resetchannels") as deaf:
            assert scripts.acquire(ME, 1, 30_000, redis=deaf) is None
            assert scripts.acquire(ME, 2, 30_000, redis=deaf) is None
            assert scripts.release(ME, 1, redis=deaf) == 0
            assert scripts.release(ME, 0, redis=deaf) == 3
            assert scripts.redis.keys() == []
            scripts.hold(YOU, 1, 30_000)
            assert scripts.force_release(redis=deaf) == 1
            assert scripts.wake_waiters(redis=deaf) == 1
            assert scripts.redis.keys() == []
        assert published(subscription) == []

    def test_a_replica_replies_readonly(self, scripts: LockScripts) -> None:
        scripts.hold(ME, 1, 30_000)
        with scripts.replica() as redis:
            calls: list[Callable[[], Any]] = [
                lambda: scripts.acquire(ME, 2, 60_000, redis=redis),
                lambda: scripts.release(ME, 0, redis=redis),
                lambda: scripts.force_release(redis=redis),
                lambda: scripts.renew(60_000, ("orders", ME), redis=redis),
            ]
            for call in calls:
                with pytest.raises(ResponseError, match="read only"):
                    call()
            if scripts.with_shebang:
                # Also where the script would only read: the data of a replica may be outdated.
                with pytest.raises(ResponseError, match="read only"):
                    scripts.acquire(YOU, 1, 30_000, redis=redis)
        assert scripts.state() == {ME: "1"}


@pytest.mark.parametrize("name", NAMES)
class TestHeader:
    """Each file describes its purpose, keys, arguments and reply, and how to run it by hand."""

    def test_it_is_complete(self, name: str) -> None:
        lines = header(name).lines
        script = Script(name, with_shebang=True).text.decode()
        assert re.match(r"#!lua( flags=[a-z,-]+)?\n", script)
        assert lines[0].endswith(".")
        text = "\n".join(lines)
        documented = set(re.findall(r"^((?:KEYS|ARGV)\[[^]]+\])", text, re.MULTILINE))
        body = "\n".join(script.splitlines()[1 + len(lines) :])
        used = set(re.findall(r"(?:KEYS|ARGV)\[[0-9]+\]", body))
        assert used <= documented
        assert documented
        assert re.search(r"^returns ", text, re.MULTILINE)

    def test_its_head_has_as_many_keys_and_arguments_as_the_header(self, name: str) -> None:
        head = getattr(ScriptSet(), name)
        if not head.startswith(b"*"):
            return
        documented = re.findall(r"^(KEYS|ARGV)\[[0-9]+\]", "\n".join(header(name).lines), re.MULTILINE)
        keys, args = documented.count("KEYS"), documented.count("ARGV")
        assert head.startswith(b"*%d\r\n" % (3 + keys + args))
        assert head.endswith(b"\r\n%d\r\n" % keys)

    def test_its_command_line_works(self, name: str, scripts: LockScripts) -> None:
        known = header(name)
        scripts.run(name, known.keys, *known.args)
