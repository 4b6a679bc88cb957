"""Claims of waiters that want several permits: each branch of the scripts, sent twice, on old and new servers."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub

from pyredisson.testing import Server

from .scripted import Scripted, published

CLAIM, TURN = "pyredisson_semaphore_claim:{stock}", "pyredisson_semaphore_turn:{stock}"
SLOT, USED = "pyredisson_once:{stock}:me:0", "{stock}:timeout"
WAIT = 2**32
IDS = [bytes([number]) * 16 for number in range(8)]


class ClaimScripts(Scripted):
    channel = "redisson_sc:{stock}"
    number = 0

    def acquire(self, permits: int, redis: Any = None) -> Any:
        self.number += 2
        return self.run("semaphore_acquire", ["stock", CLAIM, SLOT], self.number, permits, redis=redis)

    def claim(self, permits: int, me: str = "me", redis: Any = None) -> Any:
        self.number += 2
        return self.claim_again(permits, me, redis)

    def claim_again(self, permits: int, me: str = "me", redis: Any = None) -> Any:
        keys = ["stock", CLAIM, TURN, SLOT]
        return self.run("semaphore_claim", keys, self.number, permits, me, self.channel, redis=redis)

    def withdraw_claim(self, me: str = "me", redis: Any = None) -> Any:
        return self.run("semaphore_withdraw_claim", ["stock", CLAIM], self.channel, me, redis=redis)

    def expirable(self, *ids: bytes, me: str = "", lease: int = 30_000, redis: Any = None) -> Any:
        keys = ["stock", USED, f"pyredisson_permit_withdrawn:{{stock}}:{ids[0].hex()}", CLAIM, TURN]
        return self.run("permit_acquire", keys, self.channel, lease, me, *ids, redis=redis)

    def left(self, key: str) -> int:
        return int(self.redis.pttl(key))

    def claimed(self) -> str | None:
        return self.text(CLAIM)


@pytest.fixture
def scripts(server: Server, admin: Redis) -> ClaimScripts:
    return ClaimScripts(server, admin)


def test_too_few_are_claimed(scripts: ClaimScripts, subscription: PubSub) -> None:
    scripts.redis.set("stock", 2)
    for _ in range(2):
        assert scripts.claim(4) == -1_000 * WAIT
        assert scripts.claim_again(4) == -1_000 * WAIT
        assert scripts.claimed() == "4 me"
        assert 1_000 < scripts.left(CLAIM) <= 2_000
        assert 9_000 < scripts.left(TURN) <= 10_000
        scripts.redis.pexpire(CLAIM, 1_000)
    assert scripts.text("stock") == "2"
    assert not scripts.redis.exists(SLOT)
    assert published(subscription) == []


def test_no_semaphore(scripts: ClaimScripts) -> None:
    for _ in range(2):
        assert scripts.claim(4) == -(2**52)
        assert scripts.expirable(*IDS[:4], me="me") == [-3, 0]
        assert scripts.redis.keys() == []


def test_others_are_held_back(scripts: ClaimScripts) -> None:
    scripts.redis.mset({"stock": 5, CLAIM: "4 somebody"})
    scripts.redis.pexpire(CLAIM, 1_500)
    for _ in range(2):
        assert -1_500 * WAIT <= scripts.acquire(2) < -500 * WAIT
    assert scripts.acquire(6) == -5
    assert scripts.acquire(1) == 1
    assert scripts.text("stock") == "4"
    # All that are free, also if they are claimed.
    assert scripts.acquire(0) == 4


@pytest.mark.parametrize("wrong", ["", "text", "4"])
def test_a_claim_that_is_none(scripts: ClaimScripts, wrong: str) -> None:
    scripts.redis.mset({"stock": 1, CLAIM: wrong})
    assert scripts.acquire(1) == 1


def test_a_claim_without_an_end_holds_back_nobody_for_longer(scripts: ClaimScripts) -> None:
    for call in (scripts.acquire, scripts.claim):
        for lasts in (None, 60_000):
            scripts.redis.set("stock", 1)
            scripts.redis.set(CLAIM, "4 somebody", px=lasts)
            assert call(1) == -2_000 * WAIT
            assert scripts.redis.pttl(CLAIM) <= 2_000


def test_a_second_claimant_waits_for_the_first(scripts: ClaimScripts) -> None:
    scripts.redis.set("stock", 4)
    scripts.redis.set(CLAIM, "4 somebody", px=1_500)
    for _ in range(2):
        assert -1_500 * WAIT <= scripts.claim(3) < -500 * WAIT
        assert scripts.claimed() == "4 somebody"
    assert not scripts.redis.exists(TURN)


def test_a_claimant_takes_what_it_claims(scripts: ClaimScripts, subscription: PubSub) -> None:
    scripts.redis.set("stock", 3)
    scripts.claim(4)
    scripts.redis.set("stock", 6)
    for _ in range(2):
        assert scripts.claim_again(4) == 4
        assert scripts.text("stock") == "2"
        assert scripts.claimed() is None
    assert 9_000 < scripts.left(TURN) <= 10_000
    assert published(subscription) == [b"2"]


def test_without_a_claim_nobody_is_notified(scripts: ClaimScripts, subscription: PubSub) -> None:
    scripts.redis.set("stock", 6)
    for _ in range(2):
        assert scripts.claim_again(4) == 4
    assert scripts.text("stock") == "2"
    assert published(subscription) == []


def test_claims_of_all_end_together(scripts: ClaimScripts) -> None:
    scripts.redis.set("stock", 1)
    scripts.redis.set(TURN, "1", px=5_700)
    for me in ("me", "you", "me"):
        assert -700 * WAIT <= scripts.claim(4, me) < -200 * WAIT
        left = scripts.left(TURN)
        assert scripts.left(CLAIM) <= left - 4_999
        scripts.withdraw_claim(me)


def test_nobody_claims_while_the_others_have_their_turn(scripts: ClaimScripts) -> None:
    scripts.redis.set("stock", 1)
    scripts.redis.set(TURN, "1", px=5_000)
    for _ in range(2):
        # The free permits may be enough for a waiter that needs fewer.
        reply = -scripts.claim(4)
        assert reply % WAIT == 1
        assert 4_000 < reply // WAIT <= 5_000
        assert scripts.claimed() is None
    assert scripts.acquire(1) == 1


@pytest.mark.parametrize(("free", "messages"), [(None, []), (-1, []), (0, []), (2, [b"2"])])
def test_withdrawing_a_claim(
    scripts: ClaimScripts, subscription: PubSub, free: int | None, messages: list[bytes]
) -> None:
    if free is not None:
        scripts.redis.set("stock", free)
    scripts.redis.set(CLAIM, "4 me", px=2_000)
    assert scripts.withdraw_claim("you") == 0
    assert scripts.claimed() == "4 me"
    assert scripts.withdraw_claim() == 1
    assert scripts.withdraw_claim() == 0
    assert scripts.claimed() is None
    assert published(subscription) == messages


def test_withdrawing_a_claim_whatever_is_there(scripts: ClaimScripts) -> None:
    scripts.redis.rpush("stock", "x")
    scripts.redis.set(CLAIM, "4 me", px=2_000)
    with scripts.out_of_memory():
        assert scripts.withdraw_claim() == 1


class TestWithIds:
    def test_too_few_are_claimed(self, scripts: ClaimScripts) -> None:
        scripts.redis.set("stock", 2)
        for _ in range(2):
            assert scripts.expirable(*IDS[:4], me="me") == [1_000, 0]
            assert scripts.claimed() == "4 me"
            assert 1_000 < scripts.left(CLAIM) <= 2_000
            assert 9_000 < scripts.left(TURN) <= 10_000
        assert scripts.text("stock") == "2"

    def test_a_permit_that_ends_sooner_says_when_to_ask_again(self, scripts: ClaimScripts) -> None:
        scripts.redis.set("stock", 3)
        assert scripts.expirable(IDS[5], lease=900) is None
        left, free = scripts.expirable(*IDS[:4], me="me")
        assert 0 < left <= 900
        assert free == 0
        assert scripts.claimed() == "4 me"

    def test_others_are_held_back(self, scripts: ClaimScripts) -> None:
        scripts.redis.mset({"stock": 5, CLAIM: "4 somebody"})
        scripts.redis.pexpire(CLAIM, 1_500)
        for _ in range(2):
            left, free = scripts.expirable(*IDS[:2])
            assert 500 < left <= 1_500
            assert free == 0
        assert scripts.expirable(IDS[0]) is None
        # A second copy finds what the first one took.
        assert scripts.expirable(IDS[0]) is None
        assert scripts.text("stock") == "4"

    def test_permits_that_ended_are_published(self, scripts: ClaimScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 1)
        scripts.redis.set(CLAIM, "2 somebody", px=2_000)
        scripts.redis.zadd(USED, {IDS[7]: 1})
        left, free = scripts.expirable(*IDS[:2])
        assert 0 < left <= 2_000
        assert free == 0
        assert published(subscription) == [b"2"]

    def test_a_claimant_takes_what_it_claims(self, scripts: ClaimScripts, subscription: PubSub) -> None:
        scripts.redis.set("stock", 3)
        scripts.expirable(*IDS[:4], me="me")
        scripts.redis.set("stock", 6)
        for _ in range(2):
            assert scripts.expirable(*IDS[:4], me="me") is None
            assert scripts.text("stock") == "2"
            assert scripts.claimed() is None
        assert published(subscription) == [b"2"]

    def test_nobody_claims_while_the_others_have_their_turn(self, scripts: ClaimScripts) -> None:
        scripts.redis.set("stock", 1)
        scripts.redis.set(TURN, "1", px=5_000)
        for _ in range(2):
            left, free = scripts.expirable(*IDS[:4], me="me")
            assert 4_000 < left <= 5_000
            assert free == 1
            assert scripts.claimed() is None

    def test_a_second_claimant_waits_for_the_first(self, scripts: ClaimScripts) -> None:
        scripts.redis.set("stock", 4)
        scripts.redis.set(CLAIM, "4 somebody", px=1_500)
        for _ in range(2):
            left, free = scripts.expirable(*IDS[:3], me="me")
            assert 500 < left <= 1_500
            assert free == 0
            assert scripts.claimed() == "4 somebody"
