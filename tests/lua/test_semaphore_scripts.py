"""The scripts of the count-down latch and of the semaphore, whose clients wait in a list: every branch, sent twice."""

from collections.abc import Sequence
from typing import Any

import pytest
from redis.exceptions import ResponseError

from .scripted import RESERVED, About, Call, Came, Case, Scripted

LATCH_CHANNEL = "redisson_countdownlatch__channel__{done}"
LATCH_SLOT = "pyredisson_once:{done}:me:0"


def set_count(number: int, count: int) -> Call:
    return Call("latch_set", ["done", LATCH_SLOT], [number, count, LATCH_CHANNEL])


def count_down(number: int) -> Call:
    return Call("latch_count_down", ["done", LATCH_SLOT], [number, LATCH_CHANNEL])


def once(text: str) -> dict[str, tuple[str, int]]:
    return {LATCH_SLOT: (text, 660_000)}


SET_AGAIN = (set_count(2, 3), 1)
DELETE_LATCH = Call("exactly_once_delete", ["done", LATCH_SLOT], [2, LATCH_CHANNEL, "1"])
LATCH = {
    "set, one that counts": Case({"done": 2}, [(set_count(2, 3), 0)], {"done": 2, **once("2 0")}),
    "largest": Case({}, [(set_count(2, 2**63 - 1), 1), (count_down(4), 0)], {"done": 2**63 - 2, **once("4 0")}, ["1"]),
    "count down to zero": Case({"done": 1}, [(count_down(2), 1)], once("2 1"), ["0"]),
    "delete": Case({"done": 3}, [(DELETE_LATCH, 1)], once("2 1"), ["1"]),
    "delete, none": Case({}, [(DELETE_LATCH, 0)], once("2 0")),
    # The message makes Redisson's clients wait for the new count.
    **{f"set, open: {left}": Case({"done": left}, [SET_AGAIN], {"done": 3, **once("2 1")}, ["1"]) for left in (0, -2)},
    **{f"count down, open: {count}": Case({"done": count}, [(count_down(2), 0)], once("2 0")) for count in (0, -2)},
}


CHANNEL = "redisson_sc:{stock}"
LIST, WOKEN = "pyredisson_waiting:{stock}", "pyredisson_woken:{stock}"
CLAIM, TURN = "pyredisson_semaphore_claim:{stock}", "pyredisson_semaphore_turn:{stock}"
KEYS = ["stock", LIST, WOKEN, CLAIM]
SLOT = "pyredisson_once:{stock}:me:0"
NONE = -(2**52)
WAIT = 2**32


def acquire(number: int, permits: int) -> Call:
    return claim(number, permits, "")


def add(number: int, permits: int, existing: int = 0) -> Call:
    return Call("semaphore_add", [*KEYS, SLOT], [number, permits, CHANNEL, existing, "a"])


def make(number: int, permits: int, ttl: int = 0) -> Call:
    return Call("semaphore_set", [*KEYS, SLOT], [number, permits, ttl, CHANNEL])


def correct(number: int, shown: int, free: int) -> Call:
    return Call("semaphore_correct", [*KEYS, SLOT], [number, shown, free, CHANNEL])


def hand_over(number: int, permits: int, wanted: int, existing: int = 0, names: str = "") -> Call:
    return Call("semaphore_hand_over", [*KEYS, SLOT], [number, permits, wanted, CHANNEL, existing, names])


def finish(number: int, permits: int, existing: int = 0) -> Call:
    """The hand-over of that number."""
    return Call("semaphore_finish", [*KEYS, SLOT], [number + 1, permits, CHANNEL, existing])


def undo(number: int) -> Call:
    """The acquire of that number."""
    return finish(number, 0)


def delete(number: int) -> Call:
    return Call("exactly_once_delete", ["stock", SLOT], [number, CHANNEL, ""])


def claim(number: int, permits: int, me: str = "me", patience: int = 5_000, listing: Sequence[str] = ("",) * 3) -> Call:
    words: list[str | int] = [number, permits, CHANNEL, patience, *listing, 60_000, me]
    return Call("semaphore_acquire", [*KEYS, TURN, SLOT], words)


