"""The scripts of clients, of locks, also with fencing tokens, and of holds that move: every branch, sent twice."""

from typing import Any

import pytest
from redis.exceptions import ResponseError

from .locks import COUNTER, DELETE, KEYS, NEWEST, QUEUE, SCORES, WAIT, acquire, force_release, hand_over, keep, release
from .read_write import LEASES, READERS, lease_key, reading, writing
from .read_write import hand_over as hand_over_write
from .scripted import ANYTHING, ME, YOU, About, Call, Case, Ends, Scripted

CLIENT_KEY = "pyredisson_client:{me}"
CLIENT_LEASE = 30_000


def announce(number: int, base: int, *stored: object, removed: tuple[str, ...] = ()) -> Call:
    words: list[Any] = [number, base, CLIENT_LEASE, len(removed), *removed, *stored]
    return Call("client_announce", [CLIENT_KEY], words)


def announced(number: int, lasts: Any = CLIENT_LEASE, **fields: Any) -> dict[str, Any]:
    return {CLIENT_KEY: ({"n": number, **fields}, lasts)}


FIRST, SECOND = ({"host": "web-3", "h:1 b": "x", each: "x"} for each in ("h:1 a", "h:1 c"))
CHANGES = announce(2, 1, "h:1 c", "x", -1, removed=("h:1 a", "h:1 d"))
LATER = announce(3, 2, "h:1 c", "x", -1)
WHOLE = announce(4, 0, "host", "web-4", -1)
CLIENT = {
    "changes": Case(announced(1, 1_000, **FIRST), [(CHANGES, 1, 2)], announced(2, **SECOND)),
    "changes of another one": Case(announced(1, host="web-3"), [(LATER, 0)]),
    "changes of none": Case({}, [(LATER, 0)]),
    "late": Case(announced(5, host="web-3"), [(WHOLE, 2), (LATER, 2)]),
    **{
        f"somebody else's: {value}": Case({CLIENT_KEY: value}, [(LATER, 0), (WHOLE, 1, 2)], announced(4, host="web-4"))
        for value in ("text", {"n": "9" * 30}, {"n": "text"})
    },
    "many": Case(
        {},
        [
            (announce(1, 0, *(word for number in range(500) for word in (f"h:1 {number}", " lock", 5))), 1, 2),
            (announce(2, 1, removed=tuple(f"h:1 {number}" for number in range(500))), 1, 2),
        ],
        announced(2),
    ),
}


def test_times_of_a_client(scripts: Scripted) -> None:
    """A number behind a value is how long ago it began; the server adds its own time."""
    call = announce(1, 0, "host", "web-3", -1, "h:1 a b", " lock", 2_000, "since", "", 0)
    for reply in (1, 2):
        assert scripts.call(call) == reply
        fields, ttl = scripts.contents()[CLIENT_KEY]
        began, kind = fields.pop("h:1 a b").split()
        assert kind == "lock"
        assert scripts.now() - 10_000 < int(began) == int(fields.pop("since")) - 2_000
        assert (fields, ttl) == ({"n": "1", "host": "web-3"}, About(CLIENT_LEASE))


MINE, YOURS = {ME: 1}, {YOU: 3}
DAY = 86_400_000
HOLDER = Call("lock_holder", ["orders"], [])
FENCED = acquire(kind="fenced")


def renew(lease: int, **owners: str) -> Call:
    return Call("lock_renew", list(owners), [lease, *owners.values()])


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize(
    ("before", "level", "lease", "reply", "after"),
    [
        pytest.param(None, 1, 30_000, None, (MINE, 30_000), id="a free lock"),
        pytest.param((MINE, 10_000), 2, 30_000, None, ({ME: 2}, 30_000), id="another level"),
        pytest.param((MINE, 60_000), 2, 100, None, ({ME: 2}, 60_000), id="a shorter lease"),
        pytest.param(MINE, 2, 30_000, None, ({ME: 2}, 30_000), id="an endless hold"),
        pytest.param((YOURS, 20_000), 1, 30_000, About(20_000), (YOURS, 20_000), id="another owner's"),
        pytest.param((YOURS, 20_000), 2, 30_000, About(20_000), (YOURS, 20_000), id="another owner's, level 2"),
        pytest.param(YOURS, 1, 30_000, -1, YOURS, id="another owner's endless lock"),
        pytest.param(None, 2, 30_000, -2, None, id="another level of a lost hold"),
    ],
)
def test_acquire(scripts: Scripted, kind: str, before: Any, level: int, lease: int, reply: Any, after: Any) -> None:
    """A fencing token comes with each acquired level only. A fair lock tells that a hold was lost, whoever has it."""
    wanted = {} if after is None else {"orders": after}
    if kind == "fenced" and reply is None:
        reply, wanted = [ANYTHING], wanted | {COUNTER: ANYTHING}
    if kind == "fair" and level == 2 and isinstance(reply, About):
        reply = -2
    steps = [(acquire(level=level, lease=lease, kind=kind), reply)]
    scripts.check(Case({} if before is None else {"orders": before}, steps, wanted))


