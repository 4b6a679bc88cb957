"""The script that keeps a lock after its hold: every branch, sent twice, and read as Redisson would."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError

from pyredisson.testing import Server

from .scripted import ME, YOU, ScriptedLock, published


class KeepScripts(ScriptedLock):
    channel = "redisson_lock__channel:{orders}"

    def keep(self, owner: str, rest: int, redis: Any = None, channel: str | None = None) -> Any:
        return self.run("lock_keep", ["orders"], self.channel if channel is None else channel, owner, rest, redis=redis)


@pytest.fixture
def scripts(server: Server, admin: Redis) -> KeepScripts:
    return KeepScripts(server, admin)


def test_the_lock_is_kept_for_the_rest(scripts: KeepScripts, subscription: PubSub) -> None:
    scripts.hold(ME, 1, 30_000)
    for _ in range(2):
        assert scripts.keep(ME, 5_000) == 1
        assert scripts.state() == {f"{ME}:kept": "1"}
        assert 4_000 < scripts.left() <= 5_000
    # A copy publishes nothing.
    assert published(subscription) == [b"0"]


def test_a_second_run_does_not_begin_the_time_again(scripts: KeepScripts) -> None:
    scripts.hold(ME, 1, 30_000)
    scripts.keep(ME, 5_000)
    scripts.redis.pexpire("orders", 1_000)
    assert scripts.keep(ME, 5_000) == 1
    assert scripts.left() <= 1_000


def test_without_a_channel(scripts: KeepScripts, subscription: PubSub) -> None:
    scripts.hold(ME, 1, 1_000)
    assert scripts.keep(ME, 60_000, channel="") == 1
    assert 59_000 < scripts.left() <= 60_000
    assert published(subscription) == []


def test_nobody_acquires_it(scripts: KeepScripts) -> None:
    scripts.hold(ME, 1, 30_000)
    scripts.keep(ME, 5_000)
    for owner in (ME, YOU):
        assert 4_000 < scripts.run("lock_acquire", ["orders"], owner, 1, 30_000) <= 5_000
    assert scripts.run("lock_renew", ["orders"], 30_000, ME) == [0]
    assert scripts.left() <= 5_000


def test_an_owner_without_a_hold(scripts: KeepScripts, subscription: PubSub) -> None:
    for _ in range(2):
        assert scripts.keep(ME, 5_000) is None
        assert scripts.redis.keys("*") == []
    scripts.hold(YOU, 1, 30_000)
    for _ in range(2):
        assert scripts.keep(ME, 5_000) is None
        assert scripts.state() == {YOU: "1"}
    assert scripts.left() > 29_000
    assert published(subscription) == []


def test_out_of_memory(scripts: KeepScripts) -> None:
    scripts.hold(ME, 1, 30_000)
    with scripts.out_of_memory():
        assert scripts.keep(ME, 5_000) == 1
    assert scripts.state() == {f"{ME}:kept": "1"}


def test_a_user_without_a_right_to_the_channel(scripts: KeepScripts) -> None:
    scripts.hold(ME, 1, 30_000)
    with scripts.user("~orders", "+@all", "resetchannels") as somebody:
        assert scripts.keep(ME, 5_000, redis=somebody) == 1
    assert scripts.state() == {f"{ME}:kept": "1"}


def test_a_replica(scripts: KeepScripts) -> None:
    scripts.hold(ME, 1, 30_000)
    with scripts.replica() as replica, pytest.raises(ResponseError, match="read only replica"):
        scripts.keep(ME, 5_000, redis=replica)
