"""The scripts of the inspection: they only read, and they read the same twice."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from pyredisson.inspection.names import companions_of
from pyredisson.testing import Server

from .scripted import ME, YOU, ScriptedLock

VALUE = "sMUTHC2Ql4EaCGlDp3W/MQ"


class InspectScripts(ScriptedLock):
    channel = "redisson_lock__channel:{orders}"

    def scan(self, cursor: str | int = 0, count: int = 256, redis: Any = None) -> Any:
        return self.run("inspect_scan", [], cursor, count, redis=redis)

    def state(self, key: str = "orders", limit: int = 100, redis: Any = None) -> Any:
        names = companions_of(key.encode())
        keys = [name.decode() for name, _ in names.keys]
        replies = [
            self.run("inspect_state", [key, *keys, names.leases.decode()], limit, *names.channels, redis=redis)
            for _ in range(2)
        ]
        # The time and what remains of leases differ.
        assert [reply[1] for reply in replies] == [replies[0][1]] * 2
        assert replies[0][3:7] == replies[1][3:7]
        assert replies[0][8:] == replies[1][8:]
        return replies[1]


@pytest.fixture
def scripts(server: Server, admin: Redis) -> InspectScripts:
    return InspectScripts(server, admin)


def of_class(scripts: InspectScripts, **fields: str | int) -> str:
    """What a hash with these fields is. Any of its fields may be the one that is looked at, so it is asked often."""
    scripts.redis.delete("orders")
    scripts.redis.hset("orders", mapping=fields)
    found = {scripts.state()[3].decode() for _ in range(10)}
    assert len(found) == 1
    only: str = found.pop()
    in_walk = scripts.scan()[2] == [b"orders"]
    assert in_walk == (only in ("lock", "read-write", "group"))
    return only


class TestClass:
    def test_a_lock(self, scripts: InspectScripts) -> None:
        assert of_class(scripts, **{ME: 1}) == "lock"
        assert of_class(scripts, **{ME: 1, YOU: 12}) == "lock"
        assert of_class(scripts, **{f"{ME}:1": 1}) == "lock"
        assert of_class(scripts, **{f"{ME}.7": 1}) == "lock"
        assert of_class(scripts, **{ME.upper(): 1}) == "lock"

    @pytest.mark.parametrize("mode", ["read", "write"])
    def test_a_read_write_lock(self, scripts: InspectScripts, mode: str) -> None:
        assert of_class(scripts, mode=mode) == "read-write"
        assert of_class(scripts, mode=mode, **{ME: 1}) == "read-write"
        assert of_class(scripts, mode=mode, **{f"{ME}:write": 2}) == "read-write"

    def test_a_group(self, scripts: InspectScripts) -> None:
        fields: dict[str, str | int] = {VALUE: ME, f"{VALUE}:{ME}:expire_time": 5, f"{VALUE}:{ME}:lock_count": 1}
        assert of_class(scripts, **fields) == "group"

    def test_a_rate_limiter(self, scripts: InspectScripts) -> None:
        assert of_class(scripts, rate=1, interval=1, type=0) == "rate-limiter"

    @pytest.mark.parametrize(
        "fields",
        [
            {"item:12": 1},
            {"mode": "sport"},
            {"rate": 1, "type": 0},
            {ME: 0},
            {ME: -1},
            {ME: "x"},
            {ME: "1x"},
            {ME.partition(":")[0]: 1},
            {f"{ME.partition(':')[0]}:x": 1},
            {f"x{ME}": 1},
            {VALUE: "me"},
            {f"{VALUE}:{ME}:name": "x"},
            {f"{VALUE}:me:lock_count": 1},
            {"": 1},
            {"\0%": 1},
        ],
    )
    def test_something_else(self, scripts: InspectScripts, fields: dict[str, str | int]) -> None:
        assert of_class(scripts, **fields) == ""


class TestScan:
    def test_all_steps_together_look_at_each_key(self, scripts: InspectScripts) -> None:
        names = {f"lock:{number}".encode() for number in range(100)}
        for name in names:
            scripts.redis.hset(name, ME, 1)
        for number in range(500):
            scripts.redis.set(f"counter:{number}", number)
        found: set[bytes] = set()
        cursor, keys, steps = b"0", 0, 0
        while steps == 0 or cursor != b"0":
            # A copy may see other keys than the first one, as the server rearranges its table. Both count.
            found.update(scripts.scan(cursor.decode(), 32)[2])
            cursor, looked_at, locks, companions = scripts.scan(cursor.decode(), 32)
            assert companions == []
            found.update(locks)
            keys += looked_at
            steps += 1
        assert found == names
        assert keys >= 600
        assert steps > 5

    def test_an_empty_server(self, scripts: InspectScripts) -> None:
        assert scripts.scan() == [b"0", 0, [], []]

    def test_companions(self, scripts: InspectScripts) -> None:
        ours = ("redisson_lock_queue:{orders}", "pyredisson_once:{orders}:x", f"pyredisson_client:{{{ME}}}")
        for key in ours:
            scripts.redis.set(key, 1)
        scripts.redis.zadd("{orders}:timeout", {b"0123456789abcdef": 5})
        scripts.redis.zadd("orders:timeout", {b"0123456789abcdef": 5})
        scripts.redis.zadd("{jobs}:timeout", {b"0123456789abcde": 5})
        scripts.redis.set("{counter}:timeout", 5)
        scripts.redis.set("redisson_unlock_latch:{orders}:x", 0)
        assert {key.decode() for key in scripts.scan()[3]} == {*ours, "{orders}:timeout"}


class TestState:
    def test_nothing(self, scripts: InspectScripts) -> None:
        reply = scripts.state()
        now, types, ttls, hash_class, mode, size, fields, leases, text, length, waiters, token = reply[:12]
        assert abs(now / 1000 - scripts.redis.time()[0]) < 5
        assert types == [b"none"] * 12
        assert ttls == [-2] * 12
        assert (hash_class, mode, size, fields, leases, text) == (b"", b"", 0, [], [], None)
        assert (length, waiters, token) == (0, [], None)
        assert reply[12:] == [0, 0, [], [0, 0, 0, 0]]

    def test_owners(self, scripts: InspectScripts) -> None:
        scripts.hold(ME, 3, 20_000)
        reply = scripts.state()
        assert reply[1][0] == b"hash"
        assert 15_000 < reply[2][0] <= 20_000
        assert reply[3:7] == [b"lock", b"", 1, [ME.encode(), b"3"]]

    def test_more_owners_than_the_limit(self, scripts: InspectScripts) -> None:
        scripts.redis.hset("orders", mapping={f"{ME}{number}": 1 for number in range(5000)})
        reply = scripts.state(limit=10)
        assert reply[5] == 5000
        assert 10 <= len(reply[6]) // 2 < 600

    def test_leases_of_readers(self, scripts: InspectScripts) -> None:
        scripts.redis.hset("orders", mapping={"mode": "read", ME: 2, YOU: 1})
        scripts.redis.set(f"{{orders}}:{ME}:rwlock_timeout:1", 1, px=10_000)
        scripts.redis.set(f"{{orders}}:{ME}:rwlock_timeout:2", 1, px=30_000)
        reply = scripts.state()
        leases = dict(zip(reply[6][::2], reply[7], strict=True))
        assert 25_000 < leases[ME.encode()] <= 30_000
        assert leases[YOU.encode()] == leases[b"mode"] == -2

    def test_waiters(self, scripts: InspectScripts) -> None:
        scripts.redis.rpush("redisson_lock_queue:{orders}", ME, YOU)
        scripts.redis.zadd("redisson_lock_timeout:{orders}", {ME: 50})
        scripts.redis.hset("pyredisson_fair_waiters:{orders}", YOU, 60)
        scripts.redis.zadd("pyredisson_fair_clients:{orders}", {YOU.partition(":")[0]: 70})
        reply = scripts.state()
        assert reply[9:11] == [2, [ME.encode(), b"50", b"", b"", YOU.encode(), b"", b"60", b"70"]]
        assert scripts.state(limit=1)[9:11] == [2, [ME.encode(), b"50", b"", b""]]

    def test_permits(self, scripts: InspectScripts) -> None:
        scripts.redis.set("orders", 4)
        scripts.redis.zadd("{orders}:timeout", {"ended": 5, "leased": 9 * 10**12, "endless": 922337203685477})
        reply = scripts.state()
        assert (reply[8], reply[12], reply[13]) == (b"4", 2, 1)
        assert reply[14][::2] == [b"leased", b"endless"]
        assert int(float(reply[14][3])) == 922337203685477

    def test_a_token(self, scripts: InspectScripts) -> None:
        scripts.redis.set("redisson_lock_token:{orders}", 2**52)
        assert scripts.state()[11] == b"%d" % 2**52

    def test_a_long_string_is_not_read(self, scripts: InspectScripts) -> None:
        scripts.redis.set("orders", "x" * 10_000)
        assert scripts.state()[8] == b"x" * 32

    def test_subscribers(self, scripts: InspectScripts, server: Server) -> None:
        with scripts.redis.pubsub() as one, scripts.redis.pubsub() as other:
            for listening in (one, other):
                listening.subscribe("redisson_rwlock:{orders}")
                assert listening.get_message(timeout=5)["type"] == "subscribe"
            if server.version >= (7,):
                one.ssubscribe("redisson_rwlock:{orders}", "redisson_sc:{orders}")
                for _ in range(2):
                    assert one.get_message(timeout=5)["type"] == "ssubscribe"
            assert scripts.state()[15] == [0, 2, 1 if server.version >= (7,) else 0, 0]

    def test_on_a_replica(self, scripts: InspectScripts) -> None:
        """They write nothing, so a server that became a replica answers, too."""
        scripts.hold(ME, 1, 30_000)
        with scripts.replica() as redis:
            assert scripts.state(redis=redis)[5] == 1
            assert scripts.scan(redis=redis)[2] == [b"orders"]

    def test_out_of_memory(self, scripts: InspectScripts) -> None:
        scripts.hold(ME, 1, 30_000)
        with scripts.out_of_memory():
            assert scripts.state()[5] == 1
            assert scripts.scan()[2] == [b"orders"]

    @pytest.mark.parametrize("missing", ["type", "hrandfield", "hget", "zrange"])
    def test_a_right_that_is_missing_is_not_ignored(self, scripts: InspectScripts, missing: str) -> None:
        """Otherwise locks would be missing without a word."""
        scripts.hold(ME, 1, 30_000)
        scripts.redis.zadd("{orders}:timeout", {b"0123456789abcdef": 5})
        with (
            scripts.user("~*", "+@all", f"-{missing}") as redis,
            pytest.raises(ResponseError, match=r"permissions|can't run"),
        ):
            scripts.scan(redis=redis)