@pytest.mark.parametrize(("kind", "free", "messages"), [("lock", 3, ["0"]), ("fair", 1, [])])
def test_release(scripts: Scripted, kind: str, free: int, messages: list[str]) -> None:
    """A fair lock has a message for its next waiter only. The client of the holder hears of a forced release, too."""
    last, inner, force = release(0, kind=kind), release(2, kind=kind), force_release(kind=kind)
    scripts.check(
        Case({"orders": (MINE, 30_000)}, [(last, free, None)], {}, messages),
        Case({"orders": ({ME: 3}, 30_000)}, [(inner, 0)], {"orders": ({ME: 2}, 30_000)}),
        Case({"orders": (YOURS, 20_000)}, [(last, None), (inner, None)]),
        Case({}, [(last, None), (inner, None)]),
        Case({"orders": (YOURS, 30_000)}, [(force, 1, 0)], {}, messages * 2),
    )


DELETED = [(DELETE, 1, 0)]
LOCK = {
    "renew, ours and others": Case(
        {"a": (MINE, 10_000), "b": (YOURS, 10_000), "d": ({YOU: 2}, 10_000), "e": "text", "f": (MINE, 60_000)},
        [(renew(30_000, a=ME, b=ME, c=ME, d=YOU, e=ME, f=ME), [1, 0, 0, 1, 0, 1])],
        {"a": (MINE, 30_000), "b": (YOURS, 10_000), "d": ({YOU: 2}, 30_000), "e": "text", "f": (MINE, 60_000)},
    ),
    # Redisson sets no lock without an end, but a person may.
    "renew, a lease of 0 only asks": Case(
        {"a": (MINE, 20_000), "b": (YOURS, 20_000), "d": MINE}, [(renew(0, a=ME, b=ME, c=ME, d=ME), [1, 0, 0, 1])]
    ),
    "keep, another owner's": Case({"orders": (YOURS, 30_000)}, [(keep(5_000), None)]),
    "kept: nobody acquires or renews it": Case(
        {"orders": ({f"{ME}:kept": 1}, 5_000)},
        [(acquire(), About(5_000)), (acquire(owner=YOU), About(5_000)), (renew(30_000, orders=ME), [0])],
    ),
    # The newest token is kept.
    "fenced delete": Case({"orders": YOURS, COUNTER: 2**51}, DELETED, {NEWEST: (2**51, DAY)}, ["0"] * 2),
    "fenced delete, smaller": Case({COUNTER: 2**51 - 1, NEWEST: (2**51, 9_000)}, DELETED, {NEWEST: (2**51, 9_000)}),
    # Java has begun anew, or hasn't used it since, and the clock was set back.
    **{
        f"fenced: deleted before, Java has {counted}": Case(
            {NEWEST: (2**52, DAY)} | ({} if counted is None else {COUNTER: counted}),
            [(FENCED, [2**52 + 1], [2**52 + 2])],
            {"orders": (MINE, 30_000), NEWEST: (2**52, DAY), COUNTER: ANYTHING},
        )
        for counted in (None, 7)
    },
    **{
        f"fenced delete, a counter of Redisson: {wrong}": Case({COUNTER: wrong}, DELETED, {})
        for wrong in ("7", "text", "", 2**53, 2**63 - 1, ["1"])
    },
}


def move(lease: int, suffix: str = "") -> Call:
    return Call("lock_move", ["orders"], [ME + suffix, YOU + suffix, lease])


def move_read(lease: int) -> Call:
    return Call("read_move", ["orders", LEASES], [ME, YOU, lease])


def held(owner: str, lease: int | None, **more: Any) -> dict[str, Any]:
    return {"orders": ({owner: 1, **more}, lease)}


OTHER = {READERS[0]: [40_000]}
MOVES = {
    "a shorter lease": Case(held(ME, 20_000), [(move(10_000), [About(20_000)])], held(YOU, 20_000)),
    "endless": Case({"orders": {ME: 1}}, [(move(0), [-1])], {"orders": {YOU: 1}}),
    "free": Case({}, [(move(30_000), None)]),
    "another owner's": Case(held("java:1", 20_000), [(move(30_000), None)]),
    "a writer": Case(writing(ME, 1, 20_000), [(move(30_000, ":write"), [30_000])], writing(YOU, 1, 30_000)),
    "a writer that reads": Case(writing(ME, 1, 20_000, {ME: [10_000]}), [(move(30_000, ":write"), -1)]),
    "a reader, what is left": Case(
        reading({ME: [20_000], **OTHER}), [(move_read(0), [About(20_000)])], reading({YOU: [20_000], **OTHER})
    ),
    "a reader again": Case(reading({YOU: [10_000]}), [(move_read(30_000), [30_000])], reading({YOU: [30_000]})),
    "a reader whose other level is in doubt": Case(
        reading({ME: [20_000, 30_000]}), [(move_read(0), [About(20_000)])], reading({YOU: [20_000]}, 30_000)
    ),
    "no reader": Case(reading(OTHER), [(move_read(30_000), None)]),
    "an ended reader": Case(held(ME, 9_000, mode="read"), [(move_read(9_000), None)], held("mode", 9_000, mode="read")),
    "a lock of another kind": Case({**held(ME, 40_000), lease_key(ME, 1): ("1", 20_000)}, [(move_read(30_000), -1)]),
}
CASES = LOCK | {f"client, {name}": case for name, case in CLIENT.items()} | MOVES


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


