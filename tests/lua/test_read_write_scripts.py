"""The scripts of a read-write lock: every branch of both sides, sent twice, and as Redisson reads it.

And the lists of the clients that wait for it: phases of readers, the turn of a writer, and claims.
"""

from typing import Any

import pytest
from redis.exceptions import ResponseError

from pyredisson.logic.locks.read_write_lock import CLAIMED
from tests.properties.servers import Memory

from . import read_write as rw
from .locks import HERE, THERE, OfList, client_of, waiting, woken
from .read_write import CLAIM, MY_WRITE, TURN, leases_of, leave, read, read_release, reading, renew, write, writing
from .scripted import ANYTHING, ME, RESERVED, YOU, About, Call, Case, Refused

SCRIPTS = OfList
IS_LOCKED = Call("read_locked", ["orders"], [])
CLAIM_OF_YOURS = {CLAIM: (rw.YOUR_WRITE, 2_000)}

READ, LEAVE = read(ME, 1, 30_000), read_release(ME, 0)
RENEW, ONLY_KEEP = renew(("orders", ME, 30_000)), renew(("orders", ME, 0))
MINE, YOURS = reading({ME: [30_000]}), reading({YOU: [30_000]})
NEIGHBOURS = reading({YOU: [10_000]}, lock="b") | {"d": "text"}

READS = {
    "a free lock": Case({}, [(READ, None)], MINE),
    "beside another reader": Case(YOURS, [(READ, None)], reading({YOU: [30_000], ME: [30_000]})),
    "another level": Case(MINE, [(read(ME, 2, 10_000), None)], reading({ME: [30_000, 10_000]})),
    "a writer reads": Case(writing(ME, 1, 60_000), [(READ, None)], writing(ME, 1, 60_000, {ME: [30_000]})),
    **{
        f"another level of a lost hold: {number}": Case(before, [(read(ME, 2, 30_000), -2)])
        for number, before in enumerate(({}, YOURS, writing(YOU, 1, 30_000)))
    },
    "another owner writes, endless": Case(writing(YOU, 1, None), [(READ, -1)]),
    # Claims last for two seconds. Somebody else has written this one.
    **{
        f"claimed: {lasts}": Case(
            YOURS | {CLAIM: (rw.YOUR_WRITE, lasts)}, [(READ, About(2_000))], YOURS | CLAIM_OF_YOURS
        )
        for lasts in (60_000, None)
    },
    "another kind of lock": Case({"orders": ({YOU: 1}, 20_000)}, [(READ, About(20_000))]),
    # The client counts that hold as lost by its own clock, but the server still has it.
    "remains of an earlier hold": Case(
        reading({ME: [50_000, 50_000, 50_000]}),
        [(read(ME, 1, 10_000), None)],
        {"orders": ({"mode": "read", ME: 1}, 50_000), **leases_of({ME: [50_000]})},
    ),
    # A lock that was removed by force leaves the lease keys: they are no leases of the next hold.
    "a lease without its lock": Case(leases_of({ME: [60_000]}), [(read(ME, 1, 10_000), None)], reading({ME: [10_000]})),
    **{
        f"release, another owner's: {number}": Case(before, [(LEAVE, None), (read_release(ME, 1), None)])
        for number, before in enumerate(({}, reading({YOU: [20_000, 20_000]}), writing(YOU, 2, 20_000)))
    },
    # The renewal of a reader that left meanwhile shortened it: the remaining readers get their full leases.
    "release, a lock that Java shortened": Case(
        reading({YOU: [60_000], ME: [40_000]}, 10_000), [(LEAVE, 0, None)], reading({YOU: [60_000]})
    ),
    **{
        f"release, readers whose leases ended: {lasts}": Case(
            {"orders": ({"mode": "read", YOU: 1, ME: 1}, lasts), **leases_of({ME: [60_000]})},
            [(LEAVE, 1, None)],
            {},
            ["redisson 0"],
        )
        for lasts in (60_000, None)
    },
    # Never shorter than the writer's own lease, which is stored nowhere else.
    **{
        f"release, the writer goes on writing: {lease}": Case(
            writing(ME, 1, lease, {ME: [10_000]}), [(LEAVE, 0, None)], writing(ME, 1, lease)
        )
        for lease in (30_000, 60_000)
    },
    # A dead reader must not be kept alive by others, and a neighbour of another type doesn't end the batch.
    "renew, ours and others": Case(
        reading({ME: [10_000, 10_000], YOU: [10_000]}, lock="a") | reading({ME: [10_000]}, lock="e") | NEIGHBOURS,
        [(renew(*((lock, ME, 30_000) for lock in "abcde")), [1, 0, 0, 0, 1])],
        reading({ME: [30_000, 30_000], YOU: [10_000]}, lock="a") | reading({ME: [30_000]}, lock="e") | NEIGHBOURS,
    ),
    "renew, several readers of one lock": Case(
        reading({ME: [10_000], YOU: [10_000]}),
        [(renew(("orders", ME, 30_000), ("orders", YOU, 40_000)), [1, 1])],
        reading({ME: [30_000], YOU: [40_000]}),
    ),
    "renew, a fixed lease that ended": Case(
        {"orders": ({"mode": "read", ME: 1, YOU: 1}, 20_000), **leases_of({YOU: [20_000]})}, [(ONLY_KEEP, [0])]
    ),
    "renew, missing lease keys are set again": Case(
        {"orders": ({"mode": "read", ME: 2}, 10_000), rw.lease_key(ME, 2): "1"},
        [(RENEW, [1])],
        reading({ME: [30_000, 30_000]}),
    ),
    "release, a level remains": Case(
        reading({ME: [30_000, 60_000, 20_000]}), [(read_release(ME, 1), 0)], reading({ME: [60_000]})
    ),
    "release": Case(MINE, [(LEAVE, 1, None)], {}, ["redisson 0"]),
    "locked, read": Case(MINE, [(IS_LOCKED, 1)]),
    "locked, written": Case(writing(ME, 2, 30_000), [(IS_LOCKED, 0)]),
    "locked, written and read": Case(writing(ME, 2, 30_000, {ME: [30_000]}), [(IS_LOCKED, 1)]),
}


