"""The scripts of the inspection: what they take for a lock, and limits. `tests/inspection` tests what is read."""

from typing import Any

import pytest
from redis.exceptions import ResponseError

from pyredisson.inspection.raw import companions_of
from pyredisson.testing import Server

from .scripted import ME, YOU, Ends, Scripted

CHANNELS = [f"redisson_{kind}{{orders}}" for kind in ("lock__channel:", "rwlock:", "sc:", "countdownlatch__channel__")]
VALUE = "sMUTHC2Ql4EaCGlDp3W/MQ"


class InspectScripts(Scripted):
    def scan(self, redis: Any = None) -> Any:
        return self.run("inspect_scan", [], 0, 256, redis=redis)

    def state(self, limit: int = 100) -> Any:
        keys = [name.decode() for name, _ in companions_of(b"orders")]
        return self.run("inspect_state", ["orders", *keys, "{orders}:"], limit, *CHANNELS)


SCRIPTS = InspectScripts
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


def test_companions(scripts: InspectScripts) -> None:
    ours = ("redisson_lock_queue:{orders}", "pyredisson_once:{orders}:x", f"pyredisson_client:{{{ME}}}")
    scripts.write(dict.fromkeys(ours, 1) | {"{counter}:timeout": 5, "redisson_unlock_latch:{orders}:x": 0})
    scripts.write({f"{name}:timeout": Ends({b"0123456789abcdef": 5}) for name in ("{orders}", "orders")})
    scripts.write({"{jobs}:timeout": Ends({b"0123456789abcde": 5})})
    assert {key.decode() for key in scripts.scan()[3]} == {*ours, "{orders}:timeout"}


def test_more_owners_than_the_limit(scripts: InspectScripts) -> None:
    scripts.redis.hset("orders", mapping={f"{ME}{number}": 1 for number in range(5000)})
    reply = scripts.state(limit=10)
    assert (reply[5], 10 <= len(reply[6]) // 2 < 600) == (5000, True)


def test_a_token_and_a_long_string_that_is_not_read(scripts: InspectScripts) -> None:
    scripts.write({"redisson_lock_token:{orders}": 2**52, "orders": "x" * 10_000})
    reply = scripts.state()
    assert (reply[8], reply[11]) == (b"x" * 32, b"%d" % 2**52)


def test_subscribers(scripts: InspectScripts, server: Server) -> None:
    channel = "redisson_rwlock:{orders}"
    with scripts.listener(channel) as one, scripts.listener(channel):
        if server.version >= (7,):
            one.ssubscribe(channel, "redisson_sc:{orders}")
            for _ in range(2):
                assert one.get_message(timeout=5)["type"] == "ssubscribe"
        assert scripts.state()[15] == [0, 2, 1 if server.version >= (7,) else 0, 0]


@pytest.mark.parametrize("missing", ["scan", "type", "hrandfield", "hget", "zrange"])
def test_a_right_that_is_missing_is_not_ignored(scripts: InspectScripts, missing: str) -> None:
    """Otherwise locks would be missing without a word."""
    scripts.write({"orders": ({ME: 1}, 30_000)})
    scripts.redis.zadd("{orders}:timeout", {b"0123456789abcdef": 5})
    refused = pytest.raises(ResponseError, match=r"permissions|can't run")
    with scripts.user("~*", "+@all", f"-{missing}") as user, refused:
        scripts.scan(redis=user)


def test_the_longest_lease_of_each_owner(scripts: InspectScripts) -> None:
    scripts.redis.hset("orders", mapping={"mode": "read", ME: 2, YOU: 1, f"{YOU}2": 1})
    scripts.redis.expire("orders", 8000)
    for owner, level, seconds in ((ME, 1, 3000), (ME, 2, 5000), (YOU, 1, 7000), (YOU, 2, 9000)):
        scripts.redis.set(f"{{orders}}:{owner}:rwlock_timeout:{level}", 1, ex=seconds)
    reply = scripts.state()
    found = {owner.decode(): round(lease / 1e6) for owner, lease in zip(reply[6][::2], reply[7], strict=True)}
    assert found == {"mode": 0, ME: 5, YOU: 7, f"{YOU}2": 0}
    assert round(reply[2][0] / 1e6) == 8


def test_the_first_waiters_the_clients_in_the_list_and_permits_that_have_ended(scripts: InspectScripts) -> None:
    """The clients listen, too."""
    keys = companions_of(b"orders")
    scripts.redis.rpush(keys[0][0], *"abcde")
    scripts.redis.zadd(keys[11][0], {ME: 1, YOU: 2})
    scripts.redis.zadd("{orders}:timeout", {"in use": 2**53, "ended": 1, "ended, too": 2})
    reply = scripts.state(limit=3)
    assert (reply[9], reply[10][::4], *reply[12:14], reply[15]) == (5, [b"a", b"b", b"c"], 1, 2, [2, 0, 0, 0])
