"""The list of clients that wait for a lock: who enters it, whom a release wakes, for whom a free lock is reserved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.properties.servers import Memory

from .scripted import ANYTHING, ME, RESERVED, YOU, About, Call, Came, Case, Refused, Scripted

CHANNEL, PREFIX = "redisson_lock__channel:{orders}", "pyredisson_wake:{orders}:"
LIST, WOKEN = "pyredisson_waiting:{orders}", "pyredisson_woken:{orders}"
COUNTER, NEWEST = "redisson_lock_token:{orders}", "pyredisson_fenced_newest:{orders}"
TOKENS = {"lock": [], "fenced": [COUNTER, NEWEST]}
KINDS = pytest.mark.parametrize("kind", TOKENS)
LASTS = 60_000
"""The TTL of the list, ms."""
PATIENCE, LONG_PATIENCE = 5_000, 3_600_000_000
"""Microseconds. The clients of `Came` have waited for longer than the first, and for less than the second."""
MINE, YOURS = {ME: 1}, {YOU: 1}
HERE, THERE = ME.partition(":")[0], YOU.partition(":")[0]
"""The clients of both owners."""


class OfList(Scripted):
    """Messages with the clients that they go to, or with `redisson`."""

    def published(self) -> list[str]:
        return [f"{_listener(channel)} {_short(text)}" for channel, text in self.published_on()]


SCRIPTS = OfList


def _listener(channel: str) -> str:
    return "redisson" if channel == CHANNEL else channel.removeprefix(PREFIX)


def _short(message: str) -> str:
    """`look` for as long as a reservation may last."""
    ms = message.removeprefix("look:")
    return "look" if ms != message and 0 < int(ms) <= RESERVED else message


def acquire(member: str, *, owner: str = "", level: int = 1, lasts: int = LASTS, kind: str = "lock") -> Call:
    """`lasts` 0: the caller doesn't wait."""
    owner = owner or f"{member.partition(':')[0]}:4294967296"
    return Call(f"{kind}_acquire", ["orders", *TOKENS[kind], LIST, WOKEN], [owner, level, 30_000, member, lasts])


def release(*, left: int = 0, channel: str = CHANNEL, patience: int = PATIENCE, late: int = 0) -> Call:
    return Call("lock_release", ["orders", LIST, WOKEN], [channel, ME, left, PREFIX, patience, late])


def force_release(channel: str = CHANNEL) -> Call:
    return Call("lock_force_release", ["orders", LIST, WOKEN], [channel, PREFIX, PATIENCE])


def keep(channel: str = CHANNEL) -> Call:
    return Call("lock_keep", ["orders", LIST, WOKEN], [channel, ME, 10_000, PREFIX, PATIENCE, 0])


def hand_over(member: str, kind: str = "lock") -> Call:
    return Call(f"{kind}_hand_over", ["orders", *TOKENS[kind], LIST], [ME, YOU, 30_000, member])


def leave(member: str) -> Call:
    return Call("lock_leave", ["orders", LIST, WOKEN], [member, PREFIX, PATIENCE])


def waiting(*members: str, lasts: int = LASTS) -> dict[str, Any]:
    return {LIST: (Came(members), lasts)}


def was_woken(member: str, *, came: Any = 1, exclusive: int = 1, lasts: int | None = RESERVED) -> dict[str, Any]:
    return {WOKEN: ({"member": member, "came": came, "exclusive": exclusive}, lasts)}


def woken(member: str, *, exclusive: int = 1) -> dict[str, Any]:
    """The same, as it is expected."""
    return was_woken(member, came=ANYTHING, exclusive=exclusive)


LOST = Call("lock_wake_waiters", ["orders", LIST, WOKEN], [CHANNEL, "0", PREFIX, PATIENCE])
DELETE = Call("fenced_delete", ["orders", COUNTER, NEWEST, LIST, WOKEN], [CHANNEL, PREFIX, PATIENCE])
HELD_HERE: dict[str, Any] = {"orders": (MINE, 20_000)}
HELD: dict[str, Any] = {"orders": ({f"{THERE}:4294967296": 1}, 20_000)}


