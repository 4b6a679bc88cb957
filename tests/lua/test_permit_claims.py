"""The claims of those who want several permits: each branch of the scripts, sent twice, on servers old and new."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis
from redis.client import PubSub

from pyredisson.testing import Server

from .scripted import Scripted, heard

CLAIM, TURN = "pyredisson_semaphore_claim:{stock}", "pyredisson_semaphore_turn:{stock}"
LANE, USED = "pyredisson_once:{stock}:me:0", "{stock}:timeout"
WAIT = 2**32
IDS = [bytes([number]) * 16 for number in range(8)]


class ClaimScripts(Scripted):
    channel = "redisson_sc:{stock}"
    number = 0

    def acquire(self, permits: int, redis: Any = None) -> Any:
        self.number += 2
        return self.run("semaphore_acquire", ["stock", CLAIM, LANE], self.number, permits, redis=redis)

    def claim(self, permits: int, me: str = "me", redis: Any = None) -> Any:
        self.number += 2
        return self.claim_again(permits, me, redis)

    def claim_again(self, permits: int, me: str = "me", redis: Any = None) -> Any:
        keys = ["stock", CLAIM, TURN, LANE]
        return self.run("semaphore_claim", keys, self.number, permits, me, self.channel, redis=redis)

    def give_up(self, me: str = "me", redis: Any = None) -> Any:
        return self.run("semaphore_give_up", ["stock", CLAIM], self.channel, me, redis=redis)

    def expirable(self, *ids: bytes, me: str = "", lease: int = 30_000, redis: Any = None) -> Any:
        keys = ["stock", USED, f"pyredisson_permit_withdrawn:{{stock}}:{ids[0].hex()}", CLAIM, TURN]
        return self.run("permit_acquire", keys, self.channel, lease, me, *ids, redis=redis)

    def left(self, key: str) -> int:
        return int(self.redis.pttl(key))

    def claimed(self) -> str | None:
        return self.text(CLAIM)


@pytest.fixture
def at(server: Server, admin: Redis) -> ClaimScripts:
    return ClaimScripts(server, admin)


def test_too_few_are_claimed(at: ClaimScripts, ear: PubSub) -> None:
    at.redis.set("stock", 2)
    for _ in range(2):
        assert at.claim(4) == -1_000 * WAIT
        assert at.claim_again(4) == -1_000 * WAIT
        assert at.claimed() == "4 me"
        assert 1_000 < at.left(CLAIM) <= 2_000
        assert 9_000 < at.left(TURN) <= 10_000
        at.redis.pexpire(CLAIM, 1_000)
    assert at.text("stock") == "2"
    assert not at.redis.exists(LANE)
    assert heard(ear) == []


def test_no_semaphore(at: ClaimScripts) -> None:
    for _ in range(2):
        assert at.claim(4) == -(2**52)
        assert at.expirable(*IDS[:4], me="me") == [-3, 0]
        assert at.redis.keys() == []


def test_others_are_held_back(at: ClaimScripts) -> None:
    at.redis.mset({"stock": 5, CLAIM: "4 somebody"})
    at.redis.pexpire(CLAIM, 1_500)
    for _ in range(2):
        assert -1_500 * WAIT <= at.acquire(2) < -500 * WAIT
    assert at.acquire(6) == -5
    assert at.acquire(1) == 1
    assert at.text("stock") == "4"
    # All that are free, whoever wants them.
    assert at.acquire(0) == 4


@pytest.mark.parametrize("wrong", ["", "text", "4"])
def test_a_claim_that_is_none(at: ClaimScripts, wrong: str) -> None:
    at.redis.mset({"stock": 1, CLAIM: wrong})
    assert at.acquire(1) == 1


def test_a_claim_without_an_end_holds_back_nobody_for_longer(at: ClaimScripts) -> None:
    at.redis.mset({"stock": 1, CLAIM: "4 somebody"})
    assert at.acquire(1) == -2_000 * WAIT
    assert at.claim(1) == -2_000 * WAIT


def test_a_second_claimant_waits_for_the_first(at: ClaimScripts) -> None:
    at.redis.set("stock", 4)
    at.redis.set(CLAIM, "4 somebody", px=1_500)
    for _ in range(2):
        assert -1_500 * WAIT <= at.claim(3) < -500 * WAIT
        assert at.claimed() == "4 somebody"
    assert not at.redis.exists(TURN)


def test_a_claimant_takes_what_it_claims(at: ClaimScripts, ear: PubSub) -> None:
    at.redis.set("stock", 3)
    at.claim(4)
    at.redis.set("stock", 6)
    for _ in range(2):
        assert at.claim_again(4) == 4
        assert at.text("stock") == "2"
        assert at.claimed() is None
    assert 9_000 < at.left(TURN) <= 10_000
    assert heard(ear) == [b"2"]


def test_without_a_claim_nobody_is_told(at: ClaimScripts, ear: PubSub) -> None:
    at.redis.set("stock", 6)
    for _ in range(2):
        assert at.claim_again(4) == 4
    assert at.text("stock") == "2"
    assert heard(ear) == []


def test_claims_of_all_end_together(at: ClaimScripts) -> None:
    at.redis.set("stock", 1)
    at.redis.set(TURN, "1", px=5_700)
    for me in ("me", "you", "me"):
        assert -700 * WAIT <= at.claim(4, me) < -200 * WAIT
        left = at.left(TURN)
        assert at.left(CLAIM) <= left - 4_999
        at.give_up(me)


def test_nobody_claims_while_the_others_have_their_turn(at: ClaimScripts) -> None:
    at.redis.set("stock", 1)
    at.redis.set(TURN, "1", px=5_000)
    for _ in range(2):
        # What is free may serve somebody who needs less.
        reply = -at.claim(4)
        assert reply % WAIT == 1
        assert 4_000 < reply // WAIT <= 5_000
        assert at.claimed() is None
    assert at.acquire(1) == 1


@pytest.mark.parametrize(("free", "told"), [(None, []), (-1, []), (0, []), (2, [b"2"])])
def test_giving_up(at: ClaimScripts, ear: PubSub, free: int | None, told: list[bytes]) -> None:
    if free is not None:
        at.redis.set("stock", free)
    at.redis.set(CLAIM, "4 me", px=2_000)
    assert at.give_up("you") == 0
    assert at.claimed() == "4 me"
    assert at.give_up() == 1
    assert at.give_up() == 0
    assert at.claimed() is None
    assert heard(ear) == told


def test_giving_up_whatever_is_there(at: ClaimScripts) -> None:
    at.redis.rpush("stock", "x")
    at.redis.set(CLAIM, "4 me", px=2_000)
    with at.out_of_memory():
        assert at.give_up() == 1


class TestWithIds:
    def test_too_few_are_claimed(self, at: ClaimScripts) -> None:
        at.redis.set("stock", 2)
        for _ in range(2):
            assert at.expirable(*IDS[:4], me="me") == [1_000, 0]
            assert at.claimed() == "4 me"
            assert 1_000 < at.left(CLAIM) <= 2_000
            assert 9_000 < at.left(TURN) <= 10_000
        assert at.text("stock") == "2"

    def test_a_permit_that_ends_sooner_says_when_to_ask_again(self, at: ClaimScripts) -> None:
        at.redis.set("stock", 3)
        assert at.expirable(IDS[5], lease=400) is None
        left, free = at.expirable(*IDS[:4], me="me")
        assert 0 < left <= 400
        assert free == 0
        assert at.claimed() == "4 me"

    def test_others_are_held_back(self, at: ClaimScripts) -> None:
        at.redis.mset({"stock": 5, CLAIM: "4 somebody"})
        at.redis.pexpire(CLAIM, 1_500)
        for _ in range(2):
            left, free = at.expirable(*IDS[:2])
            assert 500 < left <= 1_500
            assert free == 0
        assert at.expirable(IDS[0]) is None
        # A second copy finds what the first one took.
        assert at.expirable(IDS[0]) is None
        assert at.text("stock") == "4"

    def test_permits_that_ended_are_told_of(self, at: ClaimScripts, ear: PubSub) -> None:
        at.redis.set("stock", 1)
        at.redis.set(CLAIM, "2 somebody", px=2_000)
        at.redis.zadd(USED, {IDS[7]: 1})
        left, free = at.expirable(*IDS[:2])
        assert 0 < left <= 2_000
        assert free == 0
        assert heard(ear) == [b"2"]

    def test_a_claimant_takes_what_it_claims(self, at: ClaimScripts, ear: PubSub) -> None:
        at.redis.set("stock", 3)
        at.expirable(*IDS[:4], me="me")
        at.redis.set("stock", 6)
        for _ in range(2):
            assert at.expirable(*IDS[:4], me="me") is None
            assert at.text("stock") == "2"
            assert at.claimed() is None
        assert heard(ear) == [b"2"]

    def test_nobody_claims_while_the_others_have_their_turn(self, at: ClaimScripts) -> None:
        at.redis.set("stock", 1)
        at.redis.set(TURN, "1", px=5_000)
        for _ in range(2):
            left, free = at.expirable(*IDS[:4], me="me")
            assert 4_000 < left <= 5_000
            assert free == 1
            assert at.claimed() is None

    def test_a_second_claimant_waits_for_the_first(self, at: ClaimScripts) -> None:
        at.redis.set("stock", 4)
        at.redis.set(CLAIM, "4 somebody", px=1_500)
        for _ in range(2):
            left, free = at.expirable(*IDS[:3], me="me")
            assert 500 < left <= 1_500
            assert free == 0
            assert at.claimed() == "4 somebody"
