"""The scripts of a read-write lock: every branch of both sides, sent twice, and as Redisson reads it."""

from typing import Any

import pytest
from redis.exceptions import ResponseError

from pyredisson.logic.locks.read_write_lock import CLAIMED

from .locks import HERE, THERE, client_of, waiting
from .read_write import (
    CLAIM,
    MY_WRITE,
    READERS,
    TURN,
    YOUR_WRITE,
    force,
    hand_over,
    lease_key,
    leases_of,
    let_in,
    read,
    read_release,
    reading,
    renew,
    write,
    write_release,
    writing,
)
from .scripted import ME, YOU, About, Call, Case, Refused, Scripted

IS_LOCKED = Call("read_locked", ["orders"], [])
CLAIM_OF_YOURS = {CLAIM: (YOUR_WRITE, 2_000)}

READ, LEAVE = read(ME, 1, 30_000), read_release(ME, 0)
RENEW, ONLY_KEEP = renew(("orders", ME, 30_000)), renew(("orders", ME, 0))
MINE, YOURS = reading({ME: [30_000]}), reading({YOU: [30_000]})

ACQUIRE = {
    **{
        f"another level of a lost hold: {number}": Case(before, [(read(ME, 2, 30_000), -2)])
        for number, before in enumerate(({}, YOURS, writing(YOU, 1, 30_000)))
    },
    "another owner writes, endless": Case(writing(YOU, 1, None), [(READ, -1)]),
    # Claims last for two seconds. Somebody else has written this one.
    **{
        f"claimed for too long: {lasts}": Case(
            YOURS | {CLAIM: (YOUR_WRITE, lasts)}, [(READ, About(2_000))], YOURS | CLAIM_OF_YOURS
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
    "a lease key without its lock": Case(
        leases_of({ME: [60_000]}), [(read(ME, 1, 10_000), None)], reading({ME: [10_000]})
    ),
}
RELEASE = {
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
            ["0"],
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
}
OTHERS = {
    # A dead reader must not be kept alive by others, and a neighbour of another type doesn't end the batch.
    "renew, ours and others": Case(
        reading({ME: [10_000, 10_000], YOU: [10_000]}, lock="a")
        | reading({YOU: [10_000]}, lock="b")
        | reading({ME: [10_000]}, lock="e")
        | {"d": "text"},
        [(renew(*((lock, ME, 30_000) for lock in "abcde")), [1, 0, 0, 0, 1])],
        reading({ME: [30_000, 30_000], YOU: [10_000]}, lock="a")
        | reading({YOU: [10_000]}, lock="b")
        | reading({ME: [30_000]}, lock="e")
        | {"d": "text"},
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
        {"orders": ({"mode": "read", ME: 2}, 10_000), lease_key(ME, 2): "1"},
        [(RENEW, [1])],
        reading({ME: [30_000, 30_000]}),
    ),
    "locked, read": Case(MINE, [(IS_LOCKED, 1)]),
    "locked, written": Case(writing(ME, 2, 30_000), [(IS_LOCKED, 0)]),
    "locked, written and read": Case(writing(ME, 2, 30_000, {ME: [30_000]}), [(IS_LOCKED, 1)]),
}
READS = ACQUIRE | RELEASE | OTHERS


@pytest.mark.parametrize("levels", ["1000000000", "9" * 400, "0", "-3", "1.5", "text", "nan", "inf", ""])
def test_damaged_levels(scripts: Scripted, levels: str) -> None:
    """Somebody else has written a reader's number of levels. The reader has a lease, so it keeps the lock."""

    def damaged(lasts: int, mode: str = "read", more: Any = None) -> dict[str, Any]:
        return {"orders": ({"mode": mode, YOU: levels, **(more or {})}, lasts), **leases_of({YOU: [5_000, 20_000]})}

    def check(case: Case) -> None:
        scripts.redis.flushall()
        scripts.check(case)

    # Another reader leaves, and a writer that reads.
    beside = damaged(60_000, more={ME: 1}) | leases_of({ME: [60_000]})
    check(Case(beside, [(read_release(ME, 0), 0, None)], damaged(20_000)))
    check(Case(damaged(60_000, "write", {MY_WRITE: 1}), [(write_release(0), 3, None)], damaged(20_000), ["1"]))
    renewed = {"orders": ({"mode": "read", YOU: levels}, 30_000), **leases_of({YOU: [30_000, 30_000]})}
    check(Case(damaged(20_000), [(renew(("orders", YOU, 30_000)), [1]), (renew(("orders", YOU, 0)), [1])], renewed))
    # The longest lease of the levels is valid for the one that remains.
    check(Case(damaged(20_000), [(read_release(YOU, 1), 0)], reading({YOU: [20_000]})))
    check(Case(damaged(20_000), [(read_release(YOU, 0), 1, None)], {}, ["0"]))
    scripts.redis.flushall()
    scripts.write(damaged(20_000))
    assert scripts.call(read(YOU, 3, 30_000)) is None
    assert scripts.redis.hget("orders", YOU) == b"3"
    assert all(scripts.redis.exists(lease_key(YOU, level)) for level in (1, 2, 3))


def calls(scripts: Scripted, *names: str) -> int:
    stats = scripts.redis.info("commandstats")
    return sum(entry["calls"] for name, entry in stats.items() if not names or name in names)


def test_many_readers_with_damaged_levels(scripts: Scripted) -> None:
    """Not all leases are looked at, so the lock lasts as long as it does."""
    scripts.write(reading({ME: [30_000]}))
    scripts.redis.hset("orders", mapping={f"{YOU}{number}": "text" for number in range(100)})
    scripts.redis.config_resetstat()
    assert scripts.call(read_release(ME, 0)) == 0
    assert calls(scripts) < 12_000
    assert scripts.left() == About(30_000)


def test_more_levels_than_scripts_look_at(scripts: Scripted) -> None:
    scripts.write(reading({ME: [30_000]}))
    with pytest.raises(ResponseError, match="at most 1000 levels"):
        scripts.call(read(ME, 1_001, 30_000))
    assert scripts.call(read(ME, 1_000, 30_000)) is None


def test_many_readers_with_equal_leases(scripts: Scripted) -> None:
    """Not all leases are read: that would be work for n * n readers when n of them release the lock."""
    readers = [f"{YOU}{number}" for number in range(50)]
    scripts.write(reading({reader: [30_000] for reader in readers}))
    ends = scripts.redis.pexpiretime("orders") if scripts.with_shebang else None
    scripts.redis.config_resetstat()
    for reader in readers[1:]:
        assert scripts.call(read_release(reader, 0)) == 0
    assert calls(scripts, "cmdstat_pttl") < 500
    assert scripts.left() >= scripts.left(lease_key(readers[0], 1)) > 25_000
    if ends is not None:
        assert scripts.redis.pexpiretime("orders") <= ends
    assert scripts.call(read_release(readers[0], 0)) == 1
    assert scripts.redis.keys() == []
    assert scripts.published() == ["0"]


ALL = dict(zip(READERS, (10_000, 20_000, 30_000), strict=True))
ALL_IN = {reader: [lease] for reader, lease in ALL.items()}
WAITS = write(MY_WRITE, 1, 30_000, waits=True)
LISTED = waiting(HERE)
MY_CLAIM = {CLAIM: (HERE, 2_000), TURN: ("1", 6_000)}

LET_ALL_IN, LET_YOU_IN = let_in(ALL), let_in({YOU: 20_000})
STOP, HAND_OVER = write_release(0), hand_over(30_000)
YOUR_READ = reading({YOU: [20_000]})
READS_ENDED = {"orders": ({"mode": "write", MY_WRITE: 1, ME: 1}, 60_000)}
"""The writer reads, too, but the leases of that have ended."""

WRITE = {
    "a free lock": Case({}, [(write(MY_WRITE, 1, 30_000), None)], writing(ME, 1, 30_000)),
    **{
        f"another level: {lease}": Case(
            writing(ME, 1, 30_000), [(write(MY_WRITE, 2, lease), None)], writing(ME, 2, max(lease, 30_000))
        )
        for lease in (10_000, 40_000)
    },
    "another level of a lost hold": Case({}, [(write(MY_WRITE, 2, 30_000), -2)]),
    **{
        f"somebody reads: {reader}": Case(reading({reader: [20_000]}), [(write(MY_WRITE, 1, 30_000), About(20_000))])
        for reader in (ME, YOU)
    },
    "who waits for readers claims": Case(
        YOUR_READ, [(WAITS, Refused(CLAIMED - 1_000, 0, 1))], YOUR_READ | MY_CLAIM | LISTED
    ),
    "a claim is renewed, and taken over": Case(
        {"orders": {"mode": "read", YOU: 1}, CLAIM: (THERE, 1_000), TURN: ("1", 6_000)},
        [(WAITS, Refused(CLAIMED - 1_000, 0, 1))],
        {"orders": {"mode": "read", YOU: 1}} | MY_CLAIM | LISTED,
    ),
    "readers have their turn": Case(
        reading({YOU: [60_000]}) | {TURN: ("1", 1_000)},
        [(WAITS, Refused(1_000, 0, 1))],
        reading({YOU: [60_000]}) | {TURN: ("1", 1_000)} | LISTED,
    ),
    "readers have their turn, a free lock": Case({TURN: ("1", 1_000)}, [(WAITS, None)], writing(ME, 1, 30_000)),
    **{
        f"a claim ends when a writer comes in: {claimant}": Case(
            {CLAIM: (client_of(claimant), 2_000), TURN: ("1", 6_000)}, [(WAITS, None)], writing(ME, 1, 30_000)
        )
        for claimant in (MY_WRITE, YOUR_WRITE)
    },
    "another kind of lock": Case(
        {"orders": ({YOU: 1}, 20_000)}, [(WAITS, Refused(20_000, 0, 1))], {"orders": ({YOU: 1}, 20_000)} | LISTED
    ),
}
STOPPED = {
    # 3: somebody has heard of it, here the test.
    "release": Case(writing(ME, 2, 30_000), [(STOP, 3, None)], {}, ["1"]),
    **{
        f"release, another owner's: {number}": Case(before, [(STOP, None), (write_release(1), None)])
        for number, before in enumerate(({}, writing(YOU, 2, 20_000), reading({ME: [20_000]})))
    },
    **{
        f"force, {side}: {number}": Case(
            {"orders": ({"mode": side, YOU: 1, **more}, 20_000)},
            [(force("write" if side == "read" else "read"), 0), (force(side), 1, 0)],
            {},
            [message],
        )
        for side, message in (("read", "0"), ("write", "1"))
        for number, more in enumerate(({}, {ME: 1}))
    },
}
# Once: the second copy has released nothing.
LET_IN = {
    **{
        f"let in, the writer goes on reading: {lease}": Case(
            writing(ME, 1, 60_000, {ME: [lease]}), [(LET_ALL_IN, [1, 1, 1])], reading({ME: [lease], **ALL_IN}), ["1"]
        )
        for lease in (10_000, 50_000)
    },
    "let in, reads have ended": Case(READS_ENDED, [(LET_YOU_IN, [1])], YOUR_READ, ["1"]),
    "let in, remains of an earlier hold": Case(
        writing(ME, 1, 60_000, {YOU: [50_000, 50_000]}), [(LET_YOU_IN, [1])], reading({YOU: [20_000]}, 50_000), ["1"]
    ),
    "let in, a copy does not shorten leases": Case(reading({YOU: [50_000]}), [(LET_YOU_IN, [1])]),
    # It may run long after the first one, and the readers count their leases from its sending.
    "let in, a copy extends leases": Case(reading({YOU: [5_000]}), [(LET_YOU_IN, [1])], YOUR_READ),
    "let in, a copy finds some": Case(reading({READERS[0]: [10_000], READERS[2]: [30_000]}), [(LET_ALL_IN, [1, 0, 1])]),
    # Nobody gets in by that.
    **{
        f"let in, the lock was lost: {number}": Case(before, [(LET_ALL_IN, 0)])
        for number, before in enumerate(({}, reading({ME: [20_000]}), writing(YOU, 1, 20_000)))
    },
    # Nobody else may write then: the lock is released, as by any writer that reads.
    "hand over, the writer reads": Case(
        writing(ME, 1, 60_000, {ME: [10_000, 20_000]}), [(HAND_OVER, 1, 0)], reading({ME: [10_000, 20_000]}), ["1"]
    ),
}
WRITES = WRITE | STOPPED | LET_IN
CASES = {
    f"{side}: {name}": case for side, cases in (("read", READS), ("write", WRITES)) for name, case in cases.items()
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


@pytest.mark.parametrize(("lease", "turn", "least", "most"), [(500, 6_000, 0, 500), (60_000, 1_700, 0, 700)])
def test_a_claimant_asks_again_sooner(scripts: Scripted, lease: int, turn: int, least: int, most: int) -> None:
    """When the readers' leases end, and when the claims of all writers end together."""
    scripts.write(reading({YOU: [lease]}) | {TURN: ("1", turn)})
    for writer in (YOUR_WRITE, MY_WRITE, MY_WRITE):
        remaining, *_ = scripts.call(write(writer, 1, 30_000, waits=True)).split()
        assert least < CLAIMED - int(remaining) <= most
        assert scripts.text(CLAIM) == client_of(writer)
        left = scripts.left(TURN)
        assert scripts.left(CLAIM) <= left - 999