def enters(kind: str) -> dict[str, Case]:
    return {
        "an empty list": Case(HELD, [(acquire("a:1", kind=kind), Refused(20_000, 0))], HELD | waiting("a:1")),
        "behind others": Case(
            HELD | waiting("a:1", "b:1"),
            [(acquire("c:1", kind=kind), Refused(20_000, 2))],
            HELD | waiting("a:1", "b:1", "c:1"),
        ),
        "it keeps its place": Case(
            HELD | waiting("a:1", "b:1", "c:1"),
            [(acquire("b:1", kind=kind), Refused(20_000, 1)), (acquire("a:1", kind=kind), Refused(20_000, 0))],
        ),
        "the list lasts for longer": Case(
            HELD | waiting("a:1", lasts=10_000),
            [(acquire("a:1", kind=kind), Refused(20_000, 0))],
            HELD | waiting("a:1"),
        ),
        "the list does not end earlier": Case(
            HELD | waiting("a:1", lasts=200_000), [(acquire("a:1", kind=kind), Refused(20_000, 0))]
        ),
        "a holder without an end": Case(
            {"orders": ({f"{THERE}:4294967296": 1}, None)},
            [(acquire("a:1", kind=kind), Refused(-1, 0))],
            {"orders": ({f"{THERE}:4294967296": 1}, None)} | waiting("a:1"),
        ),
        "not without time to wait": Case(HELD, [(acquire("a:1", lasts=0, kind=kind), About(20_000))]),
        "not for another level of a lost hold": Case({}, [(acquire("a:1", level=2, kind=kind), -2)]),
        "woken and refused, its former place": Case(
            HELD | waiting("b:1", "c:1") | was_woken("a:1"),
            [(acquire("a:1", kind=kind), Refused(20_000, 0))],
            HELD | waiting("a:1", "b:1", "c:1"),
        ),
        "woken and refused under another number": Case(
            HELD | waiting("b:1", "a:2") | was_woken("a:1"),
            [(acquire("a:2", kind=kind), Refused(20_000, 0))],
            HELD | waiting("a:2", "b:1"),
        ),
        "woken and refused, without time to wait": Case(
            HELD | waiting("b:1") | was_woken("a:1"), [(acquire("a:1", lasts=0, kind=kind), About(20_000))]
        ),
        "another one was woken": Case(
            HELD | waiting("b:1") | was_woken("a:1"),
            [(acquire("c:1", kind=kind), Refused(20_000, 1))],
            HELD | waiting("b:1", "c:1") | woken("a:1"),
        ),
        # Somebody else has written it.
        **{
            f"woken, came at {came}": Case(
                HELD | waiting("b:1") | was_woken("a:1", came=came),
                [(acquire("a:1", kind=kind), Refused(20_000, 1))],
                HELD | waiting("b:1", "a:1"),
            )
            for came in ("", "text", "nan", "inf", "-1", "9" * 30)
        },
    }


