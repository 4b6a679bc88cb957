"""The list of clients that wait for a lock: who enters it, whom a release wakes, for whom a free lock is reserved."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.properties.servers import Memory

from . import locks
from .locks import DELETE, HERE, LIST, LOST, THERE, WOKEN, acquire, hand_over, keep, leave, release, waiting, woken
from .scripted import ANYTHING, ME, RESERVED, YOU, About, Call, Case, Refused, Scripted

SCRIPTS = locks.OfList
LONG_PATIENCE = 3_600_000_000
"""Microseconds. The clients of `Came` have not waited for so long."""


def fenced(call: Call) -> Call:
    """The same of a lock with tokens."""
    first, *keys = call.keys
    return Call(call.name.replace("lock", "fenced"), [first, locks.COUNTER, locks.NEWEST, *keys], call.args)


Kind = Callable[[Call], Call]
KINDS: dict[str, Kind] = {"lock": lambda call: call, "fenced": fenced}
OF_KINDS = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def of(kind: Kind, case: Case) -> Case:
    """The same case of that kind of lock. Whoever acquires one with tokens gets one."""
    if kind is not fenced:
        return case
    steps = [(fenced(call), [ANYTHING] if reply in (None, [0]) else reply) for call, reply in case.steps]
    owned = {locks.COUNTER: ANYTHING} if any(reply == [ANYTHING] for _, reply in steps) else {}
    return case._replace(steps=steps, after=case.after if case.after is None else {**case.after, **owned})


def mine(members: str = "") -> dict[str, Any]:
    """Held by the owner that releases it, while these clients wait."""
    return {"orders": ({ME: 1}, 20_000), **waiting(members)}


def held(members: str = "") -> dict[str, Any]:
    """Held by another owner."""
    return {"orders": ({f"{THERE}:4294967296": 1}, 20_000), **waiting(members)}


def taken(client: str, members: str = "") -> dict[str, Any]:
    """Acquired just now by that client."""
    return {"orders": ({f"{client}:4294967296": 1}, 30_000), **waiting(members)}


def kept(members: str = "") -> dict[str, Any]:
    return {"orders": ({f"{ME}:kept": 1}, 10_000), **waiting(members)}


HANDED_OVER: dict[str, Any] = {"orders": ({YOU: 1}, 30_000)}
ENDLESS: dict[str, Any] = {"orders": ({f"{THERE}:4294967296": 1}, None)}
FIRST = Refused(20_000, 0)
ENTERS = {
    "it keeps its place": Case(held("a b c"), [(acquire("b:1"), Refused(20_000, 1)), (acquire("a:1"), FIRST)]),
    "the list lasts for longer": Case(held() | waiting("a", 10_000), [(acquire("a:1"), FIRST)], held("a")),
    "the list does not end earlier": Case(held() | waiting("a", 200_000), [(acquire("a:1"), FIRST)]),
    "a holder without an end": Case(ENDLESS, [(acquire("a:1"), Refused(-1, 0))], ENDLESS | waiting("a")),
    "woken and refused, its former place": Case(held("b c") | woken("a"), [(acquire("a:1"), FIRST)], held("a b c")),
    "another is woken": Case(held("b") | woken("a"), [(acquire("c:1"), Refused(20_000, 1))], held("b c") | woken("a")),
    # Somebody else has written it.
    **{
        f"came at {came}": Case(held("b") | woken("a", came=came), [(acquire("a:1"), Refused(20_000, 1))], held("b a"))
        for came in ("", "text", "nan", "inf", "-1", "9" * 30)
    },
}
ACQUIRED = {
    "a later one": Case(waiting("a b"), [(acquire("b:1"), None)], taken("b", "a")),
    "not while it is reserved": Case(
        waiting("b") | woken("a"),
        [
            (acquire("b:1"), Refused(RESERVED, 0)),
            (acquire("c:1"), Refused(RESERVED, 1)),
            (acquire("d:1", waits=False), About(RESERVED)),
        ],
        waiting("b c") | woken("a"),
    ),
    "after a reservation, the woken one": Case(
        waiting("b") | woken("a"), [(acquire("b:1"), Refused(RESERVED, 0)), (acquire("a:2"), None)], taken("a", "b")
    ),
    # Somebody else has written it.
    **{
        f"a reservation that lasts for {lasts}": Case(
            woken("a", lasts=lasts), [(acquire("b:1"), None)], taken("b") | woken("a", came=1, lasts=lasts)
        )
        for lasts in (None, 2 * RESERVED)
    },
    "handed over": Case(mine("a b"), [(hand_over("a:1"), [0])], HANDED_OVER | waiting("b")),
    "not handed over": Case(held("a b"), [(hand_over("a:1"), 0)]),
}
LAST = [(release(), 3, None)]
LOOK = ["redisson 0", "b look"]
WOKEN_FOR_LONG = woken("a", came="text", exclusive=0, lasts=2 * RESERVED)
FORCED = ["redisson 0", f"{HERE} 0"]
A_WOKEN, WAKES_A = waiting("b") | woken("a"), ["redisson 0", "a a:1", "b look"]
RELEASE = {
    "others may come before it": Case(
        mine("a b"), [(release(patience=LONG_PATIENCE), 3, None)], waiting("b") | woken("a", exclusive=0), WAKES_A
    ),
    # It has waited for longer than the patience, or not.
    **{
        f"nobody else is woken before it has come: {exclusive}": Case(
            mine("b c") | woken("a", came=came, exclusive=0),
            LAST,
            waiting("b c") | woken("a", exclusive=exclusive),
            LOOK,
        )
        for came, exclusive in ((1, 1), (2**53, 0))
    },
    # Somebody else has written it.
    "one that was woken for too long": Case(mine("b") | WOKEN_FOR_LONG, LAST, waiting("b") | WOKEN_FOR_LONG, LOOK),
    # What a spin lock sends.
    "without a channel": Case(mine("a b"), [(release(channel=""), 1, None)], A_WOKEN, ["a a:1", "b look"]),
    "of another owner": Case(held("a"), [(release(), None)]),
    "late": Case(mine("a b"), [(release(late=1), 3, None)], A_WOKEN, [*WAKES_A, f"{HERE} 0", f"{HERE} 0"]),
    **{
        name: Case(mine("a b"), [(call, 1, 0)], A_WOKEN, [*FORCED, "a a:1", "b look"])
        for name, call in (("by force", locks.force_release()), ("a deletion", DELETE))
    },
    "by force, a kept lock": Case({"orders": ({f"{ME}:kept": 1}, 20_000)}, [(locks.force_release(), 1, 0)], {}, FORCED),
    "by force, without a channel": Case(mine("a b"), [(locks.force_release(""), 1, 0)], A_WOKEN, ["a a:1", "b look"]),
    # It learns the new lease, and gets its place back.
    "keep": Case(mine("a b"), [(keep(), 1), (acquire("a:1"), Refused(10_000, 0, 1))], kept("a b"), WAKES_A),
    "keep, without a channel": Case(mine("a"), [(keep(channel=""), 1)], kept("a")),
    "a lost hold": Case(waiting("a b c"), [(LOST, 1)], waiting("b c") | woken("a"), [*WAKES_A, "redisson 0", "b look"]),
    "a lost hold, the lock is held": Case(held("a"), [(LOST, 0)]),
}
LEAVES, LEAVES_B = [(leave("a:1"), 1, 0)], [(leave("b:1"), 1, 0)]
LEAVE = {
    "the second of a held lock": Case(held("a b c"), LEAVES_B, held("a c"), ["c look:0"]),
    # The first two look as before.
    "the third of a held lock": Case(held("a b c d"), [(leave("c:1"), 1, 0)], held("a b d")),
    "one of two, a held lock": Case(held("a b"), LEAVES, held("b")),
    "the only one": Case(held("a"), LEAVES, held()),
    "the first, a free lock": Case(waiting("a b"), LEAVES, woken("b"), ["b b:1"]),
    "the woken one, a held lock": Case(held("b c") | woken("a"), LEAVES, held("b c")),
    "not the woken one": Case(waiting("b c") | woken("a"), LEAVES_B, waiting("c") | woken("a"), ["c look"] * 2),
}
CASES = {
    **{f"{name} enters: {where}": of(kind, case) for name, kind in KINDS.items() for where, case in ENTERS.items()},
    **{f"{name}, acquired by {who}": of(kind, case) for name, kind in KINDS.items() for who, case in ACQUIRED.items()},
    **{f"release: {name}": case for name, case in RELEASE.items()},
    **{f"leave: {name}": case for name, case in LEAVE.items()},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_list(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


OURS = ("us:4294967296", "us:4294967296:3", "us:18446744073709551615:kept", f"us:{'9' * 400}")
FOREIGN = ("java:1", "java:4294967295", "us:7:3", "x:kept", "x", "")


@OF_KINDS
@pytest.mark.parametrize("holder", OURS + FOREIGN)
def test_whether_the_holder_tells_the_list(scripts: Scripted, kind: Kind, holder: str) -> None:
    """The automatic ids of this library begin at 2^32; Redisson's are those of Java's threads."""
    before: dict[str, Any] = {"orders": ({holder: 1}, 20_000)}
    scripts.check(Case(before, [(kind(acquire("a:1")), Refused(20_000, 0, holder in FOREIGN))], before | waiting("a")))


@OF_KINDS
def test_places_are_times_of_the_server(scripts: Scripted, kind: Kind) -> None:
    scripts.write(held())
    earliest = scripts.now() * 1000
    for place, member in enumerate(("a:1", "b:1")):
        assert scripts.call(kind(acquire(member))) == Refused(20_000, place)
    first, second = (scripts.redis.zscore(LIST, member) for member in ("a:1", "b:1"))
    assert earliest <= first < second < scripts.now() * 1000 + 1000
    # A client that was woken has exactly the place that it had.
    scripts.write(mine())
    scripts.redis.hdel("orders", f"{THERE}:4294967296")
    scripts.call(release())
    scripts.write(held())
    assert scripts.redis.zrange(LIST, 0, -1) == [b"b:1"]
    assert scripts.call(kind(acquire("a:1"))) == FIRST
    assert scripts.redis.zscore(LIST, "a:1") == first


@pytest.mark.parametrize("count", [1, 3, 200, 1000])
def test_clients_that_are_gone_are_passed_over(scripts: locks.OfList, count: int) -> None:
    """One call doesn't take long: behind a thousand, whoever is still there looks at the end of the lease."""
    gone = " ".join(f"gone{number}" for number in range(count))
    scripts.hear_only("a", "b")
    after, messages = (waiting("b c") | woken("a"), ["a a:1", "b look"]) if count < 1000 else (waiting("a b c"), [])
    # Nobody hears the message on the lock's channel.
    scripts.check(Case(mine(f"{gone} a b c"), [(release(), 1, None)], after, messages))
    # Behind the woken client, where one looks in case that it never comes, fewer: they may be about to listen.
    told = ["b look"] if count < 9 else []
    for first, before, woke in (("a ", {}, ["a a:1"]), ("", woken("a"), [])):
        case = mine(f"{first}{gone} b c") | before
        scripts.check(Case(case, [(release(), 1, None)], waiting(f"{gone} b c") | woken("a"), [*woke, *told]))