def test_several_holders(scripts: Scripted) -> None:
    """The one that writes comes first, and not all are named."""
    scripts.write({"orders": {YOU: 1, ME: 1, "mode": "write", f"{YOU}:write": 1}})
    _, count, first, *others = scripts.call(HOLDER)
    assert (count, first, sorted(others)) == (3, f"{YOU}:write".encode(), sorted([ME.encode(), YOU.encode()]))
    scripts.redis.hset("orders", mapping={f"me:{number}": 1 for number in range(997)})
    _, count, first, *others = scripts.call(HOLDER)
    assert (count, first, len({first, *others})) == (1000, f"{YOU}:write".encode(), 64)


def test_tokens_are_times_and_ascend(scripts: Scripted) -> None:
    scripts.redis.set(COUNTER, 7)
    newest = scripts.now() * 1000
    for level in (1, 1, 2):
        [token] = scripts.call(acquire(level=level, kind="fenced"))
        assert newest < token <= (scripts.now() + 1) * 1000
        # Java reads decimal text in a key without a TTL, and counts on from there.
        assert (scripts.text(COUNTER), scripts.left(COUNTER)) == (str(token), -1)
        newest = scripts.redis.incr(COUNTER)
        assert newest == token + 1


@pytest.mark.parametrize("wrong", ["text", "", "1.5", 2**63 - 1])
@pytest.mark.parametrize("held", [False, True])
def test_a_counter_that_can_not_be_raised(scripts: Scripted, wrong: Any, held: bool) -> None:
    before = {COUNTER: wrong} | ({"orders": (MINE, 30_000)} if held else {})
    scripts.write(before)
    call = hand_over(kind="fenced") if held else FENCED
    for _ in range(2):
        with pytest.raises(ResponseError, match=r"not an integer|overflow"):
            scripts.call(call)
    assert (scripts.text(COUNTER), scripts.redis.hgetall("orders")) == (str(wrong), {ME.encode(): b"1"} if held else {})


def test_the_last_numbers_are_exact(scripts: Scripted) -> None:
    scripts.redis.set(COUNTER, 2**53 - 2)
    assert scripts.call(FENCED) == [2**53 - 1]
    assert scripts.text(COUNTER) == str(2**53 - 1)
    scripts.redis.delete("orders")
    for _ in range(2):
        with pytest.raises(ResponseError, match="beyond 2\\^53"):
            scripts.call(FENCED)
        assert not scripts.redis.exists("orders")
        assert scripts.text(COUNTER) == str(2**53 - 1)


HAND_OVERS = {**{kind: hand_over(lease=20_000, kind=kind) for kind in KEYS}, "write": hand_over_write(20_000)}
"""For each kind of lock that is handed on to the next owner."""


@pytest.mark.parametrize("kind", HAND_OVERS)
def test_a_hand_over(scripts: Scripted, kind: str) -> None:
    def held_by(owner: str, levels: int, lease: int | None) -> dict[str, Any]:
        return {"orders": ({"mode": "write", f"{owner}:write": levels} if kind == "write" else {owner: levels}, lease)}

    # Further keys while the next owner waits, and when it holds the lock.
    waits: dict[str, Any] = {QUEUE: [YOU], SCORES: Ends({YOU: WAIT})} if kind == "fair" else {}
    token = {COUNTER: ANYTHING} if kind == "fenced" else {}
    for before, lease in (
        *((held_by(ME, levels, lasts) | waits, 20_000) for levels, lasts in ((1, 30_000), (3, 30_000), (1, None))),
        # A copy does not shorten the lease, but it may lengthen it.
        *((held_by(YOU, 1, lasts), max(lasts, 20_000)) for lasts in (60_000, 10_000)),
    ):
        scripts.check(Case(before, [(HAND_OVERS[kind], [ANYTHING])], held_by(YOU, 1, lease) | token))
    # Nobody gets a lock that was lost by that.
    for lost in (held_by(f"{YOU}0", 2, 20_000), {}):
        scripts.check(Case(lost | waits, [(HAND_OVERS[kind], 0)]))


def test_a_lease_beyond_what_is_exact(scripts: Scripted) -> None:
    """Somebody else has set it."""
    scripts.write(held(ME, 2**60))
    assert scripts.call(move(0)) == [2**52]
    assert 0 < scripts.redis.pttl("orders") <= 2**52