@pytest.mark.parametrize("levels", ["1000000000", "9" * 400, "0", "-3", "1.5", "text", "nan", "inf", ""])
def test_damaged_levels(scripts: OfList, levels: str) -> None:
    """Somebody else has written a reader's number of levels. The reader has a lease, so it keeps the lock."""

    def damaged(lasts: int, mode: str = "read", more: Any = None) -> dict[str, Any]:
        return {"orders": ({"mode": mode, YOU: levels, **(more or {})}, lasts), **leases_of({YOU: [5_000, 20_000]})}

    # Another reader leaves, and a writer that reads.
    beside = damaged(60_000, more={ME: 1}) | leases_of({ME: [60_000]})
    writes = damaged(60_000, "write", {MY_WRITE: 1})
    renewed = {"orders": ({"mode": "read", YOU: levels}, 30_000), **leases_of({YOU: [30_000, 30_000]})}
    scripts.check(
        Case(beside, [(read_release(ME, 0), 0, None)], damaged(20_000)),
        Case(writes, [(rw.write_release(0), 3, None)], damaged(20_000), ["redisson 1"]),
        Case(damaged(20_000), [(renew(("orders", YOU, 30_000)), [1]), (renew(("orders", YOU, 0)), [1])], renewed),
        # The longest lease of the levels is valid for the one that remains.
        Case(damaged(20_000), [(read_release(YOU, 1), 0)], reading({YOU: [20_000]})),
        Case(damaged(20_000), [(read_release(YOU, 0), 1, None)], {}, ["redisson 0"]),
    )
    scripts.redis.flushall()
    scripts.write(damaged(20_000))
    assert scripts.call(read(YOU, 3, 30_000)) is None
    assert scripts.redis.hget("orders", YOU) == b"3"
    assert all(scripts.redis.exists(rw.lease_key(YOU, level)) for level in (1, 2, 3))


def calls(scripts: OfList, *names: str) -> int:
    stats = scripts.redis.info("commandstats")
    return sum(entry["calls"] for name, entry in stats.items() if not names or name in names)


def test_many_readers_with_damaged_levels(scripts: OfList) -> None:
    """Not all leases are looked at, so the lock lasts as long as it does."""
    scripts.write(reading({ME: [30_000]}))
    scripts.redis.hset("orders", mapping={f"{YOU}{number}": "text" for number in range(100)})
    scripts.redis.config_resetstat()
    assert scripts.call(read_release(ME, 0)) == 0
    assert calls(scripts) < 12_000
    assert scripts.left() == About(30_000)