def gets_it(kind: str) -> dict[str, Case]:
    """A client that acquires the lock leaves the list. A reservation is for one client, whatever its number."""
    got, owned = ([ANYTHING], {COUNTER: ANYTHING}) if kind == "fenced" else (None, {})

    def held_by(client: str) -> dict[str, Any]:
        return {"orders": ({f"{client}:4294967296": 1}, 30_000), **owned}

    return {
        "a later one": Case(waiting("a:1", "b:1"), [(acquire("b:1", kind=kind), got)], held_by("b") | waiting("a:1")),
        "the only one": Case(waiting("a:1"), [(acquire("a:1", kind=kind), got)], held_by("a")),
        "the woken one": Case(
            {**waiting("b:1"), **was_woken("a:1")},
            [(acquire("a:1", kind=kind), got)],
            held_by("a") | waiting("b:1"),
        ),
        "the woken one under another number": Case(
            {**waiting("b:1"), **was_woken("a:1")},
            [(acquire("a:2", kind=kind), got)],
            held_by("a") | waiting("b:1"),
        ),
        "another one before the woken one": Case(
            {**waiting("b:1"), **was_woken("a:1", exclusive=0)},
            [(acquire("c:1", kind=kind), got)],
            {**held_by("c"), **waiting("b:1"), **woken("a:1", exclusive=0)},
        ),
        "not while it is reserved": Case(
            {**waiting("b:1"), **was_woken("a:1")},
            [
                (acquire("b:1", kind=kind), Refused(RESERVED, 0)),
                (acquire("c:1", kind=kind), Refused(RESERVED, 1)),
                (acquire("d:1", lasts=0, kind=kind), About(RESERVED)),
            ],
            {**waiting("b:1", "c:1"), **woken("a:1")},
        ),
        "after a reservation, the woken one": Case(
            {**waiting("b:1"), **was_woken("a:1")},
            [(acquire("b:1", kind=kind), Refused(RESERVED, 0)), (acquire("a:2", kind=kind), got)],
            held_by("a") | waiting("b:1"),
        ),
        # Somebody else has written it.
        **{
            f"a reservation that lasts for {lasts}": Case(
                was_woken("a:1", lasts=lasts),
                [(acquire("b:1", kind=kind), got)],
                held_by("b") | {WOKEN: ({"member": "a:1", "came": 1, "exclusive": 1}, lasts)},
            )
            for lasts in (None, 2 * RESERVED)
        },
        "handed over": Case(
            {**HELD_HERE, **waiting("a:1", "b:1")},
            [(hand_over("a:1", kind), got or [0])],
            {"orders": (YOURS, 30_000), **owned, **waiting("b:1")},
        ),
        "handed over, not in the list": Case(
            {**HELD_HERE, **waiting("b:1")},
            [(hand_over("a:1", kind), got or [0])],
            {"orders": (YOURS, 30_000), **owned, **waiting("b:1")},
        ),
        "not handed over": Case({**HELD, **waiting("a:1", "b:1")}, [(hand_over("a:1", kind), 0)]),
    }


