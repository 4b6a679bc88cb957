"""The scripts of expiring permits: every branch, sent twice, late, and as Java reads it."""

from typing import Any

import pytest

from pyredisson._protocol.scripts import script
from tests.logic.simulator.keys import SortedSet
from tests.logic.simulator.server import Server

from .scripted import FOREVER, About, Call, Came, Case, Ends, Scripted

CHANNEL = "redisson_sc:{pool}"
FREE, USED, OTHER = "pool", "{pool}:timeout", "{other}:timeout"
CLAIM, TURN = "pyredisson_semaphore_claim:{pool}", "pyredisson_semaphore_turn:{pool}"
KEYS = ["pyredisson_waiting:{pool}", "pyredisson_woken:{pool}", CLAIM]
SLOT = "pyredisson_once:{pool}:me:0"
LEASE, BEYOND = 30_000, 2**52
A, B, C, D, E = (bytes(range(start, start + 16)) for start in (0, 16, 128, 200, 240))


def mark(permit: bytes) -> str:
    return f"pyredisson_permit_withdrawn:{{pool}}:{permit.hex()}"


def acquire(*ids: bytes, lease: int = LEASE, claimant: str = "") -> Call:
    words: list[str | int | bytes] = [CHANNEL, lease, 5_000, "", "", "", 60_000, claimant, *ids]
    return Call("permit_acquire", [FREE, *KEYS, TURN, USED, mark(ids[0])], words)


def release(*ids: bytes) -> Call:
    return Call("permit_release", [FREE, USED, *KEYS], [CHANNEL, 1, *ids])


def withdraw(*ids: bytes) -> Call:
    return Call("permit_release", [FREE, USED, *KEYS, *map(mark, ids)], [CHANNEL, 0, *ids])


def renew(lease: int, *permits: tuple[str, bytes]) -> Call:
    return Call("permit_renew", [key for key, _ in permits], [lease, *[each for _, each in permits]])


def change(permit: bytes, *lease: int) -> Call:
    return Call("permit_lease", [USED], [permit, *lease])


SET_FIVE = Call("permit_set", [FREE, *KEYS, USED, SLOT], [2, 5, CHANNEL])
COUNT = Call("permit_count", [FREE, USED, *KEYS], [CHANNEL])


def pool(free: Any, used: dict[bytes, int | None] | None = None, **other: Any) -> dict[str, Any]:
    """Keys with so many free permits (None: no semaphore), and those in use with their ends in ms (None: endless)."""
    names = {"claim": CLAIM, "turn": TURN, "slot": SLOT, "waiting": KEYS[0], "woken": KEYS[1]}
    found = {names[name]: value for name, value in other.items()}
    return found | ({} if free is None else {FREE: free}) | ({USED: Ends(used)} if used else {})