def test_more_levels_than_scripts_look_at(scripts: OfList) -> None:
    scripts.write(reading({ME: [30_000]}))
    with pytest.raises(ResponseError, match="at most 1000 levels"):
        scripts.call(read(ME, 1_001, 30_000))
    assert scripts.call(read(ME, 1_000, 30_000)) is None


def test_many_readers_with_equal_leases(scripts: OfList) -> None:
    """Not all leases are read: that would be work for n * n readers when n of them release the lock."""
    readers = [f"{YOU}{number}" for number in range(50)]
    scripts.write(reading({reader: [30_000] for reader in readers}))
    ends = scripts.redis.pexpiretime("orders") if scripts.with_shebang else None
    scripts.redis.config_resetstat()
    for reader in readers[1:]:
        assert scripts.call(read_release(reader, 0)) == 0
    assert calls(scripts, "cmdstat_pttl") < 500
    assert scripts.left() >= scripts.left(rw.lease_key(readers[0], 1)) > 25_000
    if ends is not None:
        assert scripts.redis.pexpiretime("orders") <= ends
    assert scripts.call(read_release(readers[0], 0)) == 1
    assert scripts.redis.keys() == []
    assert scripts.published() == ["redisson 0"]


ALL = dict(zip(rw.READERS, (10_000, 20_000, 30_000), strict=True))
ALL_IN = {reader: [lease] for reader, lease in ALL.items()}
WAITS = write(MY_WRITE, 1, 30_000, waits=True)
LISTED = waiting(HERE)
MY_CLAIM = {CLAIM: (f"{HERE}:1", 2_000), TURN: ("1", 6_000)}

LET_ALL_IN, LET_YOU_IN = rw.let_in(ALL), rw.let_in({YOU: 20_000})
WRITE, STOP, HAND_OVER = write(MY_WRITE, 1, 30_000), rw.write_release(0), rw.hand_over(30_000)
YOUR_READ, HELD = reading({YOU: [20_000]}), writing(YOU, 1, 20_000)
WRITTEN, READS_TOO = writing(ME, 1, 30_000), writing(ME, 1, 30_000, {ME: [30_000]})
SAID = ["redisson 1"]
READS_ENDED = {"orders": ({"mode": "write", MY_WRITE: 1, ME: 1}, 60_000)}
"""The writer reads, too, but the leases of that have ended."""

