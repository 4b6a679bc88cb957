"""The scripts that hand a lock on: every branch, sent twice, and read as Redisson would."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import ME, YOU, ScriptedLock, published

THIRD = "0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:8"
COUNTER, NEWEST = "redisson_lock_token:{orders}", "pyredisson_fenced_newest:{orders}"


class HandOverScripts(ScriptedLock):
    channel = "redisson_lock__channel:{orders}"

    def __init__(self, server: Server, admin: Redis, kind: str) -> None:
        super().__init__(server, admin)
        self.kind = kind
        self.companions = [COUNTER, NEWEST] if kind == "fenced" else []

    def hand_over(self, owner: str, next_owner: str, lease: int, redis: Any = None) -> Any:
        keys = ["orders", *self.companions]
        return self.run(f"{self.kind}_hand_over", keys, owner, next_owner, lease, redis=redis)

    def locks(self) -> list[bytes]:
        """All keys but the counter, which stays."""
        return [key for key in self.redis.keys("*") if key.decode() not in self.companions]


@pytest.fixture(params=["lock", "fenced"])
def scripts(server: Server, admin: Redis, request: pytest.FixtureRequest) -> HandOverScripts:
    return HandOverScripts(server, admin, request.param)


def test_the_next_owner_is_entered(scripts: HandOverScripts, subscription: PubSub) -> None:
    scripts.hold(ME, 1, 30_000)
    tokens = []
    for _ in range(2):
        [token] = scripts.hand_over(ME, YOU, 20_000)
        tokens.append(token)
        assert scripts.state() == {YOU: "1"}
        assert 19_000 < scripts.left() <= 20_000
    if scripts.kind == "fenced":
        assert tokens[0] < tokens[1]
        assert scripts.text(COUNTER) == str(tokens[1])
    else:
        assert tokens == [0, 0]
    assert published(subscription) == []


def test_a_copy_does_not_shorten_the_lease(scripts: HandOverScripts) -> None:
    scripts.hold(ME, 1, 30_000)
    scripts.hand_over(ME, YOU, 20_000)
    scripts.redis.pexpire("orders", 60_000)
    assert scripts.hand_over(ME, YOU, 20_000) != 0
    assert scripts.left() > 50_000


def test_a_copy_finds_an_inner_level(scripts: HandOverScripts) -> None:
    """A late copy, when the next owner has acquired another level. Its client has begun a new epoch by then."""
    scripts.hold(ME, 1, 30_000)
    scripts.hand_over(ME, YOU, 20_000)
    scripts.hand_over(YOU, THIRD, 20_000)
    for _ in range(2):
        assert scripts.hand_over(ME, YOU, 20_000) == 0
        assert scripts.state() == {THIRD: "1"}


def test_all_levels_are_released(scripts: HandOverScripts) -> None:
    scripts.hold(ME, 3, 30_000)
    assert scripts.hand_over(ME, YOU, 20_000) != 0
    assert scripts.state() == {YOU: "1"}


def test_a_lock_of_another_owner(scripts: HandOverScripts, subscription: PubSub) -> None:
    scripts.hold(THIRD, 2, 20_000)
    for _ in range(2):
        assert scripts.hand_over(ME, YOU, 30_000) == 0
        assert scripts.state() == {THIRD: "2"}
        assert 19_000 < scripts.left() <= 20_000
    assert scripts.locks() == [b"orders"]
    assert published(subscription) == []


def test_a_free_lock(scripts: HandOverScripts, subscription: PubSub) -> None:
    """The hold was lost: nobody gets the lock by that."""
    for _ in range(2):
        assert scripts.hand_over(ME, YOU, 30_000) == 0
    assert scripts.redis.keys() == []
    assert published(subscription) == []


def test_a_hold_without_an_end(scripts: HandOverScripts) -> None:
    scripts.hold(ME, 1, None)
    assert scripts.hand_over(ME, YOU, 30_000) != 0
    assert 29_000 < scripts.left() <= 30_000


def test_another_type(scripts: HandOverScripts) -> None:
    scripts.redis.set("orders", "text")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        scripts.hand_over(ME, YOU, 30_000)
    assert scripts.redis.get("orders") == b"text"


def test_out_of_memory(scripts: HandOverScripts) -> None:
    scripts.hold(ME, 1, 10_000)
    with scripts.out_of_memory():
        if scripts.kind == "fenced" and not scripts.with_shebang:
            # Older servers don't know the flag, and the first write of this script takes memory.
            with pytest.raises(ResponseError, match="maxmemory"):
                scripts.hand_over(ME, YOU, 30_000)
            assert scripts.state() == {ME: "1"}
        else:
            assert scripts.hand_over(ME, YOU, 30_000) != 0
            assert scripts.state() == {YOU: "1"}


def test_a_counter_that_is_no_number(server: Server, admin: Redis) -> None:
    scripts = HandOverScripts(server, admin, "fenced")
    scripts.hold(ME, 1, 30_000)
    scripts.redis.set(COUNTER, "text")
    with pytest.raises(ResponseError, match="not an integer"):
        scripts.hand_over(ME, YOU, 30_000)
    assert scripts.state() == {ME: "1"}


def test_a_replica_replies_readonly(scripts: HandOverScripts) -> None:
    scripts.hold(ME, 1, 30_000)
    with scripts.replica() as replica, pytest.raises(ResponseError):
        scripts.hand_over(ME, YOU, 30_000, redis=replica)
    assert scripts.state() == {ME: "1"}
