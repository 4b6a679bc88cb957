"""The scripts about clients, on real servers, old and new: every branch, sent twice."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import ME, YOU, ScriptedLock


@pytest.fixture
def scripts(server: Server, admin: Redis) -> ScriptedLock:
    return ScriptedLock(server, admin)


class TestHolder:
    def test_a_free_lock(self, scripts: ScriptedLock) -> None:
        for _ in range(2):
            assert scripts.run("lock_holder", ["orders"]) == [-2, 0]
        assert scripts.redis.keys() == []

    def test_one_owner(self, scripts: ScriptedLock) -> None:
        scripts.hold(ME, 2, None)
        assert scripts.run("lock_holder", ["orders"]) == [-1, 1, ME.encode()]
        scripts.hold(ME, 2, 20_000)
        for _ in range(2):
            left, *owners = scripts.run("lock_holder", ["orders"])
            assert 10_000 < left <= 20_000
            assert owners == [1, ME.encode()]
        assert scripts.state() == {ME: "2"}

    def test_a_writer_comes_first(self, scripts: ScriptedLock) -> None:
        for field, value in ((YOU, "1"), (ME, "1"), ("mode", "write"), (f"{YOU}:write", "1")):
            scripts.redis.hset("orders", field, value)
        for _ in range(2):
            _, count, first, *others = scripts.run("lock_holder", ["orders"])
            assert (count, first) == (3, f"{YOU}:write".encode())
            assert sorted(others) == sorted([ME.encode(), YOU.encode()])

    def test_many_readers(self, scripts: ScriptedLock) -> None:
        scripts.redis.hset("orders", mapping={"mode": "read"} | {f"me:{number}": "1" for number in range(1000)})
        _, count, *owners = scripts.run("lock_holder", ["orders"])
        assert (count, len(set(owners))) == (1000, 64)

    def test_another_type(self, scripts: ScriptedLock) -> None:
        scripts.redis.set("orders", 1)
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scripts.run("lock_holder", ["orders"])

    def test_the_rights_of_a_holder_are_enough(self, scripts: ScriptedLock) -> None:
        scripts.hold(ME, 1, None)
        with scripts.user("~orders", "+eval", "+hkeys", "+hexists", "+pttl") as redis:
            assert scripts.run("lock_holder", ["orders"], redis=redis) == [-1, 1, ME.encode()]

    def test_out_of_memory(self, scripts: ScriptedLock) -> None:
        scripts.hold(ME, 1, None)
        with scripts.out_of_memory():
            assert scripts.run("lock_holder", ["orders"]) == [-1, 1, ME.encode()]


KEY = "pyredisson_client:{me}"


def announce(scripts: ScriptedLock, number: int, base: int, *stored: object, removed: tuple[str, ...] = ()) -> int:
    words: list[Any] = [number, base, 30_000, len(removed), *removed, *stored]
    return int(scripts.run("client_announce", [KEY], *words))


def fields(scripts: ScriptedLock) -> dict[str, str]:
    return {field.decode(): value.decode() for field, value in scripts.redis.hgetall(KEY).items()}


class TestAnnounce:
    def test_a_whole_one(self, scripts: ScriptedLock) -> None:
        for reply in (1, 2):
            assert announce(scripts, 1, 0, "host", "web-3", -1, "h:1 a b", " lock", 2_000, "since", "", 0) == reply
            found = fields(scripts)
            seconds, microseconds = scripts.redis.time()
            now = seconds * 1000 + microseconds // 1000
            began, kind = found.pop("h:1 a b").split()
            assert kind == "lock"
            assert now - 10_000 < int(began) == int(found.pop("since")) - 2_000
            assert found == {"n": "1", "host": "web-3"}
            assert 20_000 < scripts.left(KEY) <= 30_000

    def test_changes(self, scripts: ScriptedLock) -> None:
        announce(scripts, 1, 0, "host", "web-3", -1, "h:1 a", "x", -1, "h:1 b", "x", -1)
        scripts.redis.pexpire(KEY, 1_000)
        for reply in (1, 2):
            assert announce(scripts, 2, 1, "h:1 c", "x", -1, removed=("h:1 a", "h:1 d")) == reply
            assert fields(scripts) == {"n": "2", "host": "web-3", "h:1 b": "x", "h:1 c": "x"}
            assert scripts.left(KEY) > 20_000

    def test_changes_of_another_one(self, scripts: ScriptedLock) -> None:
        for _ in range(2):
            assert announce(scripts, 3, 2, "h:1 c", "x", -1) == 0
            assert scripts.redis.keys() == []
        announce(scripts, 1, 0, "host", "web-3", -1)
        for _ in range(2):
            assert announce(scripts, 3, 2, "h:1 c", "x", -1) == 0
            assert fields(scripts) == {"n": "1", "host": "web-3"}

    def test_a_whole_one_replaces_another(self, scripts: ScriptedLock) -> None:
        announce(scripts, 1, 0, "host", "web-3", -1, "h:1 a", "x", -1)
        for reply in (1, 2):
            assert announce(scripts, 2, 0, "host", "web-4", -1) == reply
            assert fields(scripts) == {"n": "2", "host": "web-4"}

    @pytest.mark.parametrize("make", [("SET", KEY, "text"), ("HSET", KEY, "n", "9" * 30), ("HSET", KEY, "n", "text")])
    def test_somebody_else_has_written_it(self, scripts: ScriptedLock, make: tuple[str, ...]) -> None:
        scripts.redis.execute_command(*make)
        assert announce(scripts, 3, 2, "h:1 c", "x", -1) == 0
        assert announce(scripts, 4, 0, "host", "web-3", -1) == 1
        assert fields(scripts) == {"n": "4", "host": "web-3"}

    def test_late_copies(self, scripts: ScriptedLock) -> None:
        announce(scripts, 5, 0, "host", "web-3", -1)
        assert announce(scripts, 4, 0, "host", "web-4", -1) == 2
        assert announce(scripts, 4, 3, "h:1 c", "x", -1) == 2
        assert fields(scripts) == {"n": "5", "host": "web-3"}

    def test_many(self, scripts: ScriptedLock) -> None:
        stored = [word for number in range(500) for word in (f"h:1 {number}", " lock", 5)]
        assert announce(scripts, 1, 0, *stored) == 1
        assert announce(scripts, 2, 1, removed=tuple(f"h:1 {number}" for number in range(500))) == 1
        assert fields(scripts) == {"n": "2"}

    def test_out_of_memory_and_a_replica(self, scripts: ScriptedLock) -> None:
        # Older servers let a script go on that has written before, if only by a DEL.
        if scripts.with_shebang:
            with scripts.out_of_memory(), pytest.raises(ResponseError, match="maxmemory"):
                announce(scripts, 1, 0, "host", "web-3", -1)
        with scripts.replica() as redis, pytest.raises(ResponseError, match="read only"):
            scripts.run("client_announce", [KEY], 1, 0, 30_000, 0, "host", "web-3", -1, redis=redis)
        assert scripts.redis.keys() == []
