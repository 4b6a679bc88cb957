"""`pyredisson permits`: shows how many permits are free, and sets that number unless it has changed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import pyredisson
from pyredisson.cli import permits as module
from pyredisson.testing import Server
from tests.support.commands import TIMEOUT, Commands

from .objects import JAVA
from .running import answered

GUESS = "a number: a semaphore or a latch, if it is one of ours"


def lose_a_permit(url: str) -> None:
    """A semaphore of three, one of which nobody will ever release."""
    with pyredisson.connect(url) as client:
        seats = client.get_semaphore("seats")
        seats.try_set_permits(3)
        seats.acquire()


def test_a_lost_permit_is_put_back(command: Commands, server: Server, redis: Any) -> None:
    lose_a_permit(server.url)
    redis.pexpire("seats", 50_000)
    assert command("permits", "seats", "--url", server.url) == (0, "semaphore 'seats' has 2 free permits.\n", "")
    with pyredisson.connect(server.url) as client:
        seats = client.get_semaphore("seats")
        waiter = threading.Thread(target=seats.acquire, args=(3,), daemon=True)
        waiter.start()
        ended = command("permits", "seats", "--free", "3", "--yes", "--url", server.url)
        assert not ended.err
        waiter.join(TIMEOUT)
    text = "semaphore 'seats' has 2 free permits.\nsemaphore 'seats' has 3 free permits.\n"
    assert ended == (0, text, "")
    assert redis.get("seats") == b"0"
    assert redis.pttl("seats") > 40_000


def test_nothing_is_done_if_the_number_has_changed(
    command: Commands, server: Server, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_a_permit(server.url)
    correct = module._correct

    def late(*arguments: Any) -> None:
        redis.incr("seats")
        correct(*arguments)

    monkeypatch.setattr(module, "_correct", late)
    ended = command("permits", "seats", "--free", "3", "--yes", "--url", server.url)
    assert (ended.status, redis.get("seats")) == (1, b"3")
    assert "of semaphore 'seats' has changed meanwhile: nothing was done" in ended.err


@pytest.mark.parametrize(("answer", "status", "free"), [(b"y\n", 0, b"3"), (b"n\n", 1, b"2")])
def test_it_asks(server: Server, redis: Any, answer: bytes, status: int, free: bytes) -> None:
    redis.set("seats", 2)
    ended = answered(answer, "permits", "seats", "--free", "3", "--url", server.url)
    # Nobody has used it lately.
    assert ended.out.startswith(f"semaphore 'seats' has 2 free permits (a guess: {GUESS}).\n")
    assert "Set it to 3 free permits? Those who have a permit now will add it when they release it." in ended.err
    assert (ended.status, redis.get("seats")) == (status, free)


@pytest.mark.parametrize(
    ("make", "status", "text"),
    [
        (("SET", "seats", 2), 2, f"'seats' may be something else: --yes is refused ({GUESS})"),
        (("SET", "seats", "no number"), 1, "'seats' is no semaphore: a string that is no number"),
        (("HSET", "seats", f"{JAVA}:31", 1), 2, "'seats' is a lock, not a semaphore"),
        (("ZADD", "{seats}:timeout", 9e15, "0123456789abcdef"), 2, "'unlock --permit' releases one"),
        (("SET", "other", 2), 1, "'seats' is no semaphore: there is no such key"),
    ],
)
def test_what_is_refused(
    command: Commands, server: Server, redis: Any, make: tuple[Any, ...], status: int, text: str
) -> None:
    redis.execute_command(*make)
    before = redis.dump(make[1])
    ended = command("permits", "seats", "--free", "3", "--yes", "--url", server.url)
    assert ended.status == status
    assert text in ended.err
    assert (redis.dump(make[1]), redis.exists("seats")) == (before, make[1] == "seats")


def test_nobody_can_be_asked(command: Commands, server: Server, redis: Any) -> None:
    lose_a_permit(server.url)
    ended = command("permits", "seats", "--free", "3", "--url", server.url)
    assert (ended.status, redis.get("seats")) == (2, b"2")
    assert "nobody can be asked here: give --yes" in ended.err