WRITES = {
    "a free lock": Case({}, [(WRITE, None)], WRITTEN),
    **{
        f"another level: {lease}": Case(WRITTEN, [(write(MY_WRITE, 2, lease), None)], writing(ME, 2, after))
        for lease, after in ((10_000, 30_000), (40_000, 40_000))
    },
    "another level of a lost hold": Case({}, [(write(MY_WRITE, 2, 30_000), -2)]),
    **{f"it is read: {reader}": Case(reading({reader: [20_000]}), [(WRITE, About(20_000))]) for reader in (ME, YOU)},
    "who waits claims": Case(YOUR_READ, [(WAITS, Refused(CLAIMED - 1_000, 0, 1))], YOUR_READ | MY_CLAIM | LISTED),
    "a claim is renewed, and taken over": Case(
        {"orders": {"mode": "read", YOU: 1}, CLAIM: (f"{THERE}:1", 1_000), TURN: ("1", 6_000)},
        [(WAITS, Refused(CLAIMED - 1_000, 0, 1))],
        {"orders": {"mode": "read", YOU: 1}} | MY_CLAIM | LISTED,
    ),
    "readers have their turn": Case(
        reading({YOU: [60_000]}) | {TURN: ("1", 1_000)},
        [(WAITS, Refused(1_000, 0, 1))],
        reading({YOU: [60_000]}) | {TURN: ("1", 1_000)} | LISTED,
    ),
    "readers have their turn, a free lock": Case({TURN: ("1", 1_000)}, [(WAITS, None)], WRITTEN),
    **{
        f"a claim ends when a writer comes in: {claimant}": Case(
            {CLAIM: (client_of(claimant) + ":1", 2_000), TURN: ("1", 6_000)}, [(WAITS, None)], WRITTEN
        )
        for claimant in (MY_WRITE, rw.YOUR_WRITE)
    },
    "another kind of lock": Case(
        {"orders": ({YOU: 1}, 20_000)}, [(WAITS, Refused(20_000, 0, 1))], {"orders": ({YOU: 1}, 20_000)} | LISTED
    ),
    "release, a level remains": Case(writing(ME, 3, 30_000), [(rw.write_release(1), 0)], writing(ME, 1, 30_000)),
    # 3: somebody has heard of it, here the test.
    "release": Case(writing(ME, 2, 30_000), [(STOP, 3, None)], {}, SAID),
    "release, beside a reader, without a mode": Case(
        {"orders": ({MY_WRITE: 1, YOU: 1}, 30_000), **leases_of({YOU: [20_000]})}, [(STOP, 3, None)], YOUR_READ, SAID
    ),
    **{
        f"release, another owner's: {number}": Case(before, [(STOP, None), (rw.write_release(1), None)])
        for number, before in enumerate(({}, writing(YOU, 2, 20_000), reading({ME: [20_000]})))
    },
    **{
        f"force, {side}: {number}": Case(
            {"orders": ({"mode": side, YOU: 1, **more}, 20_000)},
            [(rw.force("write" if side == "read" else "read"), 0), (rw.force(side), 1, 0)],
            {},
            [f"redisson {message}"],
        )
        for side, message in (("read", 0), ("write", 1))
        for number, more in enumerate(({}, {ME: 1}))
    },
    # Once: the second copy has released nothing.
    **{
        f"let in, the writer goes on reading: {lease}": Case(
            writing(ME, 1, 60_000, {ME: [lease]}), [(LET_ALL_IN, [1, 1, 1])], reading({ME: [lease], **ALL_IN}), SAID
        )
        for lease in (10_000, 50_000)
    },
    "let in, reads have ended": Case(READS_ENDED, [(LET_YOU_IN, [1])], YOUR_READ, SAID),
    "let in, remains of an earlier hold": Case(
        writing(ME, 1, 60_000, {YOU: [50_000, 50_000]}), [(LET_YOU_IN, [1])], reading({YOU: [20_000]}, 50_000), SAID
    ),
    "let in, a copy does not shorten leases": Case(reading({YOU: [50_000]}), [(LET_YOU_IN, [1])]),
    # It may run long after the first one, and the readers count their leases from its sending.
    "let in, a copy extends leases": Case(reading({YOU: [5_000]}), [(LET_YOU_IN, [1])], YOUR_READ),
    "let in, a copy finds some": Case(
        reading({rw.READERS[0]: [10_000], rw.READERS[2]: [30_000]}), [(LET_ALL_IN, [1, 0, 1])]
    ),
    # Nobody gets in by that.
    **{
        f"let in, the lock was lost: {number}": Case(before, [(LET_ALL_IN, 0)])
        for number, before in enumerate(({}, reading({ME: [20_000]}), HELD))
    },
    # Nobody else may write then: the lock is released, as by any writer that reads.
    "hand over, the writer reads": Case(
        writing(ME, 1, 60_000, {ME: [10_000, 20_000]}), [(HAND_OVER, 1, 0)], reading({ME: [10_000, 20_000]}), SAID
    ),
}
CASES = {f"{side}: {name}": case for side, each in (("read", READS), ("write", WRITES)) for name, case in each.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: OfList, case: Case) -> None:
    scripts.check(case)


@pytest.mark.parametrize(("lease", "turn", "least", "most"), [(500, 6_000, 0, 500), (60_000, 1_700, 0, 700)])
def test_a_claimant_asks_again_sooner(scripts: OfList, lease: int, turn: int, least: int, most: int) -> None:
    """When the readers' leases end, and when the claims of all writers end together."""
    scripts.write(reading({YOU: [lease]}) | {TURN: ("1", turn)})
    for writer in (rw.YOUR_WRITE, MY_WRITE, MY_WRITE):
        remaining, *_ = scripts.call(write(writer, 1, 30_000, waits=True)).split()
        assert least < CLAIMED - int(remaining) <= most
        assert scripts.text(CLAIM) == client_of(writer) + ":1"
        left = scripts.left(TURN)
        assert scripts.left(CLAIM) <= left - 999


SHORT = 50


