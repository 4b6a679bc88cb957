"""The lists of clients that wait for a read-write lock: phases of readers, the turn of a writer, and claims."""

from typing import Any

import pytest

from .locks import HERE, THERE, OfList, waiting, woken
from .read_write import (
    CHANNEL,
    CLAIM,
    hand_over,
    leave,
    leave_reading,
    let_in,
    read,
    read_release,
    reading,
    write,
    write_release,
    writing,
)
from .scripted import ANYTHING, ME, RESERVED, YOU, About, Case, Refused

SCRIPTS = OfList
LONG_AGO, LATER = 1, 2**53
"""Times at which a phase began: before everybody came, and after it."""
READ, WRITE = read(ME, 1, 30_000, waits=True), write(f"{ME}:write", 1, 30_000, waits=True)
READ_AT_ONCE, WRITE_AT_ONCE = read(ME, 1, 30_000), write(f"{ME}:write", 1, 30_000)
STOPS_READING, STOPS_WRITING = [(read_release(ME, 0), 1, None)], [(write_release(0), 3, None)]
LEAVES, READER_LEAVES = [(leave("a:1"), 1, 0)], [(leave_reading("a:1:r"), 1, 0)]
MINE, YOURS = reading({ME: [30_000]}), reading({YOU: [20_000]})
HELD, WRITTEN = writing(YOU, 1, 20_000), writing(ME, 1, 30_000)
WRITTEN_AND_READ = writing(ME, 1, 30_000, {ME: [30_000]})
CLAIMED: dict[str, Any] = {CLAIM: (THERE, 2_000)}


