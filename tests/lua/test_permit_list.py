"""The list of clients that wait for permits: who is woken, for whom permits are left, and who leaves the list."""

from __future__ import annotations

from typing import Any

import pytest

from .scripted import RESERVED, About, Call, Came, Case, Scripted
from .test_semaphore_scripts import CHANNEL, CLAIM, LIST, SLOT, WAIT, WOKEN, add, claim, hand_over, leave

PLACE = 2**46
LASTS = 60_000
PATIENT = 60_000_000
"""Microseconds of patience: nobody has waited for so long."""


def listed(*members: str) -> dict[str, Any]:
    return {LIST: (Came(list(members)), LASTS)}


def woken(*members: str) -> dict[str, Any]:
    return {WOKEN: (list(members), LASTS)}


def free(permits: int, once: str = "", **other: Any) -> dict[str, Any]:
    return {"stock": permits, **({SLOT: (once, 660_000)} if once else {}), **other}


def come(permits: int, names: str, entry: str, following: str = "") -> Call:
    return claim(2, permits, "", listing=(names, entry, following))


def handed(number: int, permits: int, wanted: int, names: str) -> Call:
    call = hand_over(number, permits, wanted)
    return call._replace(args=[*call.args[:-1], names])


A, B, C = "a:1:1", "b:1:1", "c:1:1"
LOOK = f"look:{RESERVED}"
CLAIMED = {CLAIM: ("3 c:1", 2_000)}
CASES = {
    "a release wakes the first one, and the next one looks later": Case(
        free(0) | listed(A, B, C), [(add(2, 1), 1)], free(1, "2 1") | listed(A, B, C) | woken(A), [f"{A} 1", LOOK]
    ),
    "as many as there are permits": Case(
        free(0) | listed(A, B, C),
        [(add(2, 2), 1)],
        free(2, "2 1") | listed(A, B, C) | woken(A, B),
        [f"{A} 1", f"{B} 1", LOOK],
    ),
    "nobody is woken twice": Case(
        free(0) | listed(A, B),
        [(add(2, 1), 1), (add(4, 1), 1), (add(6, 1), 1)],
        free(3, "6 1") | listed(A, B) | woken(A, B),
        [f"{A} 1", LOOK, f"{B} 1"],
    ),
    "one client gets all that nobody else waits for": Case(
        free(0) | listed(A, B), [(add(2, 5), 1)], free(5, "2 1") | listed(A, B) | woken(A, B), [f"{A} 4", f"{B} 1"]
    ),
    "a client that needs more is passed over": Case(
        free(0) | listed("a:1:3", B), [(add(2, 2), 1)], free(2, "2 1") | listed("a:1:3", B) | woken(B), [f"{B} 1", LOOK]
    ),
    "nothing is free": Case(free(-2) | listed(A), [(add(2, 2), 1)], free(0, "2 1") | listed(A)),
    "permits that are claimed": Case(
        free(0) | CLAIMED | listed(A),
        [(add(2, 2), 1), (add(4, 1), 1), (add(6, 1), 1)],
        free(4, "6 1") | CLAIMED | listed(A) | woken(A),
        [" 3", " 3", f"{A} 1"],
    ),
    "a client that was woken and came late loses its place": Case(
        free(0) | listed(A, B) | {WOKEN: (Came([A]), LASTS)},
        [(add(2, 1), 1)],
        free(1, "2 1") | listed(B) | woken(B),
        [f"{B} 1"],
    ),
    "a refused client is listed": Case(free(0) | listed(A), [(come(1, "", B), -PLACE)], free(0) | listed(A, B)),
    "it keeps its place under its new name": Case(
        free(0) | listed(A, B), [(come(1, A, "a:2:1"), 0)], free(0) | listed("a:2:1", B)
    ),
    "it loses its other names": Case(
        free(0) | listed(A, B, "a:2:2"), [(come(2, f"{A} a:2:2", "a:3:2"), 0)], free(0) | listed("a:3:2", B)
    ),
    "it has come, and leaves the list": Case(
        free(1) | listed(A, B) | {WOKEN: (Came([A]), LASTS)}, [(come(1, A, "a:2:1"), 1)], free(0, "2 1") | listed(B)
    ),
    "its other callers are listed as the last ones": Case(
        free(1) | listed(A, B) | {WOKEN: (Came([A]), LASTS)},
        [(come(1, A, "a:2:1", "a:2:4"), 1)],
        free(0, "2 1") | listed(B, "a:2:4"),
    ),
    "what it leaves is for the next one": Case(
        free(2) | listed(A, B) | {WOKEN: (Came([A]), LASTS)},
        [(come(1, A, "a:2:1"), 1)],
        free(1, "2 1") | listed(B) | woken(B),
        [f"{B} 1"],
    ),
    # The first copy was refused, and has entered the client.
    "a second copy has come": Case(
        free(0) | listed(B),
        [(come(1, "", A), -PLACE), ("INCRBY", "stock", 1), (come(1, "", A), 1)],
        free(0, "2 1") | listed(B),
        [LOOK],
    ),
    "a hand-over to the last caller": Case(
        free(0) | listed(A, B), [(handed(2, 1, 1, A), 1)], free(0, "2 1") | listed(B)
    ),
    "a hand-over to the last caller of a client that was woken": Case(
        free(1) | listed(A, B) | {WOKEN: (Came([A]), LASTS)},
        [(handed(2, 1, 1, A), 1)],
        free(1, "2 1") | listed(B) | woken(B),
        [f"{B} 1"],
    ),
    "a hand-over of fewer wakes the first one": Case(
        free(0) | listed(A), [(hand_over(2, 3, 2), 2)], free(1, "2 2") | listed(A) | woken(A), [f"{A} 1"]
    ),
    "leave": Case(free(0) | listed(A, B, C), [(leave(C), 1, 0)], free(0) | listed(A, B)),
    "leave, and the second one listens to Redisson": Case(
        free(0) | listed(A, B, C), [(leave(A), 1, 0)], free(0) | listed(B, C), ["look:0"]
    ),
    "leave permits to others": Case(
        free(1) | listed(A, B), [(leave(A), 1, 0)], free(1) | listed(B) | woken(B), [f"{B} 1"]
    ),
    "leave under several names": Case(
        free(0) | listed(A, B, "a:2:3"), [(leave(f"{A} a:2:3"), 1, 0)], free(0) | listed(B)
    ),
    "leave, another name": Case(free(1) | listed(A), [(leave("a:2:1"), 0)]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


@pytest.mark.parametrize(("patience", "left"), [(5_000, False), (PATIENT, True)])
def test_a_permit_is_left_to_the_client_that_was_woken(scripts: Scripted, patience: int, left: bool) -> None:
    """Unless that has waited for a short time only."""
    scripts.write(free(0) | listed(A))
    scripts.call(add(2, 1))
    rival = claim(4, 1, "", listing=("", B, ""))
    reply = scripts.call(rival._replace(args=[*rival.args[:3], patience, *rival.args[4:]]))
    if left:
        assert reply == 1
    else:
        # The time, and the place behind it.
        assert -reply // WAIT == About(RESERVED + 2**14)
        assert scripts.call(claim(6, 1, "", listing=(A, "a:2:1", ""))) == 1
    assert scripts.text("stock") == "0"


def test_a_client_that_is_gone_is_passed_over(scripts: Scripted) -> None:
    scripts.write(free(0) | listed("gone:1:1", A))
    scripts.listening.punsubscribe()
    with scripts.redis.pubsub() as there:
        there.subscribe("pyredisson_wake:{stock}:a")
        assert there.get_message(timeout=5)
        scripts.call(add(2, 1))
        assert scripts.contents()[LIST] == ([A], About(LASTS))


@pytest.mark.parametrize("other", [False, True])
def test_redissons_channel_is_silent_unless_others_listen(scripts: Scripted, other: bool) -> None:
    """Each client that waits is subscribed to both channels."""
    scripts.write(free(0) | listed(A))
    with scripts.redis.pubsub() as client, scripts.redis.pubsub() as java:
        client.subscribe(CHANNEL, f"py{CHANNEL}")
        if other:
            java.subscribe(CHANNEL)
            assert java.get_message(timeout=5)
        for _ in range(2):
            assert client.get_message(timeout=5)
        assert scripts.call(add(2, 1)) == (3 if other else 1)
    assert scripts.published() == (["1"] if other else []) + [f"{A} 1"]