@pytest.mark.parametrize(("passed", "left"), [(SHORT - 1, 1), (SHORT, 1), (SHORT + 1, None)])
@pytest.mark.parametrize("asked", [False, True])
def test_a_readers_lease_is_valid_to_its_very_end(passed: int, left: int | None, asked: bool) -> None:
    """Another reader leaves, or the watchdog asks for a hold with a fixed lease."""
    memory = Memory()
    assert [memory.call(read(*reader)) for reader in (("me:1", 1, SHORT), ("you:1", 1, 30_000))] == [None, None]
    memory.advance_time(passed)
    if asked:
        assert memory.call(renew(("orders", "me:1", 0))) == [int(left is not None)]
    else:
        assert memory.call(read_release("you:1", 0)) == (1 if left is None else 0)
        assert memory.command("PTTL", "orders") == (left or -2)
        assert memory.command("HEXISTS", "orders", "me:1") == (left is not None)


LONG_AGO, LATER = 1, 2**53
"""Times at which a phase began: before everybody came, and after it."""
ENTER = read(ME, 1, 30_000, waits=True)
STOPS_READING, STOPS_WRITING = [(LEAVE, 1, None)], [(STOP, 3, None)]
LEAVES, READER_LEAVES = [(leave("a:1"), 1, 0)], [(rw.leave_reading("a:1:r"), 1, 0)]
YOUR_CLAIM: dict[str, Any] = {CLAIM: (f"{THERE}:1", 2_000)}
COMES_IN, KEPT_OUT = [(ENTER, None)], [(ENTER, Refused(2_000, 0, 1))]
BOTH, I_WAIT = reading({YOU: [20_000], ME: [30_000]}), waiting(f"{HERE}:r")