ACQUIRE = {
    "a reader is refused, and enters its list": Case(
        HELD | waiting("a b:r"), [(READ, Refused(20_000, 1, 1))], HELD | waiting(f"a b:r {HERE}:r")
    ),
    "a claim keeps a reader out": Case(
        YOURS | CLAIMED, [(READ, Refused(2_000, 0, 1))], YOURS | CLAIMED | waiting(f"{HERE}:r")
    ),
    "a claim, and the writer reads": Case(WRITTEN | CLAIMED, [(READ, None)], WRITTEN_AND_READ | CLAIMED),
    "a lock that is reserved for a writer": Case(
        woken("a"), [(READ_AT_ONCE, About(RESERVED)), (WRITE_AT_ONCE, About(RESERVED))]
    ),
    "a lock that is reserved for a reader": Case(woken("a:r"), [(WRITE_AT_ONCE, About(RESERVED))]),
    "readers keep no reader out": Case(woken("a:r"), [(READ, None)], MINE | woken("a:r", came=1)),
    "a writer that comes in ends the phase": Case(
        waiting(f"{HERE} a:r") | woken(phase=5), [(WRITE_AT_ONCE, None)], WRITTEN | waiting("a:r")
    ),
    # The other side of its client goes on waiting.
    "the reader of a client whose writer was woken": Case(
        woken(HERE, exclusive=0), [(READ, None)], MINE | woken(HERE, exclusive=0, came=1)
    ),
    "a reader that was woken comes before a claim": Case(woken(f"{HERE}:r") | CLAIMED, [(READ, None)], MINE),
    "a reader that was woken comes before a claim, and others read": Case(
        YOURS | woken(f"{HERE}:r") | CLAIMED, [(READ, None)], reading({YOU: [20_000], ME: [30_000]}) | CLAIMED
    ),
    "a reader of the phase comes before a claim": Case(
        YOURS | CLAIMED | waiting(f"{HERE}:r") | woken(phase=LATER),
        [(READ, None)],
        reading({YOU: [20_000], ME: [30_000]}) | CLAIMED | woken(phase=LATER),
    ),
    "a reader that came after the phase does not": Case(
        YOURS | CLAIMED | waiting(f"{HERE}:r") | woken(phase=LONG_AGO), [(READ, Refused(2_000, 0, 1))]
    ),
}
TOLD = {
    "the first reader lets in all others": Case(
        woken(f"{HERE}:r") | waiting("a b c:r gone:r d:r"),
        [(READ, None)],
        MINE | woken(phase=ANYTHING) | waiting("a b c:r d:r"),
        ["c r", "d r", "a look:0"],
    ),
    "once in a phase": Case(
        waiting(f"{HERE}:r a c:r") | woken(phase=5), [(READ, None)], MINE | woken(phase=5) | waiting("a c:r")
    ),
    "a reader that has not waited lets nobody in": Case(waiting("a c:r"), [(READ, None)], MINE | waiting("a c:r")),
    "the last reader: a reader of the phase": Case(
        MINE | waiting("c:r a") | woken(phase=LATER),
        STOPS_READING,
        waiting("a") | woken("c:r", phase=LATER),
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
        [(read_release(ME, 0), 0, None)],
        reading({YOU: [60_000]}) | waiting("a"),
    ),
    "a writer: readers": Case(
        WRITTEN | waiting("a c:r d:r"),
        STOPS_WRITING,
        waiting("a d:r") | woken("c:r"),
        ["redisson 1", "c c:1:r", "d look:r"],
    ),
    "a writer: no readers": Case(WRITTEN | waiting("a"), STOPS_WRITING, woken("a"), ["redisson 1", "a a:1"]),
    "a writer that goes on reading: readers": Case(
        WRITTEN_AND_READ | waiting("a c:r"),
        STOPS_WRITING,
        MINE | waiting("a") | woken("c:r"),
        ["redisson 1", "c c:1:r", "a look"],
    ),
    "a writer that goes on reading: a writer may claim": Case(
        WRITTEN_AND_READ | waiting("a"), [(hand_over(30_000), 1, 0)], MINE | waiting("a"), ["redisson 1", "a look:0"]
    ),
    "in the background, its own client hears of it": Case(
        {}, [(write_release(0, late=True), None)], {}, [f"{HERE} 0"] * 2
    ),
    "handed on, the client leaves the list": Case(
        writing(ME, 1, 60_000) | waiting(f"a {HERE}"),
        [(hand_over(30_000, f"{HERE}:1"), [0])],
        writing(YOU, 1, 30_000) | waiting("a"),
    ),
    "let in, the client leaves the list": Case(
        writing(ME, 1, 60_000) | waiting(f"{THERE}:r c:r"),
        [(let_in({YOU: 20_000}, f"{THERE}:1:r"), [1])],
        YOURS | woken("c:r"),
        ["redisson 1", "c c:1:r"],
    ),
    "leave, others wait behind it": Case(HELD | waiting("a b"), LEAVES, HELD | waiting("b")),
    "leave, the second of them listens to Redisson": Case(
        HELD | waiting("a b d"), [(leave("b:1"), 1, 0)], HELD | waiting("a d"), ["d look:0"]
    ),
    "leave, it was woken": Case(woken("a") | waiting("b"), LEAVES, woken("b"), ["b b:1"]),
    "leave, it was woken, and readers wait": Case(woken("a") | waiting("c:r"), LEAVES, woken("c:r"), ["c c:1:r"]),
    "leave, its claim: readers": Case(
        MINE | {CLAIM: ("a", 2_000)} | waiting("a c:r") | woken(phase=5), LEAVES, MINE | woken("c:r"), ["c c:1:r"]
    ),
    "leave, another's claim": Case(MINE | CLAIMED | waiting("a b"), LEAVES, MINE | CLAIMED | waiting("b")),
    "leave, it was woken, and a reader came before it: the next writer": Case(
        MINE | woken("a") | waiting("b c:r"), LEAVES, MINE | waiting("b c:r"), ["b b:1", "c look:r"]
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
CASES = ACQUIRE | TOLD


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: OfList, case: Case) -> None:
    """All clients of the cases listen, but for `gone`."""
    scripts.hear_only("a", "b", "c", "d", HERE, THERE, channel=CHANNEL)
    scripts.check(case)