RELEASE = {
    "wakes the first": Case(
        HELD_HERE | waiting("a:1", "b:1", "c:1"),
        [(release(), 3, None)],
        waiting("b:1", "c:1") | woken("a:1"),
        ["redisson 0", "a a:1", "b look"],
    ),
    "wakes the only one": Case(
        HELD_HERE | waiting("a:1"), [(release(), 3, None)], woken("a:1"), ["redisson 0", "a a:1"]
    ),
    "others may come before it": Case(
        HELD_HERE | waiting("a:1", "b:1"),
        [(release(patience=LONG_PATIENCE), 3, None)],
        waiting("b:1") | woken("a:1", exclusive=0),
        ["redisson 0", "a a:1", "b look"],
    ),
    "nobody else is woken before it has come": Case(
        HELD_HERE | waiting("b:1", "c:1") | was_woken("a:1", exclusive=0),
        [(release(), 3, None)],
        waiting("b:1", "c:1") | woken("a:1"),
        ["redisson 0", "b look"],
    ),
    "nobody else is woken before it has come, with patience": Case(
        HELD_HERE | waiting("b:1", "c:1") | was_woken("a:1", came=2**53, exclusive=0),
        [(release(), 3, None)],
        waiting("b:1", "c:1") | woken("a:1", exclusive=0),
        ["redisson 0", "b look"],
    ),
    "nobody waits behind the one that has not come": Case(
        HELD_HERE | was_woken("a:1"), [(release(), 3, None)], woken("a:1"), ["redisson 0"]
    ),
    # Somebody else has written it.
    "one that was woken for longer than a reservation": Case(
        HELD_HERE | waiting("b:1") | was_woken("a:1", came="text", exclusive=0, lasts=2 * RESERVED),
        [(release(), 3, None)],
        waiting("b:1") | {WOKEN: ({"member": "a:1", "came": "text", "exclusive": 0}, 2 * RESERVED)},
        ["redisson 0", "b look"],
    ),
    "one that was woken for ever": Case(
        HELD_HERE | waiting("b:1") | was_woken("a:1", lasts=None),
        [(release(), 3, None)],
        waiting("b:1") | was_woken("a:1", lasts=None),
        ["redisson 0", "b look:0"],
    ),
    # What a spin lock sends.
    "without a channel": Case(
        HELD_HERE | waiting("a:1", "b:1"),
        [(release(channel=""), 1, None)],
        waiting("b:1") | woken("a:1"),
        ["a a:1", "b look"],
    ),
    "not the last level": Case(
        {"orders": ({ME: 2}, 20_000)} | waiting("a:1"), [(release(left=1), 0)], HELD_HERE | waiting("a:1")
    ),
    "of another owner": Case(HELD | waiting("a:1"), [(release(), None)]),
    "late": Case(
        HELD_HERE | waiting("a:1", "b:1"),
        [(release(late=1), 3, None)],
        waiting("b:1") | woken("a:1"),
        ["redisson 0", "a a:1", "b look", f"{HERE} 0", f"{HERE} 0"],
    ),
    "late, without a hold": Case(HELD | waiting("a:1"), [(release(late=1), None)], None, [f"{HERE} 0"] * 2),
    "by force": Case(
        HELD_HERE | waiting("a:1", "b:1"),
        [(force_release(), 1, 0)],
        waiting("b:1") | woken("a:1"),
        ["redisson 0", f"{HERE} 0", "a a:1", "b look"],
    ),
    "by force, a kept lock": Case(
        {"orders": ({f"{ME}:kept": 1}, 20_000)}, [(force_release(), 1, 0)], {}, ["redisson 0", f"{HERE} 0"]
    ),
    "by force, without a channel": Case(
        HELD_HERE | waiting("a:1", "b:1"),
        [(force_release(""), 1, 0)],
        waiting("b:1") | woken("a:1"),
        ["a a:1", "b look"],
    ),
    "by force, a free lock": Case(waiting("a:1"), [(force_release(), 0)]),
    "a deletion": Case(
        HELD_HERE | waiting("a:1", "b:1"),
        [(DELETE, 1, 0)],
        waiting("b:1") | woken("a:1"),
        ["redisson 0", f"{HERE} 0", "a a:1", "b look"],
    ),
    "a deletion of the counter alone": Case({COUNTER: 7, **waiting("a:1")}, [(DELETE, 1, 0)], waiting("a:1")),
    # It learns the new lease, and gets its place back.
    "keep": Case(
        HELD_HERE | waiting("a:1", "b:1"),
        [(keep(), 1), (acquire("a:1"), Refused(10_000, 0, 1))],
        {"orders": ({f"{ME}:kept": 1}, 10_000), **waiting("a:1", "b:1")},
        ["redisson 0", "a a:1", "b look"],
    ),
    "keep, without a channel": Case(
        HELD_HERE | waiting("a:1"), [(keep(""), 1)], {"orders": ({f"{ME}:kept": 1}, 10_000), **waiting("a:1")}
    ),
    "a lost hold": Case(
        waiting("a:1", "b:1", "c:1"),
        [(LOST, 1)],
        waiting("b:1", "c:1") | woken("a:1"),
        ["redisson 0", "a a:1", "b look", "redisson 0", "b look"],
    ),
    "a lost hold, the lock is held": Case(HELD | waiting("a:1"), [(LOST, 0)]),
}
LEAVE = {
    "the first of a held lock": Case(
        HELD | waiting("a:1", "b:1", "c:1"), [(leave("a:1"), 1, 0)], HELD | waiting("b:1", "c:1"), ["c look:0"]
    ),
    "the second of a held lock": Case(
        HELD | waiting("a:1", "b:1", "c:1"), [(leave("b:1"), 1, 0)], HELD | waiting("a:1", "c:1"), ["c look:0"]
    ),
    # The first two look as before.
    "the third of a held lock": Case(
        HELD | waiting("a:1", "b:1", "c:1", "d:1"), [(leave("c:1"), 1, 0)], HELD | waiting("a:1", "b:1", "d:1")
    ),
    "one of two, a held lock": Case(HELD | waiting("a:1", "b:1"), [(leave("a:1"), 1, 0)], HELD | waiting("b:1")),
    "the only one": Case(HELD | waiting("a:1"), [(leave("a:1"), 1, 0)], HELD),
    "the only one, a free lock": Case(waiting("a:1"), [(leave("a:1"), 1, 0)], {}),
    "nobody": Case(HELD | waiting("b:1", "c:1"), [(leave("a:1"), 0)]),
    "an earlier number": Case(HELD | waiting("a:2"), [(leave("a:1"), 0)]),
    "the first, a free lock": Case(waiting("a:1", "b:1"), [(leave("a:1"), 1, 0)], woken("b:1"), ["b b:1"]),
    "the woken one": Case(
        waiting("b:1", "c:1") | was_woken("a:1"),
        [(leave("a:1"), 1, 0)],
        waiting("c:1") | woken("b:1"),
        # The second copy repeats the last one.
        ["b b:1", "c look", "c look"],
    ),
    "the woken one, nobody else waits": Case(was_woken("a:1"), [(leave("a:1"), 1, 0)], {}),
    "the woken one, a held lock": Case(
        HELD | waiting("b:1", "c:1") | was_woken("a:1"), [(leave("a:1"), 1, 0)], HELD | waiting("b:1", "c:1")
    ),
    "the client was woken under a later number": Case(
        HELD | waiting("b:1") | was_woken("a:2"), [(leave("a:1"), 0)], HELD | waiting("b:1") | woken("a:2")
    ),
    "another one was woken": Case(
        waiting("b:1", "c:1") | was_woken("a:1"),
        [(leave("b:1"), 1, 0)],
        waiting("c:1") | woken("a:1"),
        ["c look", "c look"],
    ),
}
CASES = {
    **{f"{kind} enters: {name}": case for kind in TOKENS for name, case in enters(kind).items()},
    **{f"{kind} is acquired by {name}": case for kind in TOKENS for name, case in gets_it(kind).items()},
    **{f"release: {name}": case for name, case in RELEASE.items()},
    **{f"leave: {name}": case for name, case in LEAVE.items()},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_list(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


@KINDS
@pytest.mark.parametrize(
    ("holder", "foreign"),
    [
        ("java:1", 1),
        ("java:4294967295", 1),
        ("us:4294967296", 0),
        ("us:4294967296:3", 0),
        ("us:18446744073709551615:kept", 0),
        (f"us:{'9' * 400}", 0),
        ("us:7:3", 1),
        ("x:kept", 1),
        ("x", 1),
        ("", 1),
    ],
)
def test_whether_the_holder_tells_the_list(scripts: Scripted, kind: str, holder: str, foreign: int) -> None:
    """The automatic ids of this library begin at 2^32; Redisson's are those of Java's threads."""
    scripts.check(
        Case(
            {"orders": ({holder: 1}, 20_000)},
            [(acquire("a:1", kind=kind), Refused(20_000, 0, foreign))],
            {"orders": ({holder: 1}, 20_000), **waiting("a:1")},
        )
    )


@KINDS
def test_places_are_times_of_the_server(scripts: Scripted, kind: str) -> None:
    scripts.write(HELD)
    earliest = scripts.now() * 1000
    for place, member in enumerate(("a:1", "b:1")):
        assert scripts.call(acquire(member, kind=kind)) == Refused(20_000, place)
    first, second = (scripts.redis.zscore(LIST, member) for member in ("a:1", "b:1"))
    assert earliest <= first < second < scripts.now() * 1000 + 1000
    # A client that was woken has exactly the place that it had.
    scripts.write({"orders": MINE})
    scripts.redis.hdel("orders", f"{THERE}:4294967296")
    scripts.call(release())
    scripts.write(HELD)
    assert scripts.redis.zrange(LIST, 0, -1) == [b"b:1"]
    assert scripts.call(acquire("a:1", kind=kind)) == Refused(20_000, 0)
    assert scripts.redis.zscore(LIST, "a:1") == first


@contextmanager
def only(scripts: Scripted, *clients: str) -> Iterator[None]:
    """Nobody else than these clients hears a message."""
    scripts.listening.punsubscribe("*")
    scripts.listening.subscribe("end", *(f"{PREFIX}{client}" for client in clients))
    for _ in range(2 + len(clients)):
        assert scripts.listening.get_message(timeout=5) is not None
    yield


@pytest.mark.parametrize("count", [1, 3, 200])
def test_clients_that_are_gone_are_passed_over(scripts: Scripted, count: int) -> None:
    gone = [f"gone{number}:1" for number in range(count)]
    with only(scripts, "a", "b"):
        scripts.check(
            Case(
                HELD_HERE | waiting(*gone, "a:1", "b:1", "c:1"),
                # Nobody hears the message on the lock's channel.
                [(release(), 1, None)],
                waiting("b:1", "c:1") | woken("a:1"),
                ["a a:1", "b look"],
            )
        )


@pytest.mark.parametrize("call", [release(), force_release(), LOST, leave("x:1")], ids=lambda call: str(call.name))
def test_all_clients_are_gone(scripts: Scripted, call: Call) -> None:
    held = call.name in ("lock_release", "lock_force_release")
    scripts.write((HELD_HERE if held else {}) | waiting("x:1", "a:1", "b:1"))
    with only(scripts):
        for _ in range(2):
            scripts.call(call)
            assert scripts.contents() == {}


def test_a_thousand_clients_are_gone(scripts: Scripted) -> None:
    """One call of the script doesn't take long. Whoever is still there looks at the end of the lease."""
    scripts.write(HELD_HERE | waiting(*(f"gone{number}:1" for number in range(1000)), "a:1"))
    with only(scripts, "a"):
        assert scripts.call(release()) == 1
        assert scripts.redis.zrange(LIST, 0, -1) == [b"a:1"]
        assert scripts.published() == []


@pytest.mark.parametrize("name", ["orders", "a*", "a?b", "[a-z]", "^[", "back\\slash", "{x}*", "-"])
def test_the_list_is_gone_too(scripts: Scripted, name: str) -> None:
    """All clients that listen are woken, and no others."""
    inner = name if "{" in name else f"{{{name}}}"
    keys = [name, f"pyredisson_waiting:{inner}", f"pyredisson_woken:{inner}"]
    prefix, channel = f"pyredisson_wake:{inner}:", f"redisson_lock__channel:{inner}"
    others = [f"pyredisson_wake:{other}:a" for other in ("{ordersx}", "{abc}", "{axb}", "{x}y", "{a}", "{backslash}")]
    with scripts.redis.pubsub() as listening:
        listening.subscribe(f"{prefix}a", f"{prefix}b", *others)
        for _ in range(2 + len(others)):
            assert listening.get_message(timeout=5) is not None
        for _ in range(2):
            assert scripts.run("lock_wake_waiters", keys, channel, "0", prefix, PATIENCE) == 1
        assert [text for _, text in scripts.published_on()] == ["0"] * 6
        found = [listening.get_message(timeout=5)["channel"].decode() for _ in range(4)]
    assert sorted(found[:2]) == sorted(found[2:]) == [f"{prefix}a", f"{prefix}b"]
    assert scripts.contents() == {}


def test_without_a_right_to_see_who_listens(scripts: Scripted) -> None:
    """Redisson's message is published all the same."""
    with scripts.user("~*", "&*", "+@all", "-pubsub") as theirs, scripts.redis.pubsub() as listening:
        listening.subscribe(f"{PREFIX}a")
        assert listening.get_message(timeout=5) is not None
        assert scripts.call(LOST, theirs) == 1
    assert scripts.published() == ["redisson 0"]


WRONG = {LIST: "text", WOKEN: "text"}


@KINDS
@pytest.mark.parametrize("wrong", [(LIST,), (WOKEN,), (LIST, WOKEN)])
def test_a_lock_is_released_whatever_its_list_is(scripts: Scripted, kind: str, wrong: tuple[str, ...]) -> None:
    damaged = {key: WRONG[key] for key in wrong}
    handed: tuple[Any, dict[str, Any]] = ([ANYTHING], {COUNTER: ANYTHING}) if kind == "fenced" else ([0], {})
    kept: dict[str, Any] = {"orders": ({f"{ME}:kept": 1}, 10_000)}
    for case in (
        Case(HELD_HERE | damaged, [(release(), 3, None)], damaged, ["redisson 0"]),
        Case(HELD_HERE | damaged, [(force_release(), 1, 0)], damaged, ["redisson 0", f"{HERE} 0"]),
        Case(HELD_HERE | damaged, [(DELETE, 1, 0)], damaged, ["redisson 0", f"{HERE} 0"]),
        Case(HELD_HERE | damaged, [(keep(), 1)], kept | damaged, ["redisson 0"]),
        Case(
            HELD_HERE | damaged,
            [(hand_over("a:1", kind), handed[0])],
            {"orders": (YOURS, 30_000), **handed[1]} | damaged,
        ),
    ):
        scripts.redis.flushall()
        scripts.check(case)


def without_list(call: Call) -> Call:
    return Call(call.name, ["orders"], call.args)


def test_without_the_keys_of_the_list(scripts: Scripted) -> None:
    """As a client sends them while the slot is being moved: the lock works, and nobody is entered or woken."""
    listed = waiting("a:1", "b:1") | was_woken("c:1")
    owned = {"orders": ({"b:4294967296": 1}, 30_000)}
    kept = {"orders": ({f"{ME}:kept": 1}, 10_000)}
    for case in (
        Case(listed, [(without_list(acquire("b:1")), None)], owned | listed),
        Case(HELD | listed, [(without_list(acquire("d:1")), About(20_000))]),
        Case(HELD_HERE | listed, [(without_list(release()), 3, None)], listed, ["redisson 0"]),
        Case(HELD_HERE | listed, [(without_list(force_release()), 1, 0)], listed, ["redisson 0", f"{HERE} 0"]),
        Case(HELD_HERE | listed, [(without_list(keep()), 1)], kept | listed, ["redisson 0"]),
        Case(HELD_HERE | listed, [(without_list(hand_over("a:1")), [0])], {"orders": (YOURS, 30_000)} | listed),
        Case(listed, [(without_list(LOST), 1)], listed, ["redisson 0"] * 2),
    ):
        scripts.redis.flushall()
        scripts.check(case)


class TestTime:
    """In virtual time, with the length of a reservation as it is."""

    memory: Memory

    @pytest.fixture(autouse=True)
    def begin(self) -> None:
        self.memory = Memory()

    def held(self) -> None:
        self.memory.command("HSET", "orders", ME, 1)

    def told(self) -> list[str]:
        found = [f"{_listener(channel.decode())} {text.decode()}" for channel, text in self.memory.messages]
        self.memory.messages.clear()
        return found

    def test_a_reservation_after_the_patience(self) -> None:
        self.held()
        assert self.memory.call(acquire("a:1")) == b"-1 0 1"
        assert self.memory.call(acquire("b:1")) == b"-1 1 1"
        self.memory.advance_time(4)
        assert self.memory.call(release()) == 3
        assert self.told() == ["redisson 0", "a a:1", "b look:250"]
        # Somebody else comes first, once.
        assert self.memory.call(acquire("c:1", owner=ME, lasts=0)) is None
        self.memory.advance_time(1)
        assert self.memory.call(release()) == 3
        assert self.told() == ["redisson 0", "b look:249"]
        assert self.memory.call(acquire("c:1", lasts=0)) == 249
        assert self.memory.call(acquire("b:1")) == b"249 0 0"
        self.memory.advance_time(248)
        assert self.memory.call(acquire("c:1", lasts=0)) == 1
        assert self.memory.call(acquire("a:2")) is None
        assert self.memory.command("ZRANGE", LIST, 0, -1) == [b"b:1"]
        assert self.memory.command("EXISTS", WOKEN) == 0

    def test_the_patience_counts_from_the_entry_on(self) -> None:
        """Although the client was woken meanwhile, and has its former place again."""
        self.held()
        self.memory.call(acquire("a:1"))
        self.memory.advance_time(4)
        self.memory.call(release())
        self.held()
        assert self.memory.call(acquire("a:1")) == b"-1 0 1"
        self.memory.advance_time(1)
        self.memory.call(release())
        assert self.memory.call(acquire("c:1", lasts=0)) == 250

    def test_a_reservation_ends(self) -> None:
        """The woken client is frozen: the one behind it looks then, and gets the lock. The other has lost its place."""
        self.held()
        for member in ("a:1", "b:1"):
            self.memory.call(acquire(member))
        self.memory.advance_time(5)
        self.memory.call(release())
        self.memory.advance_time(250)
        assert self.memory.call(acquire("b:1")) == b"1 0 0"
        self.memory.advance_time(1)
        assert self.memory.call(acquire("b:1", owner=ME)) is None
        assert self.memory.call(acquire("c:1")) == b"30000 0 1"
        self.memory.advance_time(1)
        assert self.memory.call(acquire("a:1")) == b"29999 1 1"

    def test_the_next_one_is_woken_after_a_reservation(self) -> None:
        self.held()
        for member in ("a:1", "b:1", "c:1"):
            self.memory.call(acquire(member))
        self.memory.call(release())
        self.memory.advance_time(251)
        self.held()
        self.told()
        self.memory.call(release())
        assert self.told() == ["redisson 0", "b b:1", "c look:250"]