def leave(names: str = "", me: str = "") -> Call:
    return Call("semaphore_leave", KEYS, [CHANNEL, names, me])


def stock(free: Any, once: str = "", **other: Any) -> dict[str, Any]:
    """Keys with so many free permits (None: no semaphore), and what is remembered of the last call."""
    names = {"claim": CLAIM, "turn": TURN}
    found = {names[name]: value for name, value in other.items()}
    return found | ({} if free is None else {"stock": free}) | ({SLOT: (once, 660_000)} if once else {})


HANDED = (hand_over(2, 3, 2), 2)
MINE, OTHERS = ("4 me", 2_000), ("4 somebody", 2_000)
SEMAPHORE = {
    # As texts "10" would come before "9". No exponent is written.
    "call numbers are numbers": Case(
        stock(5), [(acquire(number, 1), 1) for number in (9, 10, 10**15, 10**15 + 2)], stock(1, "1000000000000002 1")
    ),
    "many, undone": Case(
        stock(2**53 - 1),
        [(acquire(2, 2**31 - 1), 2**31 - 1), (acquire(4, 0), 2**53 - 2**31), (undo(4), 2**53 - 2**31)],
        stock(2**53 - 2**31, f"5 {2**53 - 2**31}"),
        [str(2**53 - 2**31)],
    ),
    **{
        f"none: {free}, {permits}": Case(stock(free), [(acquire(2, permits), NONE if free is None else 0)])
        for free in (None, 0, -3)
        for permits in (0, 1)
    },
    "undo of all": Case(stock(5), [(acquire(2, 0), 5), (undo(2), 5)], stock(5, "3 5"), ["5"]),
    "undo, no semaphore": Case(stock(5), [(acquire(2, 3), 3), ("DEL", "stock"), (undo(2), 0)], stock(None, "3 0")),
    "undo on a new server": Case(stock(5), [(undo(2), 0), (acquire(2, 3), 0)], stock(5, "3 0")),
    **{
        f"correct: {shown}, {free}": Case(
            stock((shown, 50_000)), [(correct(2, shown, free), 1)], stock((free, 50_000), "2 1"), messages
        )
        for shown, free, messages in ((1, 3, ["3"]), (3, 1, []), (-2, 0, []), (0, 0, []), (2**63 - 1, 5, []))
    },
    "correct, no semaphore": Case({}, [(correct(2, 1, 3), 0)], stock(None, "2 0")),
    "add, no semaphore": Case({}, [(add(2, 2), 3, 1)], stock(2, "2 1"), ["2"]),
    "add, only to an existing one": Case({}, [(add(2, 2, 1), 0)], stock(None, "2 0")),
    "add, an existing one": Case(stock(1), [(add(4, 2, 1), 3, 1)], stock(3, "4 1"), ["3"]),
    "add, fewer": Case(stock(5), [(add(2, -2), 1), (add(4, -7), 1)], stock(-4, "4 1")),
    "add, out of the red": Case(stock(-4), [(add(2, 3), 1), (add(4, 1), 1), (add(6, 2), 3, 1)], stock(2, "6 1"), ["2"]),
    "set": Case({}, [(make(2, 5), 1)], stock(5, "2 1"), ["5"]),
    "set, with an end": Case({}, [(make(2, 5, 40_000), 1)], stock((5, 40_000), "2 1"), ["5"]),
    **{f"set, there is one: {free}": Case(stock(free), [(make(2, 5), 0)], stock(free, "2 0")) for free in (3, 0, -1)},
    "delete": Case(stock(3), [(delete(2), 1), (delete(4), 0)], stock(None, "4 0")),
    **{
        f"hand over: {free}": Case(stock((free, 50_000)), [(hand_over(2, 2, 2), 2)], stock((free, 50_000), "2 2"))
        for free in (0, 3)
    },
    "hand over, only an existing one": Case({}, [(hand_over(2, 2, 1, 1), 0)], stock(None, "2 0")),
    "hand over, no semaphore": Case({}, [(hand_over(4, 2, 1), 1)], stock(1, "4 1"), ["1"]),
    "hand over, claimed": Case(
        stock(1, claim=("3 you:1", 2_000)),
        [(hand_over(2, 1, 1), -1), (hand_over(4, 3, 2), 2)],
        stock(3, "4 2", claim=("3 you:1", 2_000)),
        ["2", "3"],
    ),
    "finish": Case(stock((0, 50_000)), [HANDED, (finish(2, 3), 2)], stock((3, 50_000), "3 2"), ["1", "3"]),
    "finish, released only": Case(stock(-1), [(hand_over(2, 1, 1), -1), (finish(2, 1), 0)], stock(0, "3 0")),
    "finish before, only an existing one": Case({}, [(finish(2, 3, 1), 0)], stock(None, "3 0")),
    "finish before, no semaphore": Case({}, [(finish(4, 3), 3)], stock(3, "5 3"), ["3"]),
    "finish, no semaphore": Case(stock(0), [HANDED, ("DEL", "stock"), (finish(2, 3), 0)], stock(None, "3 0"), ["1"]),
    "claim": Case(stock(2), [(claim(2, 4), -1_000 * WAIT)], stock(2, claim=MINE, turn=("1", 10_000))),
    "claim, no semaphore": Case({}, [(claim(2, 4), NONE)]),
    "claimed, too few": Case(stock(5, claim=OTHERS), [(acquire(2, 6), -5)]),
    "claimed, the rest": Case(stock(5, claim=OTHERS), [(acquire(2, 1), 1)], stock(4, "2 1", claim=OTHERS)),
    # All that are free, also if they are claimed.
    "claimed, all": Case(stock(5, claim=OTHERS), [(acquire(2, 0), 5)], stock(0, "2 5", claim=OTHERS)),
    **{
        f"no claim: {wrong}": Case(stock(1, claim=wrong), [(acquire(2, 1), 1)], stock(0, "2 1", claim=wrong))
        for wrong in ("", "text", "4")
    },
    # Such as one that has no end.
    **{
        f"a claim that lasts too long: {call.name}, {lasts}": Case(
            stock(1, claim=("4 somebody", lasts)), [(call, About(-1))], stock(1, claim=OTHERS)
        )
        for call in (acquire(2, 1), claim(2, 1))
        for lasts in (None, 60_000)
    },
    "a claimant takes what it claims": Case(
        stock(6, claim=MINE, turn=("1", 10_000)), [(claim(2, 4), 4)], stock(2, "2 4", turn=("1", 10_000)), ["2"]
    ),
    "withdraw, another's": Case(stock(2, claim=MINE), [(leave(me="you"), 0)]),
    **{
        f"withdraw: {free}": Case(stock(free, claim=MINE), [(leave(me="me"), 1, 0)], stock(free), messages)
        for free, messages in ((None, []), (-1, []), (0, []), (2, ["2"]), (["x"], []))
    },
}
PLACE = 2**46
LASTS = 60_000
PATIENT = 60_000_000
"""Microseconds of patience: nobody has waited for so long."""