@pytest.mark.parametrize("call", [release(), locks.force_release(), LOST, leave("x:1")])
def test_all_clients_are_gone(scripts: locks.OfList, call: Call) -> None:
    releases = call.name in ("lock_release", "lock_force_release")
    scripts.write((mine if releases else waiting)("x a b"))
    scripts.hear_only()
    for _ in range(2):
        scripts.call(call)
        assert scripts.contents() == {}


@pytest.mark.parametrize("name", ["orders", "a*", "a?b", "[a-z]", "^[", "back\\slash", "{x}*", "-"])
def test_the_list_is_gone_too(scripts: Scripted, name: str) -> None:
    """All clients that listen are woken, and no others."""
    inner = name if "{" in name else f"{{{name}}}"
    keys = [name, f"pyredisson_waiting:{inner}", f"pyredisson_woken:{inner}"]
    prefix, channel = f"pyredisson_wake:{inner}:", f"redisson_lock__channel:{inner}"
    others = [f"pyredisson_wake:{other}:a" for other in ("{ordersx}", "{abc}", "{axb}", "{x}y", "{a}", "{backslash}")]
    with scripts.listener(f"{prefix}a", f"{prefix}b", *others) as listening:
        for _ in range(2):
            assert scripts.run("lock_wake_waiters", keys, channel, "0", prefix, locks.PATIENCE) == 1
        assert [text for _, text in scripts.published_on()] == ["0"] * 6
        found = [listening.get_message(timeout=5)["channel"].decode() for _ in range(4)]
    assert sorted(found[:2]) == sorted(found[2:]) == [f"{prefix}a", f"{prefix}b"]
    assert scripts.contents() == {}


