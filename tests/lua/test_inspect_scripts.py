"""The scripts of the inspection: they only read, and they read the same twice."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from pyredisson.inspection.names import companions_of
from pyredisson.testing import Server

from .scripted import ME, YOU, About, Ends, Scripted

VALUE = "sMUTHC2Ql4EaCGlDp3W/MQ"


class InspectScripts(Scripted):
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
def scripts(server: Server, admin: Any) -> InspectScripts:
    return InspectScripts(server, admin)


GROUP: dict[str, str | int] = {VALUE: ME, f"{VALUE}:{ME}:expire_time": 5, f"{VALUE}:{ME}:lock_count": 1}
CLASSES: dict[str, Any] = {
    "lock": [{ME: 1}, {ME: 1, YOU: 12}, {f"{ME}:1": 1}, {f"{ME}.7": 1}, {ME.upper(): 1}],
    "read-write": [{"mode": mode, **more} for mode in ("read", "write") for more in ({}, {ME: 1}, {f"{ME}:write": 2})],
    "group": [GROUP],
    "rate-limiter": [{"rate": 1, "interval": 1, "type": 0}],
    "": [
        *({"item:12": 1}, {"mode": "sport"}, {"rate": 1, "type": 0}, {"": 1}, {"\0%": 1}),
        *({ME: 0}, {ME: -1}, {ME: "x"}, {ME: "1x"}, {f"x{ME}": 1}),
        *({ME.partition(":")[0]: 1}, {f"{ME.partition(':')[0]}:x": 1}),
        *({VALUE: "me"}, {f"{VALUE}:{ME}:name": "x"}, {f"{VALUE}:me:lock_count": 1}),
    ],
}


@pytest.mark.parametrize(("kind", "fields"), [(kind, fields) for kind, each in CLASSES.items() for fields in each])
def test_what_a_hash_is(scripts: InspectScripts, kind: str, fields: dict[str, str | int]) -> None:
    """Any of its fields may be the one that is looked at, so it is asked often."""
    scripts.redis.hset("orders", mapping=fields)
    assert {scripts.state()[3].decode() for _ in range(10)} == {kind}
    assert scripts.scan()[2] == [b"orders"] * (kind in ("lock", "read-write", "group"))


class TestScan:
    def test_all_steps_together_look_at_each_key(self, scripts: InspectScripts) -> None:
        names = {f"lock:{number}" for number in range(100)}
        scripts.write({name: {ME: 1} for name in names} | {f"counter:{number}": number for number in range(500)})
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
        assert set(map(bytes.decode, found)) == names
        assert keys >= 600
        assert steps > 5

    def test_an_empty_server(self, scripts: InspectScripts) -> None:
        assert scripts.scan() == [b"0", 0, [], []]

    def test_companions(self, scripts: InspectScripts) -> None:
        ours = ("redisson_lock_queue:{orders}", "pyredisson_once:{orders}:x", f"pyredisson_client:{{{ME}}}")
        scripts.write(dict.fromkeys(ours, 1) | {"{counter}:timeout": 5, "redisson_unlock_latch:{orders}:x": 0})
        scripts.write({f"{name}:timeout": Ends({b"0123456789abcdef": 5}) for name in ("{orders}", "orders")})
        scripts.write({"{jobs}:timeout": Ends({b"0123456789abcde": 5})})
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
        scripts.write({"orders": ({ME: 3}, 20_000)})
        reply = scripts.state()
        assert (reply[1][0], reply[2][0] == About(20_000)) == (b"hash", True)
        assert reply[3:7] == [b"lock", b"", 1, [ME.encode(), b"3"]]

    def test_more_owners_than_the_limit(self, scripts: InspectScripts) -> None:
        scripts.redis.hset("orders", mapping={f"{ME}{number}": 1 for number in range(5000)})
        reply = scripts.state(limit=10)
        assert reply[5] == 5000
        assert 10 <= len(reply[6]) // 2 < 600

    def test_leases_of_readers(self, scripts: InspectScripts) -> None:
        scripts.write({"orders": {"mode": "read", ME: 2, YOU: 1}})
        scripts.write({f"{{orders}}:{ME}:rwlock_timeout:{level}": (1, level * 15_000) for level in (1, 2)})
        reply = scripts.state()
        assert dict(zip(reply[6][::2], reply[7], strict=True)) == {
            ME.encode(): About(30_000),
            YOU.encode(): -2,
            b"mode": -2,
        }

    def test_waiters(self, scripts: InspectScripts) -> None:
        scripts.write({"redisson_lock_queue:{orders}": [ME, YOU], "pyredisson_fair_waiters:{orders}": {YOU: 60}})
        scripts.redis.zadd("redisson_lock_timeout:{orders}", {ME: 50})
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

    def test_a_token_and_a_long_string_that_is_not_read(self, scripts: InspectScripts) -> None:
        scripts.write({"redisson_lock_token:{orders}": 2**52, "orders": "x" * 10_000})
        reply = scripts.state()
        assert (reply[8], reply[11]) == (b"x" * 32, b"%d" % 2**52)

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

    @pytest.mark.parametrize("missing", ["type", "hrandfield", "hget", "zrange"])
    def test_a_right_that_is_missing_is_not_ignored(self, scripts: InspectScripts, missing: str) -> None:
        """Otherwise locks would be missing without a word."""
        scripts.write({"orders": ({ME: 1}, 30_000)})
        scripts.redis.zadd("{orders}:timeout", {b"0123456789abcdef": 5})
        with (
            scripts.user("~*", "+@all", f"-{missing}") as redis,
            pytest.raises(ResponseError, match=r"permissions|can't run"),
        ):
            scripts.scan(redis=redis)