MINE, OTHERS, ONE = ("4 me", 2_000), ("4 somebody", 2_000), (Came(["a:1:1"]), 60_000)
MANY = [b"%016d" % number for number in range(1_500)]
OURS, WHOLE = [(USED, A), (USED, B)], [bytes([number]) * 16 for number in range(100)]
SEVERAL = renew(LEASE, *OURS, (OTHER, C), (OTHER, A), ("no", A), ("text", A), ("hash", A), (USED, D), (USED, E))
CASES = {
    "endless": Case(pool(1), [(acquire(A, lease=-1), None)], pool(0, {A: None})),
    "beyond all times": Case(pool(1), [(acquire(A, lease=BEYOND), None)], pool(0, {A: None})),
    "a copy, the first was released": Case(pool(2, {C: LEASE}), [(acquire(A, B, C), [-2, 0])]),
    "withdrawn before it arrived": Case(
        pool(2), [(withdraw(A), []), (acquire(A, lease=-1), [-1, 0, 0])], {**pool(2), mark(A): ("1", 660_000)}
    ),
    **{f"too few: {free}": Case(pool(free), [(acquire(A, B), [-1, free, 0])]) for free in (0, 1, -3)},
    "too few, no end": Case(pool(0, {C: None}), [(acquire(A), [-1, 0, 0])]),
    "no more than needed is taken over": Case(
        pool(0, {C: -1, D: -5_000, E: 10_000}), [(acquire(A), None)], pool(0, {A: LEASE, C: -1, E: 10_000})
    ),
    "ended, for those that wait": Case(
        pool(0, {C: -3_000, D: -2_000, E: -1_000}, waiting=ONE),
        [(acquire(A), None)],
        pool(1, {A: LEASE, E: -1_000}, waiting=ONE, woken=ONE),
        ["a:1:1 1"],
    ),
    "ended, below zero": Case(pool(-2, {B: -1, C: -1}), [(acquire(A), [-1, 0, 0])], pool(0)),
    "claim, no semaphore": Case({}, [(acquire(A, B, claimant="me"), [-3, 0, 0])]),
    "claim, a permit ends sooner": Case(
        pool(2, {E: 900}),
        [(acquire(A, B, C, D, claimant="me"), [About(900), 0, 0])],
        pool(2, {E: 900}, claim=MINE, turn=("1", 10_000)),
    ),
    # A second copy finds what the first one took.
    "claimed, the rest": Case(pool(5, claim=OTHERS), [(acquire(A), None)], pool(4, {A: LEASE}, claim=OTHERS)),
    "claimed, permits have ended": Case(
        pool(1, {E: -1}, claim=("2 somebody", 2_000)),
        [(acquire(A, B), [About(2_000), 0, 0])],
        pool(2, claim=("2 somebody", 2_000)),
        ["2"],
    ),
    "a claimant takes what it claims": Case(
        pool(5, claim=("2 me", 2_000)), [(acquire(A, B, claimant="me"), None)], pool(3, {A: LEASE, B: LEASE}), ["3"]
    ),
    "count, no semaphore": Case({}, [(COUNT, [None, 0])]),
    "count": Case(pool(3, {A: 10_000, B: None}), [(COUNT, [3, 2])]),
    "count, below zero": Case(pool(-3, {C: -1}), [(COUNT, [-2, 0])], pool(-2)),
    "count, many have ended": Case(
        pool(1, dict.fromkeys(MANY, -1) | {A: None}),
        [(COUNT, [1_501, 1])] * 2,
        pool(1_501, {A: None}),
        ["1001", "1501"],
    ),
    "set": Case({}, [(SET_FIVE, 5)], pool(5, slot=("2 5", 660_000)), ["5"]),
    "set, as it is": Case(
        pool((3, 50_000), {A: None, B: -1}), [(SET_FIVE, 0)], pool((3, 50_000), {A: None, B: -1}, slot=("2 0", 660_000))
    ),
    "release": Case(pool(3, {A: 10_000}), [(release(A), [], [1, A])], pool(4), ["4"]),
    "release, all or none": Case(pool(0, {A: 10_000, B: -1}), [(release(A, B, C), [1, B, C]), (release(A, B), [0, B])]),
    "withdraw what is there": Case(
        pool(0, {A: 10_000, B: -1, D: 10_000}),
        [(withdraw(A, B, C), [])],
        {**pool(2, {D: 10_000}), **{mark(permit): ("1", 660_000) for permit in (A, B, C)}},
        ["2"],
    ),
    "renew, ours and others": Case(
        {USED: Ends({A: 10_000, B: -1, D: 60_000, E: None}), OTHER: Ends({C: 10_000}), "text": "x", "hash": {"a": 1}},
        [(SEVERAL, [1, 0, 1, 0, 0, 0, 0, 1, 1])],
        {USED: Ends({A: LEASE, B: -1, D: 60_000, E: None}), OTHER: Ends({C: LEASE}), "text": "x", "hash": {"a": 1}},
    ),
    "renew, 0 only asks": Case(pool(0, {A: 20_000, B: -1}), [(renew(0, *OURS, (USED, C)), [1, 0, 0])]),
    "renew, a whole batch": Case(
        pool(0, dict.fromkeys(WHOLE, 10_000)),
        [(renew(LEASE, *((USED, each) for each in WHOLE)), [1] * 100)],
        pool(0, dict.fromkeys(WHOLE, LEASE)),
    ),
    "lease": Case(
        pool(0, {A: 10_000, B: None, C: -1}),
        [(change(A), About(10_000)), (change(B), -1), (change(C), None), (change(D), None)],
    ),
    **{
        f"lease, set to {lease}: {left}": Case(
            pool(0, {A: left}), [(change(A, lease), found)], pool(0, {A: None if found == -1 else lease})
        )
        for left in (10_000, None)
        for lease, found in ((5_000, 5_000), (-1, -1), (BEYOND, -1))
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


@pytest.mark.parametrize("score", ["inf", "930000000000000"])
def test_scores_that_somebody_else_wrote(scripts: Scripted, score: str) -> None:
    scripts.redis.set(FREE, 0)
    scripts.redis.zadd(USED, {C: score})
    assert scripts.call(acquire(A)) == [-1, 0, 0]


def test_the_permits_in_use_end_with_the_semaphore(scripts: Scripted) -> None:
    scripts.redis.set(FREE, 5, px=50_000)
    assert scripts.call(acquire(A, lease=-1)) is None
    before, used, after = scripts.redis.pttl(FREE), scripts.redis.pttl(USED), scripts.redis.pttl(FREE)
    # Old servers look at the clock again in the middle of a script.
    assert after - 20 <= used <= before + 20


@pytest.mark.parametrize("late", [False, True])
def test_a_permit_is_valid_in_the_millisecond_of_its_end(*, late: bool) -> None:
    """All times are rounded down. The clock of a real server doesn't stand still."""
    server, keys = Server(lambda: 1000.0 + late / 1000, lambda *_: 0), [FREE, USED, *KEYS]
    server.keyspace.values |= {FREE.encode(): b"0", USED.encode(): SortedSet({A: 1_000_000.0})}
    words = [script("permit_release", with_shebang=False).text, b"5", *map(str.encode, [*keys, CHANNEL, "1"]), A]
    assert server.run(b"EVAL", words) == ([0, A] if late else [])


def test_redisson_reads_whole_numbers(scripts: Scripted) -> None:
    """It takes the digits of a score as a text."""
    scripts.redis.set(FREE, 5)
    for call in (acquire(A), acquire(B, lease=-1), acquire(C), renew(60_000, (USED, A)), change(C, 5_000)):
        scripts.call(call)
    raw = scripts.redis.execute_command("EVAL", "return redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')", 1, USED)
    assert [score for score in map(bytes.decode, raw[1::2]) if not score.isdigit()] == []
    assert str(FOREVER) in [score.decode() for score in raw[1::2]]