def test_without_a_right_to_see_who_listens(scripts: Scripted) -> None:
    """Redisson's message is published all the same."""
    with scripts.user("~*", "&*", "+@all", "-pubsub") as theirs, scripts.listener(f"{locks.PREFIX}a"):
        assert scripts.call(LOST, theirs) == 1
    assert scripts.published() == ["redisson 0"]


@OF_KINDS
@pytest.mark.parametrize("damaged", [{LIST: "text"}, {WOKEN: "text"}, {LIST: "text", WOKEN: "text"}])
def test_a_lock_is_released_whatever_its_list_is(scripts: Scripted, kind: Kind, damaged: dict[str, Any]) -> None:
    scripts.check(
        Case(mine() | damaged, LAST, damaged, ["redisson 0"]),
        Case(mine() | damaged, [(locks.force_release(), 1, 0)], damaged, FORCED),
        Case(mine() | damaged, [(DELETE, 1, 0)], damaged, FORCED),
        Case(mine() | damaged, [(keep(), 1)], kept() | damaged, ["redisson 0"]),
        of(kind, Case(mine() | damaged, [(hand_over("a:1"), [0])], HANDED_OVER | damaged)),
    )


def without_list(call: Call) -> Call:
    return Call(call.name, ["orders"], call.args)


def test_without_the_keys_of_the_list(scripts: Scripted) -> None:
    """As a client sends them while the slot is being moved: the lock works, and nobody is entered or woken."""
    listed = waiting("a b") | woken("c", came=1)
    scripts.check(
        Case(listed, [(without_list(acquire("b:1")), None)], taken("b") | listed),
        Case(held() | listed, [(without_list(acquire("d:1")), About(20_000))]),
        Case(mine() | listed, [(without_list(release()), 3, None)], listed, ["redisson 0"]),
        Case(mine() | listed, [(without_list(locks.force_release()), 1, 0)], listed, FORCED),
        Case(mine() | listed, [(without_list(keep()), 1)], kept() | listed, ["redisson 0"]),
        Case(mine() | listed, [(without_list(hand_over("a:1")), [0])], HANDED_OVER | listed),
        Case(listed, [(without_list(LOST), 1)], listed, ["redisson 0"] * 2),
    )