def line(free: int, members: str = "", *, woken: str = "", once: str = "") -> dict[str, Any]:
    """So many free permits, the callers that are listed, and those that were woken. `a` stands for `a:1:1`."""
    found: dict[str, Any] = {"stock": free, **({SLOT: (once, 660_000)} if once else {})}
    for key, names in ((LIST, members), (WOKEN, woken)):
        listed = [name if ":" in name else f"{name}:1:1" for name in names.split()]
        found |= {key: (Came(listed), LASTS)} if listed else {}
    return found


def come(permits: int, names: str, entry: str, following: str = "") -> Call:
    return claim(2, permits, "", listing=(names, entry, following))


A, B, C = "a:1:1", "b:1:1", "c:1:1"
LOOK = f"look:{RESERVED}"
CLAIMED = {CLAIM: ("3 c:1", 2_000)}
LAST = hand_over(2, 1, 1, names=A)
QUEUE = {
    "a release wakes the first one, and the next one looks later": Case(
        line(0, "a b c"), [(add(2, 1), 5, 1)], line(1, "a b c", woken="a", once="2 1"), [f"{A} 1", LOOK]
    ),
    "nobody is woken twice": Case(
        line(0, "a b"),
        [(add(2, 1), 5, 1), (add(4, 1), 5, 1), (add(6, 1), 5, 1)],
        line(3, "a b", woken="a b", once="6 1"),
        [f"{A} 1", LOOK, f"{B} 1"],
    ),
    "one client gets all that nobody else waits for": Case(
        line(0, "a b"), [(add(2, 5), 5, 1)], line(5, "a b", woken="a b", once="2 1"), [f"{A} 4", f"{B} 1"]
    ),
    "permits that are claimed": Case(
        line(0, "a") | CLAIMED,
        [(add(2, 2), 1), (add(4, 1), 1), (add(6, 1), 1)],
        line(4, "a", woken="a", once="6 1") | CLAIMED,
        [" 3", " 3", f"{A} 1"],
    ),
    "a client that was woken and came late loses its place": Case(
        line(0, "a b", woken="a"), [(add(2, 1), 5, 1)], line(1, "b", woken="b", once="2 1"), [f"{B} 1"]
    ),
    "it loses its other names": Case(line(0, "a b a:2:2"), [(come(2, f"{A} a:2:2", "a:3:2"), 0)], line(0, "a:3:2 b")),
    "its other callers are listed as the last ones": Case(
        line(1, "a b", woken="a"), [(come(1, A, "a:2:1", "a:2:4"), 1)], line(0, "b a:2:4", once="2 1")
    ),
    "what it leaves is for the next one": Case(
        line(2, "a b", woken="a"), [(come(1, A, "a:2:1"), 1)], line(1, "b", woken="b", once="2 1"), [f"{B} 1"]
    ),
    # The first copy was refused, and has entered the client.
    "a second copy has come": Case(
        line(0, "b"),
        [(come(1, "", A), -PLACE), ("INCRBY", "stock", 1), (come(1, "", A), 1)],
        line(0, "b", once="2 1"),
        [LOOK],
    ),
    "a hand-over to the last caller": Case(line(0, "a b"), [(LAST, 1)], line(0, "b", once="2 1")),
    "a hand-over to the last caller, and it was woken": Case(
        line(1, "a b", woken="a"), [(LAST, 1)], line(1, "b", woken="b", once="2 1"), [f"{B} 1"]
    ),
    "leave, the second one listens to Redisson": Case(line(0, "a b c"), [(leave(A), 1, 0)], line(0, "b c"), ["look:0"]),
    "leave permits to others": Case(line(1, "a b"), [(leave(A), 1, 0)], line(1, "b", woken="b"), [f"{B} 1"]),
    "leave under several names": Case(line(0, "a b a:2:3"), [(leave(f"{A} a:2:3"), 1, 0)], line(0, "b")),
}
CASES = {
    **SEMAPHORE,
    **{f"latch, {name}": case for name, case in LATCH.items()},
    **{f"queue, {name}": case for name, case in QUEUE.items()},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


@pytest.mark.parametrize(
    ("wrong", "call"),
    [
        *(("text", call) for call in (acquire(2, 1), add(2, 1), hand_over(2, 1, 1))),
        *((2**63 - 2, call) for call in (add(2, 5), hand_over(2, 5, 1))),
    ],
)
def test_a_number_that_can_not_be_counted(scripts: Scripted, wrong: Any, call: Call) -> None:
    scripts.redis.set("stock", wrong)
    for _ in range(2):
        with pytest.raises(ResponseError, match=r"not an integer|out of range|overflow"):
            scripts.call(call)
        assert scripts.contents() == {"stock": (str(wrong), None)}


@pytest.mark.parametrize(
    ("before", "call", "most", "rest"),
    [
        (stock(5, claim=("4 somebody", 1_500)), acquire(2, 2), 1_500, 0),
        (stock(1, claim=("4 somebody", None)), acquire(2, 1), 2_000, 0),
        (stock(1, claim=("4 somebody", None)), claim(2, 1), 2_000, 0),
        (stock(4, claim=("4 somebody", 1_500)), claim(2, 3), 1_500, 0),
        # The free permits may be enough for a waiter that needs fewer.
        (stock(1, turn=("1", 5_000)), claim(2, 4), 5_000, 1),
        (stock(0, turn=("1", 5_000)), claim(2, 4), 5_000, 0),
        # Claims of all end together, at the begin of the others' turn.
        (stock(1, turn=("1", 5_700)), claim(2, 4), 700, 0),
    ],
)
def test_when_to_ask_again(scripts: Scripted, before: dict[str, Any], call: Call, most: int, rest: int) -> None:
    scripts.write(before)
    for _ in range(2):
        reply = -scripts.call(call)
        assert (reply // WAIT == About(most), reply % WAIT) == (True, rest)
    turn = scripts.left(TURN)
    assert scripts.left(CLAIM) <= max(turn - 4_999, -1) or TURN not in before
    assert scripts.text("stock") == str(before["stock"])


@pytest.mark.parametrize(("patience", "left"), [(5_000, False), (PATIENT, True)])
def test_a_permit_is_left_to_the_client_that_was_woken(scripts: Scripted, patience: int, left: bool) -> None:
    """Unless that has waited for a short time only."""
    scripts.write(line(0, "a"))
    scripts.call(add(2, 1))
    reply = scripts.call(claim(4, 1, "", patience, ("", B, "")))
    if left:
        assert reply == 1
    else:
        # The time, and the place behind it.
        assert -reply // WAIT == About(RESERVED + 2**14)
        assert scripts.call(claim(6, 1, "", listing=(A, "a:2:1", ""))) == 1
    assert scripts.text("stock") == "0"


def test_a_client_that_comes_late_and_is_refused_keeps_its_place(scripts: Scripted) -> None:
    """The permit is left to the other one, which was woken, too."""
    scripts.write(line(1, "a b"))
    seconds, microseconds = scripts.redis.time()
    scripts.redis.zadd(WOKEN, {A: 1, B: seconds * 1_000_000 + microseconds + RESERVED * 999})
    assert scripts.call(come(1, "", A)) < 0
    assert scripts.redis.zrange(LIST, 0, -1) == [A.encode(), B.encode()]


@pytest.mark.parametrize(("before", "behind", "releases"), [(1, 0, 1), (5, 6, 1), (2_000, 0, 2)])
def test_clients_that_are_gone_are_passed_over(scripts: Scripted, before: int, behind: int, releases: int) -> None:
    gone = [f"gone:{number}:1" for number in range(before + behind)]
    scripts.write(line(0, " ".join([*gone[:before], A, *gone[before:]])))
    scripts.listening.punsubscribe()
    with scripts.listener("pyredisson_wake:{stock}:a"):
        for number in range(1, releases + 1):
            scripts.call(add(number, 1))
            assert scripts.redis.exists(WOKEN) == (number == releases)
    assert (scripts.redis.zrange(LIST, 0, 0), scripts.redis.zrange(WOKEN, 0, -1)) == ([A.encode()], [A.encode()])


@pytest.mark.parametrize("listens", [False, True])
def test_a_client_that_needs_more_is_passed_over_and_removed_if_it_is_gone(scripts: Scripted, *, listens: bool) -> None:
    """The first two clients listen to Redisson, so they must be alive."""
    scripts.write(line(0, "a:1:3 b:1:3 c"))
    with scripts.listener(*(f"pyredisson_wake:{{stock}}:{client}" for client in ("a", "b") if listens)):
        scripts.call(add(2, 2))
    assert scripts.published() == [f"{C} {1 if listens else 2}", *([LOOK] if listens else [])]
    assert scripts.redis.zrange(LIST, 0, -1) == [*([b"a:1:3", b"b:1:3"] if listens else []), C.encode()]


@pytest.mark.parametrize("other", [False, True])
def test_redissons_channel_is_silent_unless_others_listen(scripts: Scripted, other: bool) -> None:
    """Each client that waits is subscribed to both channels."""
    scripts.write(line(0, "a"))
    with scripts.listener(CHANNEL, f"py{CHANNEL}"), scripts.listener(*[CHANNEL] * other):
        assert scripts.call(add(2, 1)) == (3 if other else 1)
    assert scripts.published() == (["1"] if other else []) + [f"{A} 1"]
