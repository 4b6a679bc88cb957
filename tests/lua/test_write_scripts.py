"""The scripts of the writer's side, and of both sides: every branch, sent twice, and as Redisson reads it."""

from __future__ import annotations

import pytest

from pyredisson.logic.locks.read_write_lock import CLAIMED

from .read_write import (
    CHANNEL,
    CLAIM,
    MY_WRITE,
    READERS,
    TURN,
    YOUR_WRITE,
    force,
    hand_over,
    let_in,
    read_release,
    reading,
    withdraw,
    write,
    write_release,
    writing,
)
from .scripted import ME, YOU, About, Case, Scripted

ALL = dict(zip(READERS, (10_000, 20_000, 30_000), strict=True))
IN = {reader: [lease] for reader, lease in ALL.items()}
WAITS = write(MY_WRITE, 1, 30_000, waits=True)

LET_ALL_IN, LET_YOU_IN = let_in(**ALL), let_in(**{YOU: 20_000})
LEAVE, HAND_OVER = write_release(0), hand_over(30_000)
YOURS = reading({YOU: [20_000]})
READS_ENDED = {"orders": ({"mode": "write", MY_WRITE: 1, ME: 1}, 60_000)}
"""The writer reads, too, but the leases of that have ended."""

ACQUIRE = {
    "a free lock": Case({}, [(write(MY_WRITE, 1, 30_000), None)], writing(ME, 1, 30_000)),
    **{
        f"another level: {lease}": Case(
            writing(ME, 1, 30_000), [(write(MY_WRITE, 2, lease), None)], writing(ME, 2, max(lease, 30_000))
        )
        for lease in (10_000, 40_000)
    },
    "another level of a lost hold": Case({}, [(write(MY_WRITE, 2, 30_000), -2)]),
    # After a writer, readers have their turn: nobody claims.
    **{
        f"somebody writes: {level}, {waits}": Case(
            writing(YOU, 3, 20_000), [(write(MY_WRITE, level, 30_000, waits=waits), About(20_000))]
        )
        for level in (1, 2)
        for waits in (False, True)
    },
    "somebody writes, endless": Case(writing(YOU, 1, None), [(WAITS, -1)]),
    **{
        f"somebody reads: {reader}": Case(reading({reader: [20_000]}), [(write(MY_WRITE, 1, 30_000), About(20_000))])
        for reader in (ME, YOU)
    },
    "who waits for readers claims": Case(
        YOURS, [(WAITS, CLAIMED - 1_000)], YOURS | {CLAIM: (MY_WRITE, 2_000), TURN: ("1", 6_000)}
    ),
    "a claim is renewed, and taken over": Case(
        {"orders": {"mode": "read", YOU: 1}, CLAIM: (YOUR_WRITE, 1_000), TURN: ("1", 6_000)},
        [(WAITS, CLAIMED - 1_000)],
        {"orders": {"mode": "read", YOU: 1}, CLAIM: (MY_WRITE, 2_000), TURN: ("1", 6_000)},
    ),
    "readers have their turn": Case(reading({YOU: [60_000]}) | {TURN: ("1", 1_000)}, [(WAITS, About(1_000))]),
    "readers have their turn, a free lock": Case({TURN: ("1", 1_000)}, [(WAITS, None)], writing(ME, 1, 30_000)),
    **{
        f"a claim ends when a writer comes in: {claimant}": Case(
            {CLAIM: (claimant, 2_000), TURN: ("1", 6_000)}, [(WAITS, None)], writing(ME, 1, 30_000)
        )
        for claimant in (MY_WRITE, YOUR_WRITE)
    },
    "another kind of lock": Case({"orders": ({YOU: 1}, 20_000)}, [(WAITS, About(20_000))]),
    "another kind of lock, endless": Case({"orders": {YOU: 1}}, [(WAITS, -1)]),
}
RELEASE = {
    "release": Case(writing(ME, 2, 30_000), [(LEAVE, 1, None)], {}, ["1"]),
    "release, inner level": Case(writing(ME, 3, 30_000), [(write_release(2), 0)], writing(ME, 2, 30_000)),
    # Waiting readers are notified.
    "release, the writer goes on reading": Case(
        writing(ME, 1, 60_000, {ME: [10_000, 20_000]}), [(LEAVE, 1, None)], reading({ME: [10_000, 20_000]}), ["1"]
    ),
    "release, the writer's reads have ended": Case(READS_ENDED, [(LEAVE, 1, None)], {}, ["1"]),
    **{
        f"release, another owner's: {number}": Case(before, [(LEAVE, None), (write_release(1), None)])
        for number, before in enumerate(({}, writing(YOU, 2, 20_000), reading({ME: [20_000]})))
    },
    # Also if the writer has another name than when it claimed.
    **{
        f"withdraw: {claimant}, {number}": Case(
            before | {CLAIM: (claimant, 2_000)}, [(withdraw(ME), 1, 0)], before, ["1"]
        )
        for claimant in (MY_WRITE, ME + ":3:write")
        for number, before in enumerate(({}, reading({YOU: [30_000]})))
    },
    # The command is sent again until it has run: after an error it would be sent again for minutes.
    "withdraw, another type": Case({"orders": "x", CLAIM: MY_WRITE}, [(withdraw(ME), 1, 0)], {"orders": "x"}, ["1"]),
    "withdraw under a writer": Case(
        writing(YOU, 1, 30_000) | {CLAIM: (MY_WRITE, 2_000)}, [(withdraw(ME), 1, 0)], writing(YOU, 1, 30_000)
    ),
    **{
        f"withdraw another's: {claimant}": Case({CLAIM: (claimant, 2_000)}, [(withdraw(ME), 0)])
        for claimant in (YOUR_WRITE, ME + "0:write")
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
    "force, another kind of lock": Case({"orders": {YOU: 1}}, [(force("read"), 0), (force("write"), 0)]),
}
# Once: the second copy has released nothing.
LET_IN = {
    **{
        f"let in: {levels}, {lease}": Case(writing(ME, levels, lease), [(LET_ALL_IN, [1, 1, 1])], reading(IN), ["1"])
        for levels, lease in ((1, 60_000), (3, 60_000), (1, None))
    },
    **{
        f"let in, the writer goes on reading: {lease}": Case(
            writing(ME, 1, 60_000, {ME: [lease]}), [(LET_ALL_IN, [1, 1, 1])], reading({ME: [lease], **IN}), ["1"]
        )
        for lease in (10_000, 50_000)
    },
    "let in, reads have ended": Case(READS_ENDED, [(LET_YOU_IN, [1])], YOURS, ["1"]),
    "let in, remains of an earlier hold": Case(
        writing(ME, 1, 60_000, {YOU: [50_000, 50_000]}), [(LET_YOU_IN, [1])], reading({YOU: [20_000]}, 50_000), ["1"]
    ),
    "let in, a copy does not shorten leases": Case(reading({YOU: [50_000]}), [(LET_YOU_IN, [1])]),
    # It may run long after the first one, and the readers count their leases from its sending.
    "let in, a copy extends leases": Case(reading({YOU: [5_000]}), [(LET_YOU_IN, [1])], YOURS),
    "let in, a copy keeps another level": Case(reading({YOU: [20_000, 30_000]}), [(LET_YOU_IN, [1])]),
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
    "hand over, its reads have ended": Case(READS_ENDED, [(HAND_OVER, [0])], writing(YOU, 1, 30_000)),
    "hand over, only read": Case(reading({ME: [20_000]}), [(HAND_OVER, 0)]),
}
CASES = ACQUIRE | RELEASE | LET_IN


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


@pytest.mark.parametrize(("lease", "turn", "least", "most"), [(500, 6_000, 0, 500), (60_000, 1_700, 0, 700)])
def test_a_claimant_asks_again_sooner(scripts: Scripted, lease: int, turn: int, least: int, most: int) -> None:
    """When the readers' leases end, and when the claims of all writers end together."""
    scripts.write(reading({YOU: [lease]}) | {TURN: ("1", turn)})
    for writer in (YOUR_WRITE, MY_WRITE, MY_WRITE):
        assert least < CLAIMED - scripts.call(write(writer, 1, 30_000, waits=True)) <= most
        assert scripts.text(CLAIM) == writer
        left = scripts.left(TURN)
        assert scripts.left(CLAIM) <= left - 999


def test_several_clients_hear_of_a_release(scripts: Scripted) -> None:
    with scripts.redis.pubsub() as one, scripts.redis.pubsub() as other:
        for listening in (one, other):
            listening.subscribe(CHANNEL)
            assert listening.get_message(timeout=10)["type"] == "subscribe"
        scripts.write(writing(ME, 1, 30_000))
        assert scripts.call(write_release(0)) == 3


def test_a_hundred_readers_are_let_in(scripts: Scripted) -> None:
    scripts.write(writing(ME, 1, 60_000))
    readers = [f"{YOU}{number}" for number in range(100)]
    assert scripts.call(let_in(**dict.fromkeys(readers, 20_000))) == [1] * 100
    assert [scripts.call(read_release(reader, 0)) for reader in readers] == [0] * 99 + [1]
    assert scripts.redis.keys() == []