@pytest.fixture
def memory() -> Memory:
    """A lock that is held, in virtual time, with the length of a reservation as it is. Two clients wait."""
    made = Memory()
    made.command("HSET", "orders", ME, 1)
    assert [made.call(acquire(member)) for member in ("a:1", "b:1")] == [b"-1 0 1", b"-1 1 1"]
    return made


def test_a_reservation_after_the_patience(memory: Memory) -> None:
    def told() -> list[str]:
        found = [f"{locks.listener(channel.decode())} {text.decode()}" for channel, text in memory.messages]
        memory.messages.clear()
        return found

    call = memory.call
    memory.advance_time(4)
    assert call(release()) == 3
    assert told() == ["redisson 0", "a a:1", "b look:250"]
    # Somebody else comes first, once.
    assert call(acquire("c:1", owner=ME, waits=False)) is None
    memory.advance_time(1)
    assert call(release()) == 3
    assert told() == ["redisson 0", "b look:249"]
    assert call(acquire("c:1", waits=False)) == 249
    assert call(acquire("b:1")) == b"249 0 0"
    memory.advance_time(248)
    assert call(acquire("c:1", waits=False)) == 1
    assert call(acquire("a:2")) is None
    assert memory.command("ZRANGE", LIST, 0, -1) == [b"b:1"]
    assert memory.command("EXISTS", WOKEN) == 0


def test_a_reservation_ends(memory: Memory) -> None:
    """The woken client is frozen: the one behind it looks then, and gets the lock. The other has lost its place."""
    call = memory.call
    memory.advance_time(5)
    call(release())
    memory.advance_time(250)
    assert call(acquire("b:1")) == b"1 0 0"
    memory.advance_time(1)
    assert call(acquire("b:1", owner=ME)) is None
    assert call(acquire("c:1")) == b"30000 0 1"
    memory.advance_time(1)
    assert call(acquire("a:1")) == b"29999 1 1"