IN_LISTS = {
    "a reader is refused, and enters its list": Case(
        HELD | waiting("a b:r"), [(ENTER, Refused(20_000, 1, 1))], HELD | waiting(f"a b:r {HERE}:r")
    ),
    "a claim keeps a reader out": Case(YOUR_READ | YOUR_CLAIM, KEPT_OUT, YOUR_READ | YOUR_CLAIM | I_WAIT),
    "a claim, and the writer reads": Case(WRITTEN | YOUR_CLAIM, COMES_IN, READS_TOO | YOUR_CLAIM),
    "reserved for a writer": Case(woken("a"), [(READ, About(RESERVED)), (WRITE, About(RESERVED))]),
    "reserved for a reader": Case(woken("a:r"), [(WRITE, About(RESERVED))]),
    "readers keep no reader out": Case(woken("a:r"), COMES_IN, MINE | woken("a:r", came=1)),
    "a writer ends the phase": Case(waiting(f"{HERE} a:r") | woken(phase=5), [(WRITE, None)], WRITTEN | waiting("a:r")),
    # The other side of its client goes on waiting.
    "the reader of a client whose writer was woken": Case(
        woken(HERE, exclusive=0), COMES_IN, MINE | woken(HERE, exclusive=0, came=1)
    ),
    "a reader that was woken comes before a claim": Case(woken(f"{HERE}:r") | YOUR_CLAIM, COMES_IN, MINE),
    "a reader that was woken comes before a claim, and others read": Case(
        YOUR_READ | woken(f"{HERE}:r") | YOUR_CLAIM, COMES_IN, BOTH | YOUR_CLAIM
    ),
    "a reader of the phase comes before a claim": Case(
        YOUR_READ | YOUR_CLAIM | I_WAIT | woken(phase=LATER), COMES_IN, BOTH | YOUR_CLAIM | woken(phase=LATER)
    ),
    "a reader that came after the phase": Case(YOUR_READ | YOUR_CLAIM | I_WAIT | woken(phase=LONG_AGO), KEPT_OUT),
    "the first reader lets in all others": Case(
        woken(f"{HERE}:r") | waiting("gone a b c:r gone:r d:r"),
        COMES_IN,
        MINE | woken(phase=ANYTHING) | waiting("gone a b c:r d:r"),
        ["c r", "d r", "a look:0"],
    ),
    "once": Case(waiting(f"{HERE}:r a c:r") | woken(phase=5), COMES_IN, MINE | woken(phase=5) | waiting("a c:r")),
    "a reader that has not waited lets nobody in": Case(waiting("a c:r"), COMES_IN, MINE | waiting("a c:r")),
    "the last reader: a reader of the phase": Case(
        MINE | waiting("c:r gone a") | woken(phase=LATER),
        STOPS_READING,
        waiting("gone a") | woken("c:r", phase=LATER),
        ["redisson 0", "c c:1:r", "a look"],
    ),
    "the last reader: the phase is over": Case(
        MINE | waiting("c:r a") | woken(phase=LONG_AGO),
        STOPS_READING,
        waiting("c:r") | woken("a", phase=LONG_AGO),
        ["redisson 0", "a a:1", "c look:r"],
    ),
    "the last reader: writers that are gone": Case(
        MINE | waiting("gone c:r"), STOPS_READING, woken("c:r"), ["redisson 0", "c c:1:r"]
    ),
    "not the last reader": Case(
        reading({ME: [30_000], YOU: [60_000]}) | waiting("a"),
        [(LEAVE, 0, None)],
        reading({YOU: [60_000]}) | waiting("a"),
    ),
    "a writer: readers": Case(
        WRITTEN | waiting("a c:r d:r"), STOPS_WRITING, waiting("a d:r") | woken("c:r"), [*SAID, "c c:1:r", "d look:r"]
    ),
    "a writer: no readers": Case(WRITTEN | waiting("a"), STOPS_WRITING, woken("a"), [*SAID, "a a:1"]),
    "a writer that goes on reading: readers": Case(
        READS_TOO | waiting("a c:r"), STOPS_WRITING, MINE | waiting("a") | woken("c:r"), [*SAID, "c c:1:r", "a look"]
    ),
    "a writer that goes on reading: a writer may claim": Case(
        READS_TOO | waiting("gone a"), [(rw.hand_over(30_000), 1, 0)], MINE | waiting("gone a"), [*SAID, "a look:0"]
    ),
    "in the background, its client hears of it": Case(
        {}, [(rw.write_release(0, late=True), None)], {}, [f"{HERE} 0"] * 2
    ),
    "handed on, the client leaves the list": Case(
        writing(ME, 1, 60_000) | waiting(f"a {HERE}"),
        [(rw.hand_over(30_000, f"{HERE}:1"), [0])],
        writing(YOU, 1, 30_000) | waiting("a"),
    ),
    "let in, the client leaves the list": Case(
        writing(ME, 1, 60_000) | waiting(f"{THERE}:r c:r"),
        [(rw.let_in({YOU: 20_000}, f"{THERE}:1:r"), [1])],
        YOUR_READ | woken("c:r"),
        [*SAID, f"{THERE} r", "c c:1:r"],
    ),
    "leave, others wait behind it": Case(HELD | waiting("a b"), LEAVES, HELD | waiting("b")),
    "leave, the second of them listens to Redisson": Case(
        HELD | waiting("a b d"), [(leave("b:1"), 1, 0)], HELD | waiting("a d"), ["d look:0"]
    ),
    "leave, it was woken": Case(woken("a") | waiting("b"), LEAVES, woken("b"), ["b b:1"]),
    "leave, it was woken, and readers wait": Case(woken("a") | waiting("c:r"), LEAVES, woken("c:r"), ["c c:1:r"]),
    "leave, its claim: readers": Case(
        MINE | {CLAIM: ("a:1", 2_000)} | waiting("a c:r") | woken(phase=5), LEAVES, MINE | woken("c:r"), ["c c:1:r"]
    ),
    **{
        f"leave, another's claim: {who}": Case(MINE | claim | waiting("a b"), LEAVES, MINE | claim | waiting("b"))
        for who, claim in {"": YOUR_CLAIM, "of its client": {CLAIM: ("a:2", 2_000)}}.items()
    },
    "leave, it was woken, and a reader came before it: the next writer": Case(
        MINE | woken("a") | waiting("b gone:r c:r"), LEAVES, MINE | waiting("b gone:r c:r"), ["b b:1", "c look:r"]
    ),
    "a reader leaves, it was woken, and others read: the next reader": Case(
        MINE | woken("a:r") | waiting("b c:r"), READER_LEAVES, MINE | woken("c:r") | waiting("b"), ["c c:1:r", "b look"]
    ),
    "a reader leaves, it was woken, and the lock is free": Case(
        woken("a:r") | waiting("b c:r"),
        READER_LEAVES,
        woken("c:r") | waiting("b"),
        # The second copy repeats the last one.
        ["c c:1:r", "b look", "b look"],
    ),
}


@pytest.mark.parametrize("in_lists", IN_LISTS.values(), ids=IN_LISTS)
def test_the_lists(scripts: OfList, in_lists: Case) -> None:
    """All clients of the cases listen, but for `gone`."""
    scripts.hear_only("a", "b", "c", "d", HERE, THERE, channel=rw.CHANNEL)
    scripts.check(in_lists)
